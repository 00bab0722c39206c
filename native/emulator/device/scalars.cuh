// In place of cuda/device/scalars.cuh.
#pragma once

#include "cuda_language.h"
#include "gnnsparse/rounding.h"

namespace gnnsparse::cuda {

inline float half_bits_to_float(uint32_t bits) {
  return half_to_float(static_cast<uint16_t>(bits));
}
inline uint32_t float16_pair(float low, float high) {
  return float_to_half(low) | static_cast<uint32_t>(float_to_half(high)) << 16;
}
inline uint32_t bfloat16_pair(float low, float high) {
  return float_to_bf16(low) | static_cast<uint32_t>(float_to_bf16(high)) << 16;
}
inline float max_or_nan(float a, float b) { return a > b || a != a ? a : b; }
inline float min_or_nan(float a, float b) { return a < b || a != a ? a : b; }
inline char* launched_shared() { return emulator::Block::current().dynamic_shared(); }

}  // namespace gnnsparse::cuda
