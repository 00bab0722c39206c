// The gradients of graph attention over the rows of A, which compute the weights of the edges
// again: those of queries, edge terms and attention vectors (of additive scores see
// graph_additive_grad.cuh). What an edge adds to the gradients of keys and values is kept as two
// numbers for each head, which the pass over columns reads.
#pragma once

#include "kernels/graph_attention/graph_additive_grad.cuh"
#include "kernels/graph_attention/graph_parts.cuh"
#include "kernels/graph_attention/graph_scores.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

template <Precision P, Score S, Terms T, bool kExtras>
class GraphRowGrad {
 public:
  static constexpr int kElements = kPerVector<P>;
  static constexpr bool kGatv2 = S == Score::kGatv2;
  static constexpr bool kMapped = T == Terms::kMapped;
  static constexpr bool kHasTerms = kExtras || T != Terms::kNone;
  using Scores = GraphScores<P, S, T, kExtras>;
  static constexpr bool kPlain = T == Terms::kNone && !kExtras;
  static constexpr bool kWide = kElements == 8;
  // See GraphForward.
  static constexpr int kBlocks = !kPlain  ? (kGatv2 ? 4 : 5)
                                 : kGatv2 ? (kWide ? 5 : 6)
                                          : (kWide ? 7 : 8);
  static constexpr int kBatch = !kPlain || !kGatv2 ? 2 : kWide ? 3 : 4;
  static constexpr bool kMaps = false;
  using Floats = float[kElements];
  using EdgeOperands = typename Scores::EdgeOperands;
  // Places of a row's vectors after those of its query: the gradient of the result, and the result.
  static constexpr int kGrad = Scores::kRowVectors;
  static constexpr int kMappedGrad = kGrad + 2;
  using RowOperands = GraphOperands<kMappedGrad + kMapped, Scores::kRowNumbers + 2>;

  __device__ GraphRowGrad(const GraphLaunch& p, const GraphLane& lane)
      : p_(p),
        lane_(lane),
        scores_(p, lane),
        edges_from_(pin_register(start_of(p.edges, lane) - p.edges.data)) {}

