// The gradients of graph attention with additive scores, leaky_relu(q + k + features).
//
// The gradient of a row's q is the sum over its edges of slope * weight * (grad . value - inner),
// where the slope of leaky_relu is one of two numbers. As q takes no other part in a score, it is
//
//     grad . sloped - inner * (sum of slope * weight)
//
// by what the forward pass sums beside its result (GraphAttentionResult::sloped): no edge has to be
// read again for it. The pass over the rows of A^T, which are keys, makes the weights of edges
// anew, from numbers of their rows, for the gradients of k, v and edge terms.
#pragma once

#include "kernels/graph_attention/graph_parts.cuh"
#include "kernels/graph_attention/graph_scores.cuh"

namespace gnnsparse::cuda {

// Writes the gradient of q, and the numbers of a row that the pass over columns reads.
template <Precision P>
__global__ void __launch_bounds__(kGraphThreads)
    graph_additive_rows_kernel(const __grid_constant__ GraphLaunch p) {
  constexpr DType kStorage = PrecisionTraits<P>::kStorage;
  constexpr int kElements = kPerVector<P>;
  const GraphLane lane(p);
  const int64_t entry = lane.item * lane.rows + lane.row;
  const bool has = entry < p.a.rows && lane.is_own;
  const int row = has ? static_cast<int>(entry) : 0;
  GraphOperands<3, 0> operands;
  const bool has_vector = has && lane.chunk < p.dv_chunks;
  const auto read = [&](int i, const GraphArray& from) {
    operands.read_vector(i, row_at(start_of(from, lane) + 16 * lane.chunk, from, row), has_vector);
  };
  read(0, p.grad);
  read(1, p.out);
  read(2, p.sloped);
  float grad[kElements];
  float sum[kElements];
  to_floats<P>(operands.vector(0), grad);
  float of_sums[2];
  for (int i = 0; i < 2; ++i) {
    // Results are no operands, so that tf32 does not round them.
    decode<kStorage>(operands.vector(1 + i), sum);
    of_sums[i] = dot(grad, sum);
  }
  add_over_chunks(lane, of_sums);
  if (!has || lane.chunk != 0) return;
  const auto* stats = reinterpret_cast<const float*>(row_at(start_of(p.shift, lane), p.shift, row));
  float inner = p.problem.normalize ? of_sums[0] : 0.0f;
  if (p.grads.inner.data != nullptr) inner = *numbers_of(p.grads.inner, lane, row);
  if (p.grads.q.data != nullptr) {
    *numbers_of(p.grads.q, lane, row) = of_sums[1] - inner * stats[2];
  }
  const float query = number_in(start_of(p.q, lane), p.q, row);
  *reinterpret_cast<float4*>(numbers_of(p.grads.numbers, lane, row)) =
      make_float4(query, stats[0], stats[1], inner);
}

// The gradients of keys, values and edge terms, over the rows of A^T.
template <Precision P, bool kExtras>
class GraphAdditiveGrad {
 public:
  static constexpr int kElements = kPerVector<P>;
  // See GraphForward.
  static constexpr int kBlocks = kExtras ? 5 : kElements == 8 ? 7 : 8;
  static constexpr int kBatch = kExtras || kElements == 8 ? 2 : 3;
  static constexpr bool kMaps = kExtras;
  using EdgeOperands = GraphOperands<2, 0>;  // the gradient of the result, and its row's numbers
  using RowOperands = GraphOperands<1, 1>;   // the value, and the key

  __device__ GraphAdditiveGrad(const GraphLaunch& p, const GraphLane& lane)
      : p_(p),
        lane_(lane),
        grads_(p.grad, lane, p.dv_chunks),
        numbers_(pin_register(start_of(p.numbers, lane))) {
    if (kExtras && p.problem.base.seed != nullptr) philox_ = philox_key(*p.problem.base.seed);
  }

  __device__ __forceinline__ void read_row(RowOperands& to, const GraphRow& row) const {
    const GraphVectors values(p_.v, lane_, p_.dv_chunks);
    to.read_vector(0, row_at(values.start, p_.v, row.row), values.has);
    to.read_number(0, row_at(start_of(p_.k, lane_), p_.k, row.row));
  }
  __device__ __forceinline__ void read_edge(EdgeOperands& to, int32_t column, int64_t) const {
    to.read_vector(0, row_at(grads_.start, p_.grad, column), grads_.has);
    to.read_vector(1, row_at(numbers_, p_.numbers, column), true);
  }

  __device__ __forceinline__ void clear() {
    of_key_ = 0.0f;
#pragma unroll
    for (float& sum : of_value_) sum = 0.0f;
  }
  __device__ __forceinline__ void start(const GraphRow& row, const RowOperands& from) {
    row_ = row;
    to_floats<P>(from.vector(0), value_);
    key_ = from.number(0);
  }

