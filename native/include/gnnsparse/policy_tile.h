// Register maps of the window kernel's policies (window_policy.h). A warp multiplies a window by 16
// column slots at a time and a tile of features. Every lane brings elements of four slots, and for
// each of them E features (E = 8 with 16 bits, 4 with tf32). Notation: g = lane / 4, t = lane % 4.
//
// The slots are where the PTX ISA has K in the operands, so that an mma of either depth takes the
// registers as they are, and the shallow one can stop after the last slot. Features are along the
// side of the mma that is not A's: rows g and g + 8 where A is the right operand (swapped), column
// g of E products where it is the left one. Which feature that is depends on how X was loaded, and
// has to agree with the result alone.
#pragma once

#include <cstdint>

#include "gnnsparse/precision.h"
#include "gnnsparse/types.h"
#include "gnnsparse/window_policy.h"
#include "gnnsparse/window_tile.h"

namespace gnnsparse {

// How a lane's features lie in a tile.
//   kVector   E g + i: 16 bytes
//   kPairs    neighbours in each 16 of them: 16 (i / 2) + 2 g + i % 2 (FlashSparse, figure 7c)
//   kNatural  as in the operand: 16 (i / 2) + 8 (i % 2) + g (figure 7b)
enum class FeatureOrder { kVector, kPairs, kNatural };

template <Precision P>
struct PolicyTile {
  static_assert(operands_are_stored<P>(), "registers hold what is loaded");
  using Storage = StorageOf<P>;
  static constexpr int kLaneFeatures = kPerVector<P>;
  static constexpr int kFeatures = 8 * kLaneFeatures;  // of a warp, at a time
  // Registers of one row of A, or of one feature, at the lane's four slots.
  static constexpr int kRegisters = kWords<P> ? 4 : 2;

  // The lane's slot q, of four.
  GNNSPARSE_HD static constexpr int slot(int lane, int q) {
    return kWords<P> ? 4 * q + (lane & 3) : 8 * (q >> 1) + 2 * (lane & 3) + (q & 1);
  }
  // Feature i of the lanes of a group g.
  GNNSPARSE_HD static constexpr int feature(FeatureOrder order, int group, int i) {
    if (order == FeatureOrder::kVector) return kLaneFeatures * group + i;
    const bool pairs = order == FeatureOrder::kPairs;
    return 16 * (i >> 1) + (pairs ? 2 * group + (i & 1) : 8 * (i & 1) + group);
  }
};

// What a lane has of the result: some rows of the window, and in each of them runs of neighbouring
// features.
template <Precision P, bool kSwapped, int kRowTiles, FeatureOrder kOrder>
struct PolicyResult {
  static_assert(kSwapped || kRowTiles == 2, "A is 16 rows high as the left operand");
  using Tile = PolicyTile<P>;
  static constexpr int kFeatures = Tile::kLaneFeatures;
  // Accumulators of 4 floats: of each row tile and pair of features, or of each feature.
  static constexpr int kSums = kSwapped ? kRowTiles * kFeatures / 2 : kFeatures;
  static constexpr int kRows = kSwapped ? 2 * kRowTiles : 2;
  static constexpr int kSide = kSwapped ? 1 : 2;  // groups whose features a lane has
  static constexpr int kLength = kSide * (kOrder == FeatureOrder::kVector  ? kFeatures / kSide
                                          : kOrder == FeatureOrder::kPairs ? 2
                                                                           : 1);
  static constexpr int kRuns = kSide * kFeatures / kLength;

  // Row r of the window's.
  GNNSPARSE_HD static constexpr int row(int lane, int r) {
    return kSwapped ? kTileRows * (r / 2) + result_row(lane, r % 2)
                    : lane_row(lane) + kTileRows * r;
  }
  // The first feature of a run.
  GNNSPARSE_HD static constexpr int feature(int lane, int run) {
    return Tile::feature(kOrder, group(lane, side(run, 0)), index(run, 0));
  }
  // The register of the result, in the accumulators one after the other, that holds element m of a
  // run in row r.
  GNNSPARSE_HD static constexpr int sum(int run, int m, int r) {
    const int i = index(run, m);
    return kSwapped ? 4 * (r / 2 * (kFeatures / 2) + i / 2) + 2 * (i & 1) + r % 2
                    : 4 * i + 2 * r + side(run, m);
  }

 private:
  GNNSPARSE_HD static constexpr int group(int lane, int side) {
    return kSwapped ? lane_row(lane) : 2 * (lane & 3) + side;
  }
  // Of element m of a run: which of the groups it belongs to, and which of its features it is.
  GNNSPARSE_HD static constexpr int side(int run, int m) {
    if (kSwapped) return 0;
    return kOrder == FeatureOrder::kVector ? run : kOrder == FeatureOrder::kPairs ? m / 2 : m;
  }
  GNNSPARSE_HD static constexpr int index(int run, int m) {
    if (kOrder == FeatureOrder::kVector) return m;
    return kOrder == FeatureOrder::kPairs ? 2 * run + m % 2 : run;
  }
};

// Rows of X at a lane's slots, 16 bytes of each -> its registers of the right or left operand, by
// renaming (SSpMM, section IV): reg[p][i] is feature i at the slots of register p.
template <Precision P>
GNNSPARSE_HD void operand_registers(
    const Vec16 (&rows)[kLaneSlots],
    uint32_t (&reg)[PolicyTile<P>::kRegisters][PolicyTile<P>::kLaneFeatures]) {
  if constexpr (kWords<P>) {
    for (int q = 0; q < 4; ++q) {
      for (int i = 0; i < 4; ++i) reg[q][i] = to_tf32(rows[q].word[i]);
    }
  } else {
    for (int p = 0; p < 2; ++p) {
      for (int w = 0; w < 4; ++w) {
        reg[p][2 * w] = low_halves(rows[2 * p].word[w], rows[2 * p + 1].word[w]);
        reg[p][2 * w + 1] = high_halves(rows[2 * p].word[w], rows[2 * p + 1].word[w]);
      }
    }
  }
}

}  // namespace gnnsparse
