// What the kernels of graph attention share: which rows, heads and edges a lane works on, and how
// rows of arrays get to its registers and back.
#pragma once

#include <limits>

#include "device/approximate.cuh"
#include "device/launch.cuh"
#include "device/vector.cuh"
#include "gnnsparse/graph_attention.h"
#include "gnnsparse/philox.h"

namespace gnnsparse::cuda {

inline constexpr int kGraphThreads = 128;
inline constexpr int kGraphWarps = kGraphThreads / 32;
inline constexpr uint32_t kWarp = 0xffffffffu;
inline constexpr float kNoEdge = -std::numeric_limits<float>::infinity();

// An array as kernels address it, in bytes. A stride of rows in 32 bits makes an address one
// instruction.
struct GraphArray {
  const char* data = nullptr;
  int64_t batch = 0;
  int64_t head = 0;
  uint32_t row = 0;

  GraphArray() = default;
  explicit GraphArray(const HeadsView& view)
      : data(static_cast<const char*>(view.data)),
        batch(view.batch * size_of(view.dtype)),
        head(view.head * size_of(view.dtype)),
        row(static_cast<uint32_t>(view.row * size_of(view.dtype))) {}
};

// A pass as its kernel is launched.
struct GraphLaunch : GraphAttentionPass {
  GraphLanes lanes;
  int head_blocks;  // blocks along the heads
  int d_chunks = 0;
  int dv_chunks;
  int de_chunks;
  GraphArray q, k, v, features, gate, mapped, mapped_q, bias, grad, grad_mapped, grad_weights,
      edges;

  GraphLaunch(const GraphAttentionPass& pass, int elements) : GraphAttentionPass(pass) {
    const AttentionProblem& base = problem.base;
    const auto chunks = [elements](int64_t width) {
      return static_cast<int>(ceil_div<int64_t>(width, elements));
    };
    if (problem.score != Score::kAdditive) d_chunks = chunks(base.d);
    dv_chunks = chunks(base.dv);
    de_chunks = chunks(problem.terms.de);
    const int widest = d_chunks > dv_chunks ? d_chunks : dv_chunks;
    lanes = GraphLanes::of(widest > de_chunks ? widest : de_chunks, base.heads);
    head_blocks = static_cast<int>(ceil_div<int64_t>(base.heads, lanes.heads()));
    q = GraphArray(base.q);
    k = GraphArray(base.k);
    v = GraphArray(base.v);
    features = GraphArray(problem.terms.features);
    gate = GraphArray(problem.terms.gate);
    mapped = GraphArray(problem.terms.mapped);
    mapped_q = GraphArray(problem.terms.mapped_q);
    bias = GraphArray(problem.terms.bias);
    grad = GraphArray(grads.out);
    grad_mapped = GraphArray(grads.mapped);
    grad_weights = GraphArray(grads.weights);
    edges = GraphArray(grads.edges);
  }
  // Whether an edge's weight depends on more than the score's own terms.
  bool has_extras() const {
    const bool features_of_scores = problem.score == Score::kAdditive && features.data != nullptr;
    return bias.data != nullptr || problem.base.seed != nullptr || problem.base.is_causal ||
           problem.clamp > 0 || !problem.normalize || features_of_scores ||
           grad_weights.data != nullptr || grads.bias.data != nullptr;
  }
};

// A lane's place: its part of a head, and its share of the edges.
struct GraphLane {
  int id;
  int chunk;
  int head;     // lanes past the last head repeat its work
  bool is_own;  // that is not the case
  int edge;
  int edges;  // lanes side by side along the edges
  int batch;
  int64_t item;