  __device__ __forceinline__ void add(const GraphRow&, const GraphStep<GraphAdditiveGrad>& step) {
    float grads[kBatch][kElements];
    float of_weights[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      to_floats<P>(step.edge[i].vector(0), grads[i]);
      of_weights[i] = dot(grads[i], value_);
    }
    add_over_chunks(lane_, of_weights);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float numbers[4];
      decode<DType::kFloat32>(step.edge[i].vector(1), numbers);
      if constexpr (kExtras) {
        if (step.has[i]) add_edge(step.number[i], numbers, of_weights[i], grads[i]);
      } else {
        const float x = numbers[0] + key_;
        const float slope = x > 0.0f ? 1.0f : p_.problem.negative_slope;
        float weight = weight_of(__fmul_rn(kLog2E, slope * x), numbers);
        if (!step.has[i]) weight = 0.0f;
        of_key_ += slope * weight * (of_weights[i] - numbers[3]);
        add_scaled(of_value_, weight, grads[i]);
      }
    }
  }

  __device__ void finish(const GraphRow& row) const {
    if (!lane_.is_own) return;
    if (row.partial >= 0) {
      float* to = partial_of(p_, lane_, row.partial);
      if (lane_.chunk == 0) to[0] = of_key_;
      return store_sums(to, lane_, 0, p_.dv_chunks, of_value_);
    }
    if (p_.grads.v.data != nullptr) {
      store_result<P>(p_.to_v, lane_, row.row, p_.dv_chunks, of_value_);
    }
    if (p_.grads.k.data != nullptr && lane_.chunk == 0) {
      *numbers_of(p_.grads.k, lane_, row.row) = of_key_;
    }
  }

 private:
  __device__ __forceinline__ float weight_of(float score, const float (&numbers)[4]) const {
    return exp2_fast(score - numbers[1]) * numbers[2];
  }

  // An edge with terms, dropout or a mask.
  __device__ __forceinline__ void add_edge(int number, const float (&numbers)[4], float of_weight,
                                           const float (&grad)[kElements]) {
    const int64_t at = row_.begin + number;
    const int64_t nonzero = p_.nnz_index_map[at];
    const int32_t query = __ldg(p_.a.indices + at);
    const auto term = [&](const GraphArray& of) {
      return of.data == nullptr ? 0.0f : number_in(start_of(of, lane_, nonzero), of, 0);
    };
    const float x = numbers[0] + key_ + term(p_.features);
    float slope = x > 0.0f ? 1.0f : p_.problem.negative_slope;
    float score = slope * x;
    // Comparisons let NaN through.
    const float clamp = p_.problem.clamp;
    if (clamp > 0.0f && (score > clamp || score < -clamp)) {
      score = score > clamp ? clamp : -clamp;
      slope = 0.0f;
    }
    const float bias = term(p_.bias);
    const bool counts = bias != kNoEdge && !(p_.problem.base.is_causal && row_.row > query);
    float score_grad = 0.0f;
    float kept_weight = 0.0f;
    // A masked edge takes no part: its row may be infinite.
    if (counts) {
      const float weight = weight_of(fmaf(kLog2E, bias, __fmul_rn(kLog2E, score)), numbers);
      const float kept = dropout(query);
      kept_weight = weight * kept;
      score_grad = weight * ((of_weight + term(p_.grad_weights)) * kept - numbers[3]);
      add_scaled(of_value_, kept_weight, grad);
    }
    of_key_ += slope * score_grad;
    if (!lane_.writes_number()) return;
    if (p_.grads.edges.data != nullptr) {
      float* to = numbers_of(p_.grads.edges, lane_, nonzero);
      to[0] = kept_weight;
      to[1] = slope * kept_weight;
    }
    if (p_.grads.bias.data != nullptr) *numbers_of(p_.grads.bias, lane_, nonzero) = score_grad;
    if (p_.grads.features.data != nullptr) {
      *numbers_of(p_.grads.features, lane_, nonzero) = slope * score_grad;
    }
  }
  __device__ __forceinline__ float dropout(int32_t query) const {
    const AttentionProblem& base = p_.problem.base;
    if (base.seed == nullptr) return 1.0f;
    const bool keeps =
        dropout_keeps(philox_, static_cast<uint32_t>(query), static_cast<uint32_t>(row_.row),
                      static_cast<uint32_t>(lane_.head_of_all(p_)), base.threshold);
    return keeps ? base.kept_scale : 0.0f;
  }

  const GraphLaunch& p_;
  const GraphLane& lane_;
  GraphVectors grads_;
  const char* numbers_;
  PhiloxKey philox_;
  GraphRow row_;
  float key_ = 0.0f;
  float value_[kElements] = {};
  float of_key_ = 0.0f;
  float of_value_[kElements] = {};
};

template <Precision P>
void run_additive_rows(const GraphLaunch& p, const char* call, Stream stream) {
  const int64_t warps = ceil_div<int64_t>(p.a.rows, p.lanes.rows());
  const int64_t blocks = p.problem.base.batches * p.head_blocks;
  launch(call, graph_additive_rows_kernel<P>, grid_of(warps, kGraphWarps, blocks, call),
         kGraphThreads, stream, p);
}

template <Precision P>
void run_additive_columns(const GraphLaunch& p, const char* call, Stream stream) {
  const bool has_terms = p.has_extras() || p.grads.edges.data != nullptr;
  has_terms ? launch_pass<GraphAdditiveGrad<P, true>>(p, call, stream)
            : launch_pass<GraphAdditiveGrad<P, false>>(p, call, stream);
  if (p.work.cut_count == 0) return;
  add_graph_parts<P>(p, {p.grads.k, 0, 1, 0}, {p.grads.v, p.dv_chunks, p.problem.base.dv, 0}, call,
                     stream);
}

}  // namespace gnnsparse::cuda
