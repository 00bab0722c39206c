// What differs between NVIDIA GPUs by compute capability (CUDA programming guide, technical
// specifications; PTX ISA, target notes). A GPU that is not known counts as the newest one below
// it. Kernels take these facts from kArchitecture, host code from architecture_of.
#pragma once

namespace gnnsparse {

struct Architecture {
  int resident_blocks;              // blocks resident on a multiprocessor, at most
  int block_shared_bytes;           // shared memory that one block may have
  bool async_copies = false;        // cp.async
  bool ampere_mma = false;          // m16n8k16 of fp16 and bf16, m16n8k8 of tf32
  bool tf32_conversion = false;     // cvt.rna.tf32: ties away from zero
  bool tf32_nearest_even = false;   // cvt.rn.tf32: ties to even
  bool early_launch = false;        // a kernel may start before the one in front of it has ended
  bool fp8_conversion = false;      // cvt of e4m3 to float16
  bool warpgroup_products = false;  // wgmma, in code of sm_90a
};

// `capability` as __CUDA_ARCH__ has it: 100 major + 10 minor.
constexpr Architecture architecture_of(int capability) {
  if (capability < 800) return {16, 64 << 10};  // Turing
  const bool consumer = capability == 860 || capability == 890 || capability >= 1200;
  Architecture found = {32, 163 << 10, true, true, true};
  if (capability >= 900) {
    found.block_shared_bytes = 227 << 10;
    found.tf32_nearest_even = true;
    found.early_launch = true;
  }
  found.fp8_conversion = capability >= 890;
  found.warpgroup_products = capability == 900;
  if (consumer) found.block_shared_bytes = 99 << 10;
  if (capability == 860 || capability == 870) found.resident_blocks = 16;
  if (capability == 890 || capability >= 1200) found.resident_blocks = 24;
  return found;
}

// Shared memory that a block may have on every GPU that copies asynchronously.
inline constexpr int kCopyingSharedBytes = 96 << 10;
constexpr bool all_have_shared_bytes(int bytes) {
  for (const int capability : {800, 860, 870, 890, 900, 1000, 1030, 1100, 1200, 1210}) {
    if (architecture_of(capability).block_shared_bytes < bytes) return false;
  }
  return true;
}
static_assert(all_have_shared_bytes(kCopyingSharedBytes), "some GPU gives a block less");

// The GPU that is compiled for; on the host, where no kernel depends on it, one with everything.
#if defined(__CUDA_ARCH__)
inline constexpr Architecture kArchitecture = architecture_of(__CUDA_ARCH__);
#else
inline constexpr Architecture kArchitecture = architecture_of(900);
#endif

// `wanted`, or as many blocks as a multiprocessor takes: for __launch_bounds__.
constexpr int resident_blocks(int wanted) {
  return wanted < kArchitecture.resident_blocks ? wanted : kArchitecture.resident_blocks;
}

}  // namespace gnnsparse
