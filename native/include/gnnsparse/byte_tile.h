// Maps of the panel kernels whose X, or K and V, have 8 bits (gnnsparse/quantize.h). K tiles lie in
// shared memory as those of panel_tile.h: 32 column slots, 128 bytes of each one's row of X, which
// here are 128 features. ldmatrix moves pairs of bytes, two features of a slot. Transposed, a lane
// gets the pair g = lane / 4 of the slots 8t + 2i and 8t + 2i + 1 (t = lane % 4) from matrix i = 0
// .. 3: its own slots, whose bits or values it holds for operand A. The even features of the pairs
// are one operand B, the odd ones another.
#pragma once

#include "gnnsparse/fragment.h"
#include "gnnsparse/panel_tile.h"

namespace gnnsparse {

inline constexpr int kByteFeatures = kRowSliceBytes;  // of a slice
inline constexpr int kByteChunks = kRowChunks;        // of 16 features

// X as the ring of the panel kernels copies it.
struct ByteTile {
  using Storage = uint8_t;
  static constexpr int kPerChunk = kChunkBytes;
  static constexpr int kFeatures = kByteFeatures;
};

// Row `lane % 8` of matrix `lane / 8`.
GNNSPARSE_HD constexpr int byte_matrix_slot(int lane) {
  return kLaneColumns * ((lane % 8) >> 1) + 2 * (lane / 8) + (lane & 1);
}
// The address of the lane's row in chunk 0, and from there in chunk `chunk`.
GNNSPARSE_HD constexpr uint32_t byte_matrix_address(int lane) {
  return 16 * k_tile_chunk(byte_matrix_slot(lane), 0);
}
GNNSPARSE_HD constexpr uint32_t byte_matrix_address(uint32_t first, int chunk) {
  return first ^ 16u * chunk;
}
constexpr bool byte_addresses_agree() {
  for (int lane = 0; lane < 32; ++lane) {
    for (int chunk = 0; chunk < kByteChunks; ++chunk) {
      const auto at = 16u * k_tile_chunk(byte_matrix_slot(lane), chunk);
      if (byte_matrix_address(byte_matrix_address(lane), chunk) != at) return false;
    }
  }
  return true;
}
static_assert(byte_addresses_agree(), "the short way to an address");

// Results: a lane has four neighbouring features of each chunk, of which accumulators of even
// features hold the first and the third.
GNNSPARSE_HD constexpr int byte_feature(int lane, int chunk) { return 16 * chunk + 4 * (lane & 3); }

// Operand A of m16n8k32 in bytes of 0 and 1: register r has row g + 8 (r & 1) and the lane's slots
// 4 (r >> 1) .. 4 (r >> 1) + 3, one a byte. `stored` are a lane's bits of a brick of kBrickRows
// rows (panel_tile.h). Pairs of slots are first spread over two bytes each, once for the four
// registers of row tile m of the brick.
template <int kBrickRows>
GNNSPARSE_HD constexpr uint32_t spread_pairs(uint32_t stored, int m) {
  uint32_t both = stored;
  if (kBrickRows == 32) both = (stored >> 8 * m & 0xffu) | (stored >> 8 * (m + 1) & 0xff00u);
  return (both & 0x5555u) | (both & 0xaaaau) << 15;
}
GNNSPARSE_HD constexpr uint32_t byte_units(uint32_t spread, int r) {
  return spread >> (4 * (r & 1) + 2 * (r >> 1)) & 0x01010101u;
}

// Attention: a slot's row in a slice is 64 bytes of K and 64 bytes of V, of up to 64 features each.
inline constexpr int kByteHeadFeatures = kRowSliceBytes / 2;
inline constexpr int kByteHeadChunks = kRowChunks / 2;  // of 16 features; those of V come second

// Scores multiply Q (operand A, float16) by the rows of K (operand B, as columns). Matrices that
// are not transposed give a lane four neighbouring bytes of a slot: ldmatrix takes the addresses of
// key_address(lane) and key_address(first, 0, j), and its matrix `step` has the features of chunk
// `step`. Register r of the lane's B in k-step `step` are two of these bytes, so k stands for other
// features than its own number. Feature of half `half`:
GNNSPARSE_HD constexpr int byte_key_feature(int lane, int step, int r, int half) {
  return 16 * step + 4 * (lane & 3) + 2 * r + half;
}
// Operand A has the same order: a lane reads four neighbouring features of row g, and of row g + 8,
// from a slice of Q. Their address in k-step 0 of row g, and from there those of other k-steps.
GNNSPARSE_HD constexpr uint32_t byte_query_address(int lane) {
  return 16 * query_chunk(lane >> 2, (lane & 3) >> 1) + 8 * (lane & 1);
}
GNNSPARSE_HD constexpr uint32_t byte_query_address(uint32_t first, int step, int upper) {
  return (first ^ 32u * step) + 8 * kRowSliceBytes * upper;
}
constexpr bool byte_scores_agree() {
  using Fragment = FragmentM16N8K16;
  for (int lane = 0; lane < 32; ++lane) {
    for (int step = 0; step < kByteHeadChunks; ++step) {
      // The matrices of ldmatrix, of whose rows a lane has two elements of 16 bits, are chunks.
      if (key_step_chunk(8 * step, 0) != step) return false;
      for (int r = 0; r < 2; ++r) {
        for (int half = 0; half < 2; ++half) {
          const int feature = byte_key_feature(lane, step, r, half);
          if (feature != 16 * step + 2 * Fragment::b(lane, 0, r).row + half) return false;
          for (int upper = 0; upper < 2; ++upper) {
            // Operand A's register of the same k has the same feature of row g + 8 upper.
            const Element2D a = Fragment::a(lane, 2 * r + upper, half);
            if (a.col != Fragment::b(lane, r, half).row) return false;
            const uint32_t at = 16 * query_chunk(a.row, feature / 8) + 2 * (feature % 8);
            const uint32_t first = byte_query_address(byte_query_address(lane), step, upper);
            if (first + 4 * r + 2 * half != at) return false;
          }
        }
      }
    }
  }
  return true;
}
static_assert(byte_scores_agree(), "operands of the scores");
constexpr bool byte_values_agree() {
  using Fragment = FragmentM16N8K16;
  for (int lane = 0; lane < 32; ++lane) {
    for (int q = 0; q < 2; ++q) {
      for (int r = 0; r < 2; ++r) {
        // Transposed, matrix 2 q + r gives a lane the slots of rows 2t and 2t + 1, which are those
        // that operand A has in registers 2 r and 2 r + 1.
        for (int half = 0; half < 2; ++half) {
          const int slot = byte_matrix_slot(8 * (2 * q + r) + 2 * (lane & 3) + half);
          if (slot != kLaneColumns * (lane & 3) + 2 * operand_pair(q, 2 * r) + half) return false;
        }
      }
    }
    // A lane's sums are of four neighbouring features, rows g and g + 8.
    for (int i = 0; i < 4; ++i) {
      const Element2D at = Fragment::c(lane, i >> 1);
      if (2 * at.col + (i & 1) != byte_feature(lane, 0) + i) return false;
    }
  }
  return true;
}
static_assert(byte_values_agree(), "operands of the weighted sums");

}  // namespace gnnsparse
