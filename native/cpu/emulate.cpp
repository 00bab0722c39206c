#include "emulate_warp.h"

namespace gnnsparse::cpu {
namespace {

// One warp's item and tile of features, summed into `c` for each group of 8 rows.
template <Precision P, class Source>
void spmm_warp(const WindowSpmm& p, const WindowRange& range, int64_t first_feature,
               std::vector<WarpC>& c) {
  using Tile = typename TileOf<P>::Type;
  std::vector<Source> sources;
  for (int lane = 0; lane < kWarp; ++lane) sources.emplace_back(p.a, p.row_values(), range, lane);
  for (int k_tile = 0; k_tile < range.k_tiles; ++k_tile) {
    Vec16 rows[kWarp][kLaneSlots];
    typename Tile::Values values[kWarp][Source::kRowTiles];
    for (int lane = 0; lane < kWarp; ++lane) {
      const int position = kWindowKTile * (range.first_k_tile + k_tile) + lane_slot(lane);
      const SlotColumns columns = slot_columns(p.a, range, position);
      for (int i = 0; i < kLaneSlots; ++i) {
        rows[lane][i] = load_vec16<typename Tile::Storage>(
            p.x, columns.id[i], first_feature + Tile::lane_feature(lane), p.n);
      }
      sources[lane].next(values[lane]);
    }
    for (int m = 0; m < Tile::kMmas; ++m) {
      WarpA a;
      for (int lane = 0; lane < kWarp; ++lane) Tile::a_registers(rows[lane], m, a.reg[lane]);
      for (int tile = 0; tile < Source::kRowTiles; ++tile) {
        WarpB b;
        for (int lane = 0; lane < kWarp; ++lane) {
          Tile::b_registers(values[lane][tile], m, b.reg[lane]);
        }
        mma<P>(c[tile * Tile::kAccumulators + Tile::accumulator(m)], a, b);
      }
    }
  }
}

template <Precision P, class Source>
void emulate_spmm_with(const WindowSpmm& p) {
  using Tile = typename TileOf<P>::Type;
  // Cut items of a window are neighbours in the list, so sums simply go on.
  std::vector<float> sums(p.a.rows * p.n, 0.0f);
  for (int64_t s = 0; s < p.work.item_count; ++s) {
    const WindowRange range = window_range(p.a, p.work.items, s);
    for (int64_t f0 = 0; f0 < p.n; f0 += Tile::kFeatures) {
      std::vector<WarpC> c(Source::kRowTiles * Tile::kAccumulators, WarpC{});
      spmm_warp<P, Source>(p, range, f0, c);
      for (int lane = 0; lane < kWarp; ++lane) {
        for (int r = 0; r < 2 * Source::kRowTiles; ++r) {
          const int64_t row = range.row + kTileRows * (r / 2) + result_row(lane, r % 2);
          for (int i = 0; i < Tile::kLaneFeatures; ++i) {
            const int64_t feature = f0 + Tile::lane_feature(lane) + i;
            if (row >= p.a.rows || feature >= p.n) continue;
            sums[row * p.n + feature] += c[r / 2 * Tile::kAccumulators + result_accumulator(i)]
                                             .reg[lane][result_register(i, r % 2)];
          }
        }
      }
    }
  }
  store_rows(p, sums);
}

template <Precision P>
void emulate_spmm_precision(const WindowSpmm& p) {
  using Tile = typename TileOf<P>::Type;
  const bool wide = p.a.shape.window == 16;
  if (!wide && p.a.shape.window != kTileRows) {
    throw std::invalid_argument("window: the window kernel takes 8 or 16 rows");
  }
  if (p.a.encoding == Encoding::kDense) {
    return wide ? emulate_spmm_with<P, DenseSource<Tile, 2>>(p)
                : emulate_spmm_with<P, DenseSource<Tile, 1>>(p);
  }
  if (p.a.value_ptr != nullptr) {
    return wide ? emulate_spmm_with<P, PackedSource<Tile, 2>>(p)
                : emulate_spmm_with<P, PackedSource<Tile, 1>>(p);
  }
  if (wide || p.a.shape.brick != kWindowKTile) {
    throw std::invalid_argument("brick: plain bitmaps must be 8 x 16");
  }
  return p.stored.values != nullptr ? emulate_spmm_with<P, RowValueSource<Tile>>(p)
                                    : emulate_spmm_with<P, BitSource<Tile, kOne<P>>>(p);
}

template <Precision P>
void emulate_sddmm_precision(const WindowSddmm& p) {
  using Tile = typename TileOf<P>::Type;
  constexpr int64_t kChunk = 4 * Tile::kLaneFeatures;
  for (int64_t s = 0; s < p.work.item_count; ++s) {
    const WindowRange range = window_range(p.a, p.work.items, s);
    std::vector<int64_t> next(kTileRows, 0);
    for (int r = 0; r < kTileRows && range.row + r < p.a.rows; ++r) {
      next[r] = p.stored.indptr[range.row + r] + p.work.row_offsets[s * kTileRows + r];
    }
    std::vector<RowBits> bits;
    for (int r = 0; r < kTileRows; ++r) bits.emplace_back(p.a, range, r);
    for (int k_tile = 0; k_tile < range.k_tiles; ++k_tile) {
      const int position = kWindowKTile * (range.first_k_tile + k_tile);
      WarpC c = {};
      for (int64_t f0 = 0; f0 < p.d; f0 += kChunk) {
        for (int m = 0; m < kSddmmMmas; ++m) {
          WarpA a;
          WarpB b;
          for (int lane = 0; lane < kWarp; ++lane) {
            const int64_t feature = f0 + Tile::kLaneFeatures * (lane & 3);
            Vec16 k[2];
            for (int i = 0; i < 2; ++i) {
              const int32_t column = slot_columns(p.a, range, position + sddmm_slot(lane, i)).id[0];
              k[i] = load_vec16<typename Tile::Storage>(p.k, column, feature, p.d);
            }
            const int64_t row = std::min(range.row + lane_row(lane), p.a.rows - 1);
            const Vec16 q = load_vec16<typename Tile::Storage>(
                p.q, p.stored.row_ids != nullptr ? p.stored.row_ids[row] : row, feature, p.d);
            sddmm_a_registers<Tile>(k[0], k[1], m, a.reg[lane]);
            sddmm_b_registers<Tile>(q, m, b.reg[lane]);
          }
          mma<P>(c, a, b);
        }
      }
      uint32_t words[kTileRows];
      for (int r = 0; r < kTileRows; ++r) words[r] = bits[r].next();
      for (int lane = 0; lane < kWarp; ++lane) {
        for (int reg = 0; reg < 4; ++reg) {
          const int row = result_row(lane, reg & 1);
          const int slot = sddmm_slot(lane, reg >> 1);
          if (!(words[row] >> slot & 1u)) continue;
          const int64_t at = next[row] + popcount(words[row] & ((1u << slot) - 1u));
          store_element(p.out, p.out_dtype, at, c.reg[lane][reg]);
        }
      }
      for (int r = 0; r < kTileRows; ++r) next[r] += popcount(words[r]);
    }
  }
}

}  // namespace

void emulate_spmm(const WindowSpmm& problem, Precision precision) {
  switch (precision) {
    case Precision::kFp16:
      return emulate_spmm_precision<Precision::kFp16>(problem);
    case Precision::kBf16:
      return emulate_spmm_precision<Precision::kBf16>(problem);
    case Precision::kTf32:
      return emulate_spmm_precision<Precision::kTf32>(problem);
    default:
      throw std::invalid_argument("precision: the window kernel has no fp32");
  }
}

void emulate_sddmm(const WindowSddmm& problem, Precision precision) {
  if (problem.a.shape.window != kTileRows || problem.a.shape.brick != kWindowKTile) {
    throw std::invalid_argument("brick: plain bitmaps must be 8 x 16");
  }
  switch (precision) {
    case Precision::kFp16:
      return emulate_sddmm_precision<Precision::kFp16>(problem);
    case Precision::kBf16:
      return emulate_sddmm_precision<Precision::kBf16>(problem);
    case Precision::kTf32:
      return emulate_sddmm_precision<Precision::kTf32>(problem);
    default:
      throw std::invalid_argument("precision: the window kernel has no fp32");
  }
}

}  // namespace gnnsparse::cpu
