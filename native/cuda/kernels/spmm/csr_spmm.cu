// SpMM on CUDA cores, row by row: every precision, any row length. Rows of X are read 16 bytes a
// lane with 8 loads in flight; sums are float32 in registers.
#include <type_traits>

#include "device/launch.cuh"
#include "device/vector.cuh"
#include "kernels/common/chunk_rows.cuh"
#include "kernels/common/csr_rows.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/shifted_rows.cuh"

namespace gnnsparse::cuda {
namespace {

// Bytes of a row of results at most that leaves element by element: shifting it takes longer.
constexpr int64_t kShortRow = 32;

// A product as its kernels are launched.
struct CsrLaunch : CsrSpmm {
  uint32_t x_stride;    // bytes
  ChunkRows chunks;     // y, where its rows are whole chunks of the storage type
  ShiftedRows shifted;  // y, where they are not, and of the storage type or float32

  CsrLaunch(const CsrSpmm& p, DType storage)
      : CsrSpmm(p),
        x_stride(static_cast<uint32_t>(p.x.stride * size_of(storage))),
        chunks(whole_chunks(p.y, p.n, storage)) {
    if (p.y.dtype != storage && (p.y.dtype != DType::kFloat32 || starts_chunks(p.y))) return;
    if (chunks.data == nullptr && p.n * size_of(p.y.dtype) > kShortRow) {
      shifted = ShiftedRows(p.y, p.n);
    }
  }
};

// A lane's results of row `row` of y. All lanes call together that have features of the row.
template <Precision P>
__device__ __forceinline__ void store_result(const CsrLaunch& p, int row, int feature,
                                             const float (&v)[kPerVector<P>]) {
  constexpr int kElements = kPerVector<P>;
  if (p.shifted.data == nullptr) return store_row(p.y, row, feature, p.n, v);
  const int lanes = p.lanes.lanes;
  // Pinned, so that no register holds the places while rows are added.
  const int in_warp = pin_register(static_cast<int>(threadIdx.x)) % kWarp;
  const int lane = in_warp & (lanes - 1);
  const int first = feature - lane * kElements;
  const int left = min(static_cast<int>(p.n) - first, lanes * kElements);
  const uint32_t mask = 0xffffffffu >> (kWarp - ceil_div(left, kElements)) << (in_warp - lane);
  char* to = p.shifted.row(row);
  if constexpr (kElements == 8) {
    if (p.y.dtype == DType::kFloat32) {
      uint32_t words[2][4];
#pragma unroll
      for (int i = 0; i < kElements; ++i) words[i / 4][i % 4] = __float_as_uint(v[i]);
      return store_shifted<4>(to + int64_t{4} * first, 4 * left, words, lane, lanes, mask);
    }
  }
  constexpr int kBytes = sizeof(StorageOf<P>);
  uint32_t words[1][4];
  encode<PrecisionTraits<P>::kStorage>(v, words[0]);
  if (kBytes == 4 || p.shifted.unit == 4) {
    store_shifted<4>(to + int64_t{kBytes} * first, kBytes * left, words, lane, lanes, mask);
  } else if constexpr (kBytes == 2) {
    store_shifted<2>(to + int64_t{kBytes} * first, kBytes * left, words, lane, lanes, mask);
  }
}

// Column 0 of X, of the lane's features.
template <Precision P>
__device__ const char* row_of_x(const CsrLaunch& p, int64_t feature) {
  constexpr int kBytes = sizeof(StorageOf<P>);
  return pin_register(static_cast<const char*>(p.x.data) + feature * kBytes);
}

// The values of a batch. They stay packed until they are used, which saves registers.
template <Precision P>
class BatchValues {
 public:
  using Storage = StorageOf<P>;
  static constexpr int kElements = kPerVector<P>;

