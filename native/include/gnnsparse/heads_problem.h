// What the CUDA kernels are called with that take a row's features in heads: a nonzero has a value
// for each head, or a result for each.
#pragma once

#include "gnnsparse/csr_problem.h"
#include "gnnsparse/types.h"

namespace gnnsparse {

// Rows of `heads` times `width` features. Kernels read a dense operand in vectors of 16 bytes, so
// that each head takes `padded` elements there; results lie without gaps. One head may stand for
// all the features of a row.
struct HeadShape {
  int heads = 1;
  int width = 0;
  int padded = 0;  // a multiple of the elements of a vector, at least `width`

  GNNSPARSE_HD int features() const { return heads * width; }
};

// The nonzero that gave each element of a result, by its column: int32 [rows][features], -1 where
// the row has none.
struct Winners {
  const int32_t* data = nullptr;

  GNNSPARSE_HD explicit operator bool() const { return data != nullptr; }
};

// y[row_ids[i]] = row_scale[i] * sum over nonzeros e of row i: values[e, head] * x[indices[e]],
// of each feature. With winners, a nonzero takes part in the features that it has won: `a` is the
// transpose then, and the winner of feature f in row indices[e] has to be row_ids[i].
struct HeadsSpmm {
  CsrView a;
  StoredRows stored;  // `values` [nnz][shape.heads], null: 1 each
  WorkList<RowItem> work;
  CsrLanes lanes;
  HeadShape shape;
  DenseView x;  // [cols][heads * padded], rows are 16-byte aligned
  MutableDenseView y;
  Winners winners;           // [cols][features]
  float* partial = nullptr;  // [work.partials][partial_stride(features)]
};

// y[row_ids[i]] = the largest of sign * values[e, head] * x[indices[e]], of each feature, over the
// nonzeros e of row i, times sign; 0 where there are none. NaN is larger than every number. Among
// equals the first is taken.
struct ExtremeSpmm {
  CsrView a;
  StoredRows stored;  // `values` [nnz][shape.heads], null: 1 each
  WorkList<RowItem> work;
  CsrLanes lanes;
  HeadShape shape;
  float sign = 1.0f;
  DenseView x;  // [cols][heads * padded], rows are 16-byte aligned
  MutableDenseView y;
  int32_t* winners = nullptr;  // [rows][features], as Winners
  float* partial = nullptr;    // [work.partials][partial_stride(features)]
  int32_t* partial_winners = nullptr;
};

// out[e, head] = dot(q[row_ids[i]], k[indices[e]]) over the features of the head, for every nonzero
// e of row i. With winners, over the features of row row_ids[i] that nonzero e has won.
struct HeadsSddmm {
  CsrView a;
  StoredRows stored;  // of these only `row_ids` is used
  WorkList<RowItem> work;
  CsrLanes lanes;  // `lanes` and `row_lanes` are those of a head and of a nonzero's heads
  HeadShape shape;
  DenseView q;          // [rows][heads * padded]
  DenseView k;          // [cols][heads * padded]
  Winners winners;      // [rows][features]
  void* out = nullptr;  // [nnz][heads]
  DType out_dtype = DType::kFloat32;
};

}  // namespace gnnsparse
