// A vector of floats as wide as the instruction set this file is compiled for, with loads and
// stores from memory of every storage type: one that has to_float and from_float is loaded and
// stored element by element, where the instruction set has nothing quicker. Include it only from
// kernels_*.cpp, with GNNSPARSE_ISA set to a namespace of its own: the same names mean different
// code in each.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "gnnsparse/rounding.h"

namespace gnnsparse::cpu::GNNSPARSE_ISA {

#if defined(__AVX512F__)
inline constexpr int kWidth = 16;
#elif defined(__AVX2__)
inline constexpr int kWidth = 8;
#else
inline constexpr int kWidth = 4;
#endif

typedef float Vec __attribute__((vector_size(kWidth * 4)));
typedef int32_t IntVec __attribute__((vector_size(kWidth * 4)));
typedef uint32_t UIntVec __attribute__((vector_size(kWidth * 4)));
typedef uint64_t WideVec __attribute__((vector_size(kWidth * 4)));  // half as many

struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

// Calls body with a null pointer of the type that stores `dtype`.
template <class Body>
void with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat16:
      return body(static_cast<const Half*>(nullptr));
    case DType::kBFloat16:
      return body(static_cast<const BFloat*>(nullptr));
    default:
      return body(static_cast<const float*>(nullptr));
  }
}

inline Vec broadcast(float value) { return value - Vec{}; }

inline float to_float(float value) { return value; }
inline float to_float(Half value) { return half_to_float(value.bits); }
inline float to_float(BFloat value) { return bf16_to_float(value.bits); }
inline void from_float(float value, float* out) { *out = value; }
inline void from_float(float value, Half* out) { out->bits = float_to_half(value); }
inline void from_float(float value, BFloat* out) { out->bits = float_to_bf16(value); }

inline Vec load(const float* p) {
  Vec v;
  memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Vec v) { memcpy(p, &v, sizeof v); }

template <class T>
inline Vec load(const T* p) {
  Vec v = {};
  for (int i = 0; i < kWidth; ++i) v[i] = to_float(p[i]);
  return v;
}
template <class T>
inline void store(T* p, Vec v) {
  for (int i = 0; i < kWidth; ++i) from_float(v[i], p + i);
}

