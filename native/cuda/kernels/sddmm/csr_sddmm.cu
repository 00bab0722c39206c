// SDDMM on CUDA cores: a group of lanes keeps its part of a row of Q and reads 8 rows of K at a
// time.
#include "device/launch.cuh"
#include "device/vector.cuh"
#include "kernels/common/csr_rows.cuh"
#include "kernels/common/masked.cuh"

namespace gnnsparse::cuda {
namespace {

template <Precision P>
__device__ __forceinline__ float dot(const float (&q)[kPerVector<P>], const Vec16& k) {
  float v[kPerVector<P>];
  to_floats<P>(k, v);
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kPerVector<P>; ++j) sum += q[j] * v[j];
  return sum;
}

template <Precision P>
__global__ void __launch_bounds__(kCsrThreads, kCsrBlocks)
    csr_sddmm_kernel(const __grid_constant__ CsrSddmm p) {
  using Storage = StorageOf<P>;
  constexpr int kElements = kPerVector<P>;
  const LaneMap lane(p.lanes.lanes, p.lanes.row_lanes);
  const RowWork work(p, lane.item);
  // Groups of a warp go round together: the shuffles below need every lane.
  int at = kBatch * lane.nonzero_lane;
  const int64_t row = work.row < 0 ? 0 : work.row;
  const auto* q = static_cast<const Storage*>(p.q.data) +
                  (p.stored.row_ids != nullptr ? p.stored.row_ids[row] : row) * p.q.stride;
  const int32_t* indices = p.a.indices + work.base;
  while (__any_sync(0xffffffffu, at < work.last)) {
    float sum[kBatch] = {};
    if (at < work.last) {
      int32_t columns[kBatch];
      load_batch(indices, at, work.room, columns);
      for (int64_t f = int64_t{lane.feature_lane} * kElements; f < p.d;
           f += int64_t{p.lanes.lanes} * kElements) {
        float part[kElements];
        to_floats<P>(load_masked<P>(q, f, p.d), part);
        Vec16 rows[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const auto* k = static_cast<const Storage*>(p.k.data) + columns[i] * p.k.stride;
          rows[i] = work.has(at + i) ? load_masked<P>(k, f, p.d) : Vec16{};
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) sum[i] += dot<P>(part, rows[i]);
      }
    }
    for (int offset = p.lanes.lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], offset);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i % p.lanes.lanes == lane.feature_lane && work.has(at + i)) {
        store_scalar(p.out, p.out_dtype, work.base + at + i, sum[i]);
      }
    }
    at += kBatch * lane.nonzero_lanes;
  }
}

template <Precision P>
void run(const CsrSddmm& p, Stream stream) {
  const dim3 grid =
      grid_of(p.work.item_count + p.a.rows, kCsrThreads / p.lanes.row_lanes, 1, "sddmm_csr");
  launch("sddmm_csr", csr_sddmm_kernel<P>, grid, kCsrThreads, stream, p);
}

}  // namespace

void sddmm_csr(const CsrSddmm& problem, Precision precision, Stream stream) {
  dispatch_precision<EveryPrecision>(precision, "csr", [&](auto p) { run<p>(problem, stream); });
}

}  // namespace gnnsparse::cuda
