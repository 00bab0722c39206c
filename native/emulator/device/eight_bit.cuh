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
inline void e4m3_pairs(uint32_t bytes, uint32_t* low, uint32_t* high) {
  float v[4];
  for (int i = 0; i < 4; ++i) v[i] = e4m3_to_float(bytes >> 8 * i & 0xffu);
  *low = half_pair(v[0], v[1]);
  *high = half_pair(v[2], v[3]);
}
template <uint32_t kSelect>
uint32_t shifted_halves(uint32_t bytes) {
  static_assert((kSelect & 0xf0f0u) == 0x4040u, "upper bytes of float16");
  const auto number = [&](uint32_t which) {
    return static_cast<float>(bytes >> 8 * which & 0xffu) - 128.0f;
  };
  return half_pair(number(kSelect & 3u), number(kSelect >> 8 & 3u));
}
template <EightBit kType>
uint32_t nearest_codes(const float (&v)[4]) {
  uint32_t codes = 0;
  for (int i = 0; i < 4; ++i) codes |= eight_bit_code<kType, false>(v[i], 0.0f) << 8 * i;
  return codes;
}

}  // namespace gnnsparse::cuda
