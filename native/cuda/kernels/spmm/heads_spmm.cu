// SpMM with a value for each head of a nonzero, on CUDA cores: a row of X is read once for all
// heads, 16 bytes a lane. And the gradient of a maximum, a sum of what nonzeros have won.
#include "device/launch.cuh"
#include "kernels/common/head_rows.cuh"
#include "kernels/common/reduce.cuh"

namespace gnnsparse::cuda {
namespace {

struct HeadsLaunch : HeadsSpmm {
  uint32_t x_stride;  // bytes
  bool vectors;       // winners lie in whole vectors
  bool whole;         // and partial sums

  HeadsLaunch(const HeadsSpmm& p, DType storage)
      : HeadsSpmm(p),
        x_stride(static_cast<uint32_t>(p.x.stride * size_of(storage))),
        vectors(has_winner_vectors(p.shape, p.winners.data)),
        whole(p.shape.width % 4 == 0) {}
};

// Which of a chunk's features nonzeros have won: all of them where there are no winners.
template <Precision P, bool kMasked>
struct Won {
  int32_t columns[kPerVector<P>];

  __device__ __forceinline__ Won(const HeadsLaunch& p, const HeadChunk<P>& chunk, int64_t row) {
    load_winners(p.winners.data + row * p.shape.features() + chunk.target, chunk.count, p.vectors,
                 columns);
  }
  __device__ __forceinline__ bool has(int j, int32_t winner) const { return columns[j] == winner; }
};
template <Precision P>
struct Won<P, false> {
  __device__ __forceinline__ Won(const HeadsLaunch&, const HeadChunk<P>&, int64_t) {}
  __device__ __forceinline__ bool has(int, int32_t) const { return true; }
};

// A nonzero with its row of X on the way to registers.
template <Precision P, bool kWeighted, bool kMasked>
struct Term {
  using Values = HeadValues<P, kWeighted>;

  __device__ __forceinline__ Term(const HeadsLaunch& p, const HeadChunk<P>& chunk,
                                  const Values& values, const char* x, int number, int32_t column)
      : row(load_vec16(row_at(x, p.x_stride, column))),
        value(values.load(number)),
        won(p, chunk, column) {}

  __device__ __forceinline__ void add(int32_t winner, float (&sum)[kPerVector<P>]) const {
    float v[kPerVector<P>];
    to_floats<P>(row, v);
    const float weight = Values::weight(value);
#pragma unroll
    for (int j = 0; j < kPerVector<P>; ++j) {
      if (won.has(j, winner)) sum[j] += weight * v[j];
    }
  }

