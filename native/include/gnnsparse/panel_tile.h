// Maps of the panel kernels. A warp takes a panel of 16 or 32 rows of A and 128 bytes of every row
// of X that the panel needs, 32 column slots a K tile: it copies their rows into shared memory once
// and multiplies them with all rows of the panel. A is the mma's operand A here (rows of A along
// the 16 of m16n8k*), and comes from registers; X is operand B, and comes from shared memory.
//
// The order of the column slots inside a K tile is free, so it is chosen for A: a lane holds the
// slots 8t .. 8t + 7 of the rows g, g + 8, ... (g = lane / 4, t = lane % 4), in every precision.
// Its bits are one word, its column weights 8 neighbours, its stored values 8 neighbours a row.
// All functions compile for the host too: native/emulator runs the kernels with them there.
#pragma once

#include <cmath>
#include <cstdint>

#include "gnnsparse/blocked.h"
#include "gnnsparse/window_tile.h"

namespace gnnsparse {

inline constexpr int kPanelKTile = 32;  // column slots of a K tile
inline constexpr int kLaneColumns = 8;  // of them, those of one lane
inline constexpr int kChunkBytes = 16;
inline constexpr int kRowChunks = 8;  // of a row of X in a K tile
inline constexpr int kKTileChunks = kPanelKTile * kRowChunks;
// A slice: 128 bytes of a row, and that part of the rows of all slots of a K tile.
inline constexpr int kRowSliceBytes = kChunkBytes * kRowChunks;
inline constexpr uint32_t kTileSliceBytes = kChunkBytes * kKTileChunks;

// Chunk `chunk` of slot `slot` in the K tile's shared memory. Rows that one instruction reads
// differ in the key, so that they lie in different banks.
GNNSPARSE_HD constexpr int k_tile_key(int slot) { return 2 * (slot >> 3) | (slot & 1); }
GNNSPARSE_HD constexpr int k_tile_chunk(int slot, int chunk) {
  return kRowChunks * slot + (chunk ^ k_tile_key(slot));
}

// A lane copies chunk `lane % 8` of eight neighbouring slots.
GNNSPARSE_HD constexpr int copy_chunk(int lane) { return lane % kRowChunks; }
GNNSPARSE_HD constexpr int copy_slot(int lane, int i) {
  return kLaneColumns * (lane / kRowChunks) + i;
}

// The same by halves of chunks, for rows of X that begin between two chunks: 16 lanes copy a row,
// and the warp slots `i` of two neighbouring groups of eight at once.
inline constexpr int kHalfChunkBytes = kChunkBytes / 2;
GNNSPARSE_HD constexpr int copy_half(int lane) { return lane % (2 * kRowChunks); }
GNNSPARSE_HD constexpr int half_copy_group(int lane, int pair) {
  return 2 * pair + lane / (2 * kRowChunks);
}
GNNSPARSE_HD constexpr int half_copy_slot(int lane, int pair, int i) {
  return kLaneColumns * half_copy_group(lane, pair) + i;
}

// 16-bit operands: 16 slots make an mma, q = 0, 1 of a K tile. ldmatrix.trans takes the address of
// row `lane % 8` of matrix `lane / 8`: matrices 0, 1 are slots k < 8 and k >= 8 of features
// 16 pair .. 16 pair + 7, matrices 2, 3 those of the 8 features behind.
GNNSPARSE_HD constexpr int matrix_slot(int lane, int q) {
  const int row = lane % 8;
  const int upper = lane / 8 & 1;
  return kLaneColumns * (row >> 1) + 4 * q + 2 * upper + (row & 1);
}
GNNSPARSE_HD constexpr int matrix_chunk(int lane, int pair) { return 2 * pair + (lane >> 4); }

// tf32 and fp32: 8 slots make an mma, q = 0 .. 3. A lane reads chunk g of the slots k = t and k = t
// + 4; its word j belongs to mma j, whose features are 4n + j.
GNNSPARSE_HD constexpr int word_slot(int lane, int q, int upper) {
  return kLaneColumns * (lane & 3) + 2 * q + upper;
}
GNNSPARSE_HD constexpr int word_chunk(int lane) { return lane >> 2; }

// Operand A of 16-bit mma q, row tile m (16 rows): register r holds row 16 m + g + 8 (r & 1), the
// lane's slots 2p and 2p + 1 with p = 2 q + (r >> 1). Of tf32 mma q: its slot 2 q + (r >> 1).
GNNSPARSE_HD constexpr int operand_group(int m, int r) { return 2 * m + (r & 1); }
GNNSPARSE_HD constexpr int operand_pair(int q, int r) { return 2 * q + (r >> 1); }

// Bits of a lane: pair p of row group a is bit 4 a + p and, for its odd slot, 16 bits above. A
// panel of 16 rows stores 16 bits a lane, with the odd slots 8 above.
GNNSPARSE_HD constexpr uint32_t lane_bits(uint32_t stored, int height) {
  return height == 32 ? stored : (stored & 0xffu) | (stored & 0xff00u) << 8;
}
// For pair_mask: one shift brings the bits of two pairs to where bytes have their signs. Of 32 rows
// pairs p and p + 8 lie in bytes 0 and 2, 1 and 3; of 16 rows p and p + 4 in 0 and 1, 2 and 3.
GNNSPARSE_HD constexpr uint32_t pair_bits(uint32_t stored, int height) {
  return height == 32 ? stored : stored | stored << 12;
}
// Both halves of a register set where the bits of pair `pair` are.
template <int kHeight>
GNNSPARSE_HD inline uint32_t pair_mask(uint32_t bits, int pair) {
  constexpr int kPairs = kHeight / 4;  // that have a byte each for their even slots
  const bool second = pair >= kPairs;
#if defined(__CUDA_ARCH__)
  constexpr uint32_t kFirst = kHeight == 32 ? 0xaa88 : 0x9988;
  constexpr uint32_t kSecond = kHeight == 32 ? 0xbb99 : 0xbbaa;
  uint32_t mask;  // signs of two bytes, spread over two bytes each
  asm("prmt.b32 %0, %1, 0, %2;"
      : "=r"(mask)
      : "r"(bits << (7 - pair % kPairs)), "r"(second ? kSecond : kFirst));
  return mask;
#else
  const int even = pair % kPairs + (second ? kHeight == 32 ? 8 : 16 : 0);
  const int odd = even + (kHeight == 32 ? 16 : 8);
  return (bits >> even & 1u ? 0xffffu : 0u) | (bits >> odd & 1u ? 0xffff0000u : 0u);
#endif
}
// As a choice: it takes a predicate and one instruction, arithmetic takes three.
GNNSPARSE_HD inline uint32_t word_mask(uint32_t bits, int bit) {
  return bits & 1u << bit ? 0xffffffffu : 0u;
}

// 2.0 has a single bit in every format, so that ones are made with a shift and an AND; results are
// halved. In fp32 that would cost the range its last factor of two: there ones are ones.
template <Precision P>
inline constexpr float kUnitScale = kSplit<P> ? 1.0f : 0.5f;
template <Precision P>
GNNSPARSE_HD inline uint32_t units(uint32_t bits, int bit) {
  // The bit times what makes a one of it: fp32 waits for predicates (notes/log.md).
  if (kSplit<P>) {
    const int shift = bit < 24 ? 0 : 8;
    return (bits >> shift & 1u << (bit - shift)) * (0x3f800000u >> (bit - shift));
  }
  constexpr int kPlace = kWords<P> ? 30 : 14;
  constexpr uint32_t kTwo = kWords<P> ? 0x40000000u : 0x40004000u;
  return (bit <= kPlace ? bits << (kPlace - bit) : bits >> (bit - kPlace)) & kTwo;
}

// A float32 as the sum of two tf32 numbers, right to 2^-22 of it. Products of two such sums leave
// out that of the small parts, which is as small.
struct Split {
  uint32_t high;
  uint32_t low;
};
GNNSPARSE_HD inline Split split(float value) {
  const uint32_t high = float_bits(value) & 0xffffe000u;
  const float low = value - bits_float(high);
  // Rounded by two integer operations, which are faster than the conversion.
  return {high, (float_bits(low) + 0x1000u) & 0xffffe000u};
}

// The bit of operand register r of mma q, row tile m.
template <Precision P>
GNNSPARSE_HD constexpr int operand_bit(int m, int q, int r) {
  // Words: slot 2 q + upper is pair q, odd where `upper`.
  return kWords<P> ? 4 * operand_group(m, r) + q + 16 * (r >> 1)
                   : 4 * operand_group(m, r) + operand_pair(q, r);
}

// SDDMM multiplies 16 rows of Q (operand A, from shared memory) by the K tile's rows of K (operand
// B, as columns): mma j has the slots 8t + 2j and 8t + 2j + 1 of a lane in its result, so that the
// lane that has a row's bits has its results too. Column n of mma j is this slot:
GNNSPARSE_HD constexpr int column_slot(int n, int j) {
  return kLaneColumns * (n >> 1) + 2 * j + (n & 1);
}
// The bit of slot 2 j + odd of the lane, in the lower (0) or upper (1) eight rows.
GNNSPARSE_HD constexpr int result_bit(int upper, int j, int odd) {
  return 4 * upper + j + 16 * odd;
}

// Attention multiplies the weights that it makes from these results by rows of V: half `half` of
// register r of 16-bit mma q is element `col` of result `row`, which the same lane has.
GNNSPARSE_HD constexpr Element2D weight_element(int q, int r, int half) {
  return {operand_pair(q, r), 2 * (r & 1) + half};
}

// In words: register r of mma q.
GNNSPARSE_HD constexpr Element2D weight_word(int q, int r) { return {q, 2 * (r & 1) + (r >> 1)}; }

// Attention's facts of a K tile's slots, 16 bytes each: the four lanes of a row read slots that are
// 8 apart, from different banks.
GNNSPARSE_HD constexpr uint32_t row_stats_address(int slot) {
  return 16 * (slot + slot / kLaneColumns);
}
inline constexpr uint32_t kRowStatsTileBytes = 16 * (kPanelKTile + kPanelKTile / kLaneColumns);

// A slice of Q in shared memory: 16 rows x 8 chunks.
inline constexpr int kQueryRows = 16;
inline constexpr int kQueryChunks = kQueryRows * kRowChunks;
inline constexpr uint32_t kQueryBytes = kChunkBytes * kQueryChunks;
GNNSPARSE_HD constexpr int query_chunk(int row, int chunk) {
  return kRowChunks * row + (chunk ^ (row & 7));
}
// 16-bit: ldmatrix row `lane % 8` of matrix `lane / 8` for k-step q (16 features) of a slice.
GNNSPARSE_HD constexpr int query_row(int lane) { return lane % 16; }
GNNSPARSE_HD constexpr int query_step_chunk(int lane, int q) { return 2 * q + (lane >> 4); }
// Of K, matrices of the two k-steps 2 pair and 2 pair + 1.
GNNSPARSE_HD constexpr int key_step_chunk(int lane, int pair) { return 4 * pair + (lane >> 3); }
// Words: a lane reads two chunks of a row; word w of them is k = t and k = t + 4 of k-step w.
GNNSPARSE_HD constexpr int word_pair_chunk(int lane, int upper) { return 2 * (lane & 3) + upper; }

// Addresses in bytes of the chunks above: that of a lane's first one, and from there, in a slice
// that starts at a multiple of 128, those of the others. A warp computes one address and changes it
// by constants.
GNNSPARSE_HD constexpr uint32_t key_address(int lane) {
  return 16 * k_tile_chunk(column_slot(lane & 7, 0), key_step_chunk(lane, 0));
}
GNNSPARSE_HD constexpr uint32_t key_address(uint32_t first, int pair, int j) {
  return (first ^ 64u * pair) + 256 * j;
}
GNNSPARSE_HD constexpr uint32_t matrix_address(int lane) {
  return 16 * k_tile_chunk(matrix_slot(lane, 0), matrix_chunk(lane, 0));
}
GNNSPARSE_HD constexpr uint32_t matrix_address(uint32_t first, int q, int pair) {
  return (first ^ 32u * pair) + 512 * q;
}
GNNSPARSE_HD constexpr uint32_t word_address(int lane) {
  return 16 * k_tile_chunk(word_slot(lane, 0, 0), word_chunk(lane));
}
GNNSPARSE_HD constexpr uint32_t word_address(uint32_t first, int q, int upper) {
  return (first ^ 16u * upper) + 128 * (2 * q + upper);
}
GNNSPARSE_HD constexpr uint32_t copy_address(int lane) {
  return 16 * k_tile_chunk(copy_slot(lane, 0), copy_chunk(lane));
}
GNNSPARSE_HD constexpr uint32_t copy_address(uint32_t first, int j) {
  return (first ^ 16u * (j & 1)) + 128 * j;
}
GNNSPARSE_HD constexpr uint32_t half_copy_address(int lane) {
  const int chunk = k_tile_chunk(half_copy_slot(lane, 0, 0), copy_half(lane) / 2);
  return 16 * chunk + kHalfChunkBytes * (lane & 1);
}
GNNSPARSE_HD constexpr uint32_t half_copy_address(uint32_t first, int pair, int i) {
  return (first ^ (64u * pair | 16u * (i & 1))) + 2048 * pair + 128 * i;
}
GNNSPARSE_HD constexpr uint32_t query_address(int lane) {
  return 16 * query_chunk(query_row(lane), query_step_chunk(lane, 0));
}
GNNSPARSE_HD constexpr uint32_t query_address(uint32_t first, int q) { return first ^ 32u * q; }
// Of a slice of Q in whole chunks, a lane takes chunk copy_chunk(lane) of four rows.
GNNSPARSE_HD constexpr int own_row(int lane, int i) { return 4 * i + lane / kRowChunks; }
GNNSPARSE_HD constexpr uint32_t own_address(int lane) {
  return 16 * query_chunk(own_row(lane, 0), copy_chunk(lane));
}
GNNSPARSE_HD constexpr uint32_t own_address(uint32_t first, int i) {
  return (first ^ 64u * (i & 1)) + 512 * i;
}
// Results in float32 of a slice of 16-bit operands: 16 rows x 16 chunks, in all the shared memory
// of a K tile's slice.
inline constexpr int kFloatChunks = 2 * kRowChunks;
GNNSPARSE_HD constexpr uint32_t float_address(int row, int chunk) {
  return 16 * (kFloatChunks * row + (chunk ^ 2 * (row & 7)));
}
constexpr bool addresses_agree() {
  bool agree = true;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int query = query_chunk(query_row(lane), query_step_chunk(lane, i));
      const int own = query_chunk(own_row(lane, i), copy_chunk(lane));
      agree = agree && query_address(query_address(lane), i) == 16u * query &&
              own_address(own_address(lane), i) == 16u * own;
    }
    for (int i = 0; i < 8; ++i) {
      const int key = k_tile_chunk(column_slot(lane & 7, i & 3), key_step_chunk(lane, i >> 2));
      const int matrix = k_tile_chunk(matrix_slot(lane, i >> 2), matrix_chunk(lane, i & 3));
      const int word = k_tile_chunk(word_slot(lane, i >> 1, i & 1), word_chunk(lane));
      const int copy = k_tile_chunk(copy_slot(lane, i), copy_chunk(lane));
      for (int pair = 0; pair < 2; ++pair) {
        const int half = k_tile_chunk(half_copy_slot(lane, pair, i), copy_half(lane) / 2);
        agree = agree && half_copy_address(half_copy_address(lane), pair, i) ==
                             16u * half + kHalfChunkBytes * (lane & 1);
      }
      agree = agree && key_address(key_address(lane), i >> 2, i & 3) == 16u * key &&
              matrix_address(matrix_address(lane), i >> 2, i & 3) == 16u * matrix &&
              word_address(word_address(lane), i >> 1, i & 1) == 16u * word &&
              copy_address(copy_address(lane), i) == 16u * copy;
    }
  }
  return agree;
}
static_assert(addresses_agree(), "the short way to an address");

// Results. 16-bit: accumulator `tile` (8 features each) has rows g and g + 8 of its row tile in
// registers 0, 1 and 2, 3, features 8 tile + 2t and 8 tile + 2t + 1. Words: accumulator j has
// features 8t + j and 8t + 4 + j.
template <Precision P>
struct PanelTile {
  using Traits = PrecisionTraits<P>;
  static_assert(operands_are_stored<P>(), "shared memory holds operands");
  static constexpr bool kSplit = Traits::kSplit;
  using Storage = typename Traits::Storage;
  static constexpr int kPerChunk = Traits::kPerVector;
  static constexpr int kFeatures = kRowChunks * kPerChunk;          // of a slice
  static constexpr int kMmas = kPanelKTile / Traits::Fragment::kK;  // along the slots of a K tile
  static constexpr int kTiles = kFeatures / 8;                      // along the features
  static constexpr int kOperandWords = kLaneColumns * sizeof(Storage) / 4;  // of 8 slots of one row
};

}  // namespace gnnsparse
