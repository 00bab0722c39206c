// Bytes in registers, and numbers of 8 bits as pairs of float16, which holds all of them.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "gnnsparse/architecture.h"
#include "gnnsparse/quantize.h"

namespace gnnsparse::cuda {

// Nibble i of kSelect says which byte of `low` (0 to 3) or `high` (4 to 7) becomes byte i.
template <uint32_t kSelect>
__device__ __forceinline__ uint32_t select_bytes(uint32_t low, uint32_t high) {
  return __byte_perm(low, high, kSelect);
}

__device__ __forceinline__ uint32_t multiply_pairs(uint32_t x, uint32_t y) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(x), "r"(y));
  return product;
}
__device__ __forceinline__ uint32_t add_pairs(uint32_t x, uint32_t y) {
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(x), "r"(y));
  return sum;
}

// Four e4m3 numbers as float16: those in the low 16 bits of `bytes`, and those in its high 16 bits.
__device__ __forceinline__ void e4m3_pairs(uint32_t bytes, uint32_t* low, uint32_t* high) {
  if constexpr (kArchitecture.fp8_conversion) {
    asm("{.reg .b16 first, second;\n"
        "mov.b32 {first, second}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, first;\n"
        "cvt.rn.f16x2.e4m3x2 %1, second;}"
        : "=r"(*low), "=r"(*high)
        : "r"(bytes));
  } else {
    // Their exponents and mantissas in those of float16 are 2^-8 of the numbers.
    const uint32_t spread[2] = {select_bytes<0x1404>(bytes, 0), select_bytes<0x3424>(bytes, 0)};
    *low = multiply_pairs((spread[0] & 0x80008000u) | (spread[0] & 0x7f007f00u) >> 1, 0x5c005c00u);
    *high = multiply_pairs((spread[1] & 0x80008000u) | (spread[1] & 0x7f007f00u) >> 1, 0x5c005c00u);
  }
}

// Two of four integers, of which the bytes are 128 more, as float16. Nibbles 0 and 2 of kSelect say
// which; the others are 4.
template <uint32_t kSelect>
__device__ __forceinline__ uint32_t shifted_halves(uint32_t bytes) {
  static_assert((kSelect & 0xf0f0u) == 0x4040u, "upper bytes of float16");
  // They are the last bits of 1024 + 128 + number.
  return add_pairs(select_bytes<kSelect>(bytes, 0x64646464u), 0xe480e480u);
}

// The bytes of four numbers, rounded to nearest as eight_bit_code does it, with fewer instructions.
template <EightBit kType>
__device__ __forceinline__ uint32_t nearest_codes(const float (&v)[4]) {
  if constexpr (kType == EightBit::kInt8) {
    // 1.5 * 2^23: the sum's last byte is the integer. No |v| rounds to more than 127.
    uint32_t sums[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = float_bits(__fadd_rn(v[i], 12582912.0f));
    return select_bytes<0x5410>(select_bytes<0x0040>(sums[0], sums[1]),
                                select_bytes<0x0040>(sums[2], sums[3]));
  } else if constexpr (kArchitecture.fp8_conversion) {
    uint32_t codes;
    asm("{.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};}"
        : "=r"(codes)
        : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]));
    return codes;
  } else {
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) codes |= eight_bit_code<kType, false>(v[i], 0.0f) << 8 * i;
    return codes;
  }
}

}  // namespace gnnsparse::cuda
