// SDDMM of all heads at once, on CUDA cores: the lanes of a nonzero are shared out among its heads,
// and each keeps 4 rows of K in flight.
#include "device/launch.cuh"
#include "kernels/common/head_rows.cuh"

namespace gnnsparse::cuda {
namespace {

struct ScoresLaunch : HeadsSddmm {
  uint32_t k_stride;  // bytes
  bool vectors;       // winners lie in whole vectors

  ScoresLaunch(const HeadsSddmm& p, DType storage)
      : HeadsSddmm(p),
        k_stride(static_cast<uint32_t>(p.k.stride * size_of(storage))),
        vectors(has_winner_vectors(p.shape, p.winners.data)) {}
};

// `lanes` for the features of a head; the heads of a nonzero side by side, `row_lanes` together.
struct HeadLanes {
  int feature;
  int head;
  int heads;  // side by side

  __device__ explicit HeadLanes(const CsrLanes& lanes) {
    const int thread = threadIdx.x & (lanes.row_lanes - 1);
    feature = thread & (lanes.lanes - 1);
    head = thread >> (__ffs(lanes.lanes) - 1);
    heads = lanes.row_lanes >> (__ffs(lanes.lanes) - 1);
  }
};

// A vector of a row of Q, and of what the row's features were won by.
template <Precision P, bool kMasked>
struct QueryChunk {
  float q[kPerVector<P>];
  int32_t won[kMasked ? kPerVector<P> : 1];

  __device__ __forceinline__ QueryChunk(const ScoresLaunch& p, int64_t row,
                                        const HeadChunk<P>& chunk) {
    const auto* from = static_cast<const StorageOf<P>*>(p.q.data) + row * p.q.stride;
    to_floats<P>(load_vec16(from + chunk.source), q);
#pragma unroll
    for (int j = 0; j < kPerVector<P>; ++j) q[j] = j < chunk.count ? q[j] : 0.0f;
    if constexpr (kMasked) {
      const int64_t at = row * p.shape.features() + chunk.target;
      load_winners(p.winners.data + at, chunk.count, p.vectors, won);
    }
  }
  // Where the row of K is not finite, an element that does not take part must not either.
  __device__ __forceinline__ float dot(const Vec16& k, const HeadChunk<P>& chunk,
                                       int32_t column) const {
    float v[kPerVector<P>];
    to_floats<P>(k, v);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kPerVector<P>; ++j) {
      const bool takes_part = kMasked ? won[kMasked ? j : 0] == column : j < chunk.count;
      sum += takes_part ? q[j] * v[j] : 0.0f;
    }
    return sum;
  }
};

// The scores of a batch in one head, of the lane's features.
template <Precision P, bool kMasked>
__device__ __forceinline__ void batch_scores(const ScoresLaunch& p, int64_t row, int head,
                                             int feature_lane, const int32_t (&columns)[kHeadBatch],
                                             float (&sum)[kHeadBatch]) {
  const int of_head = p.shape.padded / kPerVector<P>;
  for (int at = feature_lane; at < of_head; at += p.lanes.lanes) {
    const HeadChunk<P> chunk(p.shape, head, at);
    const char* k =
        static_cast<const char*>(p.k.data) + int64_t{chunk.source} * sizeof(StorageOf<P>);
    const QueryChunk<P, kMasked> query(p, row, chunk);
    Vec16 rows[kHeadBatch];
#pragma unroll
    for (int i = 0; i < kHeadBatch; ++i) rows[i] = load_vec16(row_at(k, p.k_stride, columns[i]));
#pragma unroll
    for (int i = 0; i < kHeadBatch; ++i) sum[i] += query.dot(rows[i], chunk, columns[i]);
  }
}

template <Precision P, bool kMasked>
__global__ void __launch_bounds__(kCsrThreads, kCsrBlocks)
    heads_sddmm_kernel(const __grid_constant__ ScoresLaunch p) {
  const LaneMap groups(p.lanes.row_lanes, 32);  // a warp a row, nonzeros side by side
  const HeadLanes lane(p.lanes);
  const RowWork work(p, groups.item);
  int64_t row = work.row < 0 ? 0 : work.row;
  if (p.stored.row_ids != nullptr) row = p.stored.row_ids[row];
  const int32_t* indices = p.a.indices + work.base;
  const int32_t safe = work.first < work.last ? __ldg(indices + work.first) : 0;
  // Groups of a warp go round together: the shuffles below need every lane.
  for (int at = kHeadBatch * groups.nonzero_lane; __any_sync(0xffffffffu, at < work.last);
       at += kHeadBatch * groups.nonzero_lanes) {
    const uint32_t mask = at < work.last ? work.mask(at) : 0;
    int32_t columns[kHeadBatch];
    if (mask != 0) load_columns(indices, at, work.room, mask, safe, columns);
    for (int first = 0; first < p.shape.heads; first += lane.heads) {
      const int head = first + lane.head;
      float sum[kHeadBatch] = {};
      if (mask != 0 && head < p.shape.heads) {
        batch_scores<P, kMasked>(p, row, head, lane.feature, columns, sum);
      }
      for (int offset = p.lanes.lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
        for (int i = 0; i < kHeadBatch; ++i) {
          sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], offset);
        }
      }
      if (head >= p.shape.heads) continue;
#pragma unroll
      for (int i = 0; i < kHeadBatch; ++i) {
        if (i % p.lanes.lanes == lane.feature && mask & 1u << i) {
          const int64_t to = (work.base + at + i) * p.shape.heads + head;
          store_scalar(p.out, p.out_dtype, to, sum[i]);
        }
      }
    }
  }
}

template <Precision P>
void run(const HeadsSddmm& p, Stream stream) {
  const dim3 grid = grid_of(p.work.item_count + p.a.rows, kCsrThreads / 32, 1, "sddmm_heads");
  const auto kernel = p.winners ? heads_sddmm_kernel<P, true> : heads_sddmm_kernel<P, false>;
  launch("sddmm_heads", kernel, grid, kCsrThreads, stream,
         ScoresLaunch(p, PrecisionTraits<P>::kStorage));
}

}  // namespace

void sddmm_heads(const HeadsSddmm& problem, Precision precision, Stream stream) {
  dispatch_precision<EveryPrecision>(precision, "heads", [&](auto p) { run<p>(problem, stream); });
}

}  // namespace gnnsparse::cuda
