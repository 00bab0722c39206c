// Products of one warp with a slice of a stage in shared memory, in 16 bits. panel_tile.h has the
// maps.
#pragma once

#include "device/async.cuh"
#include "device/mma.cuh"
#include "gnnsparse/panel_tile.h"

namespace gnnsparse::cuda {

inline constexpr uint32_t kSliceBytes = 16 * kStageChunks;
inline constexpr uint32_t kQueryBytes = 16 * kQueryChunks;

// One slice of the panel's own 16 rows as a lane uses it: operand A of four k-steps in 16 bits; of
// words the chunks of rows g and g + 8, two each.
struct QuerySlice {
  uint32_t reg[4][4];
};

__device__ __forceinline__ QuerySlice load_query_matrices(uint32_t queries, int lane) {
  QuerySlice loaded;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int chunk = query_chunk(query_row(lane), query_step_chunk(lane, i));
    load_matrices_plain(queries + 16 * chunk, loaded.reg[i]);
  }
  return loaded;
}

// scores += queries keys^T over pairs of k-steps [kFrom, kTo), 32 features each: the panel's rows
// times the rows of the stage's columns.
template <Precision P, int kFrom = 0, int kTo = 2>
__device__ __forceinline__ void multiply_keys(uint32_t keys, int lane, const QuerySlice& queries,
                                              float (&scores)[4][4]) {
  const uint32_t first = keys + key_address(lane);
#pragma unroll
  for (int pair = kFrom; pair < kTo; ++pair) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t k[4];
      load_matrices_plain(key_address(first, pair, j), k);
      const uint32_t low[2] = {k[0], k[1]};
      const uint32_t high[2] = {k[2], k[3]};
      mma<P>(scores[j], queries.reg[2 * pair], low);
      mma<P>(scores[j], queries.reg[2 * pair + 1], high);
    }
  }
}

// sums += a values over pairs of tiles [kFrom, kTo), 16 features each: operand A of both mmas of
// the stage times the rows of its columns.
template <Precision P, int kFrom = 0, int kTo = 4>
__device__ __forceinline__ void multiply_values(uint32_t values, int lane,
                                                const uint32_t (&a)[2][4],
                                                float (&sums)[2 * (kTo - kFrom)][4]) {
  const uint32_t first = values + matrix_address(lane);
#pragma unroll
  for (int q = 0; q < 2; ++q) {
#pragma unroll
    for (int pair = kFrom; pair < kTo; ++pair) {
      uint32_t x[4];
      load_matrices(matrix_address(first, q, pair), x);
      const uint32_t low[2] = {x[0], x[1]};
      const uint32_t high[2] = {x[2], x[3]};
      mma<P>(sums[2 * (pair - kFrom)], a[q], low);
      mma<P>(sums[2 * (pair - kFrom) + 1], a[q], high);
    }
  }
}

// Lanes of a pair exchange halves of two accumulators, so that each has four features of one, and
// hand them to out.store(group of 8 rows, feature, four values).
template <class Output, int kTiles>
__device__ void store_pairs(const Output& out, const float (&sums)[kTiles][4], int group, int lane,
                            int64_t feature) {
  const bool odd = lane & 1;
#pragma unroll
  for (int pair = 0; pair < kTiles / 2; ++pair) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      float mine[2];
      float theirs[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float even_tile = sums[2 * pair][2 * upper + i];
        const float odd_tile = sums[2 * pair + 1][2 * upper + i];
        mine[i] = odd ? odd_tile : even_tile;
        theirs[i] = __shfl_xor_sync(0xffffffffu, odd ? even_tile : odd_tile, 1);
      }
      float v[4] = {odd ? theirs[0] : mine[0], odd ? theirs[1] : mine[1], odd ? mine[0] : theirs[0],
                    odd ? mine[1] : theirs[1]};
      const int column = 8 * (2 * pair + odd) + 2 * (lane & 2);
      out.store(group + upper, feature + column, v);
    }
  }
}

}  // namespace gnnsparse::cuda
