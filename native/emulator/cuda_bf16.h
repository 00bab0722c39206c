// In place of CUDA's header of this name.
#pragma once

#include "gnnsparse/rounding.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return {gnnsparse::float_to_bf16(value)}; }
inline float __bfloat162float(__nv_bfloat16 value) { return gnnsparse::bf16_to_float(value.bits); }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
