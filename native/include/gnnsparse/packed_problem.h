// What the kernels of packed formats are called with: HRPB (cuTeSpMM) and RS-Tile (RSH-SpMM).
#pragma once

#include "gnnsparse/packed_record.h"
#include "gnnsparse/window_policy.h"
#include "gnnsparse/window_problem.h"

namespace gnnsparse {

// Work items are panels of HRPB, 16 or 32 rows, and windows of RS-Tile. Of the policy the kernels
// read stage_a, stage_x (HRPB alone) and coarsening.
struct PackedSpmm : WindowSpmm {
  RecordsView records;      // HRPB's values
  int64_t value_bytes = 0;  // of RS-Tile's values, all blocks together
  ResidualView residual;    // RS-Tile's rows for CUDA cores
  // Whether blocks of the same launch compute the residual rows; else a second launch does.
  bool residual_with_windows = false;
  WindowPolicy policy;
};

}  // namespace gnnsparse
