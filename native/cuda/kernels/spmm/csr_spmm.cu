// SpMM on CUDA cores, row by row: every precision, any row length. Rows of X are read 16 bytes a
// lane with 8 loads in flight; sums are float32 in registers. Rows that are no whole vectors are
// read and written as they are, by units of 8, 4 or 2 bytes that neighbouring lanes have side by
// side: to copy X and to shift results would take as long again as the product.
#include <type_traits>
#include <utility>

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
// Bytes of X that surely stay in L2.
constexpr int64_t kResidentBytes = 32 << 20;
constexpr unsigned kMostRows = 65535;  // of blocks, in a grid

// A product as its kernels are launched.
struct CsrLaunch : CsrSpmm {
  uint32_t x_stride;  // bytes
  ChunkRows chunks;   // y, where its rows are whole chunks of the storage type
  // y, where they are not, and of the storage type or float32; by units: where they are units of
  // the storage type
  ShiftedRows shifted;
  int unit = kVectorBytes;  // bytes that a lane reads at once
  int parts = 1;            // of a row, that a lane has: units, or a vector
  // Whether the blocks of the same rows follow each other; otherwise those of the same features do.
  bool rows_first = false;

  CsrLaunch(const CsrSpmm& p, DType storage)
      : CsrSpmm(p),
        x_stride(static_cast<uint32_t>(p.x.stride * size_of(storage))),
        chunks(whole_chunks(p.y, p.n, storage)) {
    const int64_t row_bytes = p.n * size_of(storage);
    const bool in_storage = p.y.dtype == storage;
    // An X of another type than y was copied, to rows of vectors.
    const int64_t x_rows = reinterpret_cast<uintptr_t>(p.x.data) | x_stride;
    if (in_storage || x_rows % kVectorBytes != 0) unit = row_unit(p.lanes, row_bytes);
    if (unit < kVectorBytes) {
      parts = min(16 / unit, 4);
      if (row_bytes <= kWarp * unit * parts / 2) parts /= 2;
      lanes.lanes = lanes.row_lanes = kWarp;
      if (in_storage && starts_at(p.y, unit)) shifted = ShiftedRows(p.y, p.n);
      return;
    }
    if (!in_storage && (p.y.dtype != DType::kFloat32 || starts_chunks(p.y))) return;
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

// The features of a lane: those of a vector, or of kParts units that are a warp's units apart. Of a
// unit of half a word there is one in each pair of elements.
template <Precision P, int kUnitBytes, int kPartCount>
struct LaneFeatures {
  static constexpr int kUnit = kUnitBytes;
  static constexpr int kParts = kPartCount;
  static constexpr bool kIsVector = kUnit == kVectorBytes;
  static constexpr int kBytes = sizeof(StorageOf<P>);
  static constexpr int kApart = kUnit * kWarp;  // bytes
  static constexpr int kOfUnit = kUnit / kBytes;

  __device__ LaneFeatures(const CsrLaunch& p, const LaneMap& lane, unsigned tile = blockIdx.y) {
    first = (int64_t{tile} * p.lanes.lanes * kParts + lane.feature_lane) * kOfUnit;
    room = static_cast<int>(min((p.n - first) * kBytes, int64_t{kParts} * kApart));
    x = pin_register(static_cast<const char*>(p.x.data) + first * kBytes);
  }
  __device__ bool has(int part) const { return part == 0 || kApart * part < room; }
  // Where element `i` of a part is among the lane's.
  static __device__ constexpr int element(int part, int i) {
    return (kUnit < 4 ? 4 : kUnit) / kBytes * part + i;
  }
  __device__ int64_t feature(int part, int i) const {
    return first + int64_t{kApart / kBytes} * part + i;
  }
  __device__ Vec16 load(const char* row) const {
    if constexpr (kIsVector) return load_vec16(row);
    Vec16 found = {};
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      if (!has(j)) continue;
      const char* at = row + kApart * j;
      if constexpr (kUnit == 8) {
        const uint2 two = __ldg(reinterpret_cast<const uint2*>(at));
        found.word[2 * j] = two.x;
        found.word[2 * j + 1] = two.y;
      } else {
        using Unit = std::conditional_t<kUnit == 4, uint32_t, uint16_t>;
        found.word[j] = __ldg(reinterpret_cast<const Unit*>(at));
      }
    }
    return found;
  }

  int64_t first;
  const char* x;  // row 0, from the first feature on
  int room;       // bytes of the row from there on, at most those of all parts
};

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
template <Precision P, bool kWeighted, class Own>
struct Batch {
  using Weights = std::conditional_t<kWeighted, BatchValues<P>, Ones<P>>;

