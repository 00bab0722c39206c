// What the panel kernels and their host emulation are called with.
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
  int slices = 1;  // of 128 bytes a row of X, that a warp takes one after the other
  float* partial = nullptr;  // [cut items][panel][n rounded up to a tile]
};

namespace cpu {

// The panel kernel, executed on the CPU one warp after another by the maps of panel_tile.h. For
// tests: slow. The items of a panel are neighbours in the list.
void emulate_panel(const PanelSpmm& problem, Precision precision);

}  // namespace cpu
}  // namespace gnnsparse
