// The heights of panels: one table, which the kernels, their checks and Python read. A new height
// is a row here and one in gnnsparse/plan/panel.py (notes/adding-a-kernel.md).
#pragma once

#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace gnnsparse {

struct PanelHeight {
  int rows;
  // Rows of a brick, 16 or 32: the bits of a panel lie brick after brick in lane order. Values are
  // stored of panels that are one brick.
  int brick_rows;
  // SpMM: blocks, each a warp with one panel, that registers have room for on a multiprocessor; of
  // the kernels without stored values. 0: SpMM has no such panels.
  int spmm_blocks;
  int spmm_blocks_fp32;  // where operands are split in two
};

inline constexpr PanelHeight kPanelHeights[] = {
    {16, 16, 24, 16},
    {32, 32, 16, 8},
    {64, 16, 0, 0},
};

// The row of a height; one of zeros where there is none.
constexpr PanelHeight panel_height(int rows) {
  for (const PanelHeight& height : kPanelHeights) {
    if (height.rows == rows) return height;
  }
  return {};
}

constexpr bool spmm_takes_panels(int rows) { return panel_height(rows).spmm_blocks > 0; }

// Calls run(rows), where rows is the height as a compile-time constant, for a height that SpMM
// takes.
template <class Run, size_t kIndex = 0>
void dispatch_spmm_height(int64_t rows, const Run& run) {
  if constexpr (kIndex < std::size(kPanelHeights)) {
    constexpr PanelHeight kHeight = kPanelHeights[kIndex];
    if constexpr (kHeight.spmm_blocks > 0) {
      if (rows == kHeight.rows) return run(std::integral_constant<int, kHeight.rows>{});
    }
    return dispatch_spmm_height<Run, kIndex + 1>(rows, run);
  }
  throw std::invalid_argument("format: SpMM has no panels of " + std::to_string(rows) + " rows");
}

}  // namespace gnnsparse
