// Four numbers of 8 bits in a register as two pairs of float16. Integers have 128 added
// (kShiftedInt8), so that they become float16 by a choice of bytes and one subtraction.
#pragma once

#include "device/eight_bit.cuh"

namespace gnnsparse::cuda {

// Bytes 0 and 1, and bytes 2 and 3.
template <EightBit kType>
__device__ __forceinline__ void neighbours(uint32_t bytes, uint32_t (&b)[2]) {
  if constexpr (kType == EightBit::kInt8) {
    b[0] = shifted_halves<0x4140>(bytes);
    b[1] = shifted_halves<0x4342>(bytes);
  } else {
    e4m3_pairs(bytes, &b[0], &b[1]);
  }
}

// Bytes 0 and 2, the even features of two slots, and bytes 1 and 3, the odd ones.
template <EightBit kType>
__device__ __forceinline__ void by_parity(uint32_t bytes, uint32_t* even, uint32_t* odd) {
  if constexpr (kType == EightBit::kInt8) {
    *even = shifted_halves<0x4240>(bytes);
    *odd = shifted_halves<0x4341>(bytes);
  } else {
    e4m3_pairs(select_bytes<0x3120>(bytes, 0), even, odd);
  }
}

}  // namespace gnnsparse::cuda
