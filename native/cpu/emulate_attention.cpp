#include <cmath>
#include <limits>
#include <type_traits>

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

using RowsOfSums = std::vector<std::vector<float>>;

// sums += weights * values, the rows of a K tile's columns.
template <Precision P, class RowOf>
void add_products(const PanelAttention& p, const DenseView& values, int64_t width, int64_t k_tile,
                  const WarpC (&weights)[4], RowOf row_of) {
  for (int64_t f0 = 0; f0 < width; f0 += PanelTile<P>::kFeatures) {
    const StageMemory memory = copy_stage<P>(p.a, values, width, k_tile, f0);
    for (int tile = 0; tile < PanelTile<P>::kTiles; ++tile) {
      WarpC c = {};
      for (int step = 0; step < 2; ++step) {
        mma<P>(c, operand_a<P>(weights, step), operand_b<P>(memory, step, tile));
      }
      for (int i = 0; i < 4 * kWarp; ++i) {
        const int64_t feature = f0 + result_feature<P>(i / 4, tile, i % 4);
        std::vector<float>* row = row_of(i / 4 / 4 + 8 * (i % 4 / 2));
        if (row != nullptr && feature < width) (*row)[feature] += c.reg[i / 4][i % 4];
      }
    }
  }
}

// Calls body(the warp's rows and K tiles, K tile, bits of its lanes) for every K tile of every
// warp.
template <class Body>
void for_each_stage(const PanelAttention& p, Body body) {
  const int64_t windows = p.a.shape.panel / kQueryRows;
  for (int64_t s = 0; s < p.work.item_count; ++s) {
    for (int64_t w = 0; w < windows; ++w) {
      PanelItem window = p.work.items[s];
      window.row += static_cast<int32_t>(kQueryRows * w);
      for (int64_t i = 0; i < window.k_tiles; ++i) {
        const int64_t k_tile = int64_t{window.first_k_tile} + i;
        uint32_t bits[kWarp];
        for (int lane = 0; lane < kWarp; ++lane) {
          const uint32_t stored = load_bits<kQueryRows>(p.a, k_tile * windows + w, lane);
          bits[lane] = lane_bits(stored, kQueryRows);
        }
        body(window, k_tile, bits);
      }
    }
  }
}

int64_t row_id(const PanelAttention& p, int64_t row) {
  return p.stored.row_ids != nullptr ? p.stored.row_ids[row] : row;
}

void store_sums(const PanelAttention& p, const HeadsView& to, const RowsOfSums& sums, float scale) {
  const MutableDenseView out = to.mutable_of(0, 0);
  for (int64_t row = 0; row < p.a.rows; ++row) {
    int64_t at = row_id(p, row) * out.stride;
    for (const float sum : sums[row]) store_element(out.data, out.dtype, at++, scale * sum);
  }
}

template <Precision P>
void emulate(const PanelAttention& p) {
  const AttentionProblem& problem = p.problem;
  std::vector<RowSums> rows(p.a.rows);
  for (RowSums& row : rows) row.values.assign(problem.dv, 0.0f);
  for_each_stage(p, [&](const PanelItem& item, int64_t k_tile, const uint32_t (&bits)[kWarp]) {
    const auto inside = [&](int r) { return item.row + r < p.a.rows; };
    WarpC scores[4] = {};
    score_stage<P>(p, problem.q.of(0, 0), problem.k.of(0, 0), problem.d, item, k_tile, scores);
    RowSums nobody;
    for (int r = 0; r < kQueryRows; ++r) {
      weigh(bits, problem.scale * kLog2E, r, scores, inside(r) ? rows[item.row + r] : nobody);
    }
    add_products<P>(p, problem.v.of(0, 0), problem.dv, k_tile, scores,
                    [&](int r) { return inside(r) ? &rows[item.row + r].values : nullptr; });
  });
  RowsOfSums results(p.a.rows);
  for (int64_t row = 0; row < p.a.rows; ++row) {
    results[row] = rows[row].values;
    const float total = rows[row].total;
    for (float& value : results[row]) value = total > 0.0f ? value / total : 0.0f;
    p.lse[row_id(p, row)] = (rows[row].maximum + std::log2(total)) * kLn2;
  }
  store_sums(p, p.out, results, 1.0f);
}