  __device__ __forceinline__ void read_row(RowOperands& to, const GraphRow& row) const {
    scores_.read_row(to, row);
    read_own(to, kGrad, p_.grad, p_.dv_chunks, row.row);
    read_own(to, kGrad + 1, p_.out, p_.dv_chunks, row.row);
    if constexpr (kMapped) read_own(to, kMappedGrad, p_.grad_mapped, p_.de_chunks, row.row);
    const char* stats = row_at(start_of(p_.shift, lane_), p_.shift, row.row);
    to.read_number(Scores::kRowNumbers, stats);
    to.read_number(Scores::kRowNumbers + 1, stats + sizeof(float));
  }
  __device__ __forceinline__ void read_edge(EdgeOperands& to, int32_t column,
                                            int64_t nonzero) const {
    scores_.read_edge(to, column, nonzero);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& sum : sums_) sum = 0.0f;
#pragma unroll
    for (float& sum : mapped_sums_) sum = 0.0f;
  }
  __device__ __forceinline__ void start(const GraphRow& row, const RowOperands& from) {
    scores_.start(row, from);
    to_floats<P>(from.vector(kGrad), grad_);
    if constexpr (kMapped) to_floats<P>(from.vector(kMappedGrad), grad_mapped_);
    stats_ = {from.number(Scores::kRowNumbers), from.number(Scores::kRowNumbers + 1)};
    inner_ = inner_of(row.row, from);
    // That it is of the kernel's parameters makes it an address of global memory.
    edges_ = p_.edges.data + (edges_from_ + row.begin * p_.edges.row);
  }

  __device__ __forceinline__ void add(const GraphRow& row, const GraphStep<GraphRowGrad>& step) {
    scores_.template ask<kBatch>(row, step.number[kBatch - 1] + 1);
    // The sums of scores, and then the gradients of the weights.
    float sums[2 * kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      sums[i] = scores_.part_of(step.edge[i], step.number[i]);
      sums[kBatch + i] = weight_grad_part(step.edge[i]);
    }
    add_over_chunks(lane_, sums);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (kHasTerms && !step.has[i]) continue;
      add_edge(row, step.edge[i], step.number[i], step.has[i], sums[i], sums[kBatch + i]);
    }
  }

  __device__ void finish(const GraphRow& row) {
    if (!lane_.is_own) return;
    if constexpr (kGatv2) {
#pragma unroll
      for (int j = 0; j < kElements; ++j) sums_[j] *= scores_.att()[j];
    }
    if (row.partial >= 0) return store_parts(row.partial);
    write_row(row.row);
  }

  // The sums of att over all rows of the warp.
  __device__ void write_att() {
    if constexpr (!kGatv2) return;
    if (p_.grads.att.data == nullptr) return;
    add_over_rows(lane_, att_sums_);
    if (!lane_.is_own || lane_.row != 0) return;
    store_elements(p_.grads.att, lane_, lane_.item, p_.problem.base.d, att_sums_);
  }

 private:
  __device__ __forceinline__ void read_own(RowOperands& to, int i, const GraphArray& from,
                                           int chunks, int row) const {
    const GraphVectors vectors(from, lane_, chunks);
    to.read_vector(i, row_at(vectors.start, from, row), vectors.has);
  }

  // The sum over the row's edges of weight times its gradient.
  __device__ __forceinline__ float inner_of(int row, const RowOperands& from) const {
    if (!p_.problem.normalize) return 0.0f;
    if (p_.grads.inner.data != nullptr) return *numbers_of(p_.grads.inner, lane_, row);
    // The result is no operand, so that tf32 does not round it.
    constexpr DType kStorage = PrecisionTraits<P>::kStorage;
    Floats out;
    decode<kStorage>(from.vector(kGrad + 1), out);
    float inner[1] = {dot(grad_, out)};
    add_over_chunks(lane_, inner);
    return inner[0];
  }

  __device__ __forceinline__ float weight_grad_part(const EdgeOperands& edge) const {
    Floats value;
    scores_.value_of(edge, value);
    float part = dot(grad_, value);
    if constexpr (kMapped) {
      scores_.mapped_of(edge, value);
      part += dot(grad_mapped_, value);
    }
    return part;
  }

  // Where there is no edge, its key is 0, and so are its numbers here.
  __device__ __forceinline__ void add_edge(const GraphRow& row, const EdgeOperands& edge,
                                           int number, bool has, float argument,
                                           float weight_grad) {
    const float score = scores_.score_of(argument, number);
    float weight = exp2_fast(score - stats_.shift) * stats_.scale;
    float score_grad = 0.0f;
    if (!kExtras || scores_.counts(number)) {
      const float kept = scores_.dropout(number);
      if (kExtras && p_.grad_weights.data != nullptr) {
        weight_grad += scores_.number_of(p_.grad_weights, number);
      }
      score_grad = weight * (weight_grad * kept - inner_);
      weight *= kept;
    } else {
      weight = 0.0f;
    }
    if (kExtras && p_.grads.bias.data != nullptr && writes_number_) {
      *numbers_of(p_.grads.bias, lane_, row.begin + number) = score_grad;
    }
    if (!scores_.is_within(argument)) score_grad = 0.0f;
    if constexpr (S == Score::kDot) score_grad *= p_.problem.base.scale;
    if (!has) score_grad = 0.0f;
    if (has && writes_number_) {
      char* to = const_cast<char*>(row_at(edges_, p_.edges, number));
      *reinterpret_cast<float2*>(to) = make_float2(weight, score_grad);
    }
    // A masked edge takes no part: its key may be infinite.
    if (kExtras && weight == 0.0f && score_grad == 0.0f) {
      if constexpr (Scores::kFeatures) write_zeros(row.begin + number);
      return;
    }
    add_to_sums(row, edge, number, weight, score_grad);
  }

  __device__ __forceinline__ void add_to_sums(const GraphRow& row, const EdgeOperands& edge,
                                              int number, float weight, float score_grad) {
    Floats key;
    scores_.key_of(edge, key);
    if constexpr (kGatv2) {
#pragma unroll
      for (int j = 0; j < kElements; ++j) {
        const float x = scores_.query()[j] + key[j];
        key[j] = x > 0.0f ? score_grad : score_grad * p_.problem.negative_slope;
        att_sums_[j] += key[j] * x;
        sums_[j] += key[j];
      }
    } else {
      add_scaled(sums_, score_grad, key);
    }
    if constexpr (kMapped) {
      Floats mapped;
      scores_.mapped_of(edge, mapped);
      add_scaled(mapped_sums_, score_grad, mapped);
    }
    if constexpr (Scores::kFeatures) {
      write_terms(edge, row.begin + number, weight, score_grad, key);
    }
  }

  // The gradients of an edge's features and gate. `slopes`: of gatv2, the score's gradient in each
  // channel over att's.
  __device__ __forceinline__ void write_terms(const EdgeOperands& edge, int64_t nonzero,
                                              float weight, float score_grad,
                                              const Floats& slopes) const {
    if (!lane_.is_own) return;
    if (p_.grads.features.data != nullptr) {
      Floats grad = {};
      if (p_.problem.terms.to_keys) {
#pragma unroll
        for (int j = 0; j < kElements; ++j) {
          grad[j] = kGatv2 ? slopes[j] * scores_.att()[j] : score_grad * scores_.query()[j];
        }
      }
      if (p_.problem.terms.to_values) add_scaled(grad, weight, grad_);
      store_result<P>(p_.to_features, lane_, nonzero, p_.d_chunks, grad);
    }
    if (p_.grads.gate.data != nullptr) {
      Floats grad;
      to_floats<P>(edge.vector(Scores::kKey), grad);
#pragma unroll
      for (int j = 0; j < kElements; ++j) grad[j] *= score_grad * scores_.query()[j];
      store_elements(p_.grads.gate, lane_, nonzero, p_.problem.base.d, grad);
    }
  }
  __device__ void write_zeros(int64_t nonzero) const {
    if (!lane_.is_own) return;
    const Floats zeros = {};
    for (const HeadsView* to : {&p_.grads.features, &p_.grads.gate}) {
      if (to->data != nullptr) store_elements(*to, lane_, nonzero, p_.problem.base.d, zeros);
    }
  }

  __device__ void write_row(int row) const {
    if (p_.grads.q.data != nullptr) store_result<P>(p_.to_q, lane_, row, p_.d_chunks, sums_);
    if constexpr (kMapped) {
      if (p_.grads.mapped_q.data != nullptr) {
        store_result<P>(p_.to_mapped_q, lane_, row, p_.de_chunks, mapped_sums_);
      }
    }
  }
  __device__ void store_parts(int partial) const {
    float* to = partial_of(p_, lane_, partial);
    store_sums(to, lane_, 0, p_.d_chunks, sums_);
    if constexpr (kMapped) {
      store_sums(to, lane_, kElements * p_.d_chunks, p_.de_chunks, mapped_sums_);
    }
  }

  const GraphLaunch& p_;
  const GraphLane& lane_;
  Scores scores_;
  int64_t edges_from_;
  bool writes_number_ = lane_.writes_number();
  const char* edges_ = nullptr;
  SoftmaxStats stats_ = {};
  float inner_ = 0.0f;
  float grad_[kElements] = {};
  float grad_mapped_[kElements] = {};
  float sums_[kElements] = {};
  float mapped_sums_[kMapped ? kElements : 1] = {};
  float att_sums_[kElements] = {};
};

