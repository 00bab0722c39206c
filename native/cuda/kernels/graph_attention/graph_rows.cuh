// What the kernels of graph attention share: which rows, heads and edges a lane works on, and how
// it finds and writes rows of arrays.
#pragma once
#include <limits>

#include "device/approximate.cuh"
#include "device/async.cuh"
#include "device/launch.cuh"
#include "device/vector.cuh"
#include "gnnsparse/graph_attention.h"
#include "gnnsparse/philox.h"

namespace gnnsparse::cuda {

inline constexpr int kGraphThreads = 128;
inline constexpr int kGraphWarps = kGraphThreads / 32;
inline constexpr uint32_t kWarp = 0xffffffffu;
inline constexpr float kNoEdge = -std::numeric_limits<float>::infinity();
// Where the largest score starts from: what is above it is a score, and 2^(kNoEdge - kLowest) is 0.
inline constexpr float kLowest = std::numeric_limits<float>::lowest();

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

// Where features of rows are written to.
struct GraphResult {
  HeadsView view;
  GraphArray array;
  int64_t width = 0;
  bool is_vectors = false;  // of 16 bytes, aligned, in the storage type

  GraphResult() = default;
  GraphResult(const HeadsView& to, int64_t features, DType storage, int elements)
      : view(to), array(to), width(features) {
    const auto is_even = [&](int64_t stride) { return stride * size_of(to.dtype) % 16 == 0; };
    is_vectors = to.dtype == storage && features % elements == 0 &&
                 reinterpret_cast<uintptr_t>(to.data) % 16 == 0 && is_even(to.batch) &&
                 is_even(to.head) && is_even(to.row) && to.row * size_of(to.dtype) <= UINT32_MAX;
  }
};

// A pass as its kernel is launched.
struct GraphLaunch : GraphAttentionPass {
  GraphLanes lanes;
  int head_blocks;  // blocks along the heads
  int d_chunks = 0;
  int dv_chunks;
  int de_chunks;
  int second_chunks;  // of what the forward pass sums beside values
  GraphArray q, k, v, features, gate, mapped, mapped_q, bias;
  GraphResult to_out, to_second, to_shift, to_scale, to_q, to_mapped_q, to_k, to_v, to_features;
  GraphArray out, shift, scale, grad, grad_mapped, grad_weights, inner, edges, sloped, numbers;
  // Whether keys are values, as GATv2 has them: an edge has one row to read.
  bool keys_are_values;
  uint32_t partial_floats;
  float score_scale;  // of sums of dot products, to scores to base 2

  GraphLaunch(const GraphAttentionPass& pass, int elements) : GraphAttentionPass(pass) {
    const AttentionProblem& base = problem.base;
    const auto chunks = [elements](int64_t width) {
      return static_cast<int>(ceil_div<int64_t>(width, elements));
    };
    if (problem.score != Score::kAdditive) d_chunks = chunks(base.d);
    dv_chunks = chunks(base.dv);
    de_chunks = chunks(problem.terms.de);
    const bool has_sloped = result.sloped.data != nullptr;
    second_chunks = has_sloped ? dv_chunks : de_chunks;
    lanes = graph_lanes(problem);
    head_blocks = static_cast<int>(ceil_div<int64_t>(base.heads, lanes.heads()));
    q = GraphArray(base.q);
    k = GraphArray(base.k);
    v = GraphArray(base.v);
    features = GraphArray(problem.terms.features);
    gate = GraphArray(problem.terms.gate);
    mapped = GraphArray(problem.terms.mapped);
    mapped_q = GraphArray(problem.terms.mapped_q);
    bias = GraphArray(problem.terms.bias);
    const DType storage = storage_of(base.precision);
    to_out = GraphResult(result.out, base.dv, storage, elements);
    HeadsView of_scale = result.stats;
    if (of_scale.data != nullptr) of_scale.data = static_cast<const float*>(of_scale.data) + 1;
    to_shift = GraphResult(result.stats, 1, storage, elements);
    to_scale = GraphResult(of_scale, 1, storage, elements);
    to_q = GraphResult(grads.q, base.d, storage, elements);
    to_k = GraphResult(grads.k, base.d, storage, elements);
    to_v = GraphResult(grads.v, base.dv, storage, elements);
    to_features = GraphResult(grads.features, base.d, storage, elements);
    to_second = has_sloped ? GraphResult(result.sloped, base.dv, storage, elements)
                           : GraphResult(result.mapped, problem.terms.de, storage, elements);
    to_mapped_q = GraphResult(grads.mapped_q, problem.terms.de, storage, elements);
    out = GraphArray(result.out);
    shift = GraphArray(result.stats);
    scale = GraphArray(of_scale);
    grad = GraphArray(grads.out);
    grad_mapped = GraphArray(grads.mapped);
    grad_weights = GraphArray(grads.weights);
    inner = GraphArray(grads.inner);
    edges = GraphArray(grads.edges);
    sloped = GraphArray(result.sloped);
    numbers = GraphArray(grads.numbers);
    keys_are_values = k.data == v.data && k.batch == v.batch && k.head == v.head &&
                      k.row == v.row && d_chunks == dv_chunks;
    partial_floats = static_cast<uint32_t>(partial_floats_of(problem));
    score_scale = kLog2E * base.scale;
  }
  // Whether an edge's weight depends on more than the score's own terms.
  bool has_extras() const {
    const bool features_of_scores = problem.score == Score::kAdditive && features.data != nullptr;
    return bias.data != nullptr || problem.base.seed != nullptr || problem.base.is_causal ||
           problem.clamp > 0 || !problem.normalize || features_of_scores ||
           grad_weights.data != nullptr || grads.bias.data != nullptr;
  }
};

// A lane's place: its row of those side by side, and its part of a head.
struct GraphLane {
  int id;
  int chunk;
  int chunks;     // lanes of a head
  int head;       // lanes past the last head repeat its work
  bool is_own;    // that is not the case
  int row;        // of the rows side by side
  int rows;       // side by side
  int row_lanes;  // of each of these
  int batch;
  int64_t item;

