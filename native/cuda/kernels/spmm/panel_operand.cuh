// Operand A of the panel kernel's K tiles, for one lane: from its source alone, or, of packed
// values, put together by the warp in shared memory. Each K tile passes through
//   look_up   what memory must be asked for before the K tile before it is multiplied,
//   take      what was asked for is this lane's own,
//   put       before the warp meets for the K tile's rows of X,
//   open      after it: registers() gives operand A. With those rows came the K tile's bits and
//             column weights, at `metadata` in shared memory.
#pragma once

#include <type_traits>

#include "device/async.cuh"
#include "gnnsparse/panel_source.h"

namespace gnnsparse::cuda {

// Bits, and column weights: nothing but what came with the rows.
template <class Source>
class StagedOperand {
 public:
  static constexpr int kSharedChunks = 0;

  __device__ StagedOperand(const BlockedView&, int lane, uint32_t) : lane_(lane) {}

  __device__ void look_up(uint32_t) {}
  __device__ void take() {}
  __device__ void put() {}
  __device__ void open(uint32_t metadata) {
#pragma unroll
    for (int i = 0; i < Source::kBricks; ++i) {
      const uint32_t brick = metadata + i * Source::kBrickBytes;
      if constexpr (Source::kBrickRows == 32) {
        here_.bits[i] = load_shared_word(brick + 4 * lane_);
      } else {
        here_.bits[i] = load_shared_half(brick + 2 * lane_);
      }
    }
    if constexpr (Source::kScaleBytes > 0) {
      constexpr int kOfLane = sizeof here_.scale;
      load_shared_words(metadata + Source::kBitBytes + kOfLane * (lane_ & 3), here_.scale);
    }
  }

  __device__ void registers(int m, int q, uint32_t (&a)[4]) const {
    Source::registers(here_, m, q, a);
  }
  __device__ float weigh(int slot, float x) const { return Source::weigh(here_, slot, x); }
  __device__ uint32_t bits(int brick) const { return here_.bits[brick]; }

 private:
  int lane_;
  typename Source::LaneKTile here_ = {};
};

// Stored values, of which a lane loads its own.
template <class Source>
class LoadedOperand {
 public:
  static constexpr int kSharedChunks = 0;

  __device__ LoadedOperand(const BlockedView& a, int lane, uint32_t) : a_(a), lane_(lane) {}

  __device__ void look_up(uint32_t k_tile) { following_ = Source::load(a_, k_tile, lane_); }
  __device__ void take() { waiting_ = following_; }
  __device__ void put() {}
  __device__ void open(uint32_t) { here_ = waiting_; }

  __device__ void registers(int m, int q, uint32_t (&a)[4]) const {
    Source::registers(here_, m, q, a);
  }
  __device__ float weigh(int slot, float x) const { return Source::weigh(here_, slot, x); }

 private:
  const BlockedView& a_;
  int lane_;
  typename Source::LaneKTile here_ = {};
  typename Source::LaneKTile waiting_ = {};
  typename Source::LaneKTile following_ = {};
};

// Packed values. The tile is zero between K tiles.
class PackedOperand {
 public:
  static constexpr int kSharedChunks = kTileBytes / 16 + 1;  // and what is behind the tile

  __device__ PackedOperand(const BlockedView& a, int lane, uint32_t tile)
      : a_(a), lane_(lane), tile_(tile) {
    clear_chunks();
  }

  // The entries cannot be asked for before their place is known, which takes a trip to memory: it
  // passes while the warp waits for rows of X.
  __device__ void look_up(uint32_t k_tile) { following_ = PackedPanel::range(a_, k_tile); }
  __device__ void take() {
    range_ = following_;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (vector(i) < range_.count) waiting_[i] = PackedPanel::load(a_, range_, vector(i));
    }
  }

  __device__ void put() const {
    __syncwarp();  // all have cleared
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (vector(i) < range_.count) put(waiting_[i]);
    }
    for (int i = kAhead; vector(i) < range_.count; ++i) {
      put(PackedPanel::load(a_, range_, vector(i)));
    }
  }

  __device__ void open(uint32_t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) load_shared(chunk(i / 2, i % 2), operand_[i]);
    if (range_.count > kWarp) {
      clear_chunks();
    } else {
      __syncwarp();  // all have read
      if (lane_ < range_.count) clear(waiting_[0]);
    }
  }

  __device__ void registers(int m, int q, uint32_t (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) a[r] = operand_[2 * m + q][r];
  }
  __device__ float weigh(int, float x) const { return x; }

 private:
  // Vectors of entries that a lane asks for a K tile ahead, as many as there are registers for.
  // Longer lists wait for memory in put().
  static constexpr int kAhead = 2;

  __device__ int vector(int i) const { return kWarp * i + lane_; }
  __device__ uint32_t chunk(int m, int q) const { return tile_ + 16 * tile_chunk(lane_, m, q); }

  __device__ void put(const PackedPanel::LaneKTile& k_tile) const {
#pragma unroll
    for (const uint32_t entry : k_tile.entry) {
      store_shared(tile_ + entry_byte(entry), static_cast<uint16_t>(entry));
    }
  }
  __device__ void clear(const PackedPanel::LaneKTile& k_tile) const {
#pragma unroll
    for (const uint32_t entry : k_tile.entry) store_shared(tile_ + entry_byte(entry), uint16_t{0});
  }
  // What this lane alone reads.
  __device__ void clear_chunks() const {
#pragma unroll
    for (int i = 0; i < 4; ++i) store_shared(chunk(i / 2, i % 2), uint4{});
  }

  const BlockedView& a_;
  int lane_;
  uint32_t tile_;
  PackedPanel::Range range_ = {};
  PackedPanel::Range following_ = {};
  PackedPanel::LaneKTile waiting_[kAhead] = {};
  uint32_t operand_[4][4];
};

template <class Source>
using PanelOperand = std::conditional_t<
    std::is_same_v<Source, PackedPanel>, PackedOperand,
    std::conditional_t<(Source::kBitBytes > 0), StagedOperand<Source>, LoadedOperand<Source>>>;

}  // namespace gnnsparse::cuda
