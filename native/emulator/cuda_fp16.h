// In place of CUDA's header of this name.
#pragma once

#include "gnnsparse/rounding.h"

struct __half {
  uint16_t bits;
};
struct __half2 {
  __half x, y;
};
inline __half __float2half_rn(float value) { return {gnnsparse::float_to_half(value)}; }
inline float __half2float(__half value) { return gnnsparse::half_to_float(value.bits); }
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline float2 __half22float2(__half2 pair) { return {__half2float(pair.x), __half2float(pair.y)}; }
inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