  __device__ explicit GraphLane(const GraphLaunch& p) {
    id = threadIdx.x % 32;
    const int block = static_cast<int>(blockIdx.y);
    batch = p.head_blocks == 1 ? block : block / p.head_blocks;
    const int h = (block - batch * p.head_blocks) * p.lanes.heads() + p.lanes.head(id);
    const int last = static_cast<int>(p.problem.base.heads) - 1;
    chunk = pin_register(p.lanes.chunk(id));
    chunks = pin_register(1 << p.lanes.chunks_log);
    head = min(h, last);
    is_own = h <= last;
    row = p.lanes.row(id);
    rows = p.lanes.rows();
    row_lanes = 32 >> p.lanes.rows_log();
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
  int64_t begin = 0;  // its first edge
  int count = -1;
  int row = 0;       // in the caller's numbering
  int partial = -1;  // index of its partial sums; -1: it is a whole row
};

// Where the lane's head begins in an array, `first` rows after its first. Its stride is read from
// the kernel's parameters by every address, which takes no register.
__device__ __forceinline__ const char* start_of(const GraphArray& array, const GraphLane& lane,
                                                int64_t first = 0) {
  // Unsigned, so that a product takes two instructions.
  return array.data + static_cast<uint32_t>(lane.batch) * array.batch +
         static_cast<uint32_t>(lane.head) * array.head + first * array.row;
}
__device__ __forceinline__ const char* row_at(const char* start, const GraphArray& array, int row) {
  return start + static_cast<uint64_t>(static_cast<uint32_t>(row)) * array.row;
}
__device__ __forceinline__ float number_in(const char* start, const GraphArray& array, int row) {
  return __ldg(reinterpret_cast<const float*>(row_at(start, array, row)));
}

// The lane's vector in each row of an array.
struct GraphVectors {
  const char* start = nullptr;
  bool has = false;

  GraphVectors() = default;
  __device__ GraphVectors(const GraphArray& array, const GraphLane& lane, int chunks)
      : start(start_of(array, lane) + 16 * lane.chunk),
        has(array.data != nullptr && lane.chunk < chunks) {}
};

// Writes the lane's elements of a row of a result.
template <int kElements>
__device__ __forceinline__ void store_elements(const HeadsView& view, const GraphLane& lane,
                                               int64_t row, int64_t width,
                                               const float (&v)[kElements]) {
  const int64_t at = int64_t{kElements} * lane.chunk;
  if (at < width) store_row(view.mutable_of(lane.batch, lane.head), row, at, width, v);
}
// The same as one vector, where rows of the result are vectors in the storage type.
template <Precision P>
__device__ __forceinline__ void store_result(const GraphResult& to, const GraphLane& lane,
                                             int64_t row, int chunks,
                                             const float (&v)[kPerVector<P>]) {
  if (!to.is_vectors) return store_elements(to.view, lane, row, to.width, v);
  if (lane.chunk >= chunks) return;
  uint32_t words[4];
  encode<PrecisionTraits<P>::kStorage>(v, words);
  char* at = const_cast<char*>(start_of(to.array, lane, row)) + 16 * lane.chunk;
  *reinterpret_cast<uint4*>(at) = make_uint4(words[0], words[1], words[2], words[3]);
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
  return p.partial + place * p.partial_floats;
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
__device__ __forceinline__ void add_over_chunks(const GraphLane& lane, float (&x)[kCount]) {
#pragma unroll 1
  for (int offset = 1; offset < lane.chunks; offset *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] += __shfl_xor_sync(kWarp, x[i], offset);
  }
}

// Adds up over the rows side by side.
template <int kCount>
__device__ __forceinline__ void add_over_rows(const GraphLane& lane, float (&x)[kCount]) {
#pragma unroll 1
  for (int offset = 16; offset >= lane.row_lanes; offset >>= 1) {
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

}  // namespace gnnsparse::cuda