  __device__ BatchValues(const Storage* values, int at, int room) {
    if (at + kBatch <= room) {
      if constexpr (kElements > kBatch) {
        packed_[0] = load_vec8(values + at);
      } else {
#pragma unroll
        for (int i = 0; i < kBatch / kElements; ++i) {
          packed_[i] = load_vec16(values + at + i * kElements);
        }
      }
      return;
    }
    auto* to = reinterpret_cast<Storage*>(packed_);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) to[i] = at + i < room ? __ldg(values + at + i) : Storage{0};
  }
  __device__ float operator()(int i) const {
    constexpr int kPerWord = kElements / 4;
    const uint32_t word = packed_[i / kElements].word[i % kElements / kPerWord];
    return scalar_to_float<P>(static_cast<Storage>(word >> 8 * sizeof(Storage) * (i % kPerWord)));
  }

 private:
  Vec16 packed_[ceil_div(kBatch, kElements)];
};

template <Precision P>
struct Ones {
  __device__ Ones(const StorageOf<P>*, int, int) {}
  __device__ float operator()(int) const { return 1.0f; }
};

// Eight nonzeros with their rows of X on the way to registers.
template <Precision P, bool kWeighted>
struct Batch {
  using Weights = std::conditional_t<kWeighted, BatchValues<P>, Ones<P>>;

  // Those that the mask lacks are not the work's, and the row of `safe`, which is, is read instead:
  // a condition on each load costs registers and instructions.
  __device__ __forceinline__ Batch(const CsrLaunch& p, const Numbered& work, int at,
                                   const int32_t (&columns)[kBatch], uint32_t mask, int32_t safe,
                                   const char* x)
      : weights(static_cast<const StorageOf<P>*>(p.stored.values) + work.base, at, work.room) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int32_t column = mask & 1u << i ? columns[i] : safe;
      rows[i] = load_vec16(x + uint64_t{static_cast<uint32_t>(column)} * p.x_stride);
    }
  }

  __device__ __forceinline__ void add(int i, float (&sum)[kPerVector<P>]) const {
    float v[kPerVector<P>];
    to_floats<P>(rows[i], v);
    const float weight = weights(i);
#pragma unroll
    for (int j = 0; j < kPerVector<P>; ++j) sum[j] += weight * v[j];
  }

  Weights weights;
  Vec16 rows[kBatch];
};

template <Precision P>
__device__ __forceinline__ void store_partial(const CsrLaunch& p, int partial, int64_t feature,
                                              const float (&sum)[kPerVector<P>]) {
  float* out = p.partial + partial * partial_stride(p.n) + feature;
#pragma unroll
  for (int j = 0; j < kPerVector<P>; j += 4) {
    *reinterpret_cast<float4*>(out + j) = make_float4(sum[j], sum[j + 1], sum[j + 2], sum[j + 3]);
  }
}

// Adds the work's nonzeros times the lane's features. Nothing is fetched ahead of the batch in
// hand: registers are better spent on 32 resident warps, which hide the latency.
template <Precision P, bool kWeighted>
__device__ __forceinline__ void sum_row(const CsrLaunch& p, const RowWork& work,
                                        const LaneMap& lane, const char* x,
                                        float (&sum)[kPerVector<P>]) {
  const int32_t* indices = p.a.indices + work.base;
  const int32_t safe = work.first < work.last ? __ldg(indices + work.first) : 0;
  for (int at = kBatch * lane.nonzero_lane; at < work.last; at += kBatch * lane.nonzero_lanes) {
    const uint32_t mask = work.mask(at);
    int32_t columns[kBatch];
    load_batch(indices, at, work.room, columns);
    const Batch<P, kWeighted> batch(p, work, at, columns, mask, safe, x);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      // A neighbouring row's value takes no part: it may be infinite, and times zero that is NaN.
      if (mask & 1u << i) batch.add(i, sum);
    }
  }
}

// The rows of a group one after the other, as results are stored. What a row needs is read one row
// ahead, and not looked at before, so that no store waits for it. Numbers are the low halves of
// places in the arrays.
template <Precision P, bool kWhole>
class GroupRows {
 public:
  static constexpr int kElements = kPerVector<P>;