template <Precision P>
float rounded(float value) {
  const uint32_t bits = packed<P>(value);
  return P == Precision::kFp16 ? half_to_float(bits) : bf16_to_float(bits);
}

// Of one edge: its score becomes its weight, the gradient of its weight that of its score.
template <Precision P>
void edge_gradient(const float* facts, float scale, bool edge, float& weight, float& gradient) {
  const float shift = facts[0];
  const float rest = facts[1];
  const float delta = facts[2];
  const float exact = edge ? std::exp2(std::fma(weight, scale, -shift)) : 0.0f;
  weight = rounded<P>(exact);
  gradient = rest * (weight * gradient - exact * delta);
  weight *= rest;
}

// The pass over rows, or over columns where p.dq is null.
template <Precision P>
void emulate_grad(const PanelAttention& p) {
  const AttentionProblem& problem = p.problem;
  const bool transposed = p.dq.data == nullptr;
  const DenseView q = problem.q.of(0, 0);
  const DenseView k = problem.k.of(0, 0);
  const DenseView v = problem.v.of(0, 0);
  const DenseView grad = p.grad.of(0, 0);
  RowsOfSums first(p.a.rows, std::vector<float>(problem.d, 0.0f));
  RowsOfSums second(p.a.rows, std::vector<float>(problem.dv, 0.0f));
  for_each_stage(p, [&](const PanelItem& item, int64_t k_tile, const uint32_t (&bits)[kWarp]) {
    WarpC weights[4] = {};
    WarpC gradients[4] = {};
    score_stage<P>(p, transposed ? k : q, transposed ? q : k, problem.d, item, k_tile, weights);
    score_stage<P>(p, transposed ? v : grad, transposed ? grad : v, problem.dv, item, k_tile,
                   gradients);
    for (int i = 0; i < kWarp * 2 * kLaneColumns; ++i) {
      const int lane = i / 2 / kLaneColumns;
      const int slot = i / 2 % kLaneColumns;
      const int upper = i % 2;
      const int64_t row = int64_t{item.row} + lane / 4 + 8 * upper;
      const int64_t column = p.a.columns[k_tile * kPanelKTile + kLaneColumns * (lane % 4) + slot];
      const int64_t query = transposed ? column : row < p.a.rows ? row_id(p, row) : -1;
      const bool edge = bits[lane] >> result_bit(upper, slot >> 1, slot & 1) & 1u;
      const int reg = 2 * upper + (slot & 1);
      edge_gradient<P>(p.row_stats + 4 * std::max(query, int64_t{0}), problem.scale * kLog2E, edge,
                       weights[slot >> 1].reg[lane][reg], gradients[slot >> 1].reg[lane][reg]);
    }
    const auto in = [&](RowsOfSums& sums) {
      return [&](int r) { return item.row + r < p.a.rows ? &sums[item.row + r] : nullptr; };
    };
    add_products<P>(p, transposed ? q : k, problem.d, k_tile, gradients, in(first));
    if (transposed) add_products<P>(p, grad, problem.dv, k_tile, weights, in(second));
  });
  store_sums(p, transposed ? p.dk : p.dq, first, problem.scale);
  if (transposed) store_sums(p, p.dv, second, 1.0f);
}

// Calls run(a constant of the precision).
template <class Run>
void in_16_bits(Precision precision, Run run) {
  switch (precision) {
    case Precision::kFp16:
      return run(std::integral_constant<Precision, Precision::kFp16>());
    case Precision::kBf16:
      return run(std::integral_constant<Precision, Precision::kBf16>());
    default:
      throw std::invalid_argument("precision: attention over panels has fp16 and bf16");
  }
}

}  // namespace

void emulate_attention(const PanelAttention& problem) {
  in_16_bits(problem.problem.precision, [&](auto precision) { emulate<precision()>(problem); });
}

void emulate_attention_grad(const PanelAttention& problem) {
  in_16_bits(problem.problem.precision,
             [&](auto precision) { emulate_grad<precision()>(problem); });
}

}  // namespace gnnsparse::cpu
