// Maps of the panel kernels whose X has 8 bits (gnnsparse/quantize.h). K tiles lie in shared memory
// as those of panel_tile.h: 32 column slots, 128 bytes of each one's row of X, which here are 128
// features. ldmatrix moves pairs of bytes, two features of a slot. Transposed, a lane gets the pair
// g = lane / 4 of the slots 8t + 2i and 8t + 2i + 1 (t = lane % 4) from matrix i = 0 .. 3: its own
// slots, whose bits or values it holds for operand A. The even features of the pairs are one
// operand B, the odd ones another.
#pragma once

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

// Operand A of m16n8k32 in bytes of 0 and 1: register r has row g + 8 (r & 1) of the row tile and
// the lane's slots 4 (r >> 1) .. 4 (r >> 1) + 3, one a byte. `stored` are a lane's bits of a brick
// of kBrickRows rows (panel_tile.h). Pairs of slots are first spread over two bytes each, once for
// the four registers of row tile m of the brick.
template <int kBrickRows>
GNNSPARSE_HD constexpr uint32_t spread_pairs(uint32_t stored, int m) {
  const uint32_t even = kBrickRows == 32 ? stored >> 8 * m & 0xffu : stored & 0xffu;
  const uint32_t odd = kBrickRows == 32 ? stored >> (16 + 8 * m) & 0xffu : stored >> 8 & 0xffu;
  const uint32_t both = even | odd << 8;
  return (both & 0x5555u) | (both & 0xaaaau) << 15;
}
GNNSPARSE_HD constexpr uint32_t byte_units(uint32_t spread, int r) {
  return spread >> (4 * (r & 1) + 2 * (r >> 1)) & 0x01010101u;
}

}  // namespace gnnsparse
