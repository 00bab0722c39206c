// Graph attention forward: FlashAttention's online softmax (Dao et al. 2022), edge by edge, in all
// heads of a row at once. Nothing of the size of the edges is kept.
#pragma once

#include "kernels/graph_attention/graph_combine.cuh"
#include "kernels/graph_attention/graph_scores.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

// `kSloped`: what the gradients of additive scores need is summed, see
// GraphAttentionResult::sloped.
// `kShort`: rows have few edges, which are taken one by one then, by more warps.
template <Precision P, Score S, Terms T, bool kExtras, bool kSloped = false, bool kShort = false>
class GraphForward {
 public:
  static constexpr int kElements = kPerVector<P>;
  static constexpr bool kMapped = T == Terms::kMapped;
  static constexpr bool kSecond = kMapped || kSloped;
  static constexpr bool kPlain = T == Terms::kNone && !kExtras;
  static constexpr bool kWide = kElements == 8;
  // Found by measurement, as the edges that are taken at once: more of them need more registers, of
  // which fewer warps have enough (notes/log.md).
  static constexpr int kBlocks = kShort                            ? 8
                                 : !kPlain                         ? (kMapped ? 5 : 6)
                                 : S == Score::kAdditive || !kWide ? 8
                                                                   : 7;
  using Scores = GraphScores<P, S, T, kExtras>;
  static constexpr int kBatch = kShort                  ? 1
                                : !kPlain               ? (kMapped ? 3 : 2)
                                : !kWide                ? 4
                                : S == Score::kAdditive ? 2
                                                        : 3;
  static constexpr bool kMaps = false;
  using EdgeOperands = typename Scores::EdgeOperands;
  using RowOperands = GraphOperands<Scores::kRowVectors, Scores::kRowNumbers>;

  __device__ GraphForward(const GraphLaunch& p, const GraphLane& lane)
      : p_(p), lane_(lane), scores_(p, lane) {}

  __device__ __forceinline__ void read_row(RowOperands& to, const GraphRow& row) const {
    scores_.read_row(to, row);
  }
  __device__ __forceinline__ void read_edge(EdgeOperands& to, int32_t column,
                                            int64_t nonzero) const {
    scores_.read_edge(to, column, nonzero);
  }

  __device__ __forceinline__ void clear() {
    softmax_ = {};
    if (kExtras && !p_.problem.normalize) softmax_.top = 0.0f;
  }
  __device__ __forceinline__ void start(const GraphRow& row, const RowOperands& from) {
    scores_.start(row, from);
  }

  __device__ __forceinline__ void add(const GraphRow&, const GraphStep<GraphForward>& step) {
    float sums[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) sums[i] = scores_.part_of(step.edge[i], step.number[i]);
    if constexpr (S != Score::kAdditive) add_over_chunks(lane_, sums);
    float top = softmax_.top;
    float slopes[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if constexpr (kSloped) slopes[i] = scores_.slope_of(sums[i]);
      const bool counts = step.has[i] && scores_.counts(step.number[i]);
      sums[i] = counts ? scores_.score_of(sums[i], step.number[i]) : kNoEdge;
      if (!kExtras || p_.problem.normalize) top = fmaxf(top, sums[i]);
    }
    softmax_.raise(top);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) add_value(step.edge[i], step.number[i], sums[i], slopes[i]);
  }

  __device__ void finish(const GraphRow& row) {
    if (!lane_.is_own) return;
    if (row.partial < 0) return write_row<P>(p_, lane_, row.row, softmax_);
    float* to = partial_of(p_, lane_, row.partial);
    to[0] = softmax_.top;
    to[1] = softmax_.sum;
    to[2] = softmax_.second_sum;
    store_sums(to, lane_, 0, p_.dv_chunks, softmax_.values);
    if constexpr (kSecond) {
      store_sums(to, lane_, kElements * p_.dv_chunks, p_.second_chunks, softmax_.second);
    }
  }

 private:
  __device__ __forceinline__ void add_value(const EdgeOperands& edge, int number, float score,
                                            float slope) {
    float weight = exp2_fast(score - softmax_.top);
    softmax_.sum += weight;
    if constexpr (kSloped) softmax_.second_sum += slope * weight;
    if constexpr (kExtras) {
      // A masked edge takes no part: its value may be infinite, and times zero that is NaN.
      if (score == kNoEdge) return;
      weight *= scores_.dropout(number);
    }
    float value[kElements];
    scores_.value_of(edge, value);
    add_scaled(softmax_.values, weight, value);
    if constexpr (kMapped) {
      scores_.mapped_of(edge, value);
      add_scaled(softmax_.second, weight, value);
    }
    if constexpr (kSloped) add_scaled(softmax_.second, slope * weight, value);
  }

  const GraphLaunch& p_;
  const GraphLane& lane_;
  Scores scores_;
  OnlineSoftmax<kElements, kSecond> softmax_;
};

// With features rows are short up to so many edges on average.
inline constexpr int64_t kShortRow = 6;

template <Precision P, Score S, Terms T, bool kExtras>
void launch_forward(const GraphLaunch& p, const char* call, Stream stream) {
  if constexpr (S == Score::kAdditive) {
    using WithSloped = GraphForward<P, S, T, kExtras, true>;
    if (p.result.sloped.data != nullptr) return launch_pass<WithSloped>(p, call, stream);
  }
  if constexpr (T == Terms::kFeatures && !kExtras) {
    using Short = GraphForward<P, S, T, kExtras, false, true>;
    if (p.a.nnz < kShortRow * p.a.rows) return launch_pass<Short>(p, call, stream);
  }
  launch_pass<GraphForward<P, S, T, kExtras>>(p, call, stream);
}

template <Precision P>
void GraphForwardUnit<P>::run(const GraphAttentionPass& pass, Stream stream) {
  const GraphLaunch p(pass, kPerVector<P>);
  const char* call = "graph_attention";
  with_score(p, [&](auto score, auto terms, auto extras) {
    launch_forward<P, score, terms, extras>(p, call, stream);
  });
  p.mapped.data != nullptr || p.result.sloped.data != nullptr
      ? combine_graph_rows<P, true>(p, call, stream)
      : combine_graph_rows<P, false>(p, call, stream);
}

}  // namespace gnnsparse::cuda
