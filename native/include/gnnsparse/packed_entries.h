// Panels of 32 rows that store their nonzeros alone: each is an entry, its value and the byte where
// that belongs in the K tile's operand A (32 rows x 32 slots, values of 2 or 4 bytes). A warp
// writes a K tile's entries into a zeroed tile in shared memory and reads operand A from there, 16
// bytes a lane and mma.
//
// The order of a K tile's entries is free, and chosen so that those which one instruction writes
// lie in different banks of shared memory.
//
// Values of 16 bits: an entry is one word, its value below and its place above. Values of words:
// groups of 16 entries, 16 values and behind them their 16 places of 16 bits. An entry takes 6
// bytes so, where a word for the place would take 8: with 80 entries a K tile has 500 bytes beside
// its 4 KB of X, not 640, and the loop waits for bytes from L2, not for the instruction that parts
// two places. A group is three whole sectors of 32 bytes, of which the load of values takes two and
// that of places one, and both are aligned to what a lane loads, 16 bytes and 8.
#pragma once

#include <cstdint>

#include "gnnsparse/blocked.h"

namespace gnnsparse {

inline constexpr int kPackedRows = 32;
inline constexpr int kEntriesOfLane = 4;  // that a lane loads at a time
inline constexpr int kTileElements = kPackedRows * 32;
inline constexpr int kBanks = 32;

// Bytes of a value of entries; 0: the encoding is another one.
GNNSPARSE_HD constexpr int entry_value_bytes(Encoding encoding) {
  return encoding == Encoding::kEntries ? 2 : encoding == Encoding::kWordEntries ? 4 : 0;
}

// How entries are stored whose values have `value_bytes`.
struct EntryLayout {
  int value_bytes;

  GNNSPARSE_HD constexpr int bytes() const { return value_bytes + 2; }
  GNNSPARSE_HD constexpr int tile_bytes() const { return value_bytes * kTileElements; }
  // A K tile's entries are padded to whole groups with entries that go behind the tile.
  GNNSPARSE_HD constexpr int group() const { return value_bytes == 2 ? kEntriesOfLane : 16; }
  GNNSPARSE_HD constexpr int no_place() const { return tile_bytes(); }
  // Where entry e has its value, counted in values, and its place, counted in halves of words.
  GNNSPARSE_HD constexpr int64_t value_at(int64_t e) const {
    return value_bytes == 2 ? 2 * e : e / 16 * 24 + e % 16;
  }
  GNNSPARSE_HD constexpr int64_t place_at(int64_t e) const {
    return value_bytes == 2 ? 2 * e + 1 : e / 16 * 48 + 32 + e % 16;
  }

  // The same for the four entries of vector `vector` of a K tile, in bytes.
  GNNSPARSE_HD constexpr uint32_t vector_values(uint32_t vector) const {
    return value_bytes == 2 ? 16 * vector : 24 * vector - 8 * (vector % 4);
  }
  GNNSPARSE_HD constexpr uint32_t vector_places(uint32_t vector) const {
    return 24 * vector - 16 * (vector % 4) + 64;  // of words: the others are among the values
  }

  // The 16 bytes of operand A of mma q, row tile m, of a lane.
  GNNSPARSE_HD constexpr int tile_chunk(int lane, int m, int q) const {
    return 32 * (value_bytes * m + q) + lane;  // as many mmas as a value has bytes
  }
  // Element of the tile that (row, slot) of a K tile is: as operand_group and operand_pair have it.
  GNNSPARSE_HD constexpr int element(int row, int slot) const {
    const int lane = static_cast<int>(lane_of(row, slot));
    const int upper = row / 8 & 1;
    if (value_bytes == 4) {
      return 4 * tile_chunk(lane, row / 16, slot / 2 & 3) + (upper | (slot & 1) << 1);
    }
    const int reg = upper | (slot / 2 & 1) << 1;
    return 8 * tile_chunk(lane, row / 16, slot / 4 & 1) + 2 * reg + (slot & 1);
  }

  // While panels are converted, a K tile's nonzeros are 32 words of 32 bits: bit `layer` of word
  // `bank`.
  GNNSPARSE_HD constexpr int bank(int element) const { return element * value_bytes / 4 % kBanks; }
  GNNSPARSE_HD constexpr int layer(int element) const {
    const int of_word = 4 / value_bytes;
    return element / (of_word * kBanks) * of_word + element % of_word;
  }
  GNNSPARSE_HD constexpr int64_t bank_bit(int64_t first, int64_t row, int64_t position) const {
    const int at = element(static_cast<int>(row), static_cast<int>(position % 32));
    const int64_t k_tile = (first + position) / 32;
    return k_tile * kTileElements + bank(at) * 32 + layer(at);
  }

  // Which of its K tile's entries that of an element is; `words` are the K tile's 32 words. Every
  // bank gives as many entries by turns as a lane writes: a lane's entries are neighbours, so that
  // those of one bank are written by different instructions.
  GNNSPARSE_HD int rank(const uint32_t* words, int element) const {
    const int own = bank(element);
    const int in_bank = popcount(words[own] & ((uint32_t{1} << layer(element)) - 1));
    const int turn = in_bank / kEntriesOfLane * kEntriesOfLane;
    int rank = 0;
    for (int b = 0; b < kBanks; ++b) {
      const int of_bank = popcount(words[b]);
      const int before = b == own ? in_bank : b < own ? turn + kEntriesOfLane : turn;
      rank += of_bank < before ? of_bank : before;
    }
    return rank;
  }

  // Writes the entry of (row, position) of a panel whose first slot is `first`, to its place among
  // the format's entries. `Value` has value_bytes; `banks` are the words of all K tiles.
  template <class Value>
  GNNSPARSE_HD void write(const BlockedView& format, const uint32_t* banks, int64_t first,
                          int64_t row, int64_t position, Value value, void* entries) const {
    const int64_t k_tile = (first + position) / 32;
    const int at = element(static_cast<int>(row), static_cast<int>(position % 32));
    const int64_t e = format.value_ptr[k_tile] + rank(banks + k_tile * kBanks, at);
    static_cast<Value*>(entries)[value_at(e)] = value;
    static_cast<uint16_t*>(entries)[place_at(e)] = static_cast<uint16_t>(at * value_bytes);
  }
};

constexpr bool vectors_agree() {
  constexpr EntryLayout kHalves{2}, kWords{4};
  bool agree = true;
  for (uint32_t vector = 0; vector < 12; ++vector) {
    const int64_t first = kEntriesOfLane * int64_t{vector};
    agree = agree && kHalves.vector_values(vector) == 2 * kHalves.value_at(first) &&
            kWords.vector_values(vector) == 4 * kWords.value_at(first) &&
            kWords.vector_places(vector) == 2 * kWords.place_at(first);
  }
  return agree;
}
static_assert(vectors_agree(), "the short way to a vector of entries");

}  // namespace gnnsparse
