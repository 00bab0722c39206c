#include <cmath>
#include <limits>

#include "emulate_panel.h"
#include "gnnsparse/panel_attention.h"

namespace gnnsparse::cpu {
namespace {

constexpr float kLow = -std::numeric_limits<float>::infinity();

// A row's share of the softmax so far: sums by powers of two of a maximum that lags behind.
struct RowSums {
  float maximum = kLow;
  float total = 0.0f;
  std::vector<float> values;

  void raise(float top) {
    if (!(top > maximum + 8.0f)) return;
    const float raised = std::max(maximum, std::ceil(top));
    const float factor = maximum == kLow ? 0.0f : std::exp2(maximum - raised);
    maximum = raised;
    total *= factor;
    for (float& value : values) value *= factor;
  }
};

// The scores of a lane's row become weights; all its lanes see the row's maximum.
void weigh(const uint32_t (&bits)[kWarp], float scale, int in_panel, WarpC (&scores)[4],
           RowSums& row) {
  const int upper = in_panel / 8;
  float top = kLow;
  const auto each = [&](auto change) {
    for (int t = 0; t < 4; ++t) {
      const int lane = 4 * (in_panel % 8) + t;
      for (int slot = 0; slot < kLaneColumns; ++slot) {
        const bool edge = bits[lane] >> result_bit(upper, slot >> 1, slot & 1) & 1u;
        change(scores[slot >> 1].reg[lane][2 * upper + (slot & 1)], edge);
      }
    }
  };
  each([&](float& score, bool edge) {
    score = edge ? score * scale : kLow;
    top = std::max(top, score);
  });
  row.raise(top);
  each([&](float& score, bool) {
    score = row.maximum == kLow ? 0.0f : std::exp2(score - row.maximum);
    row.total += score;
  });
}

template <Precision P>
uint32_t packed(float value) {
  return P == Precision::kFp16 ? float_to_half(value) : float_to_bf16(value);
}

template <Precision P>
WarpA operand_a(const WarpC (&weights)[4], int q) {
  WarpA a;
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int r = 0; r < 4; ++r) {
      uint32_t word = 0;
      for (int half = 0; half < 2; ++half) {
        const Element2D e = weight_element(q, r, half);
        word |= packed<P>(weights[e.row].reg[lane][e.col]) << (16 * half);
      }
      a.reg[lane][r] = word;
    }
  }
  return a;
}

// One stage of one warp's 16 rows; `brick` has its bits.
template <Precision P>
void emulate_stage(const PanelAttention& p, const PanelItem& item, int64_t stage, int64_t brick,
                   std::vector<RowSums>& rows) {
  const AttentionProblem& problem = p.problem;
  const DenseView v = problem.v.of(0, 0);
  WarpC scores[4] = {};
  score_stage<P>(p, problem.q.of(0, 0), problem.k.of(0, 0), problem.d, item, stage, scores);
  uint32_t bits[kWarp];
  for (int lane = 0; lane < kWarp; ++lane) {
    bits[lane] = lane_bits(load_bits<kQueryRows>(p.a, brick, lane), kQueryRows);
  }
  RowSums nobody;
  for (int r = 0; r < kQueryRows; ++r) {
    const bool inside = item.row + r < p.a.rows;
    weigh(bits, problem.scale * kLog2E, r, scores, inside ? rows[item.row + r] : nobody);
  }
  for (int64_t f0 = 0; f0 < problem.dv; f0 += PanelTile<P>::kFeatures) {
    const StageMemory memory = copy_stage<P>(p.a, v, problem.dv, stage, f0);
    for (int tile = 0; tile < PanelTile<P>::kTiles; ++tile) {
      WarpC c = {};
      for (int step = 0; step < 2; ++step) {
        mma<P>(c, operand_a<P>(scores, step), operand_b<P>(memory, step, tile));
      }
      for (int i = 0; i < 4 * kWarp; ++i) {
        const int64_t row = item.row + i / 4 / 4 + 8 * (i % 4 / 2);
        const int64_t feature = f0 + result_feature<P>(i / 4, tile, i % 4);
        if (row < p.a.rows && feature < problem.dv)
          rows[row].values[feature] += c.reg[i / 4][i % 4];
      }
    }
  }
}

template <Precision P>
void emulate(const PanelAttention& p) {
  const AttentionProblem& problem = p.problem;
  std::vector<RowSums> rows(p.a.rows);
  for (RowSums& row : rows) row.values.assign(problem.dv, 0.0f);
  const int64_t windows = p.a.shape.panel / kQueryRows;
  for (int64_t s = 0; s < p.item_count; ++s) {
    for (int64_t w = 0; w < windows; ++w) {
      PanelItem window = p.items[s];
      window.row += static_cast<int32_t>(kQueryRows * w);
      for (int64_t i = 0; i < window.stages; ++i) {
        const int64_t stage = int64_t{window.stage} + i;
        emulate_stage<P>(p, window, stage, stage * windows + w, rows);
      }
    }
  }
  const MutableDenseView out = p.out.mutable_of(0, 0);
  for (int64_t row = 0; row < p.a.rows; ++row) {
    const int64_t id = p.row_ids != nullptr ? p.row_ids[row] : row;
    const float total = rows[row].total;
    for (int64_t f = 0; f < problem.dv; ++f) {
      const float value = total > 0.0f ? rows[row].values[f] / total : 0.0f;
      store_element(out.data, out.dtype, id * out.stride + f, value);
    }
    p.lse[id] = (rows[row].maximum + std::log2(total)) * kLn2;
  }
}

}  // namespace

void emulate_attention(const PanelAttention& problem) {
  switch (problem.problem.precision) {
    case Precision::kFp16:
      return emulate<Precision::kFp16>(problem);
    case Precision::kBf16:
      return emulate<Precision::kBf16>(problem);
    default:
      throw std::invalid_argument("precision: attention over panels has fp16 and bf16");
  }
}

}  // namespace gnnsparse::cpu
