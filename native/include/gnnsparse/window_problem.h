// What the window kernels are called with.
#pragma once

#include "gnnsparse/window_source.h"
#include "gnnsparse/work_list.h"

namespace gnnsparse {

// y[row_ids[i]] = row_scale[i] * (A x)[i]
struct WindowSpmm {
  BlockedView a;
  StoredRows stored;          // with values: the format has bits alone
  WorkList<WindowItem> work;  // with row_offsets where there are values
  DenseView x;                // rows are 16-byte aligned, in whole multiples of 16 bytes
  MutableDenseView y;
  int64_t n = 0;
  float* partial = nullptr;  // [work.partials][window][partial_stride(n)]

  GNNSPARSE_HD RowValues row_values() const {
    return {stored.indptr, stored.values, work.row_offsets};
  }
};

// out[e] = dot(q[row_ids[i]], k[j]) for every nonzero e = (i, j), in row order.
struct WindowSddmm {
  BlockedView a;
  StoredRows stored;
  WorkList<WindowItem> work;  // with row_offsets
  DenseView q;                // rows are 16-byte aligned, in whole multiples of 16 bytes; k too
  DenseView k;
  void* out = nullptr;
  DType out_dtype = DType::kFloat32;
  int64_t d = 0;
};

}  // namespace gnnsparse
