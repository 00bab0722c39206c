// How the csr kernels share out rows: a group of lanes takes a row, or a part of a long one.
#pragma once

#include "device/vector.cuh"
#include "gnnsparse/cuda_api.h"

namespace gnnsparse::cuda {

// 32 warps of at most 64 registers are resident on a multiprocessor: measured 35 % faster than 20
// warps with the next batch fetched ahead (notes/log.md).
inline constexpr int kCsrThreads = 64;
inline constexpr int kCsrBlocks = 16;
// Groups carry two rows' ends, places and scales, and columns of the next batch.
template <Precision P>
inline constexpr int kGroupBlocks = kPerVector<P> == 4 ? 12 : 10;
inline constexpr int kBatch = 8;  // nonzeros a lane has in flight

// Lane layout: `lanes` along the features, `row_lanes / lanes` nonzeros side by side.
struct LaneMap {
  int feature_lane;
  int nonzero_lane;
  int nonzero_lanes;
  int64_t item;  // which row or segment, counted over the grid

  // Powers of two both.
  __device__ LaneMap(int lanes, int row_lanes, unsigned block = blockIdx.x) {
    const int lanes_log = __ffs(lanes) - 1;
    const int row_log = __ffs(row_lanes) - 1;
    const int thread = threadIdx.x;
    feature_lane = thread & (lanes - 1);
    nonzero_lane = (thread & (row_lanes - 1)) >> lanes_log;
    nonzero_lanes = row_lanes >> lanes_log;
    item = int64_t{block} * (kCsrThreads >> row_log) + (thread >> row_log);
  }
};

// A run of nonzeros, numbered from `base`, a multiple of kBatch at or before the first one, so that
// a batch is aligned and 32 bits hold every number.
struct Numbered {
  int64_t base = 0;
  int first = 0;
  int last = 0;
  int room = 0;  // numbers below this are inside the arrays

  __device__ void number(int64_t begin, int64_t count, int64_t nnz) {
    base = begin & ~int64_t{kBatch - 1};
    first = static_cast<int>(begin - base);
    last = first + static_cast<int>(count);
    room = static_cast<int>(min(nnz - base, int64_t{1} << 30));
  }
  __device__ bool has(int number) const { return number >= first && number < last; }
  // Of the nonzeros [at, at + 8) those of the run, a bit each.
  __device__ __forceinline__ uint32_t mask(int at) const {
    constexpr uint32_t kWhole = (1u << kBatch) - 1;
    const int from = max(first - at, 0);
    const int left = min(last - at, kBatch);
    return kWhole << from & kWhole >> (kBatch - left);
  }
};

// The nonzeros of one item. The parts of long rows come first in the grid, because they take
// longest.
struct RowWork : Numbered {
  int64_t row = -1;  // -1: nothing to do
  int partial = -1;

  template <class Problem>
  __device__ RowWork(const Problem& p, int64_t item) {
    int64_t begin;
    int64_t count;
    if (item < p.work.item_count) {
      const RowItem s = p.work.items[item];
      row = s.row;
      begin = p.a.indptr[row] + s.first;
      count = s.count;
      partial = s.partial;
    } else {
      const int64_t r = item - p.work.item_count;
      if (r >= p.a.rows) return;
      begin = p.a.indptr[r];
      count = p.a.indptr[r + 1] - begin;
      if (count > p.lanes.row_limit) return;  // its items do it
      row = r;
    }
    number(begin, count, p.a.nnz);
  }
};

// The nonzeros of a group of neighbouring rows, numbered in the same way.
struct GroupWork : Numbered {
  int64_t row = -1;  // the first, -1: nothing to do
  int64_t last_row = 0;

  __device__ GroupWork(const CsrSpmm& p, int64_t group) {
    if (group >= p.lanes.group_count) return;
    const int64_t first_row = p.lanes.groups[group];
    last_row = p.lanes.groups[group + 1];
    const int64_t begin = p.a.indptr[first_row];
    const int64_t count = p.a.indptr[last_row] - begin;
    // A row that is cut is a group of its own.
    if (count > p.lanes.row_limit && last_row - first_row == 1) return;
    row = first_row;
    number(begin, count, p.a.nnz);
  }
};

// Columns of nonzeros [at, at + 8) of the work. Past the end of the array: column 0.
__device__ __forceinline__ void load_batch(const int32_t* indices, int at, int room,
                                           int32_t (&columns)[kBatch]) {
  if (at + kBatch <= room) {
    const auto* p = reinterpret_cast<const int4*>(indices + at);
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
    for (int i = 0; i < kBatch; ++i) columns[i] = at + i < room ? __ldg(indices + at + i) : 0;
  }
}

}  // namespace gnnsparse::cuda
