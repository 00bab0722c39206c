// A's part of a product by a policy: the values of a window of a dense format, out of global memory
// or of a part of it that was copied to shared memory; and Tiled-CSR's index of the stored zeros.
#pragma once

#include "device/async.cuh"
#include "gnnsparse/policy_problem.h"
#include "gnnsparse/policy_tile.h"

namespace gnnsparse::cuda {

// Values that lie in a row, by their index: one, or two neighbours of 16 bits from an even index.
template <class Storage>
struct GlobalValues {
  const Storage* data;

  __device__ uint32_t one(int64_t i) const { return load_const(data + i); }
  __device__ uint32_t two(int64_t i) const {
    return load_const(reinterpret_cast<const uint32_t*>(data + i));
  }
};
template <class Storage>
struct SharedValues {
  uint32_t address;

  __device__ uint32_t one(int64_t i) const {
    const uint32_t at = address + static_cast<uint32_t>(i * sizeof(Storage));
    return sizeof(Storage) == 4 ? load_shared_word(at) : load_shared_half(at);
  }
  __device__ uint32_t two(int64_t i) const {
    return load_shared_word(address + static_cast<uint32_t>(i * sizeof(Storage)));
  }
};

// The dense blocks of a window, or of whole blocks of it: `slots` column slots from `values` on.
// A lane reads them in row lane_row(lane) of a row tile.
template <Precision P, class Values>
class WindowBlocks {
 public:
  using Tile = PolicyTile<P>;
  using Registers = uint32_t[Tile::kRegisters];

  __device__ WindowBlocks(Values values, int log_block, int slots, int window, int lane)
      : values_(values),
        log_block_(log_block),
        slots_(slots),
        window_(window),
        row_(lane_row(lane)),
        first_(Tile::slot(lane, 0)) {
#pragma unroll
    for (int r = 0; r < Tile::kRegisters; ++r) {
      const int slot = slot_of(r);
      const int begin = slot >> log_block << log_block;
      in_tile_[r] = begin * window + (row_ << log_block) + slot - begin;
    }
  }

  // Registers of the lane's row of row tile `tile` at its slots of the K tile at `position`. Bits
  // of `skip` name slots of the K tile whose values are zero and are not read.
  __device__ void load(int tile, int position, uint32_t skip, Registers& reg) const {
    if (position + kWindowKTile <= slots_ && skip == 0) {
      load_whole(tile, position, reg);
      return;
    }
    const int row = row_ + kTileRows * tile;
#pragma unroll
    for (int r = 0; r < Tile::kRegisters; ++r) {
      const int slot = slot_of(r);
      reg[r] = element(row, position + slot, skip >> slot);
      if constexpr (kWords<P>) {
        reg[r] = to_tf32(reg[r]);
      } else {
        reg[r] |= element(row, position + slot + 1, skip >> (slot + 1)) << 16;
      }
    }
  }

  // Of a K tile whose blocks are whole, as nearly all are.
  __device__ void load_whole(int tile, int position, Registers& reg) const {
    const int64_t at = int64_t{position} * window_ + (tile * kTileRows << log_block_);
#pragma unroll
    for (int r = 0; r < Tile::kRegisters; ++r) {
      const int64_t place = at + in_tile_[r];
      if constexpr (kWords<P>) {
        reg[r] = to_tf32(values_.one(place));
      } else if (log_block_ > 0) {
        reg[r] = values_.two(place);
      } else {
        reg[r] = values_.one(place) | values_.one(place + window_) << 16;
      }
    }
  }

 private:
  __device__ int slot_of(int r) const {
    return first_ + Tile::slot(0, kLaneSlots / Tile::kRegisters * r);
  }
  __device__ uint32_t element(int row, int position, uint32_t skip) const {
    if (position >= slots_ || (skip & 1u)) return 0;
    const int begin = position >> log_block_ << log_block_;
    const int width = min(slots_ - begin, 1 << log_block_);
    return values_.one(int64_t{begin} * window_ + row * width + (position - begin));
  }

  Values values_;
  int log_block_;
  int slots_;
  int window_;
  int row_;
  int first_;                      // the lane's first slot
  int in_tile_[Tile::kRegisters];  // values of a K tile before those of the lane, in row tile 0
};

// Walks along the stored zeros of one row, K tile by K tile. The four lanes of a row walk together.
class ZeroIndex {
 public:
  ZeroIndex() = default;
  // From column slot `first_slot` of all panels' on.
  __device__ ZeroIndex(const PolicySpmm& p, int64_t row, int64_t first_slot, bool from_start)
      : columns_(p.zero_cols) {
    if (p.zero_ptr == nullptr || row >= p.a.rows) return;
    at_ = load_const(p.zero_ptr + row);
    end_ = load_const(p.zero_ptr + row + 1);
    if (from_start) return;
    const int32_t first = load_const(p.a.columns + first_slot);
    int64_t high = end_;
    while (at_ < high) {
      const int64_t middle = (at_ + high) / 2;
      if (load_const(columns_ + middle) < first) {
        at_ = middle + 1;
      } else {
        high = middle;
      }
    }
  }

  // A bit for each of the next `count` (1 to 16) column slots, whose columns ascend at the shared
  // address: whether the row's value there is a listed zero.
  __device__ uint32_t next(uint32_t columns, int count, int lane) {
    const auto column = [columns](int slot) {
      return static_cast<int32_t>(load_shared_word(columns + 4 * slot));
    };
    const int32_t last = column(count - 1);
    uint32_t found = 0;
    int passed = 0;
#pragma unroll
    for (int j = 0; j < kLaneSlots; ++j) {
      const int64_t at = at_ + lane_slot(lane) + j;
      if (at >= end_) break;
      const int32_t zero = load_const(columns_ + at);
      if (zero > last) break;
      ++passed;
      int slot = 0;  // the first one whose column is not below
      for (int half = 8; half > 0; half /= 2) {
        if (slot + half <= count && column(slot + half - 1) < zero) slot += half;
      }
      if (slot < count && column(slot) == zero) found |= 1u << slot;
    }
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) {
      found |= __shfl_xor_sync(0xffffffffu, found, mask);
      passed += __shfl_xor_sync(0xffffffffu, passed, mask);
    }
    at_ += passed;
    return found;
  }

 private:
  const int32_t* columns_ = nullptr;
  int64_t at_ = 0;
  int64_t end_ = 0;
};

}  // namespace gnnsparse::cuda
