// What every kernel of attention is told, on the CPU and on a GPU.
#pragma once

#include "gnnsparse/philox.h"
#include "gnnsparse/types.h"

namespace gnnsparse {

// Scores are by powers of two inside the kernels.
inline constexpr float kLog2E = 1.4426950408889634f;

// A dense array [batches, heads, rows, width] whose rows are contiguous; strides in elements.
struct HeadsView {
  const void* data = nullptr;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  DType dtype = DType::kFloat32;

  // The matrix of one head.
  GNNSPARSE_HD DenseView of(int64_t b, int64_t h) const {
    return {static_cast<const char*>(data) + (b * batch + h * head) * size_of(dtype), row, dtype};
  }
  GNNSPARSE_HD MutableDenseView mutable_of(int64_t b, int64_t h) const {
    const DenseView view = of(b, h);
    return {const_cast<void*>(view.data), view.stride, view.dtype};
  }
};

// Edge values [batches, heads, nnz] in row order, contiguous along the edges; a stride of 0 shares
// them.
struct EdgeValuesView {
  const void* data = nullptr;
  int64_t batch = 0;
  int64_t head = 0;
  DType dtype = DType::kFloat32;

  GNNSPARSE_HD int64_t offset(int64_t b, int64_t h) const { return b * batch + h * head; }
};

// What the backward passes make the weights of a row of again: a score's weight is
// exp(score - shift) * scale, as in the forward pass. The log of the sum of exponentials would be
// one number, but its rounding is an error of every weight, 3e-5 where scores are about 900. Rows
// without an edge that counts have {0, 0}. On a GPU scores and shift are by powers of two.
struct SoftmaxStats {
  float shift;  // at most a little below the row's largest score
  float scale;  // one over the sum of exp(score - shift)
};

// out = softmax(scale * q k^T + bias, at the nonzeros of a) v, in every head of every batch.
struct AttentionProblem {
  HeadsView q;          // [.., L, d]
  HeadsView k;          // [.., S, d]
  HeadsView v;          // [.., S, dv]
  EdgeValuesView bias;  // null: none
  int64_t batches = 0;
  int64_t heads = 0;
  int64_t d = 0;
  int64_t dv = 0;
  float scale = 1.0f;
  bool is_causal = false;         // edges with column > row do not count
  const int64_t* seed = nullptr;  // where the kernel runs; null: no dropout
  uint32_t threshold = 0;         // dropout_threshold(p)
  float kept_scale = 1.0f;        // 1 / (1 - p)
  Precision precision = Precision::kFp32;

  // Whether an edge's score or weight takes more than a dot product.
  bool has_extras() const { return bias.data != nullptr || seed != nullptr || is_causal; }
};

}  // namespace gnnsparse
