// The sums of the parts of long rows, for gradients that are sums over a row's edges.
#pragma once

#include "kernels/graph_attention/graph_loop.cuh"

namespace gnnsparse::cuda {

// One of the results that parts have sums of.
struct SumOfParts {
  HeadsView to;  // null: not wanted
  int chunks;    // vectors of a row of it; 0: one number, which is the partial sums' first
  int64_t width;
  int before;  // vectors of partial sums before its own
};

template <int kElements>
__device__ void add_parts(const GraphLaunch& p, const GraphLane& lane, const Cut& cut,
                          const SumOfParts& of) {
  if (of.to.data == nullptr) return;
  const int row = cut.index;
  if (of.chunks == 0) {
    if (lane.chunk != 0) return;
    float sum = 0.0f;
    for (int i = 0; i < cut.count; ++i) sum += partial_of(p, lane, cut.first + i)[0];
    *numbers_of(of.to, lane, row) = sum;
    return;
  }
  if (lane.chunk >= of.chunks) return;
  float sums[kElements] = {};
#pragma unroll 4
  for (int i = 0; i < cut.count; ++i) {
    const float* part =
        partial_of(p, lane, cut.first + i) + 4 + kElements * (of.before + lane.chunk);
#pragma unroll
    for (int j = 0; j < kElements; ++j) sums[j] += part[j];
  }
  store_elements(of.to, lane, row, of.width, sums);
}

// A warp takes a row that was cut. Its parts are added in their order.
template <Precision P>
__global__ void __launch_bounds__(kGraphThreads)
    add_graph_parts_kernel(const __grid_constant__ GraphLaunch p, const SumOfParts first,
                           const SumOfParts second) {
  const GraphLane lane(p);
  if (lane.item >= p.work.cut_count || lane.row != 0 || !lane.is_own) return;
  const Cut cut = p.work.cuts[lane.item];
  add_parts<kPerVector<P>>(p, lane, cut, first);
  add_parts<kPerVector<P>>(p, lane, cut, second);
}

template <Precision P>
void add_graph_parts(const GraphLaunch& p, const SumOfParts& first, const SumOfParts& second,
                     const char* call, Stream stream) {
  launch_cuts(p, add_graph_parts_kernel<P>, call, stream, first, second);
}

}  // namespace gnnsparse::cuda