  // At first in hand is what lies before the group in its first batch, which goes nowhere.
  __device__ GroupRows(const CsrLaunch& p, const GroupWork& work, int64_t feature)
      : p_(p),
        feature_(static_cast<int>(feature)),
        base_(static_cast<uint32_t>(work.base)),
        row_(static_cast<int>(work.row)),
        last_row_(static_cast<int>(work.last_row)) {
    if constexpr (kWhole) {
      constexpr int kBytes = sizeof(StorageOf<P>);
      y_ = pin_register(p.chunks.data + feature * kBytes);
    }
    now_ = {base_ + work.first, -1, 0.0f};
    next_ = info();
  }

  // The number after the row in hand.
  __device__ uint32_t end() const { return now_.end; }
  __device__ bool has_next() const { return row_ < last_row_; }

  // Stores the row in hand, the next one starts from zero.
  __device__ __forceinline__ void store(float (&sum)[kElements]) {
#pragma unroll
    for (int j = 0; j < kElements; ++j) sum[j] *= now_.scale;
    if (now_.id >= 0) {
      if constexpr (kWhole) {
        store_vec16<P>(y_ + uint64_t{static_cast<uint32_t>(now_.id)} * p_.chunks.stride, sum);
      } else {
        store_result<P>(p_, now_.id, feature_, sum);
      }
    }
#pragma unroll
    for (int j = 0; j < kElements; ++j) sum[j] = 0.0f;
    now_ = next_;
    ++row_;
    next_ = info();
  }

 private:
  struct Info {
    uint32_t end;
    int id;
    float scale;
  };

  // After the last row: an end that no nonzero of the group is at.
  __device__ Info info() const {
    Info found = {base_ - 1, row_, 1.0f};
    if (row_ < last_row_) {
      found.end = static_cast<uint32_t>(__ldg(p_.a.indptr + row_ + 1));
      if (p_.stored.row_ids != nullptr) found.id = __ldg(p_.stored.row_ids + row_);
      if (p_.stored.row_scale != nullptr) found.scale = __ldg(p_.stored.row_scale + row_);
    }
    return found;
  }

  const CsrLaunch& p_;
  int feature_;
  char* y_ = nullptr;  // kWhole: row 0, of the lane's features
  uint32_t base_;
  int row_;  // of next_
  int last_row_;
  Info now_;
  Info next_;
};

// Of rows whose nonzeros run on from one to the next, so that batches are full.
template <Precision P, bool kWeighted, bool kWhole>
__device__ __forceinline__ void sum_group(const CsrLaunch& p, const GroupWork& work,
                                          int64_t feature, const char* x) {
  float sum[kPerVector<P>] = {};
  GroupRows<P, kWhole> rows(p, work, feature);
  if (work.first == work.last) {
    while (rows.has_next()) rows.store(sum);
    return rows.store(sum);
  }
  const auto base = static_cast<uint32_t>(work.base);
  while (rows.end() == base) rows.store(sum);
  const int32_t* indices = p.a.indices + work.base;
  const int32_t safe = __ldg(indices + work.first);
  // With columns read a batch ahead the rows are the only loads that are waited for.
  int32_t columns[kBatch];
  load_batch(indices, 0, work.room, columns);
  for (int at = 0; at < work.last; at += kBatch) {
    const Batch<P, kWeighted> batch(p, work, at, columns, work.mask(at), safe, x);
    load_batch(indices, at + kBatch, work.room, columns);
    // What is before the group and after it is added, too: to sums that go nowhere.
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      batch.add(i, sum);
      while (rows.end() == base + at + i + 1) rows.store(sum);
    }
  }
}

