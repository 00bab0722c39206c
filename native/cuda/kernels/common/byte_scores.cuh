// Products of one warp's rows of Q with keys of 8 bits in a slice of a K tile. byte_tile.h has the
// maps. Q has the scales of the keys in it already.
#pragma once

#include "device/mma.cuh"
#include "gnnsparse/byte_tile.h"
#include "kernels/common/byte_pairs.cuh"
#include "kernels/common/panel_multiply.cuh"

namespace gnnsparse::cuda {

// Operand A of the four k-steps of the scores, in the order of features that the bytes of K have.
__device__ __forceinline__ QuerySlice load_query_for_bytes(uint32_t queries, int lane) {
  QuerySlice loaded;
#pragma unroll
  for (int step = 0; step < kByteHeadChunks; ++step) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const uint32_t at = byte_query_address(queries + byte_query_address(lane), step, upper);
      loaded.reg[step][upper] = load_shared_word(at);
      loaded.reg[step][2 + upper] = load_shared_word(at + 4);
    }
  }
  return loaded;
}

// scores += queries keys^T over half of a slice, 64 features.
template <EightBit kType>
__device__ __forceinline__ void multiply_key_bytes(uint32_t slice, int lane,
                                                   const QuerySlice& queries, float (&scores)[4][4],
                                                   int half = 0) {
  const uint32_t first = slice + key_address(lane);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t k[4];
    load_matrices_plain(key_address(first, half, j), k);
#pragma unroll
    for (int step = 0; step < kByteHeadChunks; ++step) {
      uint32_t b[2];
      neighbours<kType>(k[step], b);
      mma<Arithmetic::kFp16>(scores[j], queries.reg[step], b);
    }
  }
}

}  // namespace gnnsparse::cuda
