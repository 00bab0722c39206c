// Handles of graph attention's arguments that its CPU and CUDA bindings share.
#pragma once

#include "attention_args.h"
#include "gnnsparse/graph_attention.h"

namespace gnnsparse::bindings {

// The arguments, whose shapes fit one another: L queries and S keys. What is shared by heads or
// batches has a stride of 0 there.
struct GraphAttentionHandle {
  GraphAttentionProblem problem;
  int64_t queries = 0;
  int64_t keys = 0;
  HeadsHandle q, k, v, att, bias, features, gate, mapped, mapped_q;
  Held seed;

  int64_t head_count() const { return problem.base.batches * problem.base.heads; }
  // Checks that a pattern of L rows and S columns goes with them.
  const GraphAttentionProblem& checked(int64_t rows, int64_t cols, int64_t nnz, Place place) const;
  // An array [batches, heads, rows, width]; without data if it was not given.
  HeadsView array(const HeadsHandle& x, int64_t rows, int64_t width, Place place,
                  const char* name) const {
    return x.checked_if_given(problem.base.batches, problem.base.heads, rows, width, place, name);
  }
  // The same, in float32.
  HeadsView numbers(const HeadsHandle& x, int64_t rows, int64_t width, Place place,
                    const char* name) const;
};

struct GraphAttentionResultHandle {
  HeadsHandle out, mapped, stats, sloped;

  GraphAttentionResult checked(const GraphAttentionHandle& call, Place place) const;
};

struct GraphAttentionGradsHandle {
  HeadsHandle out, mapped, weights, inner, edges, numbers, bias, q, mapped_q, features, gate, att,
      k, v;
  HeadsHandle of_mapped;

  // What the pass over the rows of A reads and writes; `att_groups`: sums that it makes of `att`.
  GraphAttentionGrads of_rows(const GraphAttentionHandle& call, int64_t nnz, int64_t att_groups,
                              Place place) const;
  // Raises without what one pass writes and the other reads.
  void require_edges(const GraphAttentionHandle& call, Place place) const;
  // What the pass for features behind a linear map reads and writes.
  GraphAttentionGrads for_mapped(const GraphAttentionHandle& call, int64_t nnz, Place place) const;
  // What the pass over the rows of the transpose does.
  GraphAttentionGrads of_columns(const GraphAttentionHandle& call, int64_t nnz, Place place) const;
};

// The rows of A, or of its transpose, and how the warps of a GPU share them out.
struct GraphRowsHandle {
  CsrHandle a;
  Held row_ids;
  Held entries;
  Held cuts;
  int64_t partials;
  int64_t side_by_side;
  int64_t rounds;
  Held partial;

  int64_t entry_count() const { return entries.given ? entries.count / 4 : a.view.rows; }
  int64_t warps() const { return ceil_div(entry_count(), side_by_side * rounds); }
};

}  // namespace gnnsparse::bindings
