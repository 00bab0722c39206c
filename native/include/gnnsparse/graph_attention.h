// Attention over the edges of a graph with the scores and edge terms of graph layers, on the CPU
// and on a GPU. Every head of a row is read at once. Arrays are views [batches, heads, rows, width]
// with any strides but a contiguous last dimension; rows of edge arrays are nonzeros of A in its
// order.
#pragma once

#include "gnnsparse/attention_problem.h"
#include "gnnsparse/csr_problem.h"
#include "gnnsparse/precision.h"

namespace gnnsparse {

// How an edge's score is made of the query's row q and the key's row k. `k` is the key after the
// edge's terms: gate * k + features.
//   kDot:      scale * (q . k + mapped_q . mapped)
//   kAdditive: leaky_relu(q + k + features), of one number a head, in float32
//   kGatv2:    att . leaky_relu(q + k)
enum class Score : int { kDot = 0, kAdditive = 1, kGatv2 = 2 };
inline constexpr int kScores = 3;

// What an edge has of its own. A view without data is not there.
struct EdgeTerms {
  HeadsView bias;          // [.., nnz, 1] float32, added to the finished score; -inf: no edge
  HeadsView features;      // [.., nnz, d]; kAdditive: [.., nnz, 1] float32
  bool to_keys = false;    // `features` are added to keys
  bool to_values = false;  // `features` are added to values
  HeadsView gate;          // [.., nnz, d], multiplies keys
  HeadsView mapped;    // [.., nnz, de], features behind a linear map, which q has passed through
  HeadsView mapped_q;  // [.., L, de]; without data: `mapped` takes no part in the scores
  int64_t de = 0;
};

struct GraphAttentionProblem {
  // q, k, v, sizes, scale, is_causal, dropout and precision; its bias is not used. kAdditive: q and
  // k are [.., 1] in float32, and d is 1.
  AttentionProblem base;
  EdgeTerms terms;
  Score score = Score::kDot;
  HeadsView att;                // kGatv2: [.., 1, d] float32
  float negative_slope = 0.2f;  // of leaky_relu
  float clamp = 0.0f;           // scores are clamped to [-clamp, clamp]; 0: they are not
  bool normalize = true;        // false: weights are exp(score)
};

// Results of the forward pass.
struct GraphAttentionResult {
  HeadsView out;  // [.., L, dv] any type: sums of weight * value
  HeadsView
      mapped;  // [.., L, de] any type: sums of weight * terms.mapped; without data: not wanted,
               // and in the backward pass on a GPU never read: they are in `out` or in `inner`
  HeadsView stats;  // [.., L, 2] float32: SoftmaxStats; {0, 1} with normalize = false
  // kAdditive, on a GPU: [.., L, dv] in the storage type: sums of slope * weight * value, with the
  // slope of the score at its argument; `stats` have a third number then, the sum of slope * weight
  // before dropout. Without data: there will be no gradients.
  HeadsView sloped;
};

// The backward pass over rows of A writes what each edge adds, which the pass over columns reads.
struct GraphAttentionGrads {
  HeadsView out;       // gradient of result.out [.., L, dv], in the storage type
  HeadsView mapped;    // gradient of result.mapped [.., L, de], the same; without data: none
  HeadsView weights;   // gradient of the weights [.., nnz, 1] float32; without data: none
  HeadsView inner;     // GPU: [.., L, 1] float32: for each row sum of weight * its gradient over
                       // edges; without data: that of result and its gradient
  HeadsView edges;     // written: [.., nnz, 2] float32: the weight after dropout, and the gradient
                       // of the score's dot product; of kAdditive, of q + k + features, and on a
                       // GPU, if asked for by the pass over columns, slope * weight after dropout
  HeadsView numbers;   // kAdditive, on a GPU, in place of `edges`: [.., L, 4] float32, written by
                       // the pass over rows: q, SoftmaxStats, and `inner`
  HeadsView bias;      // written: [.., nnz, 1] float32, of the finished score
  HeadsView q;         // written: [.., L, d]; kAdditive: float32
  HeadsView mapped_q;  // written: [.., L, de]
  HeadsView features;  // written: [.., nnz, d] in every head, also where heads share features
  HeadsView gate;      // written: [.., nnz, d], the same
  HeadsView att;  // written: [.., groups, d] float32, whose sum over the groups is the gradient
  HeadsView of_mapped;  // written by a pass of its own: [.., 1, nnz, de], sums over heads
  HeadsView k;          // columns: [.., S, d]; kAdditive: float32
  HeadsView v;          // columns: [.., S, dv]; on a GPU that of k for the sum of both there
};

// A row, or a part of a long one, as the CUDA kernels take it.
struct GraphEntry {
  int64_t begin;  // its first nonzero
  int32_t count;
  int32_t row;  // in the caller's numbering
};

// A pass of the CUDA kernels. A lane holds 16 bytes of a head's features, and a warp takes a row in
// as many heads as its lanes have room for, or several rows side by side.
struct GraphAttentionPass {
  GraphAttentionProblem problem;
  CsrView a;  // A, or A^T in the pass over columns
  // [entry_count] in the order in which they are taken; the first `work.partials` are parts, each
  // with the partial sums of its number. Null: the rows of `a` as they are.
  const GraphEntry* entries = nullptr;
  int64_t entry_count = 0;
  const int32_t* row_ids = nullptr;  // without entries: of a; null: stored rows are the caller's
  CutList work;                      // cuts have the caller's rows
  int side_by_side = 1;              // GraphLanes::rows
  int rounds = 1;                    // sets of rows that a warp takes one after another
  float* partial = nullptr;          // [work.partials][heads of all batches][graph_partial_floats]
  GraphAttentionResult result;
  GraphAttentionGrads grads;
  IndexView nnz_index_map;  // pass over columns: index in A of each nonzero of A^T

