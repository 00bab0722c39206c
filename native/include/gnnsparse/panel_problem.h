// What the panel kernels are called with.
#pragma once

#include "gnnsparse/panel_source.h"
#include "gnnsparse/work_list.h"

namespace gnnsparse {

// y[row_ids[i]] = row_scale[i] * (A x)[i], or added to what y has
struct PanelSpmm {
  BlockedView a;  // in lane order
  StoredRows stored;
  WorkList<PanelItem> work;
  // Rows are 16-byte aligned, in whole multiples of 16 bytes; or 8 bytes, of panels of bits, where
  // X was not rounded before.
  DenseView x;
  MutableDenseView y;
  int64_t n = 0;
  // Whether the product, rounded to the type of y, is added to what y has. Of panels of bits, whose
  // X is in rows of whole 16 bytes.
  bool add = false;
  int slices = 1;  // slices of 128 bytes of the rows of X, which a warp takes one after the other
  float* partial = nullptr;  // [work.partials][panel][partial_stride(n)]
};

// out[e] = dot(q[row_ids[i]], k[j]) for every nonzero e = (i, j), in row order.
struct PanelSddmm {
  BlockedView a;  // bits of panels of 16 rows in lane order
  StoredRows stored;
  WorkList<PanelItem> work;  // with row_offsets
  DenseView q;               // rows are 16-byte aligned, in whole multiples of 16 bytes; k too
  DenseView k;
  void* out = nullptr;
  DType out_dtype = DType::kFloat32;
  int64_t d = 0;
};

}  // namespace gnnsparse
