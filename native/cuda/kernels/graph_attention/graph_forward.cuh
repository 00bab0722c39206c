// Graph attention forward: FlashAttention's online softmax (Dao et al. 2022), edge by edge, in all
// heads of a row at once. Nothing of the size of the edges is kept.
#pragma once

#include "kernels/graph_attention/graph_combine.cuh"
#include "kernels/graph_attention/graph_scores.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

template <Precision P, Score S, Terms T, bool kExtras>
class GraphForward {
 public:
  static constexpr int kElements = kPerVector<P>;
  static constexpr bool kMapped = T == Terms::kMapped;
  static constexpr int kBlocks = kExtras || T != Terms::kNone ? 4 : 5;
  using Scores = GraphScores<P, S, T, kExtras>;
  static constexpr bool kTakesFour = T == Terms::kNone || Scores::kOnlyFeatures;
  static constexpr int kBatch = kTakesFour ? 4 : 2;   // edges that a lane takes in a step
  static constexpr int kStages = kTakesFour ? 2 : 3;  // steps that are on their way
  static constexpr bool kMaps = false;
  static constexpr bool kReadsNumbers = kExtras;
  using EdgeCopies = typename Scores::EdgeCopies;
  using RowCopies = GraphCopies<Scores::kRowVectors, Scores::kRowNumbers, 4>;

  __device__ GraphForward(const GraphLaunch& p, const GraphLane& lane)
      : p_(p), lane_(lane), scores_(p, lane) {}

  __device__ __forceinline__ void fetch_row(const GraphPlace<RowCopies>& to, int row) const {
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
  }

  __device__ __forceinline__ void add(const GraphRow&, const GraphStep<GraphForward>& step) {
    float sums[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) sums[i] = scores_.part_of(step.place(i), step.number[i]);
    if constexpr (S != Score::kAdditive) add_over_chunks(lane_, sums);
    float top = softmax_.top;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const bool counts = step.has[i] && scores_.counts(step.number[i]);
      sums[i] = counts ? scores_.score_of(sums[i], step.number[i]) : kNoEdge;
      if (!kExtras || p_.problem.normalize) top = fmaxf(top, sums[i]);
    }
    softmax_.raise(top);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) add_value(step.place(i), step.number[i], sums[i]);
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
    float weight = exp2_fast(score - softmax_.top);
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
#pragma unroll 1
    for (int offset = 16; offset >= lane_.edge_lanes; offset >>= 1) {
      top = fmaxf(top, __shfl_xor_sync(kWarp, top, offset));
    }
    softmax_.raise(top);
    float sum[1] = {softmax_.sum};
    if constexpr (kMapped) {
      add_over_edges(lane_, sum, softmax_.values, softmax_.mapped);
    } else {
      add_over_edges(lane_, sum, softmax_.values);
    }
    softmax_.sum = sum[0];
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

template <Precision P>
void GraphForwardUnit<P>::run(const GraphAttentionPass& pass, Stream stream) {
  const GraphLaunch p(pass, kPerVector<P>);
  const char* call = "graph_attention";
  with_score(p, [&](auto score, auto terms, auto extras) {
    using Pass = GraphForward<P, score, terms, extras>;
    launch_stream<Pass>(p, graph_forward_kernel<Pass>, call, stream);
  });
  p.mapped.data != nullptr ? combine_graph_rows<P, true>(p, call, stream)
                           : combine_graph_rows<P, false>(p, call, stream);
}

}  // namespace gnnsparse::cuda
