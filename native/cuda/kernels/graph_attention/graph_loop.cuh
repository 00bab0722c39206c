// The loop over the rows and edges of a warp. Lanes that the heads of a row leave over take other
// rows, side by side: no row's end adds up anything over lanes, and the longest rows come first, so
// that those of a warp are about as long. What some edges need is read into registers at once, and
// many small warps hide that it takes a while; copies to shared memory ahead of time were slower,
// as they leave less of a multiprocessor to the L1 cache and have to be waited for (notes/log.md).
#pragma once

#include "kernels/graph_attention/graph_rows.cuh"

namespace gnnsparse::cuda {

// What a pass reads of an edge, or of a row: the lane's vectors of 16 bytes, which are zeros where
// it has none (`real` is false), and numbers of kWords words.
template <int kVectors, int kNumbers, int kWords = 1>
class GraphOperands {
 public:
  __device__ __forceinline__ void read_vector(int i, const char* from, bool real) {
    vectors_[i] = real ? load_vec16(from) : Vec16{};
  }
  // What no other warp reads, and need not stay in a cache.
  __device__ __forceinline__ void read_once(int i, const char* from, bool real) {
    const uint4 v = real ? __ldcs(reinterpret_cast<const uint4*>(from)) : uint4{};
    vectors_[i] = {{v.x, v.y, v.z, v.w}};
  }
  __device__ __forceinline__ void copy_vector(int i, int from) { vectors_[i] = vectors_[from]; }
  __device__ __forceinline__ void read_number(int i, const char* from) {
    if constexpr (kWords == 1) {
      numbers_[i][0] = __ldg(reinterpret_cast<const float*>(from));
    } else {
      const float2 pair = __ldg(reinterpret_cast<const float2*>(from));
      numbers_[i][0] = pair.x;
      numbers_[i][1] = pair.y;
    }
  }
  __device__ __forceinline__ const Vec16& vector(int i) const { return vectors_[i]; }
  __device__ __forceinline__ float number(int i, int word = 0) const { return numbers_[i][word]; }

 private:
  Vec16 vectors_[kVectors > 0 ? kVectors : 1];
  float numbers_[kNumbers > 0 ? kNumbers : 1][kWords];
};

// Edges of the lane's row that are taken at once. Where there is none (`has` is false) it is the
// row's last one again, so that operands are read without a condition; its number is counted from
// the row's first edge.
template <class Pass>
struct GraphStep {
  typename Pass::EdgeOperands edge[Pass::kBatch];
  int number[Pass::kBatch];
  bool has[Pass::kBatch];
};

// The row or part of a row with number `entry`; where there is none, its count is -1.
__device__ __forceinline__ GraphRow row_of(const GraphLaunch& p, int64_t entry) {
  GraphRow row;
  if (entry >= p.entry_count) return row;
  if (p.entries != nullptr) {
    const int4 words = __ldg(reinterpret_cast<const int4*>(p.entries + entry));
    memcpy(&row.begin, &words, sizeof row.begin);
    row.count = words.z;
    row.row = words.w;
    if (entry < p.work.partials) row.partial = static_cast<int>(entry);
  } else {
    row.begin = p.a.indptr[entry];
    row.count = static_cast<int>(p.a.indptr[entry + 1] - row.begin);
    row.row = p.row_ids != nullptr ? p.row_ids[entry] : static_cast<int>(entry);
  }
  if (row.count == 0) row.begin = 0;  // an edge that can be read
  return row;
}

// The columns, and in the pass over columns the nonzeros of A, of some edges of a row.
template <class Pass>
class GraphNumbers {
 public:
  __device__ __forceinline__ GraphNumbers(const GraphLaunch& p, const GraphRow& row)
      : p_(p), begin_(row.begin), last_(max(row.count - 1, 0)) {}

