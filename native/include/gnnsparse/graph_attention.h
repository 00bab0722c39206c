// Attention over the edges of a graph with the scores and edge terms of graph layers, on the CPU and
// on a GPU. Every head of a row is read at once. Arrays are views [batches, heads, rows, width] with
// any strides but a contiguous last dimension; rows of edge arrays are nonzeros of A in its order.
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
  HeadsView bias;           // [.., nnz, 1] float32, added to the finished score; -inf: no edge
  HeadsView features;       // [.., nnz, d]; kAdditive: [.., nnz, 1] float32
  bool to_keys = false;     // `features` are added to keys
  bool to_values = false;   // `features` are added to values
  HeadsView gate;           // [.., nnz, d], multiplies keys
  HeadsView mapped;         // [.., nnz, de], features behind a linear map, which q has passed through
  HeadsView mapped_q;       // [.., L, de]; without data: `mapped` takes no part in the scores
  int64_t de = 0;
};

struct GraphAttentionProblem {
  // q, k, v, sizes, scale, is_causal, dropout and precision; its bias is not used. kAdditive: q and k
  // are [.., 1] in float32, and d is 1.
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
  HeadsView out;     // [.., L, dv] any type: sums of weight * value
  HeadsView mapped;  // [.., L, de] any type: sums of weight * terms.mapped; without data: not wanted
  HeadsView lse;     // [.., L, 1] float32: log of the sum of exp(score); -inf for rows without an edge
                     // that counts; 0 with normalize = false
};

// The backward pass over rows of A writes what each edge adds, which the pass over columns reads.
struct GraphAttentionGrads {
  HeadsView out;           // gradient of result.out [.., L, dv], in the storage type
  HeadsView mapped;        // gradient of result.mapped [.., L, de], the same; without data: none
  HeadsView weights;       // gradient of the weights [.., nnz, 1] float32; without data: none
  HeadsView inner;         // [.., L, 1] float32: for each row sum of weight * its gradient over edges
  HeadsView edges;         // written: [.., nnz, 2] float32: the weight after dropout, and the gradient
                           // of the score's dot product; of kAdditive, of q + k + features
  HeadsView bias;          // written: [.., nnz, 1] float32, of the finished score
  HeadsView q;             // written: [.., L, d]; kAdditive: float32
  HeadsView mapped_q;      // written: [.., L, de]
  HeadsView features;      // written: [.., nnz, d] in every head, also where heads share features
  HeadsView gate;          // written: [.., nnz, d], the same
  HeadsView att;           // written: [.., groups, d] float32, whose sum over the groups is the gradient
  HeadsView k;             // columns: [.., S, d]; kAdditive: float32
  HeadsView v;             // columns: [.., S, dv]
};

}  // namespace gnnsparse
