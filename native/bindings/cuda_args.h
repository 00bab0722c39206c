// Checks of what only CUDA kernels are given.
#pragma once

#include "checks.h"
#include "gnnsparse/cuda_api.h"

namespace gnnsparse::bindings {

inline cuda::Stream stream_of(Address stream) { return reinterpret_cast<cuda::Stream>(stream); }

inline void require_aligned(Address address, const char* name) {
  if (address % 16 != 0) reject(name, "must be aligned to 16 bytes");
}

}  // namespace gnnsparse::bindings
