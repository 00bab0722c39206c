// Functions of vectors of floats, within a few units in the last place for every argument, NaN and
// infinities among them. Where nothing else is said, a polynomial is a Taylor series. Include it
// as simd.h.
#pragma once

#include <cmath>
#include <limits>

#include "simd.h"

namespace gnnsparse::cpu::GNNSPARSE_ISA {

inline Vec absolute(Vec x) { return (Vec)((IntVec)x & 0x7fffffff); }
inline Vec with_sign(Vec size, Vec sign) {
  return (Vec)((IntVec)size | ((IntVec)sign & static_cast<int32_t>(0x80000000u)));
}
inline Vec is_true(IntVec mask) { return (Vec)(mask & (IntVec)broadcast(1.0f)); }

inline Vec square_root(Vec x) {
#if defined(__AVX512F__)
  return (Vec)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
  return (Vec)_mm256_sqrt_ps((__m256)x);
#else
  for (int i = 0; i < kWidth; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

// The larger one; NaN if one is NaN.
inline Vec larger(Vec a, Vec b) {
  const Vec most = a > b ? a : b;
  return a != a ? a : most;
}
inline Vec smaller(Vec a, Vec b) {
  const Vec least = a < b ? a : b;
  return a != a ? a : least;
}

// e^x - 1 = 2^n (e^r - 1) + (2^n - 1), r as in exp_parts; twice the half of it, as 2^128 is no
// float.
inline Vec exp_minus_one(Vec x) {
  Vec limited = x > 89.0f ? broadcast(89.0f) : x;
  limited = limited < -20.0f ? broadcast(-20.0f) : limited;
  const Vec n_shifted = limited * 1.44269504f + 12582912.0f;
  const Vec n = n_shifted - 12582912.0f;
  const Vec r = (limited - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = broadcast(1.0f / 40320);
  p = p * r + 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  const Vec q = r + r * r * p;
  const Vec half = (Vec)(((IntVec)n_shifted - 0x4b400000 + 126) << 23);
  const Vec result = 2.0f * (half * q + (half - 0.5f));
  return n == 0.0f ? q : result;
}

// ln(2^k (1 + f)) with f in [sqrt(1/2) - 1, sqrt(2) - 1]: of s = f / (2 + f) the series of
// 2 artanh(s), subtracted from f so that its rounding errors are small against f (as in fdlibm).
inline Vec logarithm(Vec x) {
  const IntVec is_small = x < std::numeric_limits<float>::min();
  const Vec scaled = is_small ? x * 33554432.0f : x;  // 2^25: no denormal
  const IntVec bits = (IntVec)scaled - 0x3f3504f3;    // sqrt(1/2)
  const IntVec k = bits >> 23;
  const Vec f = (Vec)((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
  // Of small integers: 1.5 * 2^23 + k, as bits, less 1.5 * 2^23.
  const Vec exponent =
      ((Vec)(k + 0x4b400000) - 12582912.0f) - (is_small ? broadcast(25.0f) : Vec{});
  const Vec s = f / (f + 2.0f);
  const Vec z = s * s;
  Vec series = broadcast(2.0f / 9);
  series = series * z + 2.0f / 7;
  series = series * z + 2.0f / 5;
  series = series * z + 2.0f / 3;
  series = series * z;
  const Vec half = 0.5f * f * f;
  Vec y = f - (half - (s * (half + series) + exponent * -2.12194440e-4f));
  y += exponent * 0.693359375f;
  const Vec infinite = broadcast(std::numeric_limits<float>::infinity());
  y = x == infinite ? infinite : y;
  y = x == 0.0f ? -infinite : y;
  return x >= 0.0f ? y : broadcast(std::numeric_limits<float>::quiet_NaN());
}

// ln(1 + x): 1 + x is rounded to u, and ln(u) / (u - 1) hardly depends on u (W. Kahan).
inline Vec logarithm_of_more(Vec x) {
  const Vec u = x + 1.0f;
  const Vec d = u - 1.0f;
  const Vec y = logarithm(u) * (x / d);
  const Vec result = d == 0.0f ? x : y;
  return u == std::numeric_limits<float>::infinity() ? u : result;
}

inline Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp_any(-x)); }

inline Vec hyperbolic_tangent(Vec x) {
  const Vec size = absolute(x);
  const Vec t = exp_minus_one(2.0f * (size > 10.0f ? broadcast(10.0f) : size));
  return with_sign(t / (t + 2.0f), x);
}

inline Vec softplus(Vec x) {
  return (x > 0.0f ? x : Vec{}) + logarithm_of_more(exp_nonpositive(-absolute(x)));
}

// Up to 1 x times a polynomial of x^2, above 1 - e^(q - x^2); both polynomials were fitted at
// Chebyshev's nodes to 1.2e-9 and 1.6e-8.
inline Vec error_function(Vec x) {
  const Vec size = absolute(x);
  const Vec z = x * x;
  Vec p = broadcast(7.88249745e-05f);
  p = p * z - 0.000801885501f;
  p = p * z + 0.00518931216f;
  p = p * z - 0.0268543288f;
  p = p * z + 0.112835974f;
  p = p * z - 0.37612626f;
  // 2 / sqrt(pi) in two parts.
  const Vec near = x + x * (p * z + 0.128379167f);
  const Vec a = size > 4.0f ? broadcast(4.0f) : size;
  Vec q = broadcast(1.59325475e-06f);
  q = q * a - 4.51881242e-05f;
  q = q * a + 0.000589451578f;
  q = q * a - 0.00472502736f;
  q = q * a + 0.0263225101f;
  q = q * a - 0.109905556f;
  q = q * a + 0.367987186f;
  q = q * a - 1.13012314f;
  q = q * a + 0.000292622979f;
  const Vec far = 1.0f - exp_nonpositive(q - a * a);
  return with_sign(size > 1.0f ? far : absolute(near), x);
}

// sin(x) for odd = 0, cos(x) for odd = 1: x is r + j pi/2 with |r| <= pi/4, and the products with j
// of pi/2's parts of few bits are exact (W. Cody, W. Waite); j has up to 13 bits.
template <int kOdd>
inline Vec wave(Vec x) {
  constexpr float kFar = 8192.0f;
  const Vec shifted = x * 0.636619772f + 12582912.0f;
  const Vec j = shifted - 12582912.0f;
  const Vec r = ((x - j * 1.5703125f) - j * 4.837512969970703125e-4f) - j * 7.54978995489188216e-8f;
  const Vec z = r * r;
  Vec s = broadcast(1.0f / 362880);
  s = s * z - 1.0f / 5040;
  s = s * z + 1.0f / 120;
  s = s * z - 1.0f / 6;
  const Vec sine = r + r * z * s;
  Vec c = broadcast(-1.0f / 3628800);
  c = c * z + 1.0f / 40320;
  c = c * z - 1.0f / 720;
  c = c * z + 1.0f / 24;
  const Vec cosine = 1.0f - (0.5f * z - z * z * c);
  const IntVec quarter = (IntVec)shifted + kOdd;  // its lowest bits are those of j
  const Vec size = (quarter & 1) != 0 ? cosine : sine;
  Vec y = (Vec)((IntVec)size ^ ((quarter & 2) << 30));
  for (int i = 0; i < kWidth; ++i) {
    if (std::fabs(x[i]) > kFar) {
      const double exact = x[i];
      y[i] = static_cast<float>(kOdd != 0 ? std::cos(exact) : std::sin(exact));
    }
  }
  return y;
}

}  // namespace gnnsparse::cpu::GNNSPARSE_ISA
