// The gradients of graph attention over the rows of A^T, which are keys: sums over a key's edges of
// the queries, and of the rows of the result's gradient, that they come from. The factors are the
// two numbers that the pass over the rows of A has kept of each edge.
#pragma once

#include "kernels/graph_attention/graph_parts.cuh"
#include "kernels/graph_attention/graph_scores.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

template <Precision P, Score S, Terms T>
class GraphColumnGrad {
 public:
  static constexpr int kElements = kPerVector<P>;
  static constexpr bool kAdditive = S == Score::kAdditive;
  static constexpr bool kGatv2 = S == Score::kGatv2;
  static constexpr bool kFeatures = T == Terms::kFeatures;
  static constexpr int kBatch = 2;
  using Floats = float[kElements];

  __device__ GraphColumnGrad(const GraphLaunch& p, const GraphLane& lane)
      : p_(p),
        lane_(lane),
        queries_(start_of(p.q, lane) + 16 * lane.chunk),
        grads_(start_of(p.grad, lane) + 16 * lane.chunk),
        edges_(start_of(p.edges, lane)),
        has_query_(lane.chunk < p.d_chunks),
        has_grad_(lane.chunk < p.dv_chunks) {
    if constexpr (kGatv2) load_att();
  }

  __device__ __forceinline__ void start(const GraphRow& row) {
    if constexpr (kGatv2) load_vector<P>(p_.k, lane_, p_.d_chunks, row.row, key_);
#pragma unroll
    for (int j = 0; j < kElements; ++j) of_key_[j] = of_value_[j] = 0.0f;
  }

  template <int kCount>
  __device__ __forceinline__ void add(const GraphRow& row, const GraphBatch<kCount>& edges) {
    Vec16 queries[kCount];
    Vec16 grads[kCount];
    Vec16 terms[kCount];
    float2 factors[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row_of_a = edges.column[i];
      if constexpr (!kAdditive) queries[i] = vector_at(queries_, p_.q, row_of_a, has_query_);
      grads[i] = vector_at(grads_, p_.grad, row_of_a, has_grad_);
      const int64_t nonzero = p_.nnz_index_map[row.begin + edges.number[i]];
      factors[i] = __ldg(reinterpret_cast<const float2*>(edges_ + nonzero * p_.edges.row));
      if constexpr (kFeatures) terms[i] = load_terms(nonzero);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      // A masked edge takes no part: its query may be infinite.
      if (!edges.has[i]) factors[i] = make_float2(0.0f, 0.0f);
      if (factors[i].x == 0.0f && factors[i].y == 0.0f) continue;
      float x[kElements];
      to_floats<P>(grads[i], x);
      add_scaled(of_value_, factors[i].x, x);
      if constexpr (kAdditive) {
        of_key_[0] += factors[i].y;
      } else {
        to_floats<P>(queries[i], x);
        add_key(x, terms[i], factors[i].y);
      }
    }
  }

  __device__ void finish(const GraphRow& row) {
    add_over_edges(lane_, of_value_);
    if constexpr (kAdditive) {
      float sum[1] = {of_key_[0]};
      add_over_edges(lane_, sum);
      of_key_[0] = sum[0];
    } else {
      add_over_edges(lane_, of_key_);
    }
    if (!lane_.is_own || lane_.edge != 0) return;
    if constexpr (kGatv2) {
#pragma unroll
      for (int j = 0; j < kElements; ++j) of_key_[j] *= att_[j];
    }
    if (row.partial >= 0) return store_parts(row.partial);
    if (p_.grads.v.data != nullptr) {
      store_elements(p_.grads.v, lane_, row.row, p_.problem.base.dv, of_value_);
    }
    if (p_.grads.k.data == nullptr) return;
    if constexpr (kAdditive) {
      if (lane_.chunk == 0) *numbers_of(p_.grads.k, lane_, row.row) = of_key_[0];
    } else {
      store_elements(p_.grads.k, lane_, row.row, p_.problem.base.d, of_key_);
    }
  }

 private:
  // The gate of a dot product's key, or the features of a key of gatv2.
  __device__ __forceinline__ Vec16 load_terms(int64_t nonzero) const {
    const GraphArray& from = kGatv2 ? p_.features : p_.gate;
    if (from.data == nullptr || (kGatv2 && !p_.problem.terms.to_keys)) return Vec16{};
    return vector_at(start_of(from, lane_, nonzero) + 16 * lane_.chunk, from, 0, has_query_);
  }

  __device__ __forceinline__ void add_key(Floats& query, const Vec16& terms, float factor) {
    if constexpr (kGatv2) {
      Floats features = {};
      if constexpr (kFeatures) to_floats<P>(terms, features);
#pragma unroll
      for (int j = 0; j < kElements; ++j) {
        // In the order of the forward pass, so that a sum of 0 is the same 0.
        const float x = query[j] + (key_[j] + features[j]);
        of_key_[j] += x > 0.0f ? factor : factor * p_.problem.negative_slope;
      }
      return;
    }
    if constexpr (kFeatures) {
      if (p_.gate.data != nullptr) {
        Floats gate;
        to_floats<P>(terms, gate);
#pragma unroll
        for (int j = 0; j < kElements; ++j) query[j] *= gate[j];
      }
    }
    add_scaled(of_key_, factor, query);
  }

  __device__ void load_att() {
    const float* att = numbers_of(p_.problem.att, lane_, 0);
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      const int64_t at = int64_t{kElements} * lane_.chunk + j;
      att_[j] = at < p_.problem.base.d ? att[at] : 0.0f;
    }
  }

  __device__ void store_parts(int partial) const {
    float* to = partial_of(p_, lane_, partial);
    if constexpr (kAdditive) {
      if (lane_.chunk == 0) to[0] = of_key_[0];
    } else {
      store_sums(to, lane_, 0, p_.d_chunks, of_key_);
    }
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

template <Precision P, Score S, Terms T>
__global__ void __launch_bounds__(kGraphThreads,
                                  T == Terms::kFeatures || S == Score::kGatv2 ? 5 : 6)
    graph_column_grad_kernel(const __grid_constant__ GraphLaunch p) {
  const GraphLane lane(p);
  GraphColumnGrad<P, S, T> pass(p, lane);
  run_rows(p, lane, pass);
}

template <Precision P>
void GraphColumnGradUnit<P>::run(const GraphAttentionPass& pass, Stream stream) {
  const GraphLaunch p(pass, kPerVector<P>);
  const char* call = "graph_attention_columns";
  const auto with = [&](auto score, auto terms) {
    launch_graph(p, graph_column_grad_kernel<P, score, terms>, p.items(), call, stream);
  };
  using std::integral_constant;
  constexpr integral_constant<Terms, Terms::kNone> none;
  constexpr integral_constant<Terms, Terms::kFeatures> features;
  switch (p.problem.score) {
    case Score::kDot: {
      constexpr integral_constant<Score, Score::kDot> dot;
      p.gate.data != nullptr ? with(dot, features) : with(dot, none);
      break;
    }
    case Score::kAdditive:
      with(integral_constant<Score, Score::kAdditive>(), none);
      break;
    case Score::kGatv2: {
      constexpr integral_constant<Score, Score::kGatv2> gatv2;
      p.features.data != nullptr ? with(gatv2, features) : with(gatv2, none);
      break;
    }
  }
  if (p.work.cut_count == 0) return;
  add_graph_parts<P>(p, {p.grads.k, p.d_chunks, p.problem.base.d, 0},
                     {p.grads.v, p.dv_chunks, p.problem.base.dv, p.d_chunks}, call, stream);
}

}  // namespace gnnsparse::cuda
