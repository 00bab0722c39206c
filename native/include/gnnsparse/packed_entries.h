// Panels of 32 rows that store their nonzeros alone, in 16 bits: each is an entry of 32 bits, its
// value below and above it the byte where it belongs in the K tile's operand A (32 rows x 32 slots
// x 2 bytes). A warp writes a K tile's entries into a zeroed tile in shared memory and reads
// operand A from there, 16 bytes a lane and mma.
//
// The order of a K tile's entries is free, and chosen so that those which one instruction writes
// lie in different banks of shared memory.
#pragma once

#include <cstdint>

#include "gnnsparse/blocked.h"

namespace gnnsparse {

inline constexpr int kPackedRows = 32;
inline constexpr int kEntriesOfLane = 4;  // that a lane loads at a time
inline constexpr int kTileElements = kPackedRows * 32;
inline constexpr int kTileBytes = 2 * kTileElements;
inline constexpr int kBanks = 32;
// A K tile's entries are padded to whole vectors with entries that go behind the tile.
inline constexpr uint32_t kNoEntry = uint32_t{kTileBytes} << 16;

GNNSPARSE_HD constexpr uint32_t entry_of(int element, uint16_t value) {
  return static_cast<uint32_t>(element) << 17 | value;
}
GNNSPARSE_HD constexpr uint32_t entry_byte(uint32_t entry) { return entry >> 16; }

// The 16 bytes of operand A of mma q, row tile m, of a lane.
GNNSPARSE_HD constexpr int tile_chunk(int lane, int m, int q) { return 32 * (2 * m + q) + lane; }

// Element of the tile that (row, slot) of a K tile is: as operand_group and operand_pair have it.
GNNSPARSE_HD constexpr int tile_element(int row, int slot) {
  const int lane = static_cast<int>(lane_of(row, slot));
  const int reg = (row / 8 & 1) | (slot / 2 & 1) << 1;
  return 8 * tile_chunk(lane, row / 16, slot / 4 & 1) + 2 * reg + (slot & 1);
}

// While panels are converted, a K tile's nonzeros are 32 words of 32 bits: bit `layer` of word
// `bank`.
GNNSPARSE_HD constexpr int element_bank(int element) { return element / 2 % kBanks; }
GNNSPARSE_HD constexpr int element_layer(int element) {
  return element / (2 * kBanks) * 2 + element % 2;
}
GNNSPARSE_HD constexpr int64_t bank_bit(int64_t first, int64_t row, int64_t position) {
  const int element = tile_element(static_cast<int>(row), static_cast<int>(position % 32));
  const int64_t k_tile = (first + position) / 32;
  return k_tile * kTileElements + element_bank(element) * 32 + element_layer(element);
}

// Which of its K tile's entries that of an element is; `words` are the K tile's 32 words. Every
// bank gives as many entries by turns as a lane writes: a lane's entries are neighbours, so that
// those of one bank are written by different instructions.
GNNSPARSE_HD inline int entry_rank(const uint32_t* words, int element) {
  const int bank = element_bank(element);
  const int in_bank = popcount(words[bank] & ((uint32_t{1} << element_layer(element)) - 1));
  const int turn = in_bank / kEntriesOfLane * kEntriesOfLane;
  int rank = 0;
  for (int b = 0; b < kBanks; ++b) {
    const int of_bank = popcount(words[b]);
    const int before = b == bank ? in_bank : b < bank ? turn + kEntriesOfLane : turn;
    rank += of_bank < before ? of_bank : before;
  }
  return rank;
}

}  // namespace gnnsparse