  __device__ explicit GraphLane(const GraphLaunch& p) {
    id = threadIdx.x % 32;
    const int block = static_cast<int>(blockIdx.y);
    batch = block / p.head_blocks;
    const int h = (block - batch * p.head_blocks) * p.lanes.heads() + p.lanes.head(id);
    const int last = static_cast<int>(p.problem.base.heads) - 1;
    chunk = p.lanes.chunk(id);
    head = min(h, last);
    is_own = h <= last;
    edge = p.lanes.edge(id);
    edges = p.lanes.edges();
    item = int64_t{blockIdx.x} * kGraphWarps + threadIdx.x / 32;
  }
  // Counted over all batches.
  __device__ int64_t head_of_all(const GraphLaunch& p) const {
    return batch * p.problem.base.heads + head;
  }
  // Whether it writes what the lanes of a head, or of an edge in a head, have in common.
  __device__ bool writes_number() const { return chunk == 0 && is_own; }
};

// A row, or a part of a long one.
struct GraphRow {
  int64_t begin;  // first nonzero
  int count;
  int row;      // in the caller's numbering
  int partial;  // index of its partial sums; -1: it is a whole row
};

// Edges of a row: lane `edge` takes numbers edge, edge + edges, ..., counted from the row's first.
template <int kCount>
struct GraphBatch {
  int32_t column[kCount];
  int number[kCount];
  bool has[kCount];  // where not, column and number are those of some edge of the row
};

// Columns of 32 edges, a lane each. Past the row's end: its last edge's.
__device__ __forceinline__ int32_t load_columns(const GraphLaunch& p, const GraphLane& lane,
                                                int64_t begin, int first, int count) {
  return __ldg(p.a.indices + begin + min(first + lane.id, count - 1));
}

template <int kCount, class Pass>
__device__ __forceinline__ void add_batch(Pass& pass, const GraphLane& lane, const GraphRow& row,
                                          int32_t columns, int first, int at, int here) {
  GraphBatch<kCount> edges;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int number = at + i * lane.edges + lane.edge;
    edges.has[i] = number < here;
    edges.column[i] = __shfl_sync(kWarp, columns, number & 31);
    edges.number[i] = first + min(number, here - 1);
  }
  pass.template add<kCount>(row, edges);
}

// Has a pass take the edges of a row. `columns` are those of the first 32 edges.
template <class Pass>
__device__ __forceinline__ void run_row(const GraphLaunch& p, const GraphLane& lane, Pass& pass,
                                        const GraphRow& row, int32_t columns) {
  pass.start(row);
  for (int first = 0; first < row.count; first += 32) {
    if (first > 0) columns = load_columns(p, lane, row.begin, first, row.count);
    const int here = min(32, row.count - first);
    for (int at = 0; at < here;) {
      // The rest of a row in as few steps as it needs: most rows of a graph are short.
      const int left = here - at;
      if (Pass::kBatch >= 4 && left > 2 * lane.edges) {
        add_batch<Pass::kBatch>(pass, lane, row, columns, first, at, here);
        at += Pass::kBatch * lane.edges;
      } else if (left > lane.edges) {
        add_batch<2>(pass, lane, row, columns, first, at, here);
        at += 2 * lane.edges;
      } else {
        add_batch<1>(pass, lane, row, columns, first, at, here);
        at += lane.edges;
      }
    }
  }
  pass.finish(row);
}

// Has a pass take the rows of the warp. The columns of the next row are on their way meanwhile.
template <class Pass>
__device__ __forceinline__ void run_rows(const GraphLaunch& p, const GraphLane& lane, Pass& pass) {
  if (lane.item < p.work.item_count) {
    const RowItem part = p.work.items[lane.item];
    const int id = p.row_ids != nullptr ? p.row_ids[part.row] : part.row;
    const GraphRow row{p.a.indptr[part.row] + part.first, part.count, id, part.partial};
    run_row(p, lane, pass, row, load_columns(p, lane, row.begin, 0, row.count));
    return;
  }
  const int64_t first = (lane.item - p.work.item_count) * p.rows_per_warp;
  if (first >= p.a.rows) return;
  const int rows = static_cast<int>(min(int64_t{p.rows_per_warp}, p.a.rows - first));
  const int64_t own = first + min(lane.id, rows - 1);
  const int64_t start = p.a.indptr[own];
  // A row has fewer than 2^31 nonzeros, all rows of the warp may have more.
  const int own_count = static_cast<int>(p.a.indptr[own + 1] - start);
  const int own_row = p.row_ids != nullptr ? p.row_ids[own] : static_cast<int>(own);
  int64_t begin = __shfl_sync(kWarp, start, 0);
  int count = __shfl_sync(kWarp, own_count, 0);
  int32_t columns = count > 0 ? load_columns(p, lane, begin, 0, count) : 0;
  for (int r = 0; r < rows; ++r) {
    const GraphRow row{begin, count, __shfl_sync(kWarp, own_row, r), -1};
    const int32_t now = columns;
    begin += count;
    count = __shfl_sync(kWarp, own_count, min(r + 1, rows - 1));
    if (r + 1 < rows && count > 0) columns = load_columns(p, lane, begin, 0, count);
    // The parts of a longer row are items of their own.
    if (row.count <= p.row_limit) run_row(p, lane, pass, row, now);
  }
}

