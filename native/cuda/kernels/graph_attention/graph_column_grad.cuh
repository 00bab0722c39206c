// The gradients of graph attention over the rows of A^T, which are keys: sums over a key's edges of
// the queries, and of the rows of the result's gradient, that they come from. The factors are the
// two numbers that the pass over the rows of A has kept of each edge.
#pragma once

#include "kernels/graph_attention/graph_additive_grad.cuh"
#include "kernels/graph_attention/graph_parts.cuh"
#include "kernels/graph_attention/graph_scores.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

// Whether keys are values, whose gradient is the sum of both.
inline GNNSPARSE_HD bool is_one_gradient(const GraphLaunch& p) {
  return p.grads.k.data != nullptr && p.grads.k.data == p.grads.v.data;
}

// `kMasks`: an edge may be masked, and takes no part then.
template <Precision P, Score S, Terms T, bool kMasks>
class GraphColumnGrad {
 public:
  static constexpr int kElements = kPerVector<P>;
  static constexpr bool kGatv2 = S == Score::kGatv2;
  static constexpr bool kFeatures = T != Terms::kNone;  // a gate, or features of gatv2
  // See GraphForward.
  static constexpr int kBlocks = kFeatures ? 5 : kElements == 8 ? 8 : 7;
  static constexpr int kBatch = kFeatures || kElements == 8 ? 2 : 3;
  static constexpr bool kMaps = true;
  using Floats = float[kElements];
  static constexpr int kQuery = 0;
  static constexpr int kGrad = 1;
  static constexpr int kTerm = kGrad + 1;
  using EdgeOperands = GraphOperands<kTerm + kFeatures, 1, 2>;
  using RowOperands = GraphOperands<kGatv2, 0>;

  __device__ GraphColumnGrad(const GraphLaunch& p, const GraphLane& lane)
      : p_(p),
        lane_(lane),
        queries_(pin_register(start_of(p.q, lane) + 16 * lane.chunk)),
        grads_(pin_register(start_of(p.grad, lane) + 16 * lane.chunk)),
        edges_(pin_register(start_of(p.edges, lane))),
        has_query_(lane.chunk < p.d_chunks),
        has_grad_(lane.chunk < p.dv_chunks) {
    if constexpr (kGatv2) load_attention_vector(p, lane, att_);
  }

  __device__ __forceinline__ void read_row(RowOperands& to, const GraphRow& row) const {
    if constexpr (kGatv2) {
      const char* start = start_of(p_.k, lane_) + 16 * lane_.chunk;
      to.read_vector(0, row_at(start, p_.k, row.row), has_query_);
    }
  }
  // `column` is a row of A, and `nonzero` one of A too.
  __device__ __forceinline__ void read_edge(EdgeOperands& to, int32_t column,
                                            int64_t nonzero) const {
    to.read_vector(kQuery, row_at(queries_, p_.q, column), has_query_);
    to.read_vector(kGrad, row_at(grads_, p_.grad, column), has_grad_);
    to.read_number(0, edges_ + nonzero * p_.edges.row);
    if constexpr (kFeatures) {
      // The gate of a dot product's key, or the features of a key of gatv2.
      const GraphArray& from = kGatv2 ? p_.features : p_.gate;
      const bool is_used = from.data != nullptr && (!kGatv2 || p_.problem.terms.to_keys);
      to.read_vector(kTerm, start_of(from, lane_, nonzero) + 16 * lane_.chunk,
                     has_query_ && is_used);
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& sum : of_key_) sum = 0.0f;
#pragma unroll
    for (float& sum : of_value_) sum = 0.0f;
  }
  __device__ __forceinline__ void start(const GraphRow&, const RowOperands& from) {
    if constexpr (kGatv2) to_floats<P>(from.vector(0), key_);
  }

