// Handles of attention's arguments that its CPU and CUDA bindings share. They own their tensors.
#pragma once

#include "checks.h"
#include "gnnsparse/attention_problem.h"
#include "gnnsparse/quantize.h"
#include "handles.h"

namespace gnnsparse::bindings {

// [batches, heads, rows, width] with contiguous rows; without memory: not wanted.
struct HeadsHandle : Strided<4> {
  HeadsView view;
  py::object owner;

  // Checks the shape, and returns the view.
  const HeadsView& checked(int64_t batches, int64_t heads, int64_t rows, int64_t width, Place place,
                           const char* name) const;
  HeadsView checked_if_given(int64_t batches, int64_t heads, int64_t rows, int64_t width,
                             Place place, const char* name) const {
    return given ? checked(batches, heads, rows, width, place, name) : HeadsView();
  }
};

// Edge values [1 or batches, 1 or heads, nnz], or [nnz], contiguous along the edges.
struct EdgeValuesHandle : Memory {
  EdgeValuesView view;
  int64_t batches = 1;
  int64_t heads = 1;
  int64_t nnz = 0;
  py::object owner;

  const EdgeValuesView& checked(int64_t of_batches, int64_t of_heads, int64_t of_nnz, Place place,
                                const char* name) const;
};

// The arguments of attention, whose shapes fit one another: L queries and S keys.
struct AttentionHandle {
  AttentionProblem problem;
  int64_t queries = 0;
  int64_t keys = 0;
  HeadsHandle q, k, v;
  EdgeValuesHandle bias;
  Held seed;

  int64_t head_count() const { return problem.batches * problem.heads; }
  // Checks that a pattern of L rows and S columns goes with them.
  const AttentionProblem& checked(int64_t rows, int64_t cols, int64_t nnz, Place place) const;
  HeadsView of_queries(const HeadsHandle& x, int64_t width, Place place, const char* name) const {
    return x.checked_if_given(problem.batches, problem.heads, queries, width, place, name);
  }
  HeadsView of_keys(const HeadsHandle& x, int64_t width, Place place, const char* name) const {
    return x.checked_if_given(problem.batches, problem.heads, keys, width, place, name);
  }
};

// Attention whose K and V have 8 bits. `call` has neither of them.
struct QuantizedAttentionHandle {
  AttentionHandle call;
  Strided<4> k, v;  // uint8 [batches, heads, S, d] and [batches, heads, S, dv], rows contiguous
  Strided<3> value_scale;  // float32 [batches, heads, dv padded], contiguous along the features
  EightBit type = EightBit::kInt8;
  py::object owners;
};

// What a pass knows of the query rows beside q.
struct AttentionRowsHandle {
  HeadsHandle out;  // the result
  Held stats;       // float32 [batches, heads, L, 2]: SoftmaxStats
  Held row_stats;   // float32 [batches, heads, L, 4]; None in the forward pass
};

// The gradient of the result, and where the gradients of the arguments go. What is None is not
// wanted.
struct AttentionGradsHandle {
  HeadsHandle out;
  HeadsHandle dq;
  HeadsHandle dk;
  HeadsHandle dv;
  EdgeValuesHandle dbias;  // float32, added to

  const HeadsView& checked_out(const AttentionHandle& call, Place place) const;
  EdgeValuesView checked_dbias(const AttentionHandle& call, int64_t nnz, Place place) const;
};

// What dK and dV of the fused backward pass are summed from, and in which order: see DkvWeights.
struct DkvWeightsHandle {
  Held weights;
  int64_t heads;
  Held slot_of_entry;
  Held columns;
  Held panels;
  Held range_starts;
  int32_t range;
  Held tile_entries;
  Held tile_starts;
};

}  // namespace gnnsparse::bindings
