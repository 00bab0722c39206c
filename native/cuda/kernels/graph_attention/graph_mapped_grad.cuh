// The gradient of features behind a linear map: for each edge the sum over heads of what its weight
// and its score add. The numbers of edges are those that the pass over rows has kept.
#pragma once

#include "kernels/graph_attention/graph_loop.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

// Features that a block takes, a lane each.
inline constexpr int kMappedTile = 32;

// Shared memory of a block: for each warp and head the row's two vectors, which the numbers of
// edges multiply.
constexpr int64_t mapped_grad_bytes(int64_t heads) {
  return kGraphWarps * heads * 2 * kMappedTile * int64_t{sizeof(float)};
}

// A warp takes neighbouring rows, or a part of a long one, in all heads and a tile of features.
template <Precision P>
__global__ void __launch_bounds__(kGraphThreads)
    graph_mapped_grad_kernel(const __grid_constant__ GraphLaunch p) {
  const int tiles = static_cast<int>(ceil_div<int64_t>(p.problem.terms.de, kMappedTile));
  GraphLane lane(p);
  lane.batch = static_cast<int>(blockIdx.y) / tiles;
  const int64_t feature = int64_t{blockIdx.y % tiles} * kMappedTile + lane.id;
  const bool has = feature < p.problem.terms.de;
  const int heads = static_cast<int>(p.problem.base.heads);
  auto* vectors = reinterpret_cast<float2*>(dynamic_shared()) +
                  static_cast<int64_t>(threadIdx.x / 32) * heads * kMappedTile + lane.id;
  const auto load = [&](const HeadsView& from, int h, int row) {
    if (from.data == nullptr || !has) return 0.0f;
    const DenseView of = from.of(lane.batch, h);
    return round_decoded<P>(load_scalar(of.data, of.dtype, row * of.stride + feature));
  };
  for (int r = 0; r < p.side_by_side; ++r) {
    const GraphRow row = row_of(p, lane.item * p.side_by_side + r);
    if (row.count <= 0) continue;
    for (int h = 0; h < heads; ++h) {
      vectors[h * kMappedTile] =
          make_float2(load(p.grads.mapped, h, row.row), load(p.problem.terms.mapped_q, h, row.row));
    }
    for (int e = 0; e < row.count; ++e) {
      const int64_t nonzero = row.begin + e;
      const char* numbers = p.edges.data + lane.batch * p.edges.batch + nonzero * p.edges.row;
      float sum = 0.0f;
      for (int h = 0; h < heads; ++h) {
        const float2 factors = __ldg(reinterpret_cast<const float2*>(numbers + h * p.edges.head));
        const float2 vector = vectors[h * kMappedTile];
        // A masked edge takes no part: the row's vectors may be infinite, and times zero that is
        // NaN.
        if (factors.x != 0.0f) sum += factors.x * vector.x;
        if (factors.y != 0.0f) sum += factors.y * vector.y;
      }
      if (has) {
        const MutableDenseView to = p.grads.of_mapped.mutable_of(lane.batch, 0);
        store_scalar(to.data, to.dtype, nonzero * to.stride + feature, sum);
      }
    }
  }
}

template <Precision P>
void GraphMappedGradUnit<P>::run(const GraphAttentionPass& pass, Stream stream) {
  const GraphLaunch p(pass, kPerVector<P>);
  const char* call = "graph_attention_mapped";
  static std::atomic<uint64_t> prepared{0};
  constexpr int64_t kMost = mapped_grad_bytes(kMostMappedHeads);
  prefer_shared_memory(graph_mapped_grad_kernel<P>, static_cast<int>(kMost), prepared);
  const int64_t tiles = ceil_div<int64_t>(p.problem.terms.de, kMappedTile);
  launch_shared(call, graph_mapped_grad_kernel<P>,
                grid_of(p.warps(), kGraphWarps, p.problem.base.batches * tiles, call),
                kGraphThreads, static_cast<uint32_t>(mapped_grad_bytes(p.problem.base.heads)),
                stream, p);
}

}  // namespace gnnsparse::cuda
