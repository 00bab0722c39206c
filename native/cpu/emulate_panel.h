// Slices of panels in the shared memory of a warp on the CPU, by the maps of panel_tile.h, and the
// products with them.
#pragma once

#include "emulate_warp.h"
#include "gnnsparse/panel_problem.h"

namespace gnnsparse::cpu {

// The shared memory of one K tile.
struct StageMemory {
  Vec16 chunk[kKTileChunks];
};

template <Precision P>
StageMemory copy_stage(const BlockedView& a, const DenseView& x, int64_t width, int64_t k_tile,
                       int64_t feature) {
  using Tile = PanelTile<P>;
  StageMemory memory;
  memset(&memory, 0xff, sizeof memory);  // NaN, wherever no lane writes
  for (int lane = 0; lane < kWarp; ++lane) {
    const int64_t at = feature + copy_chunk(lane) * Tile::kPerChunk;
    for (int i = 0; i < kLaneColumns; ++i) {
      const int slot = copy_slot(lane, i);
      const int32_t column = a.columns[k_tile * kPanelKTile + slot];
      memory.chunk[k_tile_chunk(slot, copy_chunk(lane))] =
          column >= 0 ? load_vec16<typename Tile::Storage>(x, column, at, width) : Vec16{};
    }
  }
  return memory;
}

// ldmatrix.x4.trans: the lane gets rows 2t and 2t + 1 of column g of each matrix, and lane
// 8 m + r gives the address of row r of matrix m.
inline uint32_t matrix_word(const StageMemory& memory, int q, int pair, int lane, int matrix) {
  uint32_t word = 0;
  for (int half = 0; half < 2; ++half) {
    const int source = 8 * matrix + 2 * (lane & 3) + half;
    const Vec16& chunk =
        memory.chunk[k_tile_chunk(matrix_slot(source, q), matrix_chunk(source, pair))];
    uint16_t element;
    memcpy(&element, reinterpret_cast<const char*>(&chunk) + 2 * (lane >> 2), sizeof element);
    word |= static_cast<uint32_t>(element) << (16 * half);
  }
  return word;
}

template <Precision P>
WarpB operand_b(const StageMemory& memory, int q, int tile) {
  WarpB b;
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int upper = 0; upper < 2; ++upper) {
      if constexpr (kWords<P>) {
        const int chunk = k_tile_chunk(word_slot(lane, q, upper), word_chunk(lane));
        b.reg[lane][upper] = memory.chunk[chunk].word[tile];
      } else {
        b.reg[lane][upper] = matrix_word(memory, q, tile / 2, lane, 2 * (tile & 1) + upper);
      }
    }
  }
  return b;
}

// Applies `change` to every register.
template <class Warp, class Change>
Warp mapped(const Warp& warp, Change change) {
  Warp result;
  for (int lane = 0; lane < kWarp; ++lane) {
    constexpr int kRegisters = sizeof warp.reg[0] / sizeof warp.reg[0][0];
    for (int r = 0; r < kRegisters; ++r) result.reg[lane][r] = change(warp.reg[lane][r]);
  }
  return result;
}

// d += a b, where words are rounded or split first, `a` unless it is exact.
template <Precision P, bool kExact>
void multiply(WarpC& d, const WarpA& a, const WarpB& b) {
  if constexpr (P == Precision::kFp32) {
    const auto high = [](uint32_t word) { return split(bits_float(word)).high; };
    const auto low = [](uint32_t word) { return split(bits_float(word)).low; };
    mma<P>(d, mapped(a, high), mapped(b, low));
    if constexpr (!kExact) mma<P>(d, mapped(a, low), mapped(b, high));
    mma<P>(d, mapped(a, high), mapped(b, high));
  } else if constexpr (P == Precision::kTf32) {
    const auto round = [](uint32_t word) { return to_tf32(word); };
    mma<P>(d, mapped(a, round), mapped(b, round));
  } else {
    mma<P>(d, a, b);
  }
}

template <Precision P>
int result_feature(int lane, int tile, int reg) {
  return kWords<P> ? 8 * (lane & 3) + 4 * (reg & 1) + tile : 8 * tile + 2 * (lane & 3) + (reg & 1);
}

// A slice of the panel's rows of Q in shared memory.
struct QueryMemory {
  Vec16 chunk[kQueryChunks];
};

template <Precision P, class Problem>
QueryMemory copy_queries(const Problem& p, const DenseView& q, int64_t width, const PanelItem& item,
                         int64_t feature) {
  QueryMemory memory;
  for (int row = 0; row < kQueryRows; ++row) {
    for (int chunk = 0; chunk < kRowChunks; ++chunk) {
      const int64_t at = int64_t{item.row} + row;
      const int64_t id = at < p.a.rows && p.stored.row_ids != nullptr ? p.stored.row_ids[at] : at;
      const int64_t column = feature + chunk * PanelTile<P>::kPerChunk;
      memory.chunk[query_chunk(row, chunk)] =
          at < p.a.rows ? load_vec16<typename PanelTile<P>::Storage>(q, id, column, width)
                        : Vec16{};
    }
  }
  return memory;
}

// ldmatrix without transposition: word `lane % 4` of row `lane / 4` of the matrix whose row r lane
// 8 m + r points to.
template <class Chunk>
uint32_t plain_word(int lane, int matrix, Chunk chunk_of) {
  return chunk_of(8 * matrix + (lane >> 2)).word[lane & 3];
}

// Both operands of k-step q: 16 features in 16 bits, 8 words.
template <Precision P>
void score_operands(const QueryMemory& queries, const StageMemory& keys, int q, int j, WarpA& a,
                    WarpB& b) {
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int r = 0; r < 4; ++r) {
      if constexpr (kWords<P>) {
        const int row = (lane >> 2) + 8 * (r & 1);
        const int chunk = query_chunk(row, word_pair_chunk(lane, r >> 1));
        a.reg[lane][r] = queries.chunk[chunk].word[q];
      } else {
        a.reg[lane][r] = plain_word(lane, r, [&](int source) -> const Vec16& {
          return queries.chunk[query_chunk(query_row(source), query_step_chunk(source, q))];
        });
      }
    }
    for (int r = 0; r < 2; ++r) {
      if constexpr (kWords<P>) {
        const int chunk = k_tile_chunk(column_slot(lane >> 2, j), word_pair_chunk(lane, r));
        b.reg[lane][r] = keys.chunk[chunk].word[q];
      } else {
        b.reg[lane][r] = plain_word(lane, 2 * (q & 1) + r, [&](int source) -> const Vec16& {
          const int slot = column_slot(source & 7, j);
          return keys.chunk[k_tile_chunk(slot, key_step_chunk(source, q >> 1))];
        });
      }
    }
  }
}

// The scores of a K tile: q's rows of the panel times k's rows of the K tile's columns, `width`
// features.
template <Precision P, class Problem>
void score_stage(const Problem& p, const DenseView& q, const DenseView& k, int64_t width,
                 const PanelItem& item, int64_t k_tile, WarpC (&scores)[4]) {
  for (int64_t f0 = 0; f0 < width; f0 += PanelTile<P>::kFeatures) {
    const QueryMemory queries = copy_queries<P>(p, q, width, item, f0);
    const StageMemory keys = copy_stage<P>(p.a, k, width, k_tile, f0);
    for (int step = 0; step < 4; ++step) {
      for (int j = 0; j < 4; ++j) {
        WarpA a;
        WarpB b;
        score_operands<P>(queries, keys, step, j, a, b);
        multiply<P, false>(scores[j], a, b);
      }
    }
  }
}

}  // namespace gnnsparse::cpu
