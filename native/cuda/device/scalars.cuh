// Conversions of 16-bit types without CUDA's headers, which NVRTC does not bring.
#pragma once

#include <cstdint>

namespace gnnsparse::cuda {

__device__ __forceinline__ float half_bits_to_float(uint32_t bits) {
  float value;
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(value) : "r"(bits));
  return value;
}
// Two numbers, rounded to nearest.
__device__ __forceinline__ uint32_t float16_pair(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ uint32_t bfloat16_pair(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

// NaN if one is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
__device__ __forceinline__ float min_or_nan(float a, float b) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}

__device__ __forceinline__ char* launched_shared() {
  extern __shared__ __align__(1024) char launched_memory[];
  return launched_memory;
}

}  // namespace gnnsparse::cuda
