// SpMM on CUDA cores, row by row: every precision, any row length. Rows of X are read 16 bytes a
// lane with 8 loads in flight; sums are float32 in registers.
#include <type_traits>

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
  __device__ Ones(const typename VectorOf<P>::Storage*, int, int) {}
  __device__ float operator()(int) const { return 1.0f; }
};

// Eight nonzeros with their rows of X on the way to registers.
template <Precision P, bool kWeighted>
struct Batch {
  using Storage = typename VectorOf<P>::Storage;
  using Weights = std::conditional_t<kWeighted, BatchValues<P>, Ones<P>>;

  // kWhole: all of them are the work's.
  template <bool kWhole, class Work>
  __device__ static Batch load(const CsrSpmm& p, const Work& work, int at,
                               const int32_t (&columns)[kBatch], const Storage* x) {
    const auto* values = static_cast<const Storage*>(p.values) + work.base;
    Batch batch = {{}, Weights(values, at, work.room)};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (kWhole || work.has(at + i)) batch.rows[i] = load_vec16(x + columns[i] * p.x.stride);
    }
    return batch;
  }

  __device__ void add(int i, float (&sum)[VectorOf<P>::kElements]) const {
    float v[VectorOf<P>::kElements];
    to_floats<P>(rows[i], v);
    const float weight = weights(i);
#pragma unroll
    for (int j = 0; j < VectorOf<P>::kElements; ++j) sum[j] += weight * v[j];
  }

  Vec16 rows[kBatch];
  Weights weights;
};

// Adds a batch that lies wholly inside the row, or (kWhole = false) at one of its ends.
template <Precision P, bool kWhole, bool kWeighted>
__device__ __forceinline__ void sum_batch(const CsrSpmm& p, const RowWork& work, int at,
                                          const typename VectorOf<P>::Storage* x,
                                          float (&sum)[VectorOf<P>::kElements]) {
  int32_t columns[kBatch];
  load_batch(p.a.indices + work.base, at, work.room, columns);
  const auto batch = Batch<P, kWeighted>::template load<kWhole>(p, work, at, columns, x);
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    // A neighbouring row's value takes no part: it may be infinite, and times zero that is NaN.
    if (kWhole || work.has(at + i)) batch.add(i, sum);
  }
}

template <Precision P>
__device__ __forceinline__ void store_partial(const CsrSpmm& p, int partial, int64_t feature,
                                              const float (&sum)[VectorOf<P>::kElements]) {
  float* out = p.partial + partial * partial_stride(p.n) + feature;
#pragma unroll
  for (int j = 0; j < VectorOf<P>::kElements; j += 4) {
    *reinterpret_cast<float4*>(out + j) = make_float4(sum[j], sum[j + 1], sum[j + 2], sum[j + 3]);
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

// The rows of a group of short rows one after the other, as results are stored.
template <Precision P>
class GroupOutput {
 public:
  static constexpr int kElements = VectorOf<P>::kElements;

  __device__ GroupOutput(const CsrSpmm& p, const GroupWork& work, int64_t feature)
      : p_(p), work_(work), feature_(feature), row_(work.row) {
    now_ = info(row_);
    next_ = info(row_ + 1);
  }

  // Adds a batch and stores the rows that end before its last nonzero.
  template <bool kWeighted>
  __device__ void add(const Batch<P, kWeighted>& batch, int at, float (&sum)[kElements]) {
    const int batch_end = min(at + kBatch, work_.last);
    for (int from = max(at, work_.first); from < batch_end;) {
      const int to = min(now_.end, batch_end);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (at + i >= from && at + i < to) batch.add(i, sum);
      }
      from = to;
      if (from < batch_end) store(sum);
    }
  }

  __device__ void finish(float (&sum)[kElements]) {
    while (row_ < work_.last_row) store(sum);
  }

 private:
  // Read one row ahead, so that no store waits for it.
  struct Info {
    int end;
    int id;
    float scale;
  };

  __device__ Info info(int64_t row) const {
    if (row >= work_.last_row) return {work_.last, 0, 0.0f};
    return {work_.partial >= 0 ? work_.last : static_cast<int>(p_.a.indptr[row + 1] - work_.base),
            p_.row_ids != nullptr ? p_.row_ids[row] : static_cast<int>(row),
            p_.row_scale != nullptr ? p_.row_scale[row] : 1.0f};
  }

  __device__ void store(float (&sum)[kElements]) {
    if (work_.partial >= 0) {
      store_partial<P>(p_, work_.partial, feature_, sum);
    } else {
#pragma unroll
      for (int j = 0; j < kElements; ++j) sum[j] *= now_.scale;
      store_row(p_.y, now_.id, feature_, p_.n, sum);
    }
#pragma unroll
    for (int j = 0; j < kElements; ++j) sum[j] = 0.0f;
    ++row_;
    now_ = next_;
    next_ = info(row_ + 1);
  }

  const CsrSpmm& p_;
  const GroupWork& work_;
  int64_t feature_;
  int64_t row_;
  Info now_;
  Info next_;
};

// Short rows in groups: their nonzeros run on from one row to the next, so that batches are full.
template <Precision P, bool kWeighted>
__global__ void __launch_bounds__(kCsrThreads, kGroupBlocks<P>)
    csr_spmm_group_kernel(const __grid_constant__ CsrSpmm p) {
  constexpr int kElements = VectorOf<P>::kElements;
  const LaneMap lane(p.lanes, p.lanes);
  const GroupWork work(p, lane.item);
  const int64_t feature = (int64_t{blockIdx.y} * p.lanes + lane.feature_lane) * kElements;
  if (work.row < 0 || feature >= p.n) return;
  const auto* x = static_cast<const typename VectorOf<P>::Storage*>(p.x.data) + feature;
  float sum[kElements] = {};
  GroupOutput<P> out(p, work, feature);
  // With columns read a batch ahead the rows are the only loads that are waited for.
  int32_t columns[kBatch];
  load_batch(p.a.indices + work.base, 0, work.room, columns);
  for (int at = 0; at < work.last; at += kBatch) {
    const auto batch = Batch<P, kWeighted>::template load<false>(p, work, at, columns, x);
    load_batch(p.a.indices + work.base, at + kBatch, work.room, columns);
    out.add(batch, at, sum);
  }
  out.finish(sum);
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
    return store_partial<P>(p, work.partial, feature, sum);
  }
  const float scale = p.row_scale != nullptr ? p.row_scale[work.row] : 1.0f;
#pragma unroll
  for (int j = 0; j < kElements; ++j) sum[j] *= scale;
  store_row(p.y, p.row_ids != nullptr ? p.row_ids[work.row] : work.row, feature, p.n, sum);
}

template <Precision P>
void run(const CsrSpmm& p, Stream stream) {
  const int64_t tile = int64_t{p.lanes} * VectorOf<P>::kElements;
  const bool grouped = p.groups != nullptr;
  const dim3 grid =
      grid_of(p.segment_count + (grouped ? p.group_count : p.a.rows),
              kCsrThreads / (grouped ? p.lanes : p.row_lanes), ceil_div(p.n, tile), "spmm_csr");
  const auto rows = p.values != nullptr ? csr_spmm_kernel<P, true> : csr_spmm_kernel<P, false>;
  const auto groups =
      p.values != nullptr ? csr_spmm_group_kernel<P, true> : csr_spmm_group_kernel<P, false>;
  const auto kernel = grouped ? groups : rows;
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
