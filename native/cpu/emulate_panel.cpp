#include "emulate_panel.h"

namespace gnnsparse::cpu {
namespace {

// Operand A of mma q, row tile m, of a K tile.
template <class Source>
WarpA operand_a(const BlockedView& a, int64_t k_tile, int m, int q) {
  WarpA result;
  for (int lane = 0; lane < kWarp; ++lane) {
    Source::registers(Source::load(a, k_tile, lane), m, q, result.reg[lane]);
  }
  return result;
}

template <>
WarpA operand_a<PackedPanel>(const BlockedView& a, int64_t k_tile, int m, int q) {
  Vec16 tile[kTileBytes / sizeof(Vec16) + 1] = {};  // entries that are none go behind it
  const PackedPanel::Range range = PackedPanel::range(a, k_tile);
  for (int vector = 0; vector < range.count; ++vector) {
    for (const uint32_t entry : PackedPanel::load(a, range, vector).entry) {
      const auto value = static_cast<uint16_t>(entry);
      memcpy(reinterpret_cast<char*>(tile) + entry_byte(entry), &value, sizeof value);
    }
  }
  WarpA result;
  for (int lane = 0; lane < kWarp; ++lane) {
    memcpy(result.reg[lane], &tile[tile_chunk(lane, m, q)], sizeof(Vec16));
  }
  return result;
}

template <Precision P, class Source>
void multiply_stage(const PanelSpmm& p, int64_t k_tile, int64_t feature, std::vector<WarpC>& sums) {
  using Tile = PanelTile<P>;
  const StageMemory memory = copy_stage<P>(p.a, p.x, p.n, k_tile, feature);
  for (int q = 0; q < Tile::kMmas; ++q) {
    for (int m = 0; m < Source::kRows / 16; ++m) {
      const WarpA a = operand_a<Source>(p.a, k_tile, m, q);
      for (int tile = 0; tile < Tile::kTiles; ++tile) {
        WarpB b = operand_b<P>(memory, q, tile);
        if constexpr (Tile::kSplit) {
          for (int i = 0; i < 2 * kWarp; ++i) {
            uint32_t& word = b.reg[i / 2][i % 2];
            const auto loaded = Source::load(p.a, k_tile, i / 2);
            word = float_bits(Source::weigh(loaded, 2 * q + i % 2, bits_float(word)));
          }
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
  for (int64_t s = 0; s < p.work.item_count; ++s) {
    const PanelItem item = p.work.items[s];
    for (int64_t f0 = 0; f0 < p.n; f0 += Tile::kFeatures) {
      std::vector<WarpC> c(Source::kRows / 16 * Tile::kTiles, WarpC{});
      for (int k_tile = item.first_k_tile; k_tile < item.first_k_tile + item.k_tiles; ++k_tile) {
        multiply_stage<P, Source>(p, k_tile, f0, c);
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
  if constexpr (kRows == kPackedRows && !kWords<P>) {
    if (p.a.encoding == Encoding::kEntries) return emulate_with<P, PackedPanel>(p);
  } else {
    if (p.a.encoding == Encoding::kDense) return emulate_with<P, ValuePanel<P, kRows>>(p);
  }
  return p.a.slot_scale != nullptr ? emulate_with<P, ScaledPanel<P, kRows>>(p)
                                   : emulate_with<P, UnitPanel<P, kRows>>(p);
}

template <Precision P>
void emulate_precision(const PanelSpmm& p) {
  return p.a.shape.window == 16 ? emulate_height<P, 16>(p) : emulate_height<P, 32>(p);
}

// Writes one row's scores of a K tile; its lanes' slots are in the order of the columns.
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
  for (int64_t s = 0; s < p.work.item_count; ++s) {
    const PanelItem item = p.work.items[s];
    int64_t next[kQueryRows] = {};
    for (int r = 0; r < kQueryRows && item.row + r < p.a.rows; ++r) {
      next[r] = p.stored.indptr[item.row + r] + p.work.row_offsets[s * kQueryRows + r];
    }
    for (int64_t k_tile = item.first_k_tile; k_tile < int64_t{item.first_k_tile} + item.k_tiles;
         ++k_tile) {
      WarpC scores[4] = {};
      score_stage<P>(p, p.q, p.k, p.d, item, k_tile, scores);
      uint32_t bits[kWarp];
      for (int lane = 0; lane < kWarp; ++lane) {
        bits[lane] = lane_bits(load_bits<kQueryRows>(p.a, k_tile, lane), kQueryRows);
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
