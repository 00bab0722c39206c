// Powers of two by the hardware's approximation.
#pragma once

namespace gnnsparse::cuda {

// 2^x; what would be denormal is 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace gnnsparse::cuda