// Where the lane's head begins in an array, `first` rows after its first. Its stride is read from
// the kernel's parameters by every address, which takes no register.
__device__ __forceinline__ const char* start_of(const GraphArray& array, const GraphLane& lane,
                                                int64_t first = 0) {
  return array.data + lane.batch * array.batch + lane.head * array.head + first * array.row;
}
__device__ __forceinline__ const char* row_at(const char* start, const GraphArray& array, int row) {
  return start + static_cast<uint64_t>(static_cast<uint32_t>(row)) * array.row;
}
__device__ __forceinline__ float number_in(const char* start, const GraphArray& array, int row) {
  return __ldg(reinterpret_cast<const float*>(row_at(start, array, row)));
}

// The lane's vector of a row; zeros for a lane past the row's end. `start` is that of the vector.
__device__ __forceinline__ Vec16 vector_at(const char* start, const GraphArray& array, int row,
                                           bool has) {
  return has ? load_vec16(row_at(start, array, row)) : Vec16{};
}
template <Precision P>
__device__ __forceinline__ void load_vector(const GraphArray& array, const GraphLane& lane,
                                            int chunks, int row, float (&out)[kPerVector<P>]) {
  const char* start = start_of(array, lane) + 16 * lane.chunk;
  to_floats<P>(vector_at(start, array, row, lane.chunk < chunks), out);
}

// Writes the lane's elements of a row of a result.
template <int kElements>
__device__ __forceinline__ void store_elements(const HeadsView& view, const GraphLane& lane,
                                               int64_t row, int64_t width,
                                               const float (&v)[kElements]) {
  const int64_t at = int64_t{kElements} * lane.chunk;
  if (at < width) store_row(view.mutable_of(lane.batch, lane.head), row, at, width, v);
}

// Numbers of a row of a float32 result in the lane's head.
__device__ __forceinline__ float* numbers_of(const HeadsView& view, const GraphLane& lane,
                                             int64_t row) {
  return static_cast<float*>(const_cast<void*>(view.data)) + lane.batch * view.batch +
         lane.head * view.head + row * view.row;
}

// Where the partial sums of a part lie in the lane's head; four floats later begin those of
// features.
__device__ inline float* partial_of(const GraphLaunch& p, const GraphLane& lane, int partial) {
  const AttentionProblem& base = p.problem.base;
  const int64_t place = partial * (base.batches * base.heads) + lane.head_of_all(p);
  return p.partial + place * graph_partial_floats(base.d, base.dv, p.problem.terms.de);
}

// Features `before` and on of partial sums.
template <int kElements>
__device__ __forceinline__ void store_sums(float* to, const GraphLane& lane, int64_t before,
                                           int chunks, const float (&sums)[kElements]) {
  if (lane.chunk >= chunks) return;
#pragma unroll
  for (int i = 0; i < kElements; ++i) to[4 + before + kElements * lane.chunk + i] = sums[i];
}

// Adds up over the lanes of a head, in a fixed order.
template <int kCount>
__device__ __forceinline__ void add_over_chunks(const GraphLaunch& p, float (&x)[kCount]) {
  for (int offset = 1; offset < 1 << p.lanes.chunks_log; offset *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] += __shfl_xor_sync(kWarp, x[i], offset);
  }
}

// Adds up over the lanes that take other edges of the row.
template <int kCount>
__device__ __forceinline__ void add_over_edges(const GraphLane& lane, float (&x)[kCount]) {
  for (int offset = 16; offset >= 32 / lane.edges; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] += __shfl_xor_sync(kWarp, x[i], offset);
  }
}

template <int kElements>
__device__ __forceinline__ float dot(const float (&a)[kElements], const float (&b)[kElements]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kElements; ++i) sum += a[i] * b[i];
  return sum;
}
template <int kElements>
__device__ __forceinline__ void add_scaled(float (&to)[kElements], float factor,
                                           const float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) to[i] += factor * x[i];
}

// Calls kernel(p) for every item of work, head and batch.
template <class Kernel>
void launch_graph(const GraphLaunch& p, Kernel kernel, int64_t items, const char* call,
                  Stream stream) {
  const int64_t blocks = p.problem.base.batches * p.head_blocks;
  launch(call, kernel, grid_of(items, kGraphWarps, blocks, call), kGraphThreads, stream, p);
}

}  // namespace gnnsparse::cuda
