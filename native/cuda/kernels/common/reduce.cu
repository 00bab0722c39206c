#include "device/launch.cuh"
#include "device/vector.cuh"
#include "device/vector_add.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/shifted_rows.cuh"

namespace gnnsparse::cuda {
namespace {

constexpr int kThreads = 256;

constexpr int kAhead = 8;  // parts a thread has in flight

// Of 16 neighbouring lanes each has four of 64 columns of a row.
constexpr int kRowLanes = kPartialColumns / 4;

struct ReduceLaunch : Reduce {
  ShiftedRows shifted;  // y, where four of its elements are no vector

  explicit ReduceLaunch(const Reduce& p) : Reduce(p) {
    if (p.add) return;  // rows that are shifted are written only
    if (!starts_at(p.y, static_cast<int>(4 * size_of(p.y.dtype)))) shifted = ShiftedRows(p.y, p.n);
  }
};

__device__ __forceinline__ void store_shifted_result(const ReduceLaunch& p, int row, int column,
                                                     const float (&v)[4]) {
  const int in_warp = threadIdx.x % kWarp;
  const int lane = in_warp % kRowLanes;
  const int first = column - 4 * lane;
  const int left = min(static_cast<int>(p.n) - first, static_cast<int>(kPartialColumns));
  const int active = ceil_div(left, 4);
  const uint32_t mask = 0xffffu >> (kRowLanes - active) << (in_warp - lane);
  char* to = p.shifted.row(row) + int64_t{first} * size_of(p.y.dtype);
  if (p.y.dtype == DType::kFloat32) {
    uint32_t words[1][4];
    encode<DType::kFloat32>(v, words[0]);
    return store_shifted<4>(to, 4 * left, words, lane, kRowLanes, mask);
  }
  // Lanes of even number take what their neighbours have, too.
  uint32_t own[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    own[i] = p.y.dtype == DType::kFloat16 ? pack_pair<DType::kFloat16>(v[2 * i], v[2 * i + 1])
                                          : pack_pair<DType::kBFloat16>(v[2 * i], v[2 * i + 1]);
  }
  const int next = in_warp - lane + min(lane + 1, active - 1);
  uint32_t words[1][4] = {
      {own[0], own[1], __shfl_sync(mask, own[0], next), __shfl_sync(mask, own[1], next)}};
  const int bytes = lane % 2 == 0 ? 2 * left : 0;
  if (p.shifted.unit == 4) {
    store_shifted<4, 2>(to, bytes, words, lane / 2, kRowLanes / 2, mask);
  } else {
    store_shifted<2, 2>(to, bytes, words, lane / 2, kRowLanes / 2, mask);
  }
}

// Four features of one row a thread; parts are added in their order along the row. The kernel may
// start before the one that writes the parts has ended.
__global__ void __launch_bounds__(kThreads) reduce_kernel(const ReduceLaunch p) {
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
  const int64_t to = p.stored.row_ids != nullptr ? p.stored.row_ids[row] : row;
  if (p.add) add_row(p.y, to, column, p.n, sum);
  if (p.shifted.data == nullptr) return store_row(p.y, to, column, p.n, sum);
  store_shifted_result(p, static_cast<int>(to), static_cast<int>(column), sum);
}

}  // namespace

void reduce_partials(const Reduce& problem, Stream stream) {
  const int64_t items = problem.window * partial_stride(problem.n) / 4;
  const dim3 grid =
      grid_of(problem.work.cut_count, 1, ceil_div<int64_t>(items, kThreads), "reduce");
  launch_early("reduce", reduce_kernel, grid, kThreads, stream, ReduceLaunch(problem));
}

}  // namespace gnnsparse::cuda
