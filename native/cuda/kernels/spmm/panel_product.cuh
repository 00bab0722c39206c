// The sums of one slice of a panel: operand A times the rows of X that a pipeline stage holds.
#pragma once

#include "device/async.cuh"
#include "device/mma.cuh"
#include "gnnsparse/panel_tile.h"
#include "kernels/spmm/panel_operand.cuh"

namespace gnnsparse::cuda {

template <Precision P, class Source>
class PanelProduct {
 public:
  using Tile = PanelTile<P>;
  static constexpr int kRowTiles = Source::kRows / 16;
  using Sums = float[kRowTiles][Tile::kTiles][4];

  __device__ PanelProduct(int lane, int) : lane_(lane) {}

  __device__ const Sums& sums() const { return sums_; }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 4 * Tile::kTiles * kRowTiles; ++i) {
      sums_[i / (4 * Tile::kTiles)][i / 4 % Tile::kTiles][i % 4] = 0.0f;
    }
  }

  // Adds a K tile, whose rows of X are at `rows` in shared memory.
  __device__ void add(uint32_t rows, const PanelOperand<Source>& operand) {
    if constexpr (kSplit<P>) {
      // The sum of a K tile on its own: Tensor Cores cut off what a large sum has no room for.
      float fresh[kRowTiles][Tile::kTiles][4] = {};
      multiply(rows, operand, fresh);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4 * Tile::kTiles; ++i) sums_[m][i / 4][i % 4] += fresh[m][i / 4][i % 4];
      }
    } else {
      multiply(rows, operand, sums_);
    }
  }

 private:
  __device__ void multiply(uint32_t rows, const PanelOperand<Source>& operand, Sums& sums) const {
#pragma unroll
    for (int q = 0; q < Tile::kMmas; ++q) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) operand.registers(m, q, a[m]);
      if constexpr (kSplit<P>) {
        multiply_split(rows, q, operand, a, sums);
      } else if constexpr (kWords<P>) {
        multiply_words(rows, q, a, sums);
      } else {
        multiply_matrices(rows, q, a, sums);
      }
    }
  }

  __device__ void multiply_matrices(uint32_t rows, int q, const uint32_t (&a)[kRowTiles][4],
                                    Sums& sums) const {
#pragma unroll
    for (int pair = 0; pair < Tile::kTiles / 2; ++pair) {
      uint32_t x[4];
      load_matrices(matrix_address(rows + matrix_address(lane_), q, pair), x);
      const uint32_t low[2] = {x[0], x[1]};
      const uint32_t high[2] = {x[2], x[3]};
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma<kArithmetic<P>>(sums[m][2 * pair], a[m], low);
        mma<kArithmetic<P>>(sums[m][2 * pair + 1], a[m], high);
      }
    }
  }

  __device__ void multiply_words(uint32_t rows, int q, const uint32_t (&a)[kRowTiles][4],
                                 Sums& sums) const {
    uint32_t x[2][4];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      load_shared(word_address(rows + word_address(lane_), q, upper), x[upper]);
    }
#pragma unroll
    for (int tile = 0; tile < Tile::kTiles; ++tile) {
      const uint32_t b[2] = {tf32_operand(x[0][tile]), tf32_operand(x[1][tile])};
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) mma<kArithmetic<P>>(sums[m][tile], a[m], b);
    }
  }

  // An mma takes two words that were read by two loads of four, and the two have to lie in
  // neighbouring registers. Left alone the compiler rounds the words where they were read and moves
  // them for each row tile and each product. Adding -0, which changes no number, writes a word to
  // its place once for all of them.
  __device__ float placed(float x) const { return x + minus_zero_; }

  __device__ uint32_t tf32_operand(uint32_t bits) const {
    if constexpr (kRoundedX<Source>) return float_bits(placed(bits_float(bits)));
    if constexpr (kPackedSource<Source>) return float_bits(placed(bits_float(to_tf32(bits))));
    return to_tf32(bits);
  }
  // A column's weight writes to its place as well. One row tile of ones has one product of a word.
  __device__ float fp32_operand(const PanelOperand<Source>& operand, int slot,
                                uint32_t bits) const {
    constexpr bool kOnce = Source::kScaleBytes > 0 || (Source::kExact && kRowTiles == 1);
    const float x = operand.weigh(slot, bits_float(bits));
    return kOnce ? x : placed(x);
  }

  // fp32 as two tf32 parts. The products with small parts come first, so that they are not lost in
  // the sum of the large ones.
  __device__ void multiply_split(uint32_t rows, int q, const PanelOperand<Source>& operand,
                                 const uint32_t (&a)[kRowTiles][4], Sums& sums) const {
    Split x[Tile::kTiles][2];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      uint32_t words[4];
      load_shared(word_address(rows + word_address(lane_), q, upper), words);
#pragma unroll
      for (int tile = 0; tile < Tile::kTiles; ++tile) {
        x[tile][upper] = split(fp32_operand(operand, 2 * q + upper, words[tile]));
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      uint32_t high[4];
      uint32_t low[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const Split parts = Source::kExact ? Split{a[m][r], 0} : split(bits_float(a[m][r]));
        high[r] = parts.high;
        low[r] = parts.low;
      }
#pragma unroll
      for (int tile = 0; tile < Tile::kTiles; ++tile) {
        const uint32_t x_high[2] = {x[tile][0].high, x[tile][1].high};
        const uint32_t x_low[2] = {x[tile][0].low, x[tile][1].low};
        mma<kArithmetic<P>>(sums[m][tile], high, x_low);
        if constexpr (!Source::kExact) mma<kArithmetic<P>>(sums[m][tile], low, x_high);
        mma<kArithmetic<P>>(sums[m][tile], high, x_high);
      }
    }
  }

  int lane_;
  float minus_zero_ = bits_float(pin_register(0x80000000u));  // which the compiler does not know
  float sums_[kRowTiles][Tile::kTiles][4] = {};
};

}  // namespace gnnsparse::cuda