// Short rows in groups, and the parts of long ones. kWhole: results are whole chunks.
template <Precision P, bool kWeighted, bool kWhole>
__global__ void __launch_bounds__(kCsrThreads, kGroupBlocks<P>)
    csr_spmm_group_kernel(const __grid_constant__ CsrLaunch p) {
  constexpr int kElements = kPerVector<P>;
  const LaneMap lane(p.lanes.lanes, p.lanes.lanes);
  const int64_t feature = (int64_t{blockIdx.y} * p.lanes.lanes + lane.feature_lane) * kElements;
  if (feature >= p.n) return;
  const char* x = row_of_x<P>(p, feature);
  if (lane.item >= p.work.item_count) {
    const GroupWork work(p, lane.item - p.work.item_count);
    if (work.row >= 0) sum_group<P, kWeighted, kWhole>(p, work, feature, x);
  } else {
    const RowWork work(p, lane.item);
    float sum[kElements] = {};
    sum_row<P, kWeighted>(p, work, lane, x, sum);
    store_partial<P>(p, work.partial, feature, sum);
  }
}

template <Precision P, bool kWeighted>
__global__ void __launch_bounds__(kCsrThreads, kCsrBlocks)
    csr_spmm_kernel(const __grid_constant__ CsrLaunch p) {
  constexpr int kElements = kPerVector<P>;
  const LaneMap lane(p.lanes.lanes, p.lanes.row_lanes);
  const RowWork work(p, lane.item);
  const int64_t feature = (int64_t{blockIdx.y} * p.lanes.lanes + lane.feature_lane) * kElements;
  float sum[kElements] = {};
  if (work.row >= 0 && feature < p.n) {
    sum_row<P, kWeighted>(p, work, lane, row_of_x<P>(p, feature), sum);
  }
  for (int offset = p.lanes.lanes; offset < p.lanes.row_lanes; offset *= 2) {
#pragma unroll
    for (int j = 0; j < kElements; ++j) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], offset);
  }
  if (work.row < 0 || feature >= p.n || lane.nonzero_lane != 0) return;
  if (work.partial >= 0) {
    return store_partial<P>(p, work.partial, feature, sum);
  }
  const float scale = p.stored.row_scale != nullptr ? p.stored.row_scale[work.row] : 1.0f;
#pragma unroll
  for (int j = 0; j < kElements; ++j) sum[j] *= scale;
  const int64_t row = p.stored.row_ids != nullptr ? p.stored.row_ids[work.row] : work.row;
  store_result<P>(p, static_cast<int>(row), static_cast<int>(feature), sum);
}

using CsrKernel = void (*)(CsrLaunch);

template <Precision P, bool kWeighted>
CsrKernel kernel_for(const CsrLaunch& p) {
  if (p.lanes.groups == nullptr) return csr_spmm_kernel<P, kWeighted>;
  return p.chunks.data != nullptr ? csr_spmm_group_kernel<P, kWeighted, true>
                                  : csr_spmm_group_kernel<P, kWeighted, false>;
}

template <Precision P>
void run(const CsrSpmm& problem, Stream stream) {
  const CsrLaunch p(problem, PrecisionTraits<P>::kStorage);
  const int64_t tile = int64_t{p.lanes.lanes} * kPerVector<P>;
  const bool grouped = p.lanes.groups != nullptr;
  const dim3 grid = grid_of(p.work.item_count + (grouped ? p.lanes.group_count : p.a.rows),
                            kCsrThreads / (grouped ? p.lanes.lanes : p.lanes.row_lanes),
                            ceil_div(p.n, tile), "spmm_csr");
  const CsrKernel kernel =
      p.stored.values != nullptr ? kernel_for<P, true>(p) : kernel_for<P, false>(p);
  launch("spmm_csr", kernel, grid, kCsrThreads, stream, p);
  reduce_cut_rows(p, stream);
}

}  // namespace

void spmm_csr(const CsrSpmm& problem, Precision precision, Stream stream) {
  dispatch_precision<EveryPrecision>(precision, "csr", [&](auto p) { run<p>(problem, stream); });
}

}  // namespace gnnsparse::cuda
