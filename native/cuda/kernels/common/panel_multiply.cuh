// Products of one warp with a slice of a K tile in shared memory. panel_tile.h has the maps.
#pragma once

#include "device/async.cuh"
#include "device/mma.cuh"
#include "gnnsparse/panel_tile.h"

namespace gnnsparse::cuda {

// One slice of the panel's own 16 rows as a lane uses it: operand A of four k-steps in 16 bits; of
// words the chunks of rows g and g + 8, two each.
struct QuerySlice {
  uint32_t reg[4][4];
};

__device__ __forceinline__ QuerySlice load_query_matrices(uint32_t queries, int lane) {
  QuerySlice loaded;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    load_matrices_plain(query_address(queries + query_address(lane), i), loaded.reg[i]);
  }
  return loaded;
}

__device__ __forceinline__ QuerySlice load_query_words(uint32_t queries, int lane) {
  QuerySlice loaded;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = (lane >> 2) + 8 * (i >> 1);
    load_shared(queries + 16 * query_chunk(row, word_pair_chunk(lane, i & 1)), loaded.reg[i]);
  }
  return loaded;
}

template <Precision P>
__device__ __forceinline__ QuerySlice load_query_slice(uint32_t queries, int lane) {
  if constexpr (kWords<P>) {
    return load_query_words(queries, lane);
  } else {
    return load_query_matrices(queries, lane);
  }
}

// Sums of products of words. In fp32 what the small parts add is kept apart, and what a K tile adds
// from what was there: Tensor Cores cut off what a sum has no room for.
template <Precision P>
class WordSums {
 public:
  static constexpr int kCount = 4;

  __device__ __forceinline__ explicit WordSums(float (&sums)[kCount][4]) : sums_(sums) {}

  // To sum `i`, rounded to tf32 or, in fp32, in two parts.
  __device__ __forceinline__ void add(int i, const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    uint32_t a_high[4];
    uint32_t b_high[2];
    if constexpr (kSplit<P>) {
      uint32_t a_low[4];
      uint32_t b_low[2];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const Split parts = split(bits_float(a[r]));
        a_high[r] = parts.high;
        a_low[r] = parts.low;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Split parts = split(bits_float(b[r]));
        b_high[r] = parts.high;
        b_low[r] = parts.low;
      }
      mma<kArithmetic<P>>(low_[i], a_high, b_low);
      mma<kArithmetic<P>>(low_[i], a_low, b_high);
      mma<kArithmetic<P>>(high_[i], a_high, b_high);
    } else {
#pragma unroll
      for (int r = 0; r < 4; ++r) a_high[r] = to_tf32(a[r]);
#pragma unroll
      for (int r = 0; r < 2; ++r) b_high[r] = to_tf32(b[r]);
      mma<kArithmetic<P>>(sums_[i], a_high, b_high);
    }
  }

  __device__ __forceinline__ void finish() {
    if constexpr (kSplit<P>) {
#pragma unroll
      for (int i = 0; i < 4 * kCount; ++i) {
        sums_[i / 4][i % 4] += high_[i / 4][i % 4] + low_[i / 4][i % 4];
      }
    }
  }

 private:
  float (&sums_)[kCount][4];
  float high_[kSplit<P> ? kCount : 1][4] = {};
  float low_[kSplit<P> ? kCount : 1][4] = {};
};

template <Precision P>
__device__ __forceinline__ void multiply_key_words(uint32_t keys, int lane,
                                                   const QuerySlice& queries,
                                                   float (&scores)[4][4]) {
  WordSums<P> sums(scores);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t k[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slot = column_slot(lane >> 2, j);
      load_shared(keys + 16 * k_tile_chunk(slot, word_pair_chunk(lane, half)), k[half]);
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t a[4] = {queries.reg[0][w], queries.reg[2][w], queries.reg[1][w],
                             queries.reg[3][w]};
      const uint32_t b[2] = {k[0][w], k[1][w]};
      sums.add(j, a, b);
    }
  }
  sums.finish();
}

// scores += queries keys^T over pairs of k-steps [kFrom, kTo), 32 features each: the panel's rows
// times the rows of the K tile's columns. Words: over the whole slice.
template <Precision P, int kFrom = 0, int kTo = 2>
__device__ __forceinline__ void multiply_keys(uint32_t keys, int lane, const QuerySlice& queries,
                                              float (&scores)[4][4]) {
  if constexpr (kWords<P>) {
    multiply_key_words<P>(keys, lane, queries, scores);
  } else {
    const uint32_t first = keys + key_address(lane);
#pragma unroll
    for (int pair = kFrom; pair < kTo; ++pair) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t k[4];
        load_matrices_plain(key_address(first, pair, j), k);
        const uint32_t low[2] = {k[0], k[1]};
        const uint32_t high[2] = {k[2], k[3]};
        mma<kArithmetic<P>>(scores[j], queries.reg[2 * pair], low);
        mma<kArithmetic<P>>(scores[j], queries.reg[2 * pair + 1], high);
      }
    }
  }
}

// sums += a values of words: operand A of the four mmas of the K tile times the rows of its
// columns.
template <Precision P>
__device__ __forceinline__ void multiply_value_words(uint32_t values, int lane,
                                                     const uint32_t (&a)[4][4], float (&to)[4][4]) {
  WordSums<P> sums(to);
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    uint32_t x[2][4];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      load_shared(word_address(values + word_address(lane), q, upper), x[upper]);
    }
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const uint32_t b[2] = {x[0][tile], x[1][tile]};
      sums.add(tile, a[q], b);
    }
  }
  sums.finish();
}

// The same in 16 bits, over pairs of tiles [kFrom, kTo), 16 features each.
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
      mma<kArithmetic<P>>(sums[2 * (pair - kFrom)], a[q], low);
      mma<kArithmetic<P>>(sums[2 * (pair - kFrom) + 1], a[q], high);
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

// Of words a lane has whole groups of four features.
template <class Output>
__device__ void store_words(const Output& out, const float (&sums)[4][4], int group, int lane,
                            int64_t feature) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    float v[4] = {sums[0][r], sums[1][r], sums[2][r], sums[3][r]};
    const int column = 8 * (lane & 3) + 4 * (r & 1);
    out.store(group + (r >> 1), feature + column, v);
  }
}

}  // namespace gnnsparse::cuda