template <class Pass>
__global__ void __launch_bounds__(kGraphThreads, Pass::kBlocks)
    graph_row_grad_kernel(const __grid_constant__ GraphLaunch p) {
  const GraphLane lane(p);
  Pass pass(p, lane);
  run_rows(p, lane, pass);
  if (lane.item < p.warps()) pass.write_att();
}

template <Precision P, Score S, Terms T, bool kExtras>
void launch_row_grad(const GraphLaunch& p, const char* call, Stream stream) {
  if constexpr (S == Score::kAdditive) {
    run_additive_rows<P>(p, call, stream);
  } else {
    launch_rows(p, graph_row_grad_kernel<GraphRowGrad<P, S, T, kExtras>>, call, stream);
  }
}

template <Precision P>
void GraphRowGradUnit<P>::run(const GraphAttentionPass& pass, Stream stream) {
  const GraphLaunch p(pass, kPerVector<P>);
  const char* call = "graph_attention_rows";
  with_score(p, [&](auto score, auto terms, auto extras) {
    launch_row_grad<P, score, terms, extras>(p, call, stream);
  });
  if (p.work.cut_count == 0 || p.problem.score == Score::kAdditive) return;
  add_graph_parts<P>(p, {p.grads.q, p.d_chunks, p.problem.base.d, 0},
                     {p.grads.mapped_q, p.de_chunks, p.problem.terms.de, p.d_chunks}, call, stream);
}

}  // namespace gnnsparse::cuda
