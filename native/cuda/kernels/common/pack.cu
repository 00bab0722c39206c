// Brings a dense matrix into the form the kernels gather from: storage type, rows padded to whole
// 16-byte vectors, each row multiplied by its weight where the matrix's weights are rank-1, and
// rounded to tf32 where that is asked for.
#include "device/launch.cuh"
#include "device/vector.cuh"

namespace gnnsparse::cuda {
namespace {

constexpr int kThreads = 256;

// A vector of elements that lie side by side from an address that is a multiple of its size.
template <int kElements>
__device__ __forceinline__ void load_elements(const Pack& p, int64_t at, float (&v)[kElements]) {
  if (p.x_dtype == DType::kFloat32) {
    const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(p.x) + at);
#pragma unroll
    for (int i = 0; i < kElements / 4; ++i) {
      const float4 four = __ldg(from + i);
      v[4 * i] = four.x;
      v[4 * i + 1] = four.y;
      v[4 * i + 2] = four.z;
      v[4 * i + 3] = four.w;
    }
    return;
  }
  uint32_t words[kElements / 2];
  const auto* from = reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(p.x) + at);
#pragma unroll
  for (int i = 0; i < kElements / 4; ++i) {
    const uint2 two = __ldg(from + i);
    words[2 * i] = two.x;
    words[2 * i + 1] = two.y;
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const auto bits = static_cast<uint16_t>(i % 2 == 0 ? words[i / 2] : words[i / 2] >> 16);
    v[i] = p.x_dtype == DType::kFloat16 ? __half2float(__ushort_as_half(bits))
                                        : __uint_as_float(static_cast<uint32_t>(bits) << 16);
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
  const int64_t first = row * p.row_stride + column * p.column_stride;
  const auto address = reinterpret_cast<uintptr_t>(p.x) + first * size_of(p.x_dtype);
  if (p.column_stride == 1 && column + kElements <= p.n && address % 16 == 0) {
    load_elements(p, first, v);
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      v[i] = column + i < p.n ? load_scalar(p.x, p.x_dtype, first + i * p.column_stride) : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) v[i] *= scale;
  if (p.out.rounded) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) v[i] = bits_float(to_tf32(float_bits(v[i])));
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
