// In place of cuda/device/eight_bit.cuh.
#pragma once

#include "cuda_language.h"
#include "gnnsparse/quantize.h"

namespace gnnsparse::cuda {

template <uint32_t kSelect>
uint32_t select_bytes(uint32_t low, uint32_t high) {
  const uint64_t both = low | static_cast<uint64_t>(high) << 32;
  uint32_t found = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = kSelect >> 4 * i & 7u;
    found |= static_cast<uint32_t>(both >> 8 * from & 0xffu) << 8 * i;
  }
  return found;
}

inline uint32_t half_pair(float low, float high) {
  return float_to_half(low) | static_cast<uint32_t>(float_to_half(high)) << 16;
}
template <EightBit kType>
void byte_halves(uint32_t bytes, uint32_t& even, uint32_t& odd) {
  float v[4];
  for (int i = 0; i < 4; ++i) {
    const uint32_t byte = bytes >> 8 * i & 0xffu;
    v[i] = kType == EightBit::kInt8 ? static_cast<int8_t>(byte) : e4m3_to_float(byte);
  }
  even = half_pair(v[0], v[2]);
  odd = half_pair(v[1], v[3]);
}
template <EightBit kType>
uint32_t nearest_codes(const float (&v)[4]) {
  uint32_t codes = 0;
  for (int i = 0; i < 4; ++i) codes |= eight_bit_code<kType, false>(v[i], 0.0f) << 8 * i;
  return codes;
}

}  // namespace gnnsparse::cuda
