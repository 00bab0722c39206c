// X's part of a product by a policy: the features of gathered rows that a lane multiplies, loaded
// straight to its registers or by way of shared memory.
#pragma once

#include "device/async.cuh"
#include "device/vector.cuh"
#include "gnnsparse/policy_tile.h"

namespace gnnsparse::cuda {

// How X is loaded: what x_load, stage_x and shuffle of a policy come to.
enum class RowLoad { kVector, kCoalesced, kPlain, kStagedVector, kStagedPlain };

constexpr bool is_staged(RowLoad load) {
  return load == RowLoad::kStagedVector || load == RowLoad::kStagedPlain;
}
constexpr FeatureOrder order_of(RowLoad load) {
  if (load == RowLoad::kCoalesced) return FeatureOrder::kPairs;
  const bool natural = load == RowLoad::kPlain || load == RowLoad::kStagedPlain;
  return natural ? FeatureOrder::kNatural : FeatureOrder::kVector;
}

// A staged row: 128 bytes of features, and 16 that keep the rows of an operand on different banks.
inline constexpr int kStagedRowBytes = 128 + 16;

struct Gathered {
  int32_t column[kLaneSlots];  // negative: the slot does not exist
};

template <Precision P, RowLoad kLoad>
struct PolicyRows {
  using Tile = PolicyTile<P>;
  using Storage = typename Tile::Storage;
  static constexpr int kFeatures = Tile::kLaneFeatures;
  static constexpr FeatureOrder kOrder = order_of(kLoad);
  using Registers = uint32_t[Tile::kRegisters][kFeatures];

  // `x` is the first feature of the warp's tile in the first row of X; `left` features from there
  // on exist, and rows are padded to whole 16 bytes. operand_registers() takes the rows further.
  __device__ static void gather(const Storage* x, int64_t stride, int left, const Gathered& slots,
                                int lane, Vec16 (&rows)[kLaneSlots]) {
#pragma unroll
    for (int q = 0; q < kLaneSlots; ++q) {
      rows[q] = Vec16{};
      if (slots.column[q] >= 0) load(x + slots.column[q] * stride, left, lane_row(lane), rows[q]);
    }
  }

  // As gather(), where all slots and features exist and a row has less than 4 GB. `x` is the lane's
  // first feature in the first row.
  __device__ static void gather_whole(const Storage* x, uint32_t stride,
                                      const int32_t (&columns)[kLaneSlots],
                                      Vec16 (&rows)[kLaneSlots]) {
    const auto bytes = static_cast<uint32_t>(stride * sizeof(Storage));
#pragma unroll
    for (int q = 0; q < kLaneSlots; ++q) {
      const char* row =
          reinterpret_cast<const char*>(x) + uint64_t{static_cast<uint32_t>(columns[q])} * bytes;
      rows[q] = Vec16{};
      load<true>(reinterpret_cast<const Storage*>(row), kFeatures, 0, rows[q]);
    }
  }

  // The registers out of shared memory, where row s of the K tile has its features at
  // `rows` + s * kStagedRowBytes.
  __device__ static void take(uint32_t rows, int lane, Registers& reg) {
    const int group = lane_row(lane);
    if constexpr (kLoad == RowLoad::kStagedVector) {
      Vec16 loaded[kLaneSlots];
#pragma unroll
      for (int q = 0; q < kLaneSlots; ++q) {
        load_shared(rows + Tile::slot(lane, q) * kStagedRowBytes + 16 * group, loaded[q].word);
      }
      operand_registers<P>(loaded, reg);
    } else if constexpr (kWords<P>) {
#pragma unroll
      for (int q = 0; q < Tile::kRegisters; ++q) {
#pragma unroll
        for (int i = 0; i < kFeatures; ++i) {
          const uint32_t at = rows + Tile::slot(lane, q) * kStagedRowBytes;
          reg[q][i] = to_tf32(load_shared_word(at + 4 * Tile::feature(kOrder, group, i)));
        }
      }
    } else {
      // Lane 8 m + r names row r of matrix m: slots r and r + 8 by features 0 to 7 and 8 to 15.
      const int row = (lane & 7) + 8 * (lane >> 4);
      const uint32_t at = rows + row * kStagedRowBytes + 16 * (lane >> 3 & 1);
#pragma unroll
      for (int c = 0; c < kFeatures / 2; ++c) {
        uint32_t m[4];
        load_matrices(at + 32 * c, m);
        reg[0][2 * c] = m[0];
        reg[0][2 * c + 1] = m[1];
        reg[1][2 * c] = m[2];
        reg[1][2 * c + 1] = m[3];
      }
    }
  }

 private:
  template <bool kWhole = false>
  __device__ static void load(const Storage* row, int left, int group, Vec16& out) {
    if constexpr (kOrder == FeatureOrder::kVector) {
      if (kWhole || kFeatures * group < left) out = load_vec16(row + kFeatures * group);
    } else if constexpr (kOrder == FeatureOrder::kPairs) {
#pragma unroll
      for (int c = 0; c < kFeatures / 2; ++c) {
        const int feature = Tile::feature(kOrder, group, 2 * c);
        if (!kWhole && feature >= left) continue;
        if constexpr (kWords<P>) {
          const uint2 two = __ldg(reinterpret_cast<const uint2*>(row + feature));
          out.word[2 * c] = two.x;
          out.word[2 * c + 1] = two.y;
        } else {
          out.word[c] = __ldg(reinterpret_cast<const uint32_t*>(row + feature));
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kFeatures; ++i) {
        const int feature = Tile::feature(kOrder, group, i);
        if (!kWhole && feature >= left) continue;
        const uint32_t bits = __ldg(row + feature);
        if constexpr (kWords<P>) {
          out.word[i] = bits;
        } else {
          out.word[i >> 1] |= bits << 16 * (i & 1);
        }
      }
    }
  }
};

}  // namespace gnnsparse::cuda
