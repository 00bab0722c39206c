// Conversions between float32 and the narrower types, bit for bit as the GPU does them.
#pragma once

#include <cstdint>
#include <cstring>

#include "gnnsparse/types.h"

namespace gnnsparse {

// All functions here are static: files compiled for different instruction sets include them, and
// the linker must not let one file use another's copy.
static GNNSPARSE_HD inline uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static GNNSPARSE_HD inline float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// cvt.rn.tf32.f32: 10 explicit mantissa bits, ties to even. NaN and infinity stay.
static GNNSPARSE_HD inline float round_tf32(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) return value;
  return bits_float((bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u);
}

// Round to nearest even.
static GNNSPARSE_HD inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static GNNSPARSE_HD inline float bf16_to_float(uint16_t bits) {
  return bits_float(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest even; beyond 65504 + half a unit the result is infinity.
static GNNSPARSE_HD inline uint16_t float_to_half(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Subnormal half: adding 0.5 leaves the rounded multiple of 2^-24 in the low mantissa bits.
    const uint32_t low = float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u;
    return static_cast<uint16_t>(sign | low);
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

static GNNSPARSE_HD inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // Scaling by 2^112 maps half exponents, subnormals included, onto float exponents.
  const float scaled = bits_float(magnitude << 13) * bits_float(0x77800000u);
  return bits_float(sign | float_bits(scaled));
}

}  // namespace gnnsparse
