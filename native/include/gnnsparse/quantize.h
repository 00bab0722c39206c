// Numbers of 8 bits, and how float32 numbers become such. The CPU and the GPU share these
// functions, so that both store the same bytes.
//
// Feature f of X is stored as x[j, f] = scale[f] * number, where the largest |x[., f]| becomes the
// largest number. Every product below that is added to something is by a power of two, and thus
// exact: a compiler that contracts the two to an fma changes nothing.
#pragma once

#include <cmath>
#include <cstdint>

#include "gnnsparse/philox.h"
#include "gnnsparse/rounding.h"
#include "gnnsparse/types.h"

namespace gnnsparse {

// int8: integers of -127 to 127. e4m3: the 8-bit floating-point numbers of 4 exponent and 3
// mantissa bits, without infinities, up to 448.
enum class EightBit : int { kInt8 = 0, kE4m3 = 1 };

// What four bytes of int8 are changed by where 128 is added to each: float16 is made of such ones
// with an operation less.
constexpr uint32_t kShiftedInt8 = 0x80808080u;

// Rows of 8-bit numbers are padded with zeros to whole vectors.
constexpr int kEightBitPadding = 16;

// Static for the reason given in rounding.h.

static GNNSPARSE_HD constexpr float largest_number(EightBit type) {
  return type == EightBit::kInt8 ? 127.0f : 448.0f;
}

// Features whose largest magnitude is below this are stored with steps of it, so that neither the
// scale nor its inverse leaves the range of float32.
constexpr float kLeastPeak = 0x1p-100f;

// What a feature is multiplied with before it is rounded, and afterwards. `peak` has the bits of
// the largest magnitude, which compare as the magnitudes do, with NaN above infinity. A feature
// with a number that is not finite gets the scale NaN: its results are NaN, whatever its bytes are.
struct FeatureScale {
  float inverse;
  float scale;
};
static GNNSPARSE_HD inline FeatureScale feature_scale(uint32_t peak, EightBit type) {
  if (peak >= 0x7f800000u) return {0.0f, bits_float(0x7fc00000u)};
  const float found = bits_float(peak);
  const float used = found > kLeastPeak ? found : kLeastPeak;
  return {largest_number(type) / used, used / largest_number(type)};
}

// The byte of a number v with |v| up to a rounding above the largest one, which it becomes. Rounded
// to nearest, ties to even; `stochastic`: up with the probability of the rest, where `uniform` is
// in [0, 1).
template <EightBit kType, bool kStochastic>
static GNNSPARSE_HD inline uint32_t eight_bit_code(float v, float uniform) {
  constexpr bool kFloat = kType == EightBit::kE4m3;
  constexpr uint32_t kLeastExponent = 121;  // of e4m3 in float32: 2^-6, below which steps are equal
  const uint32_t bits = float_bits(v);
  const uint32_t exponent = (bits >> 23) & 0xffu;
  const uint32_t limited = exponent > kLeastExponent ? exponent : kLeastExponent;
  // Steps of e4m3 are an eighth of the power of two below; those of int8 are 1, and 130 - 3 is 2^0.
  const uint32_t at = kFloat ? limited : 130u;
  const float steps = bits_float(bits & 0x7fffffffu) * bits_float((257u - at) << 23);
  const float shift = 8388608.0f;  // 2^23: the sum has no bits below 1
  const float whole = kStochastic ? floorf(steps + uniform) : (steps + shift) - shift;
  const float most = kFloat ? 16.0f : 127.0f;
  const auto count = static_cast<int32_t>(whole < most ? whole : most);  // NaN becomes `most`
  const auto code = static_cast<int32_t>(kFloat ? (at - kLeastExponent) * 8 : 0) + count;
  const int32_t top = kFloat ? 0x7e : 127;
  const int32_t magnitude = code < top ? code : top;
  const bool negative = (bits >> 31) != 0;
  if (kFloat) return static_cast<uint32_t>(magnitude) | (negative ? 0x80u : 0u);
  return static_cast<uint32_t>(negative ? -magnitude : magnitude) & 0xffu;
}

// Numbers in [0, 1) for the elements of X: 24 bits of Philox, whose counter is the element. Four
// features, from a multiple of four on, share their words.
static GNNSPARSE_HD inline PhiloxWords rounding_words(PhiloxKey key, int64_t row, int64_t feature) {
  return philox4x32({{static_cast<uint32_t>(row), static_cast<uint32_t>(feature >> 2), 0x51u, 0}},
                    key);
}
static GNNSPARSE_HD inline float rounding_uniform(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}
static GNNSPARSE_HD inline float rounding_uniform(PhiloxKey key, int64_t row, int64_t feature) {
  return rounding_uniform(rounding_words(key, row, feature).word[feature & 3]);
}

// The value of a byte of e4m3. Its NaN (0x7f and 0xff) is never stored.
static GNNSPARSE_HD inline float e4m3_to_float(uint32_t byte) {
  const uint32_t magnitude = (byte & 0x7fu) << 20;
  // Below 2^-6 the leading 1 of a float is taken off again.
  const bool small = magnitude < (1u << 23);
  const float value = bits_float(magnitude + (small ? 121u << 23 : 120u << 23));
  return bits_float(float_bits(small ? value - 0x1p-6f : value) | (byte & 0x80u) << 24);
}

}  // namespace gnnsparse
