// Numbers that Python plans and allocates by. The native code owns them.
#include "checks.h"
#include "gnnsparse/byte_tile.h"
#include "gnnsparse/cpu_kernels.h"
#include "gnnsparse/cuda_api.h"
#include "gnnsparse/packed_entries.h"
#include "gnnsparse/panel_heights.h"

namespace gnnsparse::bindings {
void bind_constants(py::module_& m) {
  // Bytes of what a lane loads at a time: rows of dense operands are padded to it.
  m.attr("VECTOR_BYTES") = kChunkBytes;
  // Column slots that are multiplied together, of windows and of panels.
  m.attr("WINDOW_K_TILE") = kWindowKTile;
  m.attr("PANEL_K_TILE") = kPanelKTile;
  // Bytes of the part of a row of X that a warp of the panel kernels takes.
  m.attr("ROW_SLICE_BYTES") = kRowSliceBytes;
  // Rows of partial sums are rounded up to this many columns.
  m.attr("PARTIAL_COLUMNS") = cuda::kPartialColumns;
  // Columns of X and nonzeros at most where a warp of the csr kernel takes nonzeros side by side.
  m.attr("NARROW_WIDTH") = kNarrowWidth;
  m.attr("MOST_NARROW_NNZ") = kMostNarrowNnz;
  m.attr("SHORT_UNIT_ROW") = kShortUnitRow;
  // Rows of panels for SDDMM and attention, and of those that four warps of attention share.
  m.attr("SCORE_PANEL_ROWS") = kQueryRows;
  m.attr("TALL_PANEL_ROWS") = kTallPanelRows;
  // Floats that attention keeps of a row: of one that was cut, and for the backward pass.
  m.attr("PARTIAL_ROW_STATS") = kPartialRowStats;
  m.attr("ROW_STATS_FLOATS") = kRowStatsFloats;
  // Of the fused backward pass: bytes of a column slot's weights, slots of a step and words of
  // their columns, steps of a stage, and the shared memory that the sums of dK and dV take for all
  // and for a column.
  m.attr("DKV_SLOT_BYTES") = static_cast<int>(DkvWeights::kSlotBytes);
  m.attr("DKV_STEP_SLOTS") = static_cast<int>(DkvWeights::kStepSlots);
  m.attr("DKV_PAIR_WORDS") = static_cast<int>(DkvWeights::kPairWords);
  m.attr("DKV_STAGE_STEPS") = static_cast<int>(DkvWeights::kStageSteps);
  m.attr("DKV_SHARED_BYTES") =
      std::pair(DkvWeights::shared_bytes(0), int{DkvWeights::kColumnBytes});
  // Rows and columns of a tile whose dK and dV warpgroups sum, and after how many tiles one is in
  // the same place of shared memory.
  m.attr("DKV_TILE") =
      py::make_tuple(int{DkvTiles::kRows}, int{DkvTiles::kColumns}, int{DkvTiles::kStages});
  // Panels that store their nonzeros alone: bytes of a value and of an entry; how many a K tile's
  // entries are a multiple of; and the place of those that fill up and play no part.
  py::dict entry_layouts;
  for (const auto& [name, encoding] :
       {std::pair{"entries", Encoding::kEntries}, {"word_entries", Encoding::kWordEntries}}) {
    const EntryLayout layout{entry_value_bytes(encoding)};
    py::dict sizes;
    sizes["value_bytes"] = layout.value_bytes;
    sizes["bytes"] = layout.bytes();
    sizes["group"] = layout.group();
    sizes["no_place"] = layout.no_place();
    entry_layouts[name] = sizes;
  }
  m.attr("ENTRY_LAYOUTS") = entry_layouts;
  m.attr("EIGHT_BIT_PADDING") = kEightBitPadding;
  // The most features of a head that attention gathers in 8 bits.
  m.attr("EIGHT_BIT_HEAD_FEATURES") = kByteHeadFeatures;
  // Rows of A of each sum that the CPU's graph attention makes for the gradient of `att`.
  m.attr("ATT_GROUP_ROWS") = cpu::kAttGroupRows;
  // Words of a row of what cuda_gather_floor writes.
  m.attr("GATHER_FLOOR_WORDS") = cuda::kGatherFloorWords;

  // Panels in lane order: rows of a panel to rows of a brick; and, for those that SpMM takes, how
  // many blocks have room on a multiprocessor, and in fp32.
  py::dict bricks;
  py::dict blocks;
  py::list bytes[2];  // that an X of 8 bits is multiplied with; and for sums of integers
  for (const PanelHeight& height : kPanelHeights) {
    bricks[py::int_(height.rows)] = height.brick_rows;
    for (const bool integers : {false, true}) {
      if (takes_bytes(height.rows, integers)) bytes[integers].append(height.rows);
    }
    if (height.spmm_blocks > 0) {
      blocks[py::int_(height.rows)] = py::make_tuple(height.spmm_blocks, height.spmm_blocks_fp32);
    }
  }
  m.attr("PANEL_BRICK_ROWS") = bricks;
  m.attr("SPMM_PANEL_BLOCKS") = blocks;
  m.attr("EIGHT_BIT_ROWS") = py::tuple(bytes[false]);
  m.attr("INTEGER_SUM_ROWS") = py::tuple(bytes[true]);

  py::dict encodings;
  encodings["dense"] = static_cast<int>(Encoding::kDense);
  encodings["bitmap"] = static_cast<int>(Encoding::kBitmap);
  encodings["entries"] = static_cast<int>(Encoding::kEntries);
  encodings["word_entries"] = static_cast<int>(Encoding::kWordEntries);
  m.attr("ENCODING_CODES") = encodings;

  py::dict precisions;
  for (const PrecisionRow& row : kPrecisions) {
    py::dict traits;
    traits["code"] = static_cast<int>(row.precision);
    traits["storage"] = kDTypes[static_cast<int>(row.storage)].name;
    traits["operands_are_stored"] = row.operands_are_stored;
    precisions[row.name] = traits;
  }
  m.attr("PRECISIONS") = precisions;

  // The most features of a head that the fused attention kernels hold, of the precisions they take.
  py::dict features;
  for_each_precision([&](auto p) {
    if constexpr (StoredOperands::kTakes<p>) {
      features[kPrecisions[static_cast<int>(p())].name] = kAttentionFeatures<p>;
    }
  });
  m.attr("ATTENTION_FEATURES") = features;
}

}  // namespace gnnsparse::bindings
