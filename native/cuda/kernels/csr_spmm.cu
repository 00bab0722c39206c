// SpMM on CUDA cores, row by row: every precision, any row length. Rows of X are read 16 bytes a
// lane with 8 loads in flight; sums are float32 in registers.
#include "device/launch.cuh"
#include "device/vector.cuh"
#include "kernels/csr_rows.cuh"
#include "kernels/reduce.cuh"

namespace gnnsparse::cuda {
namespace {

// Weights of nonzeros [at, at + 8).
template <Precision P>
__device__ __forceinline__ void load_weights(const CsrSpmm& p, int64_t at,
                                             const int32_t (&columns)[kBatch],
                                             float (&weights)[kBatch]) {
  using Storage = typename VectorOf<P>::Storage;
  constexpr int kElements = VectorOf<P>::kElements;
  if (p.values != nullptr) {
    const auto* values = static_cast<const Storage*>(p.values) + at;
    if (at + kBatch <= p.a.nnz) {
#pragma unroll
      for (int i = 0; i < kBatch / kElements; ++i) {
        float part[kElements];
        to_floats<P>(load_vec16(values + i * kElements), part);
#pragma unroll
        for (int j = 0; j < kElements; ++j) weights[i * kElements + j] = part[j];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        weights[i] = at + i < p.a.nnz ? scalar_to_float<P>(__ldg(values + i)) : 0.0f;
      }
    }
  } else if (p.col_scale != nullptr) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) weights[i] = __ldg(p.col_scale + columns[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) weights[i] = 1.0f;
  }
}

template <Precision P>
__device__ __forceinline__ void accumulate(float (&sum)[VectorOf<P>::kElements], float weight,
                                           const Vec16& x) {
  float v[VectorOf<P>::kElements];
  to_floats<P>(x, v);
#pragma unroll
  for (int j = 0; j < VectorOf<P>::kElements; ++j) sum[j] += weight * v[j];
}

// Adds nonzeros [work.begin, work.end) times the lane's features.
template <Precision P>
__device__ __forceinline__ void sum_row(const CsrSpmm& p, const RowWork& work, const LaneMap& lane,
                                        int64_t feature, float (&sum)[VectorOf<P>::kElements]) {
  using Storage = typename VectorOf<P>::Storage;
  const auto* x = static_cast<const Storage*>(p.x.data) + feature;
  int64_t at = (work.begin & ~int64_t{kBatch - 1}) + kBatch * lane.nonzero_lane;
  const int64_t stride = int64_t{kBatch} * lane.nonzero_lanes;
  int32_t columns[kBatch];
  if (at < work.end) load_batch(p.a, at, columns);
  for (; at < work.end; at += stride) {
    float weights[kBatch];
    Vec16 rows[kBatch];
    load_weights<P>(p, at, columns, weights);
    if (at >= work.begin && at + kBatch <= work.end) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) rows[i] = load_vec16(x + columns[i] * p.x.stride);
    } else {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const bool inside = at + i >= work.begin && at + i < work.end;
        rows[i] = inside ? load_vec16(x + columns[i] * p.x.stride) : Vec16{};
        weights[i] = inside ? weights[i] : 0.0f;
      }
    }
    if (at + stride < work.end) load_batch(p.a, at + stride, columns);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) accumulate<P>(sum, weights[i], rows[i]);
  }
}

template <Precision P>
__global__ void __launch_bounds__(kCsrThreads) csr_spmm_kernel(const __grid_constant__ CsrSpmm p) {
  constexpr int kElements = VectorOf<P>::kElements;
  const LaneMap lane(p.lanes, p.row_lanes);
  const RowWork work(p, lane.item);
  const int64_t feature = (int64_t{blockIdx.y} * p.lanes + lane.feature_lane) * kElements;
  float sum[kElements] = {};
  if (work.row >= 0 && feature < p.n) sum_row<P>(p, work, lane, feature, sum);
  for (int offset = p.lanes; offset < p.row_lanes; offset *= 2) {
#pragma unroll
    for (int j = 0; j < kElements; ++j) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], offset);
  }
  if (work.row < 0 || feature >= p.n || lane.nonzero_lane != 0) return;
  if (work.partial >= 0) {
    float* out = p.partial + work.partial * partial_stride(p.n) + feature;
#pragma unroll
    for (int j = 0; j < kElements; j += 4) {
      *reinterpret_cast<float4*>(out + j) = make_float4(sum[j], sum[j + 1], sum[j + 2], sum[j + 3]);
    }
    return;
  }
  const float scale = p.row_scale != nullptr ? p.row_scale[work.row] : 1.0f;
#pragma unroll
  for (int j = 0; j < kElements; ++j) sum[j] *= scale;
  store_row(p.y, p.row_ids != nullptr ? p.row_ids[work.row] : work.row, feature, p.n, sum);
}

template <Precision P>
void run(const CsrSpmm& p, Stream stream) {
  const int64_t tile = int64_t{p.lanes} * VectorOf<P>::kElements;
  const dim3 grid = grid_of(p.segment_count + p.a.rows, kCsrThreads / p.row_lanes,
                            ceil_div(p.n, tile), "spmm_csr");
  launch("spmm_csr", csr_spmm_kernel<P>, grid, kCsrThreads, stream, p);
  if (p.cut_count == 0) return;
  Reduce reduce;
  reduce.cuts = p.cuts;
  reduce.cut_count = p.cut_count;
  reduce.partial = p.partial;
  reduce.rows = p.a.rows;
  reduce.row_ids = p.row_ids;
  reduce.row_scale = p.row_scale;
  reduce.y = p.y;
  reduce.n = p.n;
  reduce_partials(reduce, stream);
}

}  // namespace

void spmm_csr(const CsrSpmm& problem, Precision precision, Stream stream) {
  switch (precision) {
    case Precision::kFp32:
      return run<Precision::kFp32>(problem, stream);
    case Precision::kTf32:
      return run<Precision::kTf32>(problem, stream);
    case Precision::kFp16:
      return run<Precision::kFp16>(problem, stream);
    case Precision::kBf16:
      return run<Precision::kBf16>(problem, stream);
  }
}

}  // namespace gnnsparse::cuda
