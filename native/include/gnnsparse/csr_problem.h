// What the CUDA kernels that work row by row on a CSR matrix are called with.
#pragma once

#include "gnnsparse/types.h"
#include "gnnsparse/work_list.h"

namespace gnnsparse {

// A part of a long row: nonzeros [first, first + count), counted from the start of the row.
struct RowItem {
  int32_t row;
  int32_t first;
  int32_t count;
  int32_t partial;  // index of its partial sum
};

// How the lanes of a warp share out rows and features.
struct CsrLanes {
  int lanes = 32;         // lanes along the features of a row: a power of two, at most 32
  int row_lanes = 32;     // lanes of one row: a multiple of `lanes`, at most 32
  int64_t row_limit = 0;  // rows with more nonzeros are in the work list
  // SpMM: [group_count + 1] first rows of groups of neighbouring rows, each of which `lanes` lanes
  // take together; null: every row is taken by itself.
  const int32_t* groups = nullptr;
  int64_t group_count = 0;
  // SpMM of at most kNarrowWidth features: a warp takes a group, nonzeros side by side, in place of
  // `lanes` and `row_lanes`.
  bool narrow = false;
};

// Bytes that a lane of SpMM reads of X at once, at whose multiples its rows begin. The kernel for
// groups takes rows that are no whole vectors as they are, unless they would leave most of a warp
// idle.
inline constexpr int kVectorBytes = 16;
inline constexpr int64_t kShortUnitRow = 64;
inline int row_unit(const CsrLanes& lanes, int64_t row_bytes) {
  const bool whole = row_bytes % kVectorBytes == 0 || row_bytes <= kShortUnitRow;
  if (lanes.groups == nullptr || whole) return kVectorBytes;
  return row_bytes % 8 == 0 ? 8 : row_bytes % 4 == 0 ? 4 : 2;
}

inline constexpr int kNarrowWidth = 32;
inline constexpr int64_t kMostNarrowNnz = int64_t{1} << 30;  // they are numbered with 32 bits

// y[row_ids[i]] = row_scale[i] * sum over nonzeros e of row i: values[e] * x[indices[e]]
struct CsrSpmm {
  CsrView a;
  StoredRows stored;  // `values` is 16-byte aligned; `indptr` is not used: `a` has it
  WorkList<RowItem> work;
  CsrLanes lanes;
  DenseView x;  // rows are aligned to their unit, or with `lanes.narrow` to elements
  MutableDenseView y;
  int64_t n = 0;
  float* partial = nullptr;  // [work.partials][partial_stride(n)]
};

// out[e] = dot(q[row_ids[i]], k[indices[e]]) for every nonzero e of row i
struct CsrSddmm {
  CsrView a;
  StoredRows stored;  // of these only `row_ids` is used
  WorkList<RowItem> work;
  CsrLanes lanes;
  DenseView q;
  DenseView k;
  void* out = nullptr;  // [nnz]
  DType out_dtype = DType::kFloat32;
  int64_t d = 0;
};

// Softmax over the nonzeros of each row, or its gradient; of each head by itself.
struct Softmax {
  CsrView a;
  CutList work;  // the rows with more than row_limit nonzeros, each of which a block takes
  int64_t row_limit = 0;
  const float* scores = nullptr;  // backward: the softmax
  const float* grad = nullptr;    // backward only: gradient of the softmax
  float* out = nullptr;
  int64_t heads = 1;  // scores, grad and out are [nnz][heads]
};

}  // namespace gnnsparse
