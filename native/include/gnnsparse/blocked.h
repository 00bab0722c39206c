// The one blocked format. Rows are grouped into panels, the columns that are empty in a panel are
// dropped, and the rest is cut into blocks. gnnsparse/formats says which parameters give which
// published format.
#pragma once

#include <cstdint>

#include "gnnsparse/packed_record.h"
#include "gnnsparse/types.h"

namespace gnnsparse {

// What a block stores for its nonzeros.
enum class Encoding : int {
  kDense = 0,   // every value of every slot, zeros included
  kBitmap = 1,  // one bit an element; values, if any, packed elsewhere
  // Nonzeros alone, each with its place in its block (packed_entries.h), of values of 16 bits and
  // of words.
  kEntries = 2,
  kWordEntries = 3,
};

struct BlockedShape {
  int32_t window = 8;  // rows of one brick
  int32_t panel = 8;   // rows that share a column list: a multiple of window
  int32_t block = 16;  // columns of a block
  int32_t brick = 16;  // columns of a brick: divides block
  // Elements of a brick of 16 or 32 rows x 32 columns in the order of the lanes that use them,
  // for the panel kernels; else row-major.
  bool lane_order = false;
};

// Lane order (panel_tile.h): a lane has 8 columns of every eighth row.
GNNSPARSE_HD constexpr int64_t lane_of(int64_t row, int64_t position) {
  return 4 * (row % 8) + position % 32 / 8;
}

// A column slot is one stored column of a panel. NnzIndices of a panel lie at
// [panel_ptr[p], panel_ptr[p + 1]); a padded slot holds zeros and repeats the panel's last column,
// or in lane order is -1.
struct BlockedView {
  BlockedShape shape;
  Encoding encoding = Encoding::kBitmap;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t panels = 0;
  const int32_t* panel_rows = nullptr;  // first row of each panel; null: p * panel
  const int64_t* panel_ptr = nullptr;   // [panels + 1]
  const int32_t* columns = nullptr;     // [slots]
  const uint8_t* bitmap = nullptr;      // [bricks][window * brick / 8], row-major in a brick
  const int64_t* brick_ptr = nullptr;   // [slots / brick + 1]; null: every brick is stored
  const int32_t* brick_rows = nullptr;  // [bricks] the window of its panel a brick belongs to
  const int64_t* value_ptr = nullptr;   // [slots / block + 1] first packed value of a block
  const void* values = nullptr;  // dense or packed, in the storage type of the product; entries
  const int64_t* zero_ptr = nullptr;   // [rows + 1] Zero Index: the zeros that each row stores
  const int32_t* zero_cols = nullptr;  // their columns
  // A weight for each column slot instead of values for each nonzero; null: 1.
  const void* slot_scale = nullptr;

  GNNSPARSE_HD int64_t panel_row(int64_t p) const {
    return panel_rows != nullptr ? panel_rows[p] : p * shape.panel;
  }
};

// Where dense storage keeps element (row, position) of a panel whose first slot is `first` and
// which has `slots` slots. Blocks are row-major; the last one is as narrow as what is left, which
// is how ME-BCRS (FlashSparse, section 3.5) avoids padding.
GNNSPARSE_HD constexpr int64_t dense_offset(BlockedShape shape, int64_t first, int64_t slots,
                                            int64_t row, int64_t position) {
  if (shape.lane_order) {
    const int64_t k_tile = (first + position) / 32 * 32 * shape.window;
    return k_tile + (row / 8 * 32 + lane_of(row, position)) * 8 + position % 8;
  }
  const int64_t begin = position / shape.block * shape.block;
  const int64_t width = slots - begin < shape.block ? slots - begin : shape.block;
  return (first + begin) * shape.window + row * width + (position - begin);
}

// The bit of element (row, position) of a plain bitmap: in lane order the bricks of a K tile's
// windows follow one another, otherwise bricks are as high as the panel.
GNNSPARSE_HD constexpr int64_t bit_offset(BlockedShape shape, int64_t first, int64_t row,
                                          int64_t position) {
  const int64_t height = shape.window;
  const int64_t k_tile = (first + position) / shape.brick;
  if (shape.lane_order) {
    const int64_t brick = k_tile * (shape.panel / height) + row / height;
    const int64_t in_lane = row % height / 8 * 4 + position % 8 / 2 + position % 2 * (height / 2);
    return (brick * 32 + lane_of(row, position)) * height + in_lane;
  }
  const int64_t brick = k_tile * (height * shape.brick);
  return brick + row * shape.brick + position % shape.brick;
}

namespace cpu {

// Sizes of each panel, for the caller to allocate by. Null outputs are skipped.
struct PanelCounts {
  int64_t* columns = nullptr;  // distinct columns
  int64_t* bricks = nullptr;   // bricks with a nonzero, if the columns are packed in order
  int64_t* values = nullptr;   // nonzeros
};

void count_panels(const CsrView& a, BlockedShape shape, const int32_t* panel_rows, int64_t panels,
                  const PanelCounts& counts, int threads);

// Distinct columns of groups of `height` consecutive rows of the order (null: as given).
void count_columns(const CsrView& a, const int32_t* order, int64_t height, int64_t* counts,
                   int threads);

struct BlockedOutput {
  int32_t* columns = nullptr;    // [slots]
  uint8_t* bitmap = nullptr;     // zeroed by the caller; of entries their bits by banks
  int64_t* brick_ptr = nullptr;  // written where only bricks with a nonzero are stored
  int32_t* brick_rows = nullptr;
  int64_t* value_ptr = nullptr;    // written where values are packed in block order
  int64_t* value_index = nullptr;  // [nnz] where the value of each nonzero goes; -1: nowhere
};

// panel_ptr, panel_bricks and panel_values are running sums of count_panels' results (panel_ptr of
// the padded counts); the latter two may be null where the output does not need them.
void fill_blocked(const CsrView& a, BlockedShape shape, Encoding encoding,
                  const int32_t* panel_rows, int64_t panels, const int64_t* panel_ptr,
                  const int64_t* panel_bricks, const int64_t* panel_values,
                  const BlockedOutput& out, int threads);

// Entries (packed_entries.h), from the bits by banks that fill_blocked wrote: how many each of
// `K tiles` blocks has, and the entries themselves at `format.value_ptr`, with `values` [nnz] in
// the width of the encoding. Entries of the padding are there already.
void count_entries(const uint32_t* banks, int64_t k_tiles, int64_t* counts);
void fill_entries(const CsrView& a, const BlockedView& format, const uint32_t* banks,
                  const void* values, void* entries, int threads);

// The first panel whose columns or bits are not those of its rows of `a`, or -1; with packed values
// also one where value_ptr does not count them. Offsets and brick rows are in range, and panels are
// whole blocks. Stored values are not looked at. Where the format has records they take the place
// of the bits, bricks and value offsets; size_ptr never decreases and ends with the packed blocks,
// and `value_bytes` are those of a stored value.
int64_t first_unlike(const CsrView& a, const BlockedView& format, const RecordsView& records,
                     int64_t value_bytes, int threads);

// RSH-SpMM, algorithm 1: rows with at most `short_nnz` nonzeros that add fewer than
// `short_columns` columns to their window go to `residual`, the others start a window of `window`
// rows. Both outputs have room for every row. Returns {windows, residual rows}.
struct RowSplit {
  int64_t windows = 0;
  int64_t residual = 0;
};
RowSplit split_short_rows(const CsrView& a, int64_t window, int64_t short_nnz,
                          int64_t short_columns, int32_t* window_rows, int32_t* residual);

}  // namespace cpu
}  // namespace gnnsparse
