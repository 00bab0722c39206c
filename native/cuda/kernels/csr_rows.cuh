// How the csr kernels share out rows: a group of lanes takes a row, or a part of a long one.
#pragma once

#include "gnnsparse/cuda_api.h"
#include "device/vector.cuh"

namespace gnnsparse::cuda {

inline constexpr int kCsrThreads = 128;
inline constexpr int kBatch = 8;  // nonzeros a lane has in flight

// Lane layout: `lanes` along the features, `row_lanes / lanes` nonzeros side by side.
struct LaneMap {
  int feature_lane;
  int nonzero_lane;
  int nonzero_lanes;
  int64_t item;  // which row or segment, counted over the grid

  __device__ LaneMap(int lanes, int row_lanes)
      : feature_lane(threadIdx.x % lanes),
        nonzero_lane(threadIdx.x % row_lanes / lanes),
        nonzero_lanes(row_lanes / lanes),
        item(int64_t{blockIdx.x} * (kCsrThreads / row_lanes) + threadIdx.x / row_lanes) {}
};

// The nonzeros of one item. Segments of long rows come first in the grid: they take longest.
struct RowWork {
  int64_t row = -1;  // -1: nothing to do
  int64_t begin = 0;
  int64_t end = 0;
  int partial = -1;

  template <class Problem>
  __device__ RowWork(const Problem& p, int64_t item) {
    if (item < p.segment_count) {
      const RowSegment s = p.segments[item];
      row = s.row;
      begin = p.a.indptr[row] + s.first;
      end = begin + s.count;
      partial = s.partial;
      return;
    }
    const int64_t r = item - p.segment_count;
    if (r >= p.a.rows) return;
    const int64_t first = p.a.indptr[r];
    const int64_t last = p.a.indptr[r + 1];
    if (last - first > p.row_limit) return;  // its segments do it
    row = r;
    begin = first;
    end = last;
  }
};

// Columns of nonzeros [at, at + 8); `at` is a multiple of 8. Past the end of the array: column 0.
__device__ __forceinline__ void load_batch(const CsrView& a, int64_t at, int32_t (&columns)[kBatch]) {
  if (at + kBatch <= a.nnz) {
    const auto* p = reinterpret_cast<const int4*>(a.indices + at);
    const int4 low = __ldg(p);
    const int4 high = __ldg(p + 1);
    columns[0] = low.x;
    columns[1] = low.y;
    columns[2] = low.z;
    columns[3] = low.w;
    columns[4] = high.x;
    columns[5] = high.y;
    columns[6] = high.z;
    columns[7] = high.w;
  } else {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) columns[i] = at + i < a.nnz ? __ldg(a.indices + at + i) : 0;
  }
}

}  // namespace gnnsparse::cuda
