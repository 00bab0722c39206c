// What the window kernels are called with.
#pragma once

#include "gnnsparse/window_source.h"

namespace gnnsparse {

// y[row_ids[i]] = row_scale[i] * (A x)[i]
struct WindowSpmm {
  BlockedView a;
  RowValues edges;  // used where edges.values is set
  const WindowSegment* segments = nullptr;
  int64_t segment_count = 0;
  const int32_t* row_ids = nullptr;  // null: i
  const float* row_scale = nullptr;  // null: 1
  DenseView x;                       // rows 16-byte aligned, whole multiples of 16 bytes
  MutableDenseView y;
  int64_t n = 0;
  float* partial = nullptr;  // [cut segments][window][n rounded up to a tile]
};

// out[e] = dot(q[row_ids[i]], k[j]) for every nonzero e = (i, j), in row order.
struct WindowSddmm {
  BlockedView a;
  const int64_t* indptr = nullptr;
  const int32_t* row_offsets = nullptr;  // as in RowValues
  const WindowSegment* segments = nullptr;
  int64_t segment_count = 0;
  const int32_t* row_ids = nullptr;
  DenseView q;  // both as x above
  DenseView k;
  void* out = nullptr;
  DType out_dtype = DType::kFloat32;
  int64_t d = 0;
};

}  // namespace gnnsparse