  // `grads.att` has a sum for each.
  GNNSPARSE_HD int64_t warps() const {
    return ceil_div<int64_t>(entry_count, int64_t{side_by_side} * rounds);
  }
};

// The gradient of a linear map of edge features, on a GPU with 16-bit storage: in each head the sum
// over pairs and rows of x^T y.
struct GraphMapGrad {
  static constexpr int kFeatures = 32;  // of y, at most

  HeadsView x[2];  // [1, heads, rows, width] in the storage type, in vectors of 16 bytes
  HeadsView y[2];  // [1, heads, rows, features], the same
  int pairs = 0;
  int64_t rows = 0;
  int heads = 0;
  int width = 0;
  int features = 0;
  int64_t slices = 0;   // of the rows, which have sums of their own
  float* to = nullptr;  // [slices, heads, width, kFeatures]
};

// The lanes of a warp: 2^chunks_log lanes along the features of a head, 2^heads_log heads side by
// side, and rows over what is left.
struct GraphLanes {
  int chunks_log = 0;
  int heads_log = 0;

  // The lanes of a problem whose widest head has `chunks` vectors of 16 bytes.
  static constexpr GraphLanes of(int64_t chunks, int64_t heads) {
    GraphLanes lanes;
    while ((int64_t{1} << lanes.chunks_log) < chunks) ++lanes.chunks_log;
    while (lanes.chunks_log + lanes.heads_log < 5 && (int64_t{1} << lanes.heads_log) < heads) {
      ++lanes.heads_log;
    }
    // At most 8 rows side by side: those of a warp wait for its longest one.
    if (lanes.chunks_log + lanes.heads_log < 2) lanes.chunks_log = 2 - lanes.heads_log;
    return lanes;
  }
  GNNSPARSE_HD constexpr int heads() const { return 1 << heads_log; }
  GNNSPARSE_HD constexpr int rows_log() const { return 5 - chunks_log - heads_log; }
  GNNSPARSE_HD constexpr int rows() const { return 1 << rows_log(); }
  GNNSPARSE_HD constexpr int chunk(int lane) const { return lane & ((1 << chunks_log) - 1); }
  GNNSPARSE_HD constexpr int head(int lane) const {
    return lane >> chunks_log & ((1 << heads_log) - 1);
  }
  GNNSPARSE_HD constexpr int row(int lane) const { return lane >> (chunks_log + heads_log); }
};

// The lanes of a problem on a GPU.
inline GraphLanes graph_lanes(const GraphAttentionProblem& problem) {
  const AttentionProblem& base = problem.base;
  const int64_t d = problem.score == Score::kAdditive ? 0 : base.d;
  const int64_t of_values = base.dv > problem.terms.de ? base.dv : problem.terms.de;
  const int64_t per_vector = 16 / size_of(storage_of(base.precision));
  return GraphLanes::of(ceil_div(d > of_values ? d : of_values, per_vector), base.heads);
}

// Vectors of 16 bytes that a head may have: those of a warp's lanes.
inline constexpr int kGraphChunks = 32;

// Heads whose gradients of features behind a linear map a block of a GPU adds up, in 96 KiB of
// shared memory.
inline constexpr int64_t kMostMappedHeads = 96;

// Floats of a head's partial sums: four of its softmax, and features by whole vectors.
GNNSPARSE_HD constexpr int64_t graph_partial_floats(int64_t d, int64_t dv, int64_t de) {
  return 4 + 8 * (ceil_div<int64_t>(d, 8) + ceil_div<int64_t>(dv, 8) + ceil_div<int64_t>(de, 8));
}
// Of additive scores: of the values twice.
inline int64_t partial_floats_of(const GraphAttentionProblem& problem) {
  const AttentionProblem& base = problem.base;
  const bool additive = problem.score == Score::kAdditive;
  return graph_partial_floats(base.d, base.dv, additive ? base.dv : problem.terms.de);
}

}  // namespace gnnsparse
