// Huge pages for large results. A fresh array of tens of megabytes comes from the system page by
// page: at 4 KiB a page that took as long as the product that fills it (notes/log.md).
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace gnnsparse::cpu {

// Asks for huge pages where `bytes` bytes at `data` span several of them. Memory that is there
// already stays as it is; a system without huge pages ignores the advice.
inline void advise_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  constexpr int64_t kWorthIt = int64_t{8} << 20;
  if (bytes < kWorthIt) return;
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data;
  (void)bytes;
#endif
}

}  // namespace gnnsparse::cpu
