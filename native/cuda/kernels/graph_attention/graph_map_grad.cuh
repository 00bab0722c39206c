// The gradient of a linear map W of edge features: in each head the sum over rows of q^T m + g^T n,
// where q are queries, m the gradient of W^T q, g gradients of results, and n what the forward pass
// has added up of mapped features. Rows are the depth of Tensor Core products.
#pragma once

#include "device/async.cuh"
#include "device/mma.cuh"
#include "kernels/graph_attention/graph_rows.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

struct MapGradTile {
  static constexpr int kRows = 16;   // of a step
  static constexpr int kWidth = 64;  // features of x that a block takes
  static constexpr int kStages = 3;
  static constexpr uint32_t kXBytes = 2 * kRows * kWidth;
  static constexpr uint32_t kPairBytes = kXBytes + 2 * kRows * GraphMapGrad::kFeatures;
  static constexpr uint32_t kStageBytes = 2 * kPairBytes;
  static constexpr uint32_t kWarpBytes = kStages * kStageBytes;
  static constexpr uint32_t kBytes = kGraphWarps * kWarpBytes;
};

struct MapGradLaunch : GraphMapGrad {
  GraphArray x_array[2];
  GraphArray y_array[2];

  explicit MapGradLaunch(const GraphMapGrad& p) : GraphMapGrad(p) {
    for (int i = 0; i < p.pairs; ++i) {
      x_array[i] = GraphArray(p.x[i]);
      y_array[i] = GraphArray(p.y[i]);
    }
  }
};

// A vector of a row of features in shared memory; of 8 rows no two are in the same banks.
__device__ __forceinline__ uint32_t x_place(int row, int chunk) {
  return 128 * row + 16 * (chunk ^ row % 8);
}
__device__ __forceinline__ uint32_t y_place(int row, int chunk) {
  return 64 * row + 16 * (chunk ^ row / 2 % 4);
}

template <Precision P>
__global__ void __launch_bounds__(kGraphThreads)
    graph_map_grad_kernel(const __grid_constant__ MapGradLaunch p) {
  using G = MapGradTile;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int parts = (p.width + G::kWidth - 1) / G::kWidth;
  const int head = static_cast<int>(blockIdx.y) / parts;
  const int first = static_cast<int>(blockIdx.y) % parts * G::kWidth;
  const int width = min(G::kWidth, p.width - first);
  const int chunks = (width + 7) / 8;  // rows are padded to whole ones
  char* memory = dynamic_shared();
  const uint32_t all = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const uint32_t ring = all + warp * G::kWarpBytes;
  const int64_t steps = (p.rows + G::kRows - 1) / G::kRows;
  const int64_t stride = p.slices * kGraphWarps;

  const auto fetch = [&](int64_t step, uint32_t stage) {
    if (step < steps) {
      for (int of = 0; of < p.pairs; ++of) {
        const uint32_t to = stage + of * G::kPairBytes;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = lane / 8 + 4 * i;
          const int64_t number = step * G::kRows + row;
          const bool has = number < p.rows && lane % 8 < chunks;
          copy_async_or_zero(
              to + x_place(row, lane % 8),
              row_at(p.x_array[of].data + head * p.x_array[of].head + 2 * first + 16 * (lane % 8),
                     p.x_array[of], static_cast<int>(number)),
              has);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = lane / 4 + 8 * i;
          const int64_t number = step * G::kRows + row;
          const bool has = number < p.rows && 8 * (lane % 4) < p.features;
          copy_async_or_zero(
              to + G::kXBytes + y_place(row, lane % 4),
              row_at(p.y_array[of].data + head * p.y_array[of].head + 16 * (lane % 4),
                     p.y_array[of], static_cast<int>(number)),
              has);
        }
      }
    }
    commit_copies();
  };

  float sums[4][4][4] = {};
  int64_t step = int64_t{blockIdx.x} * kGraphWarps + warp;
  for (int i = 0; i < G::kStages; ++i) fetch(step + i * stride, ring + i * G::kStageBytes);
  for (uint32_t stage = ring; step < steps; step += stride) {
    wait_copies_but<G::kStages - 1>();
    __syncwarp();
    for (int of = 0; of < p.pairs; ++of) {
      const uint32_t from = stage + of * G::kPairBytes;
      uint32_t b[2][4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        load_matrices(from + G::kXBytes + y_place(lane % 16, 2 * n + lane / 16), b[n]);
      }
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        uint32_t turned[4];
        load_matrices(from + x_place(lane % 8 + 8 * (lane / 16), 2 * m + lane / 8 % 2), turned);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          mma<kArithmetic<P>>(sums[m][n], turned,
                              {b[n / 2][2 * (n % 2)], b[n / 2][2 * (n % 2) + 1]});
        }
      }
    }
    __syncwarp();
    fetch(step + G::kStages * stride, stage);
    stage += G::kStageBytes;
    if (stage == ring + G::kWarpBytes) stage = ring;
  }
  wait_copies();
  __syncthreads();
  // The warps' sums are added in their order.
  auto* of_warps = reinterpret_cast<float*>(memory);
  constexpr int kSums = G::kWidth * GraphMapGrad::kFeatures;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int feature = 16 * m + lane / 4 + 8 * (i / 2);
        of_warps[warp * kSums + feature * GraphMapGrad::kFeatures + 8 * n + 2 * (lane % 4) +
                 i % 2] = sums[m][n][i];
      }
    }
  }
  __syncthreads();
  float* to =
      p.to + ((int64_t{blockIdx.x} * p.heads + head) * p.width + first) * GraphMapGrad::kFeatures;
  for (int i = threadIdx.x; i < width * GraphMapGrad::kFeatures; i += kGraphThreads) {
    float sum = 0.0f;
    for (int w = 0; w < kGraphWarps; ++w) sum += of_warps[w * kSums + i];
    to[i] = sum;
  }
}

template <Precision P>
void GraphMapGradUnit<P>::run(const GraphMapGrad& p, Stream stream) {
  const char* call = "graph_map_grad";
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(graph_map_grad_kernel<P>, static_cast<int>(MapGradTile::kBytes), prepared);
  const int64_t parts = ceil_div<int64_t>(p.width, MapGradTile::kWidth);
  launch_shared(call, graph_map_grad_kernel<P>, grid_of(p.slices, 1, p.heads * parts, call),
                kGraphThreads, MapGradTile::kBytes, stream, MapGradLaunch(p));
}

}  // namespace gnnsparse::cuda
