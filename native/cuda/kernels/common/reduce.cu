#include "device/launch.cuh"
#include "device/vector.cuh"
#include "kernels/common/reduce.cuh"

namespace gnnsparse::cuda {
namespace {

constexpr int kThreads = 256;

constexpr int kAhead = 8;  // parts a thread has in flight

// Four features of one row a thread; parts are added in their order along the row. The kernel may
// start before the one that writes the parts has ended.
__global__ void __launch_bounds__(kThreads) reduce_kernel(const Reduce p) {
  const Cut cut = p.work.cuts[blockIdx.x];
  const int64_t stride = partial_stride(p.n);
  const int64_t item = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const int64_t column = item % (stride / 4) * 4;
  const int64_t in_window = item / (stride / 4);
  const int64_t first =
      p.first_rows != nullptr ? p.first_rows[cut.index] : int64_t{cut.index} * p.window;
  const int64_t row = first + in_window;
  if (in_window >= p.window || row >= p.rows || column >= p.n) return;
  float sum[4] = {};
  const float* part = p.partial + (int64_t{cut.first} * p.window + in_window) * stride + column;
  wait_for_previous();
  for (int i = 0; i < cut.count; i += kAhead, part += kAhead * p.window * stride) {
    float4 v[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (i + j < cut.count) v[j] = *reinterpret_cast<const float4*>(part + j * p.window * stride);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (i + j >= cut.count) break;
      sum[0] += v[j].x;
      sum[1] += v[j].y;
      sum[2] += v[j].z;
      sum[3] += v[j].w;
    }
  }
  const float scale = p.stored.row_scale != nullptr ? p.stored.row_scale[row] : 1.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] *= scale;
  store_row(p.y, p.stored.row_ids != nullptr ? p.stored.row_ids[row] : row, column, p.n, sum);
}

}  // namespace

void reduce_partials(const Reduce& problem, Stream stream) {
  const int64_t items = problem.window * partial_stride(problem.n) / 4;
  const dim3 grid =
      grid_of(problem.work.cut_count, 1, ceil_div<int64_t>(items, kThreads), "reduce");
  launch_early("reduce", reduce_kernel, grid, kThreads, stream, problem);
}

}  // namespace gnnsparse::cuda
