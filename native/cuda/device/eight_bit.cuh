// Bytes in registers, and numbers of 8 bits as pairs of float16, which holds all of them.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "gnnsparse/architecture.h"

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

// Two e4m3 numbers in the low 16 bits of `bytes` as float16.
__device__ __forceinline__ uint32_t e4m3_pair(uint32_t bytes) {
  if constexpr (kArchitecture.fp8_conversion) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(bytes)));
    return pair;
  }
  // Their exponents and mantissas in those of float16 are 2^-8 of the numbers.
  const uint32_t spread = select_bytes<0x1404>(bytes, 0);
  return multiply_pairs((spread & 0x80008000u) | (spread & 0x7f007f00u) >> 1, 0x5c005c00u);
}

// Two signed bytes in the low 16 bits of `bytes` as float16.
__device__ __forceinline__ uint32_t int8_pair(uint32_t bytes) {
  // With another sign bit they are the last bits of 1024 + 128 + number.
  return add_pairs(select_bytes<0x4140>(bytes ^ 0x8080u, 0x64646464u), 0xe480e480u);
}

}  // namespace gnnsparse::cuda
