// Brings a dense matrix into the form the kernels gather from: storage type, rows padded to whole
// 16-byte vectors, and each row multiplied by its weight where the matrix's weights are rank-1.
#include "device/launch.cuh"
#include "device/vector.cuh"

namespace gnnsparse::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float load_scalar(const Pack& p, int64_t at) {
  switch (p.x_dtype) {
    case DType::kFloat16:
      return __half2float(static_cast<const __half*>(p.x)[at]);
    case DType::kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(p.x)[at]);
    default:
      return static_cast<const float*>(p.x)[at];
  }
}

// A vector of the result a thread. Elements in the padding become zero.
template <int kElements>
__global__ void __launch_bounds__(kThreads) pack_kernel(const __grid_constant__ Pack p) {
  const int64_t vectors = p.out.stride / kElements;
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = item / vectors;
  const int64_t column = item % vectors * kElements;
  if (row >= p.rows) return;
  const float scale = p.scale != nullptr ? p.scale[row] : 1.0f;
  float v[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int64_t at = row * p.row_stride + (column + i) * p.column_stride;
    v[i] = column + i < p.n ? scale * load_scalar(p, at) : 0.0f;
  }
  store_row(p.out, row, column, p.out.stride, v);
}

}  // namespace

void pack(const Pack& problem, Stream stream) {
  const int elements = problem.out.dtype == DType::kFloat32 ? 4 : 8;
  const int64_t items = problem.rows * (problem.out.stride / elements);
  const auto kernel = elements == 4 ? pack_kernel<4> : pack_kernel<8>;
  launch("pack", kernel, grid_of(items, kThreads, 1, "pack"), kThreads, stream, problem);
}

}  // namespace gnnsparse::cuda