  // Those that the mask lacks are not the work's, and the row of `safe`, which is, is read instead:
  // a condition on each load costs registers and instructions.
  __device__ __forceinline__ Batch(const CsrLaunch& p, const Numbered& work, int at,
                                   const int32_t (&columns)[kBatch], uint32_t mask, int32_t safe,
                                   const Own& own)
      : weights(static_cast<const StorageOf<P>*>(p.stored.values) + work.base, at, work.room) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int32_t column = mask & 1u << i ? columns[i] : safe;
      rows[i] = own.load(own.x + uint64_t{static_cast<uint32_t>(column)} * p.x_stride);
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

template <Precision P, class Own>
__device__ __forceinline__ void store_partial(const CsrLaunch& p, int partial, const Own& own,
                                              const float (&sum)[kPerVector<P>]) {
  float* out = p.partial + partial * partial_stride(p.n);
  if constexpr (Own::kIsVector) {
#pragma unroll
    for (int j = 0; j < kPerVector<P>; j += 4) {
      const float4 four = make_float4(sum[j], sum[j + 1], sum[j + 2], sum[j + 3]);
      *reinterpret_cast<float4*>(out + own.first + j) = four;
    }
  } else {
#pragma unroll
    for (int j = 0; j < Own::kParts; ++j) {
#pragma unroll
      for (int i = 0; i < Own::kOfUnit; ++i) {
        if (own.has(j)) out[own.feature(j, i)] = sum[Own::element(j, i)];
      }
    }
  }
}

// Adds the work's nonzeros times the lane's features. Nothing is fetched ahead of the batch in
// hand: registers are better spent on 32 resident warps, which hide the latency.
template <Precision P, bool kWeighted, class Own>
__device__ __forceinline__ void sum_row(const CsrLaunch& p, const RowWork& work,
                                        const LaneMap& lane, const Own& own,
                                        float (&sum)[kPerVector<P>]) {
  const int32_t* indices = p.a.indices + work.base;
  const int32_t safe = work.first < work.last ? __ldg(indices + work.first) : 0;
  for (int at = kBatch * lane.nonzero_lane; at < work.last; at += kBatch * lane.nonzero_lanes) {
    const uint32_t mask = work.mask(at);
    int32_t columns[kBatch];
    load_batch(indices, at, work.room, columns);
    const Batch<P, kWeighted, Own> batch(p, work, at, columns, mask, safe, own);
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
template <Precision P, bool kWhole, class Own>
class GroupRows {
 public:
  static constexpr int kElements = kPerVector<P>;

  // At first in hand is what lies before the group in its first batch, which goes nowhere.
  __device__ GroupRows(const CsrLaunch& p, const GroupWork& work, const Own& own)
      : p_(p),
        own_(own),
        base_(static_cast<uint32_t>(work.base)),
        row_(static_cast<int>(work.row)),
        last_row_(static_cast<int>(work.last_row)) {
    if constexpr (kWhole) y_ = pin_register(p.chunks.data + own.first * Own::kBytes);
    if constexpr (!Own::kIsVector) {
      if (p.shifted.data != nullptr) {
        y_ = pin_register(p.shifted.data + own.first * Own::kBytes);
      }
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
      } else if constexpr (!Own::kIsVector) {
        store_units(sum);
      } else {
        store_result<P>(p_, now_.id, static_cast<int>(own_.first), sum);
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

  __device__ __forceinline__ void store_units(const float (&sum)[kElements]) const {
    constexpr DType kStorage = PrecisionTraits<P>::kStorage;
#pragma unroll
    for (int j = 0; j < Own::kParts; ++j) {
      if (!own_.has(j)) continue;
      const float* v = sum + Own::element(j, 0);
      if (y_ == nullptr) {
#pragma unroll
        for (int i = 0; i < Own::kOfUnit; ++i) {
          const int64_t at = now_.id * p_.y.stride + own_.feature(j, i);
          store_scalar(p_.y.data, p_.y.dtype, at, v[i]);
        }
        continue;
      }
      char* to = y_ + uint64_t{static_cast<uint32_t>(now_.id)} * p_.shifted.stride;
      to += Own::kApart * j;
      if constexpr (Own::kUnit == Own::kBytes) {
        store_scalar(to, kStorage, 0, v[0]);
      } else if constexpr (Own::kUnit == 4) {
        *reinterpret_cast<uint32_t*>(to) = pack_pair<kStorage>(v[0], v[1]);
      } else if constexpr (Own::kBytes == 4) {
        *reinterpret_cast<float2*>(to) = make_float2(v[0], v[1]);
      } else {
        *reinterpret_cast<uint2*>(to) =
            make_uint2(pack_pair<kStorage>(v[0], v[1]), pack_pair<kStorage>(v[2], v[3]));
      }
    }
  }

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
  const Own& own_;
  char* y_ = nullptr;  // kWhole, or by units: row 0, of the lane's features
  uint32_t base_;
  int row_;  // of next_
  int last_row_;
  Info now_;
  Info next_;
};

// Of rows whose nonzeros run on from one to the next, so that batches are full.
template <Precision P, bool kWeighted, bool kWhole, class Own>
__device__ __forceinline__ void sum_group(const CsrLaunch& p, const GroupWork& work,
                                          const Own& own) {
  float sum[kPerVector<P>] = {};
  GroupRows<P, kWhole, Own> rows(p, work, own);
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
    const Batch<P, kWeighted, Own> batch(p, work, at, columns, work.mask(at), safe, own);
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
template <Precision P, bool kWeighted, bool kWhole, int kUnit = kVectorBytes, int kParts = 1>
__global__ void __launch_bounds__(kCsrThreads, kGroupBlocks<P>)
    csr_spmm_group_kernel(const __grid_constant__ CsrLaunch p) {
  const LaneMap lane(p.lanes.lanes, p.lanes.lanes, p.rows_first ? blockIdx.y : blockIdx.x);
  const LaneFeatures<P, kUnit, kParts> own(p, lane, p.rows_first ? blockIdx.x : blockIdx.y);
  if (own.first >= p.n) return;
  if (lane.item >= p.work.item_count) {
    const GroupWork work(p, lane.item - p.work.item_count);
    if (work.row >= 0) sum_group<P, kWeighted, kWhole>(p, work, own);
  } else {
    const RowWork work(p, lane.item);
    float sum[kPerVector<P>] = {};
    sum_row<P, kWeighted>(p, work, lane, own, sum);
    store_partial<P>(p, work.partial, own, sum);
  }
}

template <Precision P, bool kWeighted>
__global__ void __launch_bounds__(kCsrThreads, kCsrBlocks)
    csr_spmm_kernel(const __grid_constant__ CsrLaunch p) {
  constexpr int kElements = kPerVector<P>;
  const LaneMap lane(p.lanes.lanes, p.lanes.row_lanes);
  const RowWork work(p, lane.item);
  const LaneFeatures<P, kVectorBytes, 1> own(p, lane);
  const int64_t feature = own.first;
  float sum[kElements] = {};
  if (work.row >= 0 && feature < p.n) sum_row<P, kWeighted>(p, work, lane, own, sum);
  for (int offset = p.lanes.lanes; offset < p.lanes.row_lanes; offset *= 2) {
#pragma unroll
    for (int j = 0; j < kElements; ++j) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], offset);
  }
  if (work.row < 0 || feature >= p.n || lane.nonzero_lane != 0) return;
  if (work.partial >= 0) {
    return store_partial<P>(p, work.partial, own, sum);
  }
  const float scale = p.stored.row_scale != nullptr ? p.stored.row_scale[work.row] : 1.0f;
#pragma unroll
  for (int j = 0; j < kElements; ++j) sum[j] *= scale;
  const int64_t row = p.stored.row_ids != nullptr ? p.stored.row_ids[work.row] : work.row;
  store_result<P>(p, static_cast<int>(row), static_cast<int>(feature), sum);
}

using CsrKernel = void (*)(CsrLaunch);

template <Precision P, bool kWeighted, int kUnit>
CsrKernel unit_kernel(const CsrLaunch& p) {
  constexpr int kParts = kUnit == 8 ? 2 : 4;
  return p.parts < kParts ? csr_spmm_group_kernel<P, kWeighted, false, kUnit, kParts / 2>
                          : csr_spmm_group_kernel<P, kWeighted, false, kUnit, kParts>;
}

template <Precision P, bool kWeighted>
CsrKernel kernel_for(const CsrLaunch& p) {
  if (p.lanes.groups == nullptr) return csr_spmm_kernel<P, kWeighted>;
  switch (p.unit) {
    case 2:
      if constexpr (sizeof(StorageOf<P>) == 2) return unit_kernel<P, kWeighted, 2>(p);
      [[fallthrough]];
    case 4:
      return unit_kernel<P, kWeighted, 4>(p);
    case 8:
      return unit_kernel<P, kWeighted, 8>(p);
    default:
      return p.chunks.data != nullptr ? csr_spmm_group_kernel<P, kWeighted, true>
                                      : csr_spmm_group_kernel<P, kWeighted, false>;
  }
}

template <Precision P>
void run(const CsrSpmm& problem, Stream stream) {
  CsrLaunch p(problem, PrecisionTraits<P>::kStorage);
  const int64_t row_bytes = p.n * sizeof(StorageOf<P>);
  const int64_t tile = int64_t{p.lanes.lanes} * p.parts * p.unit;
  const bool grouped = p.lanes.groups != nullptr;
  dim3 grid = grid_of(p.work.item_count + (grouped ? p.lanes.group_count : p.a.rows),
                      kCsrThreads / (grouped ? p.lanes.lanes : p.lanes.row_lanes),
                      ceil_div(row_bytes, tile), "spmm_csr");
  // Of a packed result two blocks write each a part of the sector between them, and memory is read
  // if one has left L2 before the other is there. Rows of X that stay in L2 by tiles matter more.
  const bool splits = p.unit < kVectorBytes && !whole_sectors(p.y);
  p.rows_first = splits && p.a.cols * tile > kResidentBytes && grid.x <= kMostRows;
  if (p.rows_first) std::swap(grid.x, grid.y);
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
