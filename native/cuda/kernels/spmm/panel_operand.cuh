// Operand A of the panel kernel's K tiles, for one lane: from its source alone, or, of packed
// values, put together by the warp in shared memory. Each K tile passes through
//   look_up   what memory must be asked for before the K tile before it is multiplied,
//   take      what was asked for is this lane's own,
//   put       before the warp meets for the K tile's rows of X,
//   open      after it: registers() gives operand A. With those rows came the K tile's bits and
//             column weights, at `metadata` in shared memory.
//   close     when the K tile is multiplied. What is next may have been taken before.
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
  __device__ void close() {}

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
  __device__ void close() {}

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
template <class Source>
class PackedOperand {
 public:
  // The tile, and what is behind it.
  static constexpr int kSharedChunks = EntryLayout{Source::kValueBytes}.tile_bytes() / 16 + 1;

  __device__ PackedOperand(const BlockedView& a, int lane, uint32_t tile)
      : a_(a), lane_(lane), tile_(tile) {
    clear_chunks();
  }

  // The entries cannot be asked for before their place is known, which takes a trip to memory: it
  // passes while the warp waits for rows of X.
  __device__ void look_up(uint32_t k_tile) { following_ = Source::range(a_, k_tile); }
  __device__ void take() {
    range_ = following_;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (vector(i) < range_.count) waiting_[i] = Source::load(a_, range_, vector(i));
    }
  }

  __device__ void put() const {
    __syncwarp();  // all have cleared
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (vector(i) < range_.count) put(waiting_[i]);
    }
    for (int i = kAhead; vector(i) < range_.count; ++i) {  // longer lists wait for memory here
      put(Source::load(a_, range_, vector(i)));
    }
  }

  __device__ void open(uint32_t) {
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) load_shared(chunk(i), operand_[i]);
      clear(range_.count, waiting_[0]);
    } else {
      count_ = range_.count;
      here_ = waiting_[0];
    }
  }
  __device__ void close() {
    if constexpr (!kHeld) clear(count_, here_);
  }

  __device__ void registers(int m, int q, uint32_t (&a)[4]) const {
    if constexpr (kHeld) {
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r] = operand_[kMmas * m + q][r];
    } else {
      load_shared(chunk(kMmas * m + q), a);
    }
  }
  __device__ float weigh(int, float x) const { return x; }

 private:
  static constexpr int kAhead = Source::kAhead;
  static constexpr int kMmas = Source::kValueBytes;  // along the slots of a K tile
  static constexpr int kChunks = Source::kRows / 16 * kMmas;
  // Operand A of words has 32 registers a lane: in fp32 they would leave room for 12 warps on a
  // multiprocessor, not 16. So it is read when it is multiplied, and the tile is cleared after
  // that.
  static constexpr bool kHeld = Source::kValueBytes == 2;
  using Vector = typename Source::LaneKTile;
  using Value = std::conditional_t<Source::kValueBytes == 2, uint16_t, uint32_t>;

  __device__ int vector(int i) const { return kWarp * i + lane_; }
  __device__ uint32_t chunk(int i) const {
    return tile_ + 16 * EntryLayout{Source::kValueBytes}.tile_chunk(lane_, i / kMmas, i % kMmas);
  }

  __device__ void put(const Vector& vector) const {
#pragma unroll
    for (int i = 0; i < kEntriesOfLane; ++i) store_shared(tile_ + vector.place(i), vector.value(i));
  }
  __device__ void clear(const Vector& vector) const {
#pragma unroll
    for (int i = 0; i < kEntriesOfLane; ++i) store_shared(tile_ + vector.place(i), Value{0});
  }
  // What this lane alone reads.
  __device__ void clear_chunks() const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) store_shared(chunk(i), uint4{});
  }
  // After `count` vectors were put, of which `first` is this lane's first one. Where they were one
  // vector a lane, zeros go where the values were, by 4 stores; the whole tile takes as long as 16
  // or 32 of them.
  __device__ void clear(int count, const Vector& first) const {
    if (count > kWarp) {
      clear_chunks();
    } else {
      __syncwarp();  // all have read
      if (lane_ < count) clear(first);
    }
  }

  const BlockedView& a_;
  int lane_;
  uint32_t tile_;
  typename Source::Range range_ = {};
  typename Source::Range following_ = {};
  Vector waiting_[kAhead] = {};
  uint32_t operand_[kHeld ? kChunks : 1][4];
  Vector here_ = {};  // whose places are needed once more
  int count_ = 0;
};

template <class Source>
using PanelOperand = std::conditional_t<
    kPackedSource<Source>, PackedOperand<Source>,
    std::conditional_t<(Source::kBitBytes > 0), StagedOperand<Source>, LoadedOperand<Source>>>;

}  // namespace gnnsparse::cuda
