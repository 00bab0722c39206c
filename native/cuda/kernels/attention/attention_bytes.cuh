// Attention whose K and V have 8 bits: the rows of both in one slice of 128 bytes, which become
// float16 in registers. byte_tile.h has the maps. Q has the scales of K and of the scores in it
// already; those of V multiply the sums at the end.
#pragma once

#include "device/mma.cuh"
#include "gnnsparse/byte_tile.h"
#include "kernels/attention/attention_stream.cuh"
#include "kernels/common/byte_pairs.cuh"
#include "kernels/common/panel_multiply.cuh"

namespace gnnsparse::cuda {

// Takes the place of AttentionTile: one warp, up to 64 features, both arrays in one slice.
template <EightBit kEightBit>
struct ByteAttentionTile {
  static constexpr Precision P = Precision::kFp16;
  static constexpr EightBit kType = kEightBit;
  static constexpr bool kBytes = true;
  using Own = AttentionTile<P, 1, 1>;  // of Q and of the results
  static constexpr int kSliceFeatures = kByteHeadFeatures;
  static constexpr int kWarps = 1;
  static constexpr int kRows = kQueryRows;
  static constexpr bool kPaired = true;
  static constexpr int kSlices = 1;
  static constexpr int kTileSlices = 1;
  static constexpr int kTiles = 2 * kByteHeadChunks;  // even and odd features of every chunk

  static __device__ __forceinline__ void sync() { __syncwarp(); }
};

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

// scores += queries keys^T.
template <EightBit kType>
__device__ __forceinline__ void multiply_key_bytes(uint32_t slice, int lane,
                                                   const QuerySlice& queries,
                                                   float (&scores)[4][4]) {
  const uint32_t first = slice + key_address(lane);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t k[4];
    load_matrices_plain(key_address(first, 0, j), k);
#pragma unroll
    for (int step = 0; step < kByteHeadChunks; ++step) {
      uint32_t b[2];
      neighbours<kType>(k[step], b);
      mma<Arithmetic::kFp16>(scores[j], queries.reg[step], b);
    }
  }
}

// sums += a values: accumulator 2 c has the even features of chunk c, and 2 c + 1 the odd ones.
template <EightBit kType>
__device__ __forceinline__ void multiply_value_bytes(uint32_t slice, int lane,
                                                     const uint32_t (&a)[2][4],
                                                     float (&sums)[2 * kByteHeadChunks][4]) {
  const uint32_t first = slice + byte_matrix_address(lane);
#pragma unroll
  for (int chunk = 0; chunk < kByteHeadChunks; ++chunk) {
    uint32_t x[4];
    load_matrices(byte_matrix_address(first, kByteHeadChunks + chunk), x);
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      uint32_t even[2];
      uint32_t odd[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) by_parity<kType>(x[2 * q + r], &even[r], &odd[r]);
      mma<Arithmetic::kFp16>(sums[2 * chunk], a[q], even);
      mma<Arithmetic::kFp16>(sums[2 * chunk + 1], a[q], odd);
    }
  }
}

// The lane's four neighbouring features of chunk `chunk` in row g + 8 upper.
__device__ __forceinline__ void byte_sums(const float (&sums)[2 * kByteHeadChunks][4], int chunk,
                                          int upper, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = sums[2 * chunk + (i & 1)][2 * upper + (i >> 1)];
}

}  // namespace gnnsparse::cuda