  // Reads those of edge number `at` and on.
  __device__ __forceinline__ void read(int at) {
    const int32_t* columns = p_.a.indices + begin_;
#pragma unroll
    for (int i = 0; i < Pass::kBatch; ++i) {
      number_[i] = min(at + i, last_);
      columns_[i] = __ldg(columns + number_[i]);
      if constexpr (Pass::kMaps) nonzeros_[i] = nonzero_of(begin_ + number_[i]);
    }
  }
  __device__ __forceinline__ int number(int i) const { return number_[i]; }
  __device__ __forceinline__ int32_t column(int i) const { return columns_[i]; }
  // A map of 64 bits is read when it is needed: registers are short.
  __device__ __forceinline__ int64_t nonzero(int i) const {
    if constexpr (!Pass::kMaps) return begin_ + number_[i];
    return p_.nnz_index_map.wide ? p_.nnz_index_map[begin_ + number_[i]] : int64_t{nonzeros_[i]};
  }

 private:
  __device__ __forceinline__ uint32_t nonzero_of(int64_t edge) const {
    const auto* map = static_cast<const uint32_t*>(p_.nnz_index_map.data);
    return p_.nnz_index_map.wide ? 0u : __ldg(map + edge);
  }

  const GraphLaunch& p_;
  int64_t begin_;
  int last_;
  int number_[Pass::kBatch];
  int32_t columns_[Pass::kBatch];
  uint32_t nonzeros_[Pass::kMaps ? Pass::kBatch : 1];
};

// Has a pass take a row of each group of lanes. All lanes of the warp take part.
template <class Pass>
__device__ __forceinline__ void run_row(const GraphLaunch& p, const GraphLane& lane,
                                        const GraphRow& row, Pass& pass) {
  int most = row.count;
#pragma unroll 1
  for (int offset = 16; offset >= lane.row_lanes; offset >>= 1) {
    most = max(most, __shfl_xor_sync(kWarp, most, offset));
  }
  GraphNumbers<Pass> numbers(p, row);
  numbers.read(0);
  pass.clear();
  {
    typename Pass::RowOperands own;
    pass.read_row(own, row);
    pass.start(row, own);
  }
#pragma unroll 1
  for (int at = 0; at < most; at += Pass::kBatch) {
    GraphStep<Pass> step;
#pragma unroll
    for (int i = 0; i < Pass::kBatch; ++i) {
      step.has[i] = at + i < row.count;
      step.number[i] = numbers.number(i);
      pass.read_edge(step.edge[i], numbers.column(i), numbers.nonzero(i));
    }
    numbers.read(at + Pass::kBatch);
    pass.add(row, step);
  }
  if (row.count == 0) pass.clear();  // the lane has taken part in the steps of longer rows
  if (row.count >= 0) pass.finish(row);
}

// Has a pass take the rows of the warp: of each `rounds` sets of rows one.
template <class Pass>
__device__ __forceinline__ void run_rows(const GraphLaunch& p, const GraphLane& lane, Pass& pass) {
  const auto entry = [&](int round) {
    return (round * p.warps() + lane.item) * lane.rows + lane.row;
  };
#pragma unroll 1
  for (int round = 0; round < p.rounds; ++round) run_row(p, lane, row_of(p, entry(round)), pass);
}

template <class Pass>
__global__ void __launch_bounds__(kGraphThreads, Pass::kBlocks)
    graph_pass_kernel(const __grid_constant__ GraphLaunch p) {
  const GraphLane lane(p);
  Pass pass(p, lane);
  run_rows(p, lane, pass);
}

// Calls kernel(p) for every item of work, head and batch.
inline void launch_rows(const GraphLaunch& p, void (*kernel)(GraphLaunch), const char* call,
                        Stream stream) {
  const int64_t blocks = p.problem.base.batches * p.head_blocks;
  launch(call, kernel, grid_of(p.warps(), kGraphWarps, blocks, call), kGraphThreads, stream, p);
}

template <class Pass>
void launch_pass(const GraphLaunch& p, const char* call, Stream stream) {
  launch_rows(p, graph_pass_kernel<Pass>, call, stream);
}

// Calls kernel(p) for every row that was cut, head and batch.
template <class... Parameters, class... Arguments>
void launch_cuts(const GraphLaunch& p, void (*kernel)(Parameters...), const char* call,
                 Stream stream, const Arguments&... arguments) {
  const int64_t blocks = p.problem.base.batches * p.head_blocks;
  launch(call, kernel, grid_of(p.work.cut_count, kGraphWarps, blocks, call), kGraphThreads, stream,
         p, arguments...);
}

}  // namespace gnnsparse::cuda