  Vec16 row;
  typename Values::Storage value;
  Won<P, kMasked> won;
};

// Of those that the mask has.
template <Precision P, class OneTerm, int kTerms>
__device__ __forceinline__ void add_terms(const OneTerm (&terms)[kTerms], uint32_t mask,
                                          int32_t winner, float (&sum)[kPerVector<P>]) {
#pragma unroll
  for (int i = 0; i < kTerms; ++i) {
    if (mask & 1u << i) terms[i].add(winner, sum);
  }
}

template <Precision P, bool kWeighted, bool kMasked>
__device__ __forceinline__ void sum_row(const HeadsLaunch& p, const RowWork& work,
                                        const LaneMap& lane, const HeadChunk<P>& chunk,
                                        int32_t winner, float (&sum)[kPerVector<P>]) {
  // Winners take twice the registers of a row.
  constexpr int kTerms = kMasked ? kHeadBatch / 2 : kHeadBatch;
  using OneTerm = Term<P, kWeighted, kMasked>;
  const int32_t* indices = p.a.indices + work.base;
  const char* x = pin_register(static_cast<const char*>(p.x.data) +
                               int64_t{chunk.source} * sizeof(StorageOf<P>));
  const HeadValues<P, kWeighted> values(p.stored, p.shape, work.base, chunk.head);
  const int32_t safe = work.first < work.last ? __ldg(indices + work.first) : 0;
  for (int at = kTerms * lane.nonzero_lane; at < work.last; at += kTerms * lane.nonzero_lanes) {
    const uint32_t mask = work.mask(at);
    int32_t columns[kTerms];
    load_columns(indices, at, work.room, mask, safe, columns);
    const auto term = [&](int i) {
      return OneTerm(p, chunk, values, x, min(at + i, work.last - 1), columns[i]);
    };
    if constexpr (kTerms == 4) {
      const OneTerm terms[] = {term(0), term(1), term(2), term(3)};
      add_terms<P>(terms, mask, winner, sum);
    } else {
      const OneTerm terms[] = {term(0), term(1)};
      add_terms<P>(terms, mask, winner, sum);
    }
  }
}

template <Precision P, bool kWeighted, bool kMasked>
__global__ void __launch_bounds__(kCsrThreads, kCsrBlocks)
    heads_spmm_kernel(const __grid_constant__ HeadsLaunch p) {
  constexpr int kElements = kPerVector<P>;
  const LaneMap lane(p.lanes.lanes, p.lanes.row_lanes);
  const RowWork work(p, lane.item);
  const HeadChunk<P> chunk(p.shape, blockIdx.y * p.lanes.lanes + lane.feature_lane);
  const bool active = work.row >= 0 && chunk.head < p.shape.heads;
  float sum[kElements] = {};
  int64_t row = work.row;
  if (active) {
    if (p.stored.row_ids != nullptr) row = p.stored.row_ids[row];
    sum_row<P, kWeighted, kMasked>(p, work, lane, chunk, static_cast<int32_t>(row), sum);
  }
  for (int offset = p.lanes.lanes; offset < p.lanes.row_lanes; offset *= 2) {
#pragma unroll
    for (int j = 0; j < kElements; ++j) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], offset);
  }
  if (!active || lane.nonzero_lane != 0) return;
  if (work.partial >= 0) {
    float* to = p.partial + work.partial * partial_stride(p.shape.features()) + chunk.target;
    return store_chunk_of(to, chunk.count, p.whole, sum);
  }
  const float scale = p.stored.row_scale != nullptr ? p.stored.row_scale[work.row] : 1.0f;
#pragma unroll
  for (int j = 0; j < kElements; ++j) sum[j] *= scale;
  store_row(p.y, row, chunk.target, chunk.target + chunk.count, sum);
}

using HeadsKernel = void (*)(HeadsLaunch);

template <Precision P>
HeadsKernel kernel_for(const HeadsSpmm& p) {
  const bool weighted = p.stored.values != nullptr;
  if (p.winners)
    return weighted ? heads_spmm_kernel<P, true, true> : heads_spmm_kernel<P, false, true>;
  return weighted ? heads_spmm_kernel<P, true, false> : heads_spmm_kernel<P, false, false>;
}

template <Precision P>
void run(const HeadsSpmm& p, Stream stream) {
  const dim3 grid = grid_of(p.work.item_count + p.a.rows, kCsrThreads / p.lanes.row_lanes,
                            ceil_div<int64_t>(chunks_of<P>(p.shape), p.lanes.lanes), "spmm_heads");
  launch("spmm_heads", kernel_for<P>(p), grid, kCsrThreads, stream,
         HeadsLaunch(p, PrecisionTraits<P>::kStorage));
  if (p.work.cut_count == 0) return;
  Reduce reduce;
  reduce.work = p.work;
  reduce.partial = p.partial;
  reduce.rows = p.a.rows;
  reduce.stored = p.stored;
  reduce.y = p.y;
  reduce.n = p.shape.features();
  reduce_partials(reduce, stream);
}

}  // namespace

void spmm_heads(const HeadsSpmm& problem, Precision precision, Stream stream) {
  dispatch_precision<EveryPrecision>(precision, "heads", [&](auto p) { run<p>(problem, stream); });
}

}  // namespace gnnsparse::cuda
