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
template <Precision P, class Values>
struct WindowBlocks {
  using Tile = PolicyTile<P>;

  Values values;
  int log_block;
  int slots;
  int window;

  // Registers of row `row` at the lane's slots of the K tile at `position`. Bits of `skip` name
  // slots of the K tile whose values are zero and are not read.
  __device__ void load(int row, int position, int lane, uint32_t skip,
                       uint32_t (&reg)[Tile::kRegisters]) const {
#pragma unroll
    for (int r = 0; r < Tile::kRegisters; ++r) {
      const int slot = Tile::slot(lane, 4 / Tile::kRegisters * r);
      if constexpr (kWords<P>) {
        reg[r] = to_tf32(element(row, position + slot, skip >> slot));
      } else {
        reg[r] = pair(row, position + slot, skip >> slot);
      }
    }
  }

 private:
  __device__ int64_t offset(int row, int position) const {
    const int begin = position >> log_block << log_block;
    const int width = min(slots - begin, 1 << log_block);
    return int64_t{begin} * window + row * width + (position - begin);
  }
  __device__ uint32_t element(int row, int position, uint32_t skip) const {
    if (position >= slots || (skip & 1u)) return 0;
    return values.one(offset(row, position));
  }
  // Two neighbouring slots from an even one on, in a whole block by one load.
  __device__ uint32_t pair(int row, int position, uint32_t skip) const {
    const int end = ((position >> log_block) + 1) << log_block;
    if (log_block > 0 && end <= slots && (skip & 3u) == 0) {
      return values.two(offset(row, position));
    }
    return element(row, position, skip) | element(row, position + 1, skip >> 1) << 16;
  }
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
