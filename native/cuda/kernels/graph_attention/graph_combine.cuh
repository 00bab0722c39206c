// The softmax over a row's edges while it is made, and its parts put together.
#pragma once

#include "kernels/graph_attention/graph_loop.cuh"

namespace gnnsparse::cuda {

// The softmax of a row in the making: weights are relative to the largest score so far, or to 0
// without normalisation. A second vector of each edge, and a sum of weights, may be summed beside.
template <int kElements, bool kSecond>
struct OnlineSoftmax {
  float top = kLowest;
  float sum = 0.0f;
  float values[kElements] = {};
  float second[kSecond ? kElements : 1] = {};
  float second_sum = 0.0f;

  // Weights relative to `raised`, a score at least as large.
  __device__ __forceinline__ void raise(float raised) {
    const float factor = exp2_fast(top - raised);
    top = raised;
    sum *= factor;
#pragma unroll
    for (int i = 0; i < kElements; ++i) values[i] *= factor;
    if constexpr (kSecond) {
      second_sum *= factor;
#pragma unroll
      for (int i = 0; i < kElements; ++i) second[i] *= factor;
    }
  }
};

// Of parts, whose largest score may be kNoEdge.
__device__ __forceinline__ float weight_relative(float score, float top) {
  return score == kNoEdge ? 0.0f : exp2_fast(score - top);
}

// The results of a finished row.
template <Precision P, bool kSecond>
__device__ void write_row(const GraphLaunch& p, const GraphLane& lane, int row,
                          OnlineSoftmax<kPerVector<P>, kSecond>& softmax) {
  constexpr int kElements = kPerVector<P>;
  const bool normalize = p.problem.normalize;
  const float scale = !normalize ? 1.0f : softmax.sum == 0.0f ? 0.0f : reciprocal_fast(softmax.sum);
#pragma unroll
  for (int i = 0; i < kElements; ++i) softmax.values[i] *= scale;
  store_result<P>(p.to_out, lane, row, p.dv_chunks, softmax.values);
  if constexpr (kSecond) {
    if (p.to_second.view.data != nullptr) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) softmax.second[i] *= scale;
      store_result<P>(p.to_second, lane, row, p.second_chunks, softmax.second);
    }
  }
  if (lane.chunk != 0) return;
  auto* stats =
      reinterpret_cast<float*>(const_cast<char*>(row_at(start_of(p.shift, lane), p.shift, row)));
  stats[0] = normalize && softmax.sum != 0.0f ? softmax.top : 0.0f;
  stats[1] = scale;
  if (kSecond && p.result.sloped.data != nullptr) stats[2] = softmax.second_sum * scale;
}

// Puts the parts of a long row together, in their order: a warp each.
template <Precision P, bool kSecond>
__global__ void __launch_bounds__(kGraphThreads)
    combine_graph_rows_kernel(const __grid_constant__ GraphLaunch p) {
  constexpr int kElements = kPerVector<P>;
  const GraphLane lane(p);
  if (lane.item >= p.work.cut_count || lane.row != 0 || !lane.is_own) return;
  const Cut cut = p.work.cuts[lane.item];
  OnlineSoftmax<kElements, kSecond> all;
#pragma unroll 8
  for (int i = 0; i < cut.count; ++i) {
    all.top = fmaxf(all.top, partial_of(p, lane, cut.first + i)[0]);
  }
#pragma unroll 4
  for (int i = 0; i < cut.count; ++i) {
    const float* part = partial_of(p, lane, cut.first + i);
    const float factor = weight_relative(part[0], all.top);
    all.sum += factor * part[1];
    all.second_sum += factor * part[2];
    const float* values = part + 4 + kElements * lane.chunk;
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      if (lane.chunk < p.dv_chunks) all.values[j] += factor * values[j];
      if constexpr (kSecond) {
        if (lane.chunk < p.second_chunks) {
          all.second[j] += factor * values[kElements * p.dv_chunks + j];
        }
      }
    }
  }
  write_row<P>(p, lane, cut.index, all);
}

template <Precision P, bool kSecond>
void combine_graph_rows(const GraphLaunch& p, const char* call, Stream stream) {
  if (p.work.cut_count == 0) return;
  launch_cuts(p, combine_graph_rows_kernel<P, kSecond>, call, stream);
}

}  // namespace gnnsparse::cuda
