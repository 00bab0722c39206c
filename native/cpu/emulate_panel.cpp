#include "emulate_warp.h"
#include "gnnsparse/panel_problem.h"

namespace gnnsparse::cpu {
namespace {

// The shared memory of one stage.
struct StageMemory {
  Vec16 chunk[kStageChunks];
};

template <Precision P>
StageMemory copy_stage(const BlockedView& a, const DenseView& x, int64_t width, int64_t stage,
                       int64_t feature) {
  using Tile = PanelTile<P>;
  StageMemory memory;
  memset(&memory, 0xff, sizeof memory);  // NaN, wherever no lane writes
  for (int lane = 0; lane < kWarp; ++lane) {
    const int64_t at = feature + copy_chunk(lane) * Tile::kPerChunk;
    for (int i = 0; i < kLaneColumns; ++i) {
      const int slot = copy_slot(lane, i);
      const int32_t column = a.columns[stage * kStage + slot];
      memory.chunk[stage_chunk(slot, copy_chunk(lane))] =
          column >= 0 ? load_vec16<typename Tile::Storage>(x, column, at, width) : Vec16{};
    }
  }
  return memory;
}

// ldmatrix.x4.trans: the lane gets rows 2t and 2t + 1 of column g of each matrix, and lane
// 8 m + r gives the address of row r of matrix m.
uint32_t matrix_word(const StageMemory& memory, int q, int pair, int lane, int matrix) {
  uint32_t word = 0;
  for (int half = 0; half < 2; ++half) {
    const int source = 8 * matrix + 2 * (lane & 3) + half;
    const Vec16& chunk =
        memory.chunk[stage_chunk(matrix_slot(source, q), matrix_chunk(source, pair))];
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
        const int chunk = stage_chunk(word_slot(lane, q, upper), word_chunk(lane));
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

template <Precision P, class Source>
void multiply_stage(const PanelSpmm& p, int64_t stage, int64_t feature, std::vector<WarpC>& sums) {
  using Tile = PanelTile<P>;
  const StageMemory memory = copy_stage<P>(p.a, p.x, p.n, stage, feature);
  for (int q = 0; q < Tile::kMmas; ++q) {
    for (int m = 0; m < Source::kRows / 16; ++m) {
      WarpA a;
      for (int lane = 0; lane < kWarp; ++lane) {
        Source::registers(Source::load(p.a, stage, lane), m, q, a.reg[lane]);
      }
      for (int tile = 0; tile < Tile::kTiles; ++tile) {
        WarpB b = operand_b<P>(memory, q, tile);
        for (int i = 0; Tile::kSplit && i < 2 * kWarp; ++i) {
          uint32_t& word = b.reg[i / 2][i % 2];
          const auto loaded = Source::load(p.a, stage, i / 2);
          word = float_bits(Source::weigh(loaded, 2 * q + i % 2, bits_float(word)));
        }
        multiply<P, Source::kExact>(sums[m * Tile::kTiles + tile], a, b);
      }
    }
  }
}

template <Precision P, class Source>
void emulate_with(const PanelSpmm& p) {
  using Tile = PanelTile<P>;
  std::vector<float> sums(p.a.rows * p.n, 0.0f);
  for (int64_t s = 0; s < p.item_count; ++s) {
    const PanelItem item = p.items[s];
    for (int64_t f0 = 0; f0 < p.n; f0 += Tile::kFeatures) {
      std::vector<WarpC> c(Source::kRows / 16 * Tile::kTiles, WarpC{});
      for (int stage = item.stage; stage < item.stage + item.stages; ++stage) {
        multiply_stage<P, Source>(p, stage, f0, c);
      }
      for (int i = 0; i < static_cast<int>(c.size()) * kWarp * 4; ++i) {
        const int reg = i % 4;
        const int lane = i / 4 % kWarp;
        const int accumulator = i / 4 / kWarp;
        const int tile = accumulator % Tile::kTiles;
        const int64_t row =
            item.row + 16 * (accumulator / Tile::kTiles) + (lane >> 2) + 8 * (reg >> 1);
        const int64_t column = f0 + result_feature<P>(lane, tile, reg);
        if (row >= p.a.rows || column >= p.n) continue;
        sums[row * p.n + column] += Source::kScale * c[accumulator].reg[lane][reg];
      }
    }
  }
  store_rows(p, sums);
}

template <Precision P, int kRows>
void emulate_height(const PanelSpmm& p) {
  if (p.a.encoding == Encoding::kDense) return emulate_with<P, ValuePanel<P, kRows>>(p);
  return p.a.slot_scale != nullptr ? emulate_with<P, ScaledPanel<P, kRows>>(p)
                                   : emulate_with<P, UnitPanel<P, kRows>>(p);
}

template <Precision P>
void emulate_precision(const PanelSpmm& p) {
  return p.a.shape.window == 16 ? emulate_height<P, 16>(p) : emulate_height<P, 32>(p);
}

// A slice of the panel's rows of Q in shared memory.
struct QueryMemory {
  Vec16 chunk[kQueryChunks];
};

template <Precision P>
QueryMemory copy_queries(const PanelSddmm& p, const PanelItem& item, int64_t feature) {
  QueryMemory memory;
  for (int row = 0; row < kQueryRows; ++row) {
    for (int chunk = 0; chunk < kRowChunks; ++chunk) {
      const int64_t at = int64_t{item.row} + row;
      const int64_t id = at < p.a.rows && p.row_ids != nullptr ? p.row_ids[at] : at;
      const int64_t column = feature + chunk * PanelTile<P>::kPerChunk;
      memory.chunk[query_chunk(row, chunk)] =
          at < p.a.rows ? load_vec16<typename PanelTile<P>::Storage>(p.q, id, column, p.d)
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
        const int chunk = stage_chunk(column_slot(lane >> 2, j), word_pair_chunk(lane, r));
        b.reg[lane][r] = keys.chunk[chunk].word[q];
      } else {
        b.reg[lane][r] = plain_word(lane, 2 * (q & 1) + r, [&](int source) -> const Vec16& {
          const int slot = column_slot(source & 7, j);
          return keys.chunk[stage_chunk(slot, key_step_chunk(source, q >> 1))];
        });
      }
    }
  }
}

// Writes one row's scores of a stage; its lanes' slots are in the order of the columns.
void store_scores(const PanelSddmm& p, const WarpC (&scores)[4], const uint32_t (&bits)[kWarp],
                  int in_panel, int64_t& next) {
  const int upper = in_panel / 8;
  for (int t = 0; t < 4; ++t) {
    const int lane = 4 * (in_panel % 8) + t;
    for (int slot = 0; slot < kLaneColumns; ++slot) {
      if (!(bits[lane] >> result_bit(upper, slot >> 1, slot & 1) & 1u)) continue;
      store_element(p.out, p.out_dtype, next++,
                    scores[slot >> 1].reg[lane][2 * upper + (slot & 1)]);
    }
  }
}

template <Precision P>
void emulate_scores(const PanelSddmm& p) {
  constexpr int64_t kFeatures = PanelTile<P>::kFeatures;
  for (int64_t s = 0; s < p.item_count; ++s) {
    const PanelItem item = p.items[s];
    int64_t next[kQueryRows] = {};
    for (int r = 0; r < kQueryRows && item.row + r < p.a.rows; ++r) {
      next[r] = p.indptr[item.row + r] + p.row_offsets[s * kQueryRows + r];
    }
    for (int64_t stage = item.stage; stage < int64_t{item.stage} + item.stages; ++stage) {
      WarpC scores[4] = {};
      for (int64_t f0 = 0; f0 < p.d; f0 += kFeatures) {
        const QueryMemory queries = copy_queries<P>(p, item, f0);
        const StageMemory keys = copy_stage<P>(p.a, p.k, p.d, stage, f0);
        for (int q = 0; q < 4; ++q) {
          for (int j = 0; j < 4; ++j) {
            WarpA a;
            WarpB b;
            score_operands<P>(queries, keys, q, j, a, b);
            multiply<P, false>(scores[j], a, b);
          }
        }
      }
      uint32_t bits[kWarp];
      for (int lane = 0; lane < kWarp; ++lane) {
        bits[lane] = lane_bits(load_bits<kQueryRows>(p.a, stage, lane), kQueryRows);
      }
      for (int r = 0; r < kQueryRows; ++r) store_scores(p, scores, bits, r, next[r]);
    }
  }
}

}  // namespace

void emulate_panel_sddmm(const PanelSddmm& problem, Precision precision) {
  switch (precision) {
    case Precision::kFp16:
      return emulate_scores<Precision::kFp16>(problem);
    case Precision::kBf16:
      return emulate_scores<Precision::kBf16>(problem);
    case Precision::kTf32:
      return emulate_scores<Precision::kTf32>(problem);
    case Precision::kFp32:
      return emulate_scores<Precision::kFp32>(problem);
  }
}

void emulate_panel(const PanelSpmm& problem, Precision precision) {
  switch (precision) {
    case Precision::kFp16:
      return emulate_precision<Precision::kFp16>(problem);
    case Precision::kBf16:
      return emulate_precision<Precision::kBf16>(problem);
    case Precision::kTf32:
      return emulate_precision<Precision::kTf32>(problem);
    case Precision::kFp32:
      return emulate_precision<Precision::kFp32>(problem);
  }
}

}  // namespace gnnsparse::cpu
