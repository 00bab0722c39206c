// What the panel kernels are called with.
#pragma once

#include "gnnsparse/panel_source.h"

namespace gnnsparse {

// y[row_ids[i]] = row_scale[i] * (A x)[i]
struct PanelSpmm {
  BlockedView a;  // in lane order
  const PanelItem* items = nullptr;
  int64_t item_count = 0;
  const int32_t* row_ids = nullptr;  // null: i
  const float* row_scale = nullptr;  // null: 1
  DenseView x;                       // rows 16-byte aligned, whole multiples of 16 bytes
  MutableDenseView y;
  int64_t n = 0;
  int slices = 1;            // of 128 bytes a row of X, that a warp takes one after the other
  float* partial = nullptr;  // [cut items][panel][n rounded up to a tile]
};

// out[e] = dot(q[row_ids[i]], k[j]) for every nonzero e = (i, j), in row order.
struct PanelSddmm {
  BlockedView a;  // bits of panels of 16 rows in lane order
  const int64_t* indptr = nullptr;
  const PanelItem* items = nullptr;
  int64_t item_count = 0;
  const int32_t* row_offsets = nullptr;  // [items][16] nonzeros of the row before the item
  const int32_t* row_ids = nullptr;
  DenseView q;  // both as x above
  DenseView k;
  void* out = nullptr;
  DType out_dtype = DType::kFloat32;
  int64_t d = 0;
};

}  // namespace gnnsparse