// kWidth bytes, widened. Of its general form gcc makes scalar code.
#if defined(__AVX512F__)
inline IntVec load_integers(const int8_t* p) {
  return (IntVec)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline IntVec load_integers(const uint8_t* p) {
  return (IntVec)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
#elif defined(__AVX2__)
inline IntVec load_integers(const int8_t* p) {
  return (IntVec)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline IntVec load_integers(const uint8_t* p) {
  return (IntVec)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
#else
template <class Byte>
inline IntVec load_integers(const Byte* p) {
  IntVec v = {};
  for (int i = 0; i < kWidth; ++i) v[i] = p[i];
  return v;
}
#endif

#if defined(__AVX512F__)

inline Vec load(const Half* p) {
  return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load(const BFloat* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (Vec)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}
inline void store(Half* p, Vec v) {
  const __m256i raw = _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), raw);
}
inline __mmask16 first(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline Vec load(const float* p, int64_t n) { return (Vec)_mm512_maskz_loadu_ps(first(n), p); }
inline void store(float* p, Vec v, int64_t n) { _mm512_mask_storeu_ps(p, first(n), (__m512)v); }
inline Vec load(const Half* p, int64_t n) {
  return (Vec)_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
}
inline Vec load(const BFloat* p, int64_t n) {
  const __m256i raw = _mm256_maskz_loadu_epi16(first(n), p);
  return (Vec)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}

#elif defined(__AVX2__)

inline Vec load(const Half* p) {
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Vec load(const BFloat* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return (Vec)_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
inline __m256i first(int64_t n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lanes);
}
inline Vec load(const float* p, int64_t n) { return (Vec)_mm256_maskload_ps(p, first(n)); }
inline void store(float* p, Vec v, int64_t n) { _mm256_maskstore_ps(p, first(n), (__m256)v); }
inline void store(Half* p, Vec v) {
  const __m128i raw = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), raw);
}

#endif

// The first n < kWidth elements; the rest are zero, or are left as they are.
template <class T>
inline Vec load(const T* p, int64_t n) {
  T padded[kWidth] = {};
  memcpy(padded, p, n * sizeof(T));
  return load(padded);
}
template <class T>
inline void store(T* p, Vec v, int64_t n) {
  T padded[kWidth];
  store(padded, v);
  memcpy(p, padded, n * sizeof(T));
}

// Lane i of the result is lane i ^ kDistance.
template <int kDistance>
inline Vec exchanged(Vec v) {
#if defined(__clang__)
  Vec other;
  for (int i = 0; i < kWidth; ++i) other[i] = v[i ^ kDistance];
  return other;
#else
  // gcc makes one instruction of this, but moves the elements of such a loop one by one.
  IntVec lanes;
  for (int i = 0; i < kWidth; ++i) lanes[i] = i ^ kDistance;
  return __builtin_shuffle(v, lanes);
#endif
}

// v[from[i]] in lane i.
inline Vec permute(Vec v, IntVec from) {
#if defined(__AVX512F__)
  return (Vec)_mm512_permutexvar_ps((__m512i)from, (__m512)v);
#elif defined(__AVX2__)
  return (Vec)_mm256_permutevar8x32_ps((__m256)v, (__m256i)from);
#else
  Vec out = {};
  for (int i = 0; i < kWidth; ++i) out[i] = v[from[i]];
  return out;
#endif
}

// In each lane the sum over its group of kGroup neighbouring lanes.
template <int kGroup>
inline Vec sum_of_groups(Vec v) {
  if constexpr (kGroup > 1) {
    return sum_of_groups<kGroup / 2>(v + exchanged<kGroup / 2>(v));
  }
  return v;
}

// Adds the upper half to the lower one, and so on, without leaving the registers.
template <int kHalf = kWidth / 2>
inline float sum(Vec v) {
  v += exchanged<kHalf>(v);
  if constexpr (kHalf > 1) {
    return sum<kHalf / 2>(v);
  } else {
    return v[0];
  }
}

// Lane i of the result is the sum of two lanes, i and the one that differs in the bit kHalf: of a
// where i lacks that bit, of b where it has it.
template <int kHalf>
inline Vec fold(Vec a, Vec b) {
  IntVec has_bit;
  for (int i = 0; i < kWidth; ++i) has_bit[i] = (i & kHalf) != 0 ? -1 : 0;
  const Vec own = has_bit ? b : a;
  const Vec rest = has_bit ? a : b;
  return own + exchanged<kHalf>(rest);
}

// out[i] = the sum over v[i], for half the shuffles of four calls of `sum`. A call of it would pass
// the vectors through memory.
__attribute__((always_inline)) inline void sum_four(const Vec (&v)[4], float* out) {
  constexpr int kWindowKTile = kWidth / 4;
  Vec all =
      fold<kWindowKTile>(fold<2 * kWindowKTile>(v[0], v[2]), fold<2 * kWindowKTile>(v[1], v[3]));
  if constexpr (kWindowKTile > 1) all = fold<kWindowKTile / 2>(all, all);
  if constexpr (kWindowKTile > 2) all = fold<kWindowKTile / 4>(all, all);
  for (int i = 0; i < 4; ++i) out[i] = all[i * kWindowKTile];
}

// The largest element, without NaN among them.
template <int kHalf = kWidth / 2>
inline float maximum(Vec v) {
  const Vec other = exchanged<kHalf>(v);
  v = other > v ? other : v;
  if constexpr (kHalf > 1) {
    return maximum<kHalf / 2>(v);
  } else {
    return v[0];
  }
}

// The halves of the 64-bit products of 32-bit integers. Products of the even and of the odd
// elements are what the instruction sets have.
inline void multiply(UIntVec x, uint32_t factor, UIntVec* high, UIntVec* low) {
  const WideVec pairs = (WideVec)x;  // element 2 i is the lower half of pair i
  const WideVec even = (pairs & 0xffffffffu) * factor;
  const WideVec odd = (pairs >> 32) * factor;
  *high = (UIntVec)((even >> 32) | (odd & 0xffffffff00000000u));
  *low = (UIntVec)((even & 0xffffffffu) | (odd << 32));
}

// e^x = 2^n p. The argument is split into n ln 2 + r with |r| <= ln(2)/2; p = e^r is a Taylor
// polynomial of degree 7.
struct ExpParts {
  IntVec n;
  Vec p;
};
inline ExpParts exp_parts(Vec x) {
  const Vec n_shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 rounds to an integer
  const Vec n = n_shifted - 12582912.0f;
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = broadcast(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return {(IntVec)n_shifted - 0x4b400000, p};
}

// e^x for x <= 0, within 2 units in the last place; below -87.3 the result is 0.
inline Vec exp_nonpositive(Vec x) {
  const ExpParts parts = exp_parts(x);
  const IntVec exponent = (parts.n + 127) << 23;
  const IntVec in_range = x > -87.3f;
  return (Vec)((IntVec)(parts.p * (Vec)exponent) & (in_range | (IntVec)(x != x)));
}

// e^x for every x: infinity where it exceeds the largest float, and again 0 below -87.3.
inline Vec exp_any(Vec x) {
  const Vec limited = x > 89.0f ? broadcast(89.0f) : x;
  const ExpParts parts = exp_parts(limited);
  // 2^n in two factors: 2^128 is no float, and e^88.7 is one.
  const IntVec first = parts.n >> 1;
  const Vec low = (Vec)((first + 127) << 23);
  const Vec high = (Vec)((parts.n - first + 127) << 23);
  const IntVec in_range = x > -87.3f;
  return (Vec)((IntVec)(parts.p * low * high) & (in_range | (IntVec)(x != x)));
}

}  // namespace gnnsparse::cpu::GNNSPARSE_ISA
