// Graph attention forward: FlashAttention's online softmax (Dao et al. 2022), edge by edge, in all
// heads of a row at once. Nothing of the size of the edges is kept.
#pragma once

#include "kernels/graph_attention/graph_scores.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

// The softmax of a row in the making: weights are relative to the largest score so far, or to 0
// without normalisation.
template <int kElements, bool kMapped>
struct OnlineSoftmax {
  float top = kNoEdge;
  float sum = 0.0f;
  float values[kElements] = {};
  float mapped[kMapped ? kElements : 1] = {};

  // Weights relative to `raised`, a score at least as large. Before a row's first edge: of nothing.
  __device__ __forceinline__ void raise(float raised) {
    const float factor = top == raised ? 1.0f : exp2_fast(top - raised);
    top = raised;
    sum *= factor;
#pragma unroll
    for (int i = 0; i < kElements; ++i) values[i] *= factor;
    if constexpr (kMapped) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) mapped[i] *= factor;
    }
  }
};

__device__ __forceinline__ float weight_relative(float score, float top) {
  return score == kNoEdge ? 0.0f : exp2_fast(score - top);
}

// The results of a finished row.
template <Precision P, bool kMapped>
__device__ void write_row(const GraphLaunch& p, const GraphLane& lane, int row,
                          OnlineSoftmax<kPerVector<P>, kMapped>& softmax) {
  constexpr int kElements = kPerVector<P>;
  const bool normalize = p.problem.normalize;
  const float scale = !normalize ? 1.0f : softmax.sum == 0.0f ? 0.0f : 1.0f / softmax.sum;
#pragma unroll
  for (int i = 0; i < kElements; ++i) softmax.values[i] *= scale;
  store_result<P>(p.to_out, lane, row, p.dv_chunks, softmax.values);
  if constexpr (kMapped) {
    if (p.result.mapped.data != nullptr) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) softmax.mapped[i] *= scale;
      store_elements(p.result.mapped, lane, row, p.problem.terms.de, softmax.mapped);
    }
  }
  if (lane.chunk != 0) return;
  const float lse = softmax.sum == 0.0f ? kNoEdge : (softmax.top + log2_fast(softmax.sum)) * kLn2;
  *numbers_of(p.result.lse, lane, row) = normalize ? lse : 0.0f;
}

template <Precision P, Score S, Terms T, bool kExtras>
class GraphForward {
 public:
  static constexpr int kElements = kPerVector<P>;
  static constexpr bool kMapped = T == Terms::kMapped;
  static constexpr int kBlocks = kExtras || T != Terms::kNone ? 4 : 5;
  static constexpr int kBatch = T == Terms::kNone ? 4 : 2;   // edges that a lane takes in a step
  static constexpr int kStages = T == Terms::kNone ? 2 : 3;  // steps that are on their way
  static constexpr bool kMaps = false;
  using Scores = GraphScores<P, S, T, kExtras>;
  using EdgeCopies = typename Scores::EdgeCopies;
  using RowCopies = GraphCopies<Scores::kRowVectors, Scores::kRowNumbers, 4>;

  __device__ GraphForward(const GraphLaunch& p, const GraphLane& lane)
      : p_(p), lane_(lane), scores_(p, lane) {}

  __device__ __forceinline__ void fetch_row(const GraphPlace<RowCopies>& to,
                                            const GraphRow& row) const {
    scores_.fetch_row(to, row);
  }
  __device__ __forceinline__ void fetch_edge(const GraphPlace<EdgeCopies>& to, int32_t column,
                                             int64_t nonzero, bool has) const {
    scores_.fetch_edge(to, column, nonzero, has);
  }

  __device__ __forceinline__ void clear() {
    softmax_ = {};
    if (kExtras && !p_.problem.normalize) softmax_.top = 0.0f;
  }
  __device__ __forceinline__ void start(const GraphRow& row, const GraphPlace<RowCopies>& from) {
    scores_.start(row, from);
    clear();
  }

  template <int kCount>
  __device__ __forceinline__ void add(const GraphRow&,
                                      const GraphStep<GraphForward, kCount>& step) {
    float sums[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = scores_.part_of(step.place(i), step.number[i]);
    if constexpr (S != Score::kAdditive) add_over_chunks(p_, sums);
    float top = softmax_.top;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool counts = step.has[i] && scores_.counts(step.number[i]);
      sums[i] = counts ? scores_.score_of(sums[i], step.number[i]) : kNoEdge;
      if (!kExtras || p_.problem.normalize) top = fmaxf(top, sums[i]);
    }
    softmax_.raise(top);
#pragma unroll
    for (int i = 0; i < kCount; ++i) add_value(step.place(i), step.number[i], sums[i]);
  }

