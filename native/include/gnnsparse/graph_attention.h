// Attention over the edges of a graph with the scores and edge terms of graph layers, on the CPU
// and on a GPU. Every head of a row is read at once. Arrays are views [batches, heads, rows, width]
// with any strides but a contiguous last dimension; rows of edge arrays are nonzeros of A in its
// order.
#pragma once

#include "gnnsparse/attention_problem.h"
#include "gnnsparse/csr_problem.h"

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
};

// The backward pass over rows of A writes what each edge adds, which the pass over columns reads.
struct GraphAttentionGrads {
  HeadsView out;       // gradient of result.out [.., L, dv], in the storage type
  HeadsView mapped;    // gradient of result.mapped [.., L, de], the same; without data: none
  HeadsView weights;   // gradient of the weights [.., nnz, 1] float32; without data: none
  HeadsView inner;     // GPU: [.., L, 1] float32: for each row sum of weight * its gradient over
                       // edges; without data: that of result and its gradient
  HeadsView edges;     // written: [.., nnz, 2] float32: the weight after dropout, and the gradient
                       // of the score's dot product; of kAdditive, of q + k + features. Of tiles
                       // [batches, GraphTiles::blocks, nnz, GraphTiles::kNumbers], see there
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

// A pass of the CUDA kernels. A warp takes `rows_per_warp` neighbouring rows of `a`, or a part of a
// long row, in as many heads as its lanes have room for: a lane holds 16 bytes of a head's
// features.
struct GraphAttentionPass {
  GraphAttentionProblem problem;
  CsrView a;                         // A, or A^T in the pass over columns
  const int32_t* row_ids = nullptr;  // of a; null: stored rows are in the caller's order
  WorkList<RowItem> work;            // the parts of rows with more than row_limit nonzeros
  int64_t row_limit = 0;
  int rows_per_warp = 1;
  bool tiles = false;        // the kernels of tiles, see GraphTiles
  float* partial = nullptr;  // [work.partials][heads of all batches][graph_partial_floats]
  GraphAttentionResult result;
  GraphAttentionGrads grads;
  IndexView nnz_index_map;  // pass over columns: index in A of each nonzero of A^T

  // Items of work, each a warp's; `grads.att` has a sum for each.
  GNNSPARSE_HD int64_t items() const {
    return work.item_count + ceil_div<int64_t>(a.rows, rows_per_warp);
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
// side, and the edges of a row over what is left.
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
    // At most 8 edges side by side, so that a step has at most 32.
    if (lanes.chunks_log + lanes.heads_log < 2) lanes.chunks_log = 2 - lanes.heads_log;
    return lanes;
  }
  GNNSPARSE_HD constexpr int heads() const { return 1 << heads_log; }
  GNNSPARSE_HD constexpr int edges_log() const { return 5 - chunks_log - heads_log; }
  GNNSPARSE_HD constexpr int edges() const { return 1 << edges_log(); }
  GNNSPARSE_HD constexpr int chunk(int lane) const { return lane & ((1 << chunks_log) - 1); }
  GNNSPARSE_HD constexpr int head(int lane) const {
    return lane >> chunks_log & ((1 << heads_log) - 1);
  }
  GNNSPARSE_HD constexpr int edge(int lane) const { return lane >> (chunks_log + heads_log); }
};

// Tiles of a row's edges as operands of Tensor Core products: in 16-bit storage, for dot products
// and additive scores without any other term, dropout or mask. A warp takes as many neighbouring
// heads at once as a product has columns, or fewer that have 128 features.
struct GraphTiles {
  static constexpr int kEdges = 16;  // of a tile
  static constexpr int kMostHeads = 8;
  static constexpr int kMostFeatures = 128;
  // What the pass over rows keeps of an edge for each block of heads, in the storage type: the
  // weights of kMostHeads heads, and then the gradients of their scores, of dot products unscaled.
  static constexpr int kNumbers = 2 * kMostHeads;

  // Heads of `width` features that a warp takes; 0: there is no kernel for such heads.
  static constexpr int64_t heads(int64_t width) {
    if (width != 8 && width != 16 && width != 32 && width != 64) return 0;
    return kMostFeatures / width < kMostHeads ? kMostFeatures / width : kMostHeads;
  }
  // Blocks of heads.
  static constexpr int64_t blocks(int64_t heads_of_all, int64_t width) {
    return ceil_div(heads_of_all, heads(width));
  }
};

// Vectors of 16 bytes that a head may have: those of a warp's lanes.
inline constexpr int kGraphChunks = 32;

// Heads whose gradients of features behind a linear map a block of a GPU adds up, in 96 KiB of
// shared memory.
inline constexpr int64_t kMostMappedHeads = 96;

// Floats of a head's partial sums: four of its softmax, and features by whole vectors.
GNNSPARSE_HD constexpr int64_t graph_partial_floats(int64_t d, int64_t dv, int64_t de) {
  return 4 + 8 * (ceil_div<int64_t>(d, 8) + ceil_div<int64_t>(dv, 8) + ceil_div<int64_t>(de, 8));
}

}  // namespace gnnsparse
