// The largest or smallest product of each row and feature, and which nonzero has given it. Lanes
// share out rows as the csr kernel of SpMM does; parts of long rows meet in a second kernel.
#include "device/launch.cuh"
#include "kernels/common/head_rows.cuh"

namespace gnnsparse::cuda {
namespace {

constexpr int32_t kNobody = INT32_MAX;  // loses against every column
constexpr int kMergeThreads = 128;

struct ExtremeLaunch : ExtremeSpmm {
  uint32_t x_stride;  // bytes
  bool vectors;       // winners and partial results lie in whole vectors

  ExtremeLaunch(const ExtremeSpmm& p, DType storage)
      : ExtremeSpmm(p),
        x_stride(static_cast<uint32_t>(p.x.stride * size_of(storage))),
        vectors(has_winner_vectors(p.shape, p.winners)) {}
};

// Whether a product that comes later takes the place of the best one: NaN is larger than every
// number, and stays.
__device__ __forceinline__ bool beats(float v, float best) { return !(v <= best) && best == best; }

// The same where either may be the earlier one, which wins among equals.
__device__ __forceinline__ bool beats(float v, int32_t column, float best, int32_t won) {
  if (v == best || (v != v && best != best)) return column < won;
  return beats(v, best);
}

template <Precision P, bool kWeighted>
__device__ __forceinline__ void best_of_row(const ExtremeLaunch& p, const RowWork& work,
                                            const LaneMap& lane, const HeadChunk<P>& chunk,
                                            float (&best)[kPerVector<P>],
                                            int32_t (&won)[kPerVector<P>]) {
  using Values = HeadValues<P, kWeighted>;
  const int32_t* indices = p.a.indices + work.base;
  const char* x = pin_register(static_cast<const char*>(p.x.data) +
                               int64_t{chunk.source} * sizeof(StorageOf<P>));
  const Values values(p.stored, p.shape, work.base, chunk.head);
  const int32_t safe = work.first < work.last ? __ldg(indices + work.first) : 0;
  // Eight results a lane, with winners: registers for four rows and values would be too many.
  constexpr int kTerms = kWeighted && kPerVector<P> > 4 ? kHeadBatch / 2 : kHeadBatch;
  for (int at = kTerms * lane.nonzero_lane; at < work.last; at += kTerms * lane.nonzero_lanes) {
    const uint32_t mask = work.mask(at);
    int32_t columns[kTerms];
    load_columns(indices, at, work.room, mask, safe, columns);
    Vec16 rows[kTerms];
    typename Values::Storage of_row[kTerms];
#pragma unroll
    for (int i = 0; i < kTerms; ++i) {
      rows[i] = load_vec16(row_at(x, p.x_stride, columns[i]));
      of_row[i] = values.load(min(at + i, work.last - 1));
    }
#pragma unroll
    for (int i = 0; i < kTerms; ++i) {
      if (!(mask & 1u << i)) continue;
      float v[kPerVector<P>];
      to_floats<P>(rows[i], v);
      const float weight = p.sign * Values::weight(of_row[i]);
#pragma unroll
      for (int j = 0; j < kPerVector<P>; ++j) {
        v[j] *= weight;
        const bool taken = beats(v[j], best[j]);
        best[j] = taken ? v[j] : best[j];
        won[j] = taken ? columns[i] : won[j];
      }
    }
  }
}

template <Precision P, bool kWeighted>
__global__ void __launch_bounds__(kCsrThreads, kCsrBlocks)
    extreme_spmm_kernel(const __grid_constant__ ExtremeLaunch p) {
  constexpr int kElements = kPerVector<P>;
  const LaneMap lane(p.lanes.lanes, p.lanes.row_lanes);
  const RowWork work(p, lane.item);
  const HeadChunk<P> chunk(p.shape, blockIdx.y * p.lanes.lanes + lane.feature_lane);
  const bool active = work.row >= 0 && chunk.head < p.shape.heads;
  float best[kElements];
  int32_t won[kElements];
#pragma unroll
  for (int j = 0; j < kElements; ++j) {
    best[j] = -__builtin_huge_valf();
    won[j] = kNobody;
  }
  if (active) best_of_row<P, kWeighted>(p, work, lane, chunk, best, won);
  for (int offset = p.lanes.lanes; offset < p.lanes.row_lanes; offset *= 2) {
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      const float v = __shfl_xor_sync(0xffffffffu, best[j], offset);
      const int32_t column = __shfl_xor_sync(0xffffffffu, won[j], offset);
      const bool taken = beats(v, column, best[j], won[j]);
      best[j] = taken ? v : best[j];
      won[j] = taken ? column : won[j];
    }
  }
  if (!active || lane.nonzero_lane != 0) return;
  const bool empty = work.first == work.last;
  // Products that are all -infinity beat nobody: the first one has won.
  const int32_t first = empty ? -1 : p.a.indices[work.base + work.first];
#pragma unroll
  for (int j = 0; j < kElements; ++j) won[j] = won[j] == kNobody ? first : won[j];
  const int64_t features = p.shape.features();
  if (work.partial >= 0) {
    const int64_t at = work.partial * partial_stride(features) + chunk.target;
    store_chunk_of(p.partial + at, chunk.count, p.vectors, best);
    return store_chunk_of(p.partial_winners + at, chunk.count, p.vectors, won);
  }
#pragma unroll
  for (int j = 0; j < kElements; ++j) best[j] = empty ? 0.0f : p.sign * best[j];
  const int64_t row = p.stored.row_ids != nullptr ? p.stored.row_ids[work.row] : work.row;
  store_row(p.y, row, chunk.target, chunk.target + chunk.count, best);
  store_chunk_of(p.winners + row * features + chunk.target, chunk.count, p.vectors, won);
}

// A feature of a cut row a thread; the parts are taken in their order along the row.
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const __grid_constant__ ExtremeSpmm p) {
  const Cut cut = p.work.cuts[blockIdx.x];
  const int64_t features = p.shape.features();
  const int64_t feature = int64_t{blockIdx.y} * kMergeThreads + threadIdx.x;
  if (feature >= features) return;
  const int64_t stride = partial_stride(features);
  int64_t at = cut.first * stride + feature;
  float best = p.partial[at];
  int32_t won = p.partial_winners[at];
  for (int i = 1; i < cut.count; ++i) {
    at += stride;
    const float v = p.partial[at];
    if (!beats(v, best)) continue;
    best = v;
    won = p.partial_winners[at];
  }
  const int64_t row = p.stored.row_ids != nullptr ? p.stored.row_ids[cut.index] : cut.index;
  store_scalar(p.y.data, p.y.dtype, row * p.y.stride + feature, p.sign * best);
  p.winners[row * features + feature] = won;
}

template <Precision P>
void run(const ExtremeSpmm& p, Stream stream) {
  const dim3 grid =
      grid_of(p.work.item_count + p.a.rows, kCsrThreads / p.lanes.row_lanes,
              ceil_div<int64_t>(chunks_of<P>(p.shape), p.lanes.lanes), "spmm_extreme");
  const auto kernel =
      p.stored.values != nullptr ? extreme_spmm_kernel<P, true> : extreme_spmm_kernel<P, false>;
  launch("spmm_extreme", kernel, grid, kCsrThreads, stream,
         ExtremeLaunch(p, PrecisionTraits<P>::kStorage));
  const dim3 merge = grid_of(p.work.cut_count, 1,
                             ceil_div<int64_t>(p.shape.features(), kMergeThreads), "spmm_extreme");
  launch("spmm_extreme", merge_kernel, merge, kMergeThreads, stream, p);
}

}  // namespace

void spmm_extreme(const ExtremeSpmm& problem, Precision precision, Stream stream) {
  dispatch_precision<EveryPrecision>(precision, "extreme",
                                     [&](auto p) { run<p>(problem, stream); });
}

}  // namespace gnnsparse::cuda
