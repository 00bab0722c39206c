#include "emulate_warp.h"
#include "gnnsparse/panel_problem.h"

namespace gnnsparse::cpu {
namespace {

// The shared memory of one stage.
struct StageMemory {
  Vec16 chunk[kStageChunks];
};

template <Precision P>
StageMemory copy_stage(const PanelSpmm& p, int64_t stage, int64_t feature) {
  using Tile = PanelTile<P>;
  StageMemory memory;
  memset(&memory, 0xff, sizeof memory);  // NaN, wherever no lane writes
  for (int lane = 0; lane < kWarp; ++lane) {
    const int64_t at = feature + copy_chunk(lane) * Tile::kPerChunk;
    for (int i = 0; i < kLaneColumns; ++i) {
      const int slot = copy_slot(lane, i);
      const int32_t column = p.a.columns[stage * kStage + slot];
      memory.chunk[stage_chunk(slot, copy_chunk(lane))] =
          column >= 0 ? load_vec16<typename Tile::Storage>(p.x, column, at, p.n) : Vec16{};
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
      if constexpr (PanelTile<P>::kTf32) {
        const int chunk = stage_chunk(word_slot(lane, q, upper), word_chunk(lane));
        b.reg[lane][upper] = to_tf32(memory.chunk[chunk].word[tile]);
      } else {
        b.reg[lane][upper] = matrix_word(memory, q, tile / 2, lane, 2 * (tile & 1) + upper);
      }
    }
  }
  return b;
}

template <Precision P>
int result_feature(int lane, int tile, int reg) {
  return PanelTile<P>::kTf32 ? 8 * (lane & 3) + 4 * (reg & 1) + tile
                             : 8 * tile + 2 * (lane & 3) + (reg & 1);
}

template <Precision P, class Source>
void multiply_stage(const PanelSpmm& p, int64_t stage, int64_t feature, std::vector<WarpC>& sums) {
  using Tile = PanelTile<P>;
  const StageMemory memory = copy_stage<P>(p, stage, feature);
  for (int q = 0; q < Tile::kMmas; ++q) {
    for (int m = 0; m < Source::kRows / 16; ++m) {
      WarpA a;
      for (int lane = 0; lane < kWarp; ++lane) {
        Source::registers(Source::load(p.a, stage, lane), m, q, a.reg[lane]);
      }
      for (int tile = 0; tile < Tile::kTiles; ++tile) {
        mma<P>(sums[m * Tile::kTiles + tile], a, operand_b<P>(memory, q, tile));
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

}  // namespace

void emulate_panel(const PanelSpmm& problem, Precision precision) {
  switch (precision) {
    case Precision::kFp16:
      return emulate_precision<Precision::kFp16>(problem);
    case Precision::kBf16:
      return emulate_precision<Precision::kBf16>(problem);
    case Precision::kTf32:
      return emulate_precision<Precision::kTf32>(problem);
    default:
      throw std::invalid_argument("precision: the panel kernel has no fp32");
  }
}

}  // namespace gnnsparse::cpu