  __device__ void finish(const GraphRow& row) {
    merge_edges();
    if (!lane_.is_own || lane_.edge != 0) return;
    if (row.partial < 0) return write_row<P>(p_, lane_, row.row, softmax_);
    float* to = partial_of(p_, lane_, row.partial);
    to[0] = softmax_.top;
    to[1] = softmax_.sum;
    store_sums(to, lane_, 0, p_.dv_chunks, softmax_.values);
    if constexpr (kMapped) {
      store_sums(to, lane_, kElements * p_.dv_chunks, p_.de_chunks, softmax_.mapped);
    }
  }

 private:
  __device__ __forceinline__ void add_value(const GraphPlace<EdgeCopies>& edge, int number,
                                            float score) {
    float weight = weight_relative(score, softmax_.top);
    softmax_.sum += weight;
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
      add_scaled(softmax_.mapped, weight, value);
    }
  }

  // The softmaxes over the edges of several lanes become one.
  __device__ void merge_edges() {
    if (lane_.edges == 1) return;
    float top = softmax_.top;
    for (int offset = 16; offset >= 32 / lane_.edges; offset /= 2) {
      top = fmaxf(top, __shfl_xor_sync(kWarp, top, offset));
    }
    softmax_.raise(top);
    float sum[1] = {softmax_.sum};
    add_over_edges(lane_, sum);
    softmax_.sum = sum[0];
    add_over_edges(lane_, softmax_.values);
    if constexpr (kMapped) add_over_edges(lane_, softmax_.mapped);
  }

  const GraphLaunch& p_;
  const GraphLane& lane_;
  Scores scores_;
  OnlineSoftmax<kElements, kMapped> softmax_;
};

template <class Pass>
__global__ void __launch_bounds__(kGraphThreads, Pass::kBlocks)
    graph_forward_kernel(const __grid_constant__ GraphLaunch p) {
  const GraphLane lane(p);
  Pass pass(p, lane);
  run_rows(p, lane, pass);
}

// Puts the parts of a long row together, in their order: a warp each.
template <Precision P, bool kMapped>
__global__ void __launch_bounds__(kGraphThreads)
    combine_graph_rows_kernel(const __grid_constant__ GraphLaunch p) {
  constexpr int kElements = kPerVector<P>;
  const GraphLane lane(p);
  if (lane.item >= p.work.cut_count || lane.edge != 0 || !lane.is_own) return;
  const Cut cut = p.work.cuts[lane.item];
  OnlineSoftmax<kElements, kMapped> all;
  for (int i = 0; i < cut.count; ++i) {
    const float* part = partial_of(p, lane, cut.first + i);
    all.raise(fmaxf(all.top, part[0]));
    const float factor = weight_relative(part[0], all.top);
    all.sum += factor * part[1];
    const float* values = part + 4 + kElements * lane.chunk;
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      if (lane.chunk < p.dv_chunks) all.values[j] += factor * values[j];
      if constexpr (kMapped) {
        if (lane.chunk < p.de_chunks) all.mapped[j] += factor * values[kElements * p.dv_chunks + j];
      }
    }
  }
  write_row<P>(p, lane, p.row_ids != nullptr ? p.row_ids[cut.index] : cut.index, all);
}

template <Precision P>
void GraphForwardUnit<P>::run(const GraphAttentionPass& pass, Stream stream) {
  const GraphLaunch p(pass, kPerVector<P>);
  const char* call = "graph_attention";
  with_score(p, [&](auto score, auto terms, auto extras) {
    using Pass = GraphForward<P, score, terms, extras>;
    launch_stream<Pass>(p, graph_forward_kernel<Pass>, call, stream);
  });
  if (p.work.cut_count == 0) return;
  p.mapped.data != nullptr ? launch_cuts(p, combine_graph_rows_kernel<P, true>, call, stream)
                           : launch_cuts(p, combine_graph_rows_kernel<P, false>, call, stream);
}

}  // namespace gnnsparse::cuda
