// SpMM on CUDA cores, row by row: every precision, any row length. Rows of X are read 16 bytes a
// lane with 8 loads in flight; sums are float32 in registers.
#include "device/launch.cuh"
#include "device/vector.cuh"
#include "kernels/csr_rows.cuh"
#include "kernels/reduce.cuh"

namespace gnnsparse::cuda {
namespace {

// The values of a batch. They stay packed until they are used, which saves registers.
template <Precision P>
class BatchValues {
 public:
  using Storage = typename VectorOf<P>::Storage;
  static constexpr int kElements = VectorOf<P>::kElements;

  __device__ BatchValues(const Storage* values, int at, int room) {
    if (at + kBatch <= room) {
#pragma unroll
      for (int i = 0; i < kBatch / kElements; ++i) {
        packed_[i] = load_vec16(values + at + i * kElements);
      }
      return;
    }
    auto* to = reinterpret_cast<Storage*>(packed_);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) to[i] = at + i < room ? __ldg(values + at + i) : Storage{0};
  }
  __device__ float operator()(int i) const {
    const uint32_t word = packed_[i / kElements].word[i % kElements * 4 / kElements];
    if constexpr (kElements == 4) return scalar_to_float<P>(word);
    return scalar_to_float<P>(static_cast<Storage>(i % 2 == 0 ? word : word >> 16));
  }

 private:
  Vec16 packed_[kBatch / kElements];
};

template <Precision P>
struct Ones {
  __device__ float operator()(int) const { return 1.0f; }
};

template <Precision P>
__device__ __forceinline__ void accumulate(float (&sum)[VectorOf<P>::kElements], float weight,
                                           const Vec16& x) {
  float v[VectorOf<P>::kElements];
  to_floats<P>(x, v);
#pragma unroll
  for (int j = 0; j < VectorOf<P>::kElements; ++j) sum[j] += weight * v[j];
}

// One batch that lies wholly inside the row, or (kWhole = false) at one of its ends.
template <Precision P, bool kWhole, bool kWeighted>
__device__ __forceinline__ void sum_batch(const CsrSpmm& p, const RowWork& work, int at,
                                          const typename VectorOf<P>::Storage* x,
                                          float (&sum)[VectorOf<P>::kElements]) {
  using Storage = typename VectorOf<P>::Storage;
  int32_t columns[kBatch];
  Vec16 rows[kBatch];
  load_batch(p.a.indices + work.base, at, work.room, columns);
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    if (kWhole || work.has(at + i)) rows[i] = load_vec16(x + columns[i] * p.x.stride);
  }
  const auto weights = [&] {
    if constexpr (kWeighted) {
      return BatchValues<P>(static_cast<const Storage*>(p.values) + work.base, at, work.room);
    } else {
      return Ones<P>();
    }
  }();
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    // A neighbouring row's value takes no part: it may be infinite, and times zero that is NaN.
    if (kWhole || work.has(at + i)) accumulate<P>(sum, weights(i), rows[i]);
  }
}

// Adds the work's nonzeros times the lane's features. Nothing is fetched ahead of the batch in
// hand: registers are better spent on 32 resident warps, which hide the latency.
template <Precision P, bool kWeighted>
__device__ __forceinline__ void sum_row(const CsrSpmm& p, const RowWork& work, const LaneMap& lane,
                                        int64_t feature, float (&sum)[VectorOf<P>::kElements]) {
  const auto* x = static_cast<const typename VectorOf<P>::Storage*>(p.x.data) + feature;
  for (int at = kBatch * lane.nonzero_lane; at < work.last; at += kBatch * lane.nonzero_lanes) {
    if (at >= work.first && at + kBatch <= work.last) {
      sum_batch<P, true, kWeighted>(p, work, at, x, sum);
    } else {
      sum_batch<P, false, kWeighted>(p, work, at, x, sum);
    }
  }
}

template <Precision P, bool kWeighted>
__global__ void __launch_bounds__(kCsrThreads, kCsrBlocks)
    csr_spmm_kernel(const __grid_constant__ CsrSpmm p) {
  constexpr int kElements = VectorOf<P>::kElements;
  const LaneMap lane(p.lanes, p.row_lanes);
  const RowWork work(p, lane.item);
  const int64_t feature = (int64_t{blockIdx.y} * p.lanes + lane.feature_lane) * kElements;
  float sum[kElements] = {};
  if (work.row >= 0 && feature < p.n) sum_row<P, kWeighted>(p, work, lane, feature, sum);
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
  const auto kernel = p.values != nullptr ? csr_spmm_kernel<P, true> : csr_spmm_kernel<P, false>;
  launch("spmm_csr", kernel, grid, kCsrThreads, stream, p);
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
