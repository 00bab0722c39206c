// What the panel kernels and their host emulation are called with.
#pragma once

#include "gnnsparse/panel_source.h"
#include "gnnsparse/work_list.h"

namespace gnnsparse {

// y[row_ids[i]] = row_scale[i] * (A x)[i]
struct PanelSpmm {
  BlockedView a;  // in lane order
  StoredRows stored;
  WorkList<PanelItem> work;
  DenseView x;  // rows are 16-byte aligned, in whole multiples of 16 bytes
  MutableDenseView y;
  int64_t n = 0;
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

namespace cpu {

// The panel kernels, executed on the CPU one warp after another by the maps of panel_tile.h. For
// tests: slow. The items of a panel are neighbours in the list.
void emulate_panel(const PanelSpmm& problem, Precision precision);
void emulate_panel_sddmm(const PanelSddmm& problem, Precision precision);

}  // namespace cpu
}  // namespace gnnsparse
