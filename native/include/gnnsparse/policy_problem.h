// What the kernels of the window kernel's policies are called with.
#pragma once

#include "gnnsparse/window_policy.h"
#include "gnnsparse/window_problem.h"

namespace gnnsparse {

// A is dense, in blocks of 2^log_block columns.
struct PolicySpmm : WindowSpmm {
  WindowPolicy policy;
  int log_block = 0;
  // The columns of the stored zeros of each row (Tiled-CSR, section III-A), which are not read.
  const int64_t* zero_ptr = nullptr;  // [rows + 1]; null: every value is read
  const int32_t* zero_cols = nullptr;
};

// The scores of the nonzeros, in the dense layout of the format, in row order, or both. An element
// of A is a nonzero unless its stored value is +0.0.
struct BlockSddmm : WindowSddmm {
  void* blocks = nullptr;  // [slots][window] in out_dtype, +0.0 where there is no nonzero
};

}  // namespace gnnsparse