  __device__ __forceinline__ void add(const GraphRow&, const GraphStep<GraphColumnGrad>& step) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const EdgeOperands& edge = step.edge[i];
      const float2 factors =
          step.has[i] ? make_float2(edge.number(0), edge.number(0, 1)) : make_float2(0.0f, 0.0f);
      // The query of a masked edge may be infinite.
      if (kMasks && factors.x == 0.0f && factors.y == 0.0f) continue;
      Floats x;
      to_floats<P>(edge.vector(kGrad), x);
      add_scaled(of_value_, factors.x, x);
      to_floats<P>(edge.vector(kQuery), x);
      add_key(x, edge, factors.y);
    }
  }

  __device__ void finish(const GraphRow& row) {
    if (!lane_.is_own) return;
    if constexpr (kGatv2) {
#pragma unroll
      for (int j = 0; j < kElements; ++j) of_key_[j] *= att_[j];
    }
    const bool is_sum = is_one_gradient(p_);
    if (is_sum) {
#pragma unroll
      for (int j = 0; j < kElements; ++j) of_key_[j] += of_value_[j];
    }
    if (row.partial >= 0) return store_parts(row.partial);
    if (p_.grads.v.data != nullptr && !is_sum) {
      store_result<P>(p_.to_v, lane_, row.row, p_.dv_chunks, of_value_);
    }
    if (p_.grads.k.data != nullptr) {
      store_result<P>(p_.to_k, lane_, row.row, p_.d_chunks, of_key_);
    }
  }

 private:
  __device__ __forceinline__ void add_key(Floats& query, const EdgeOperands& edge, float factor) {
    if constexpr (kGatv2) {
      Floats features = {};
      if constexpr (kFeatures) to_floats<P>(edge.vector(kTerm), features);
#pragma unroll
      for (int j = 0; j < kElements; ++j) {
        // In the order of the forward pass, so that a sum of 0 is the same 0.
        const float x = query[j] + (key_[j] + features[j]);
        of_key_[j] += x > 0.0f ? factor : factor * p_.problem.negative_slope;
      }
      return;
    }
    if constexpr (kFeatures) {
      Floats gate;
      to_floats<P>(edge.vector(kTerm), gate);
#pragma unroll
      for (int j = 0; j < kElements; ++j) query[j] *= gate[j];
    }
    add_scaled(of_key_, factor, query);
  }

  __device__ void store_parts(int partial) const {
    float* to = partial_of(p_, lane_, partial);
    store_sums(to, lane_, 0, p_.d_chunks, of_key_);
    store_sums(to, lane_, kElements * p_.d_chunks, p_.dv_chunks, of_value_);
  }

  const GraphLaunch& p_;
  const GraphLane& lane_;
  const char* queries_;
  const char* grads_;
  const char* edges_;
  bool has_query_;
  bool has_grad_;
  float key_[kElements] = {};
  float att_[kElements] = {};
  float of_key_[kElements] = {};
  float of_value_[kElements] = {};
};

template <Precision P>
void GraphColumnGradUnit<P>::run(const GraphAttentionPass& pass, Stream stream) {
  const GraphLaunch p(pass, kPerVector<P>);
  const char* call = "graph_attention_columns";
  const auto with = [&](auto score, auto terms) {
    const auto of = [&](auto masks) {
      using Pass = GraphColumnGrad<P, score, terms, masks>;
      launch_pass<Pass>(p, call, stream);
    };
    if constexpr (terms == Terms::kNone) {
      if (!p.has_extras()) return of(std::false_type());
    }
    of(std::true_type());
  };
  using std::integral_constant;
  constexpr integral_constant<Terms, Terms::kNone> none;
  constexpr integral_constant<Terms, Terms::kFeatures> features;
  switch (p.problem.score) {
    case Score::kDot: {
      constexpr integral_constant<Score, Score::kDot> dot;
      p.gate.data != nullptr ? with(dot, integral_constant<Terms, Terms::kGate>())
                             : with(dot, none);
      break;
    }
    case Score::kAdditive:
      return run_additive_columns<P>(p, call, stream);
    case Score::kGatv2: {
      constexpr integral_constant<Score, Score::kGatv2> gatv2;
      p.features.data != nullptr ? with(gatv2, features) : with(gatv2, none);
      break;
    }
  }
  if (p.work.cut_count == 0) return;
  add_graph_parts<P>(
      p, {p.grads.k, p.d_chunks, p.problem.base.d, 0},
      {is_one_gradient(p) ? HeadsView() : p.grads.v, p.dv_chunks, p.problem.base.dv, p.d_chunks},
      call, stream);
}

}  // namespace gnnsparse::cuda
