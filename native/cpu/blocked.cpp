#include "gnnsparse/blocked.h"

#include <algorithm>
#include <vector>

#include "gnnsparse/packed_entries.h"
#include "parallel.h"

namespace gnnsparse::cpu {
namespace {

// Collects the distinct columns of a set of rows, and says where each one stands among them.
class ColumnSet {
 public:
  explicit ColumnSet(int64_t cols) : stamp_(cols, -1), position_(cols) {}

  void start(int64_t id) {
    id_ = id;
    columns_.clear();
  }
  void add(const int32_t* begin, const int32_t* end) {
    for (const int32_t* c = begin; c < end; ++c) {
      if (stamp_[*c] == id_) continue;
      stamp_[*c] = id_;
      columns_.push_back(*c);
    }
  }
  void sort() {
    std::sort(columns_.begin(), columns_.end());
    for (size_t i = 0; i < columns_.size(); ++i) position_[columns_[i]] = static_cast<int32_t>(i);
  }
  const std::vector<int32_t>& columns() const { return columns_; }
  int32_t position(int32_t column) const { return position_[column]; }

 private:
  int64_t id_ = -1;
  std::vector<int64_t> stamp_;
  std::vector<int32_t> position_;
  std::vector<int32_t> columns_;
};

// Few large chunks: each has scratch of the matrix's width.
int64_t scratch_chunk(int64_t count, int threads) {
  return std::max<int64_t>(1, ceil_div(count, int64_t{8} * threads));
}

struct RowRange {
  int64_t begin;
  int64_t end;
};

RowRange rows_of_panel(const CsrView& a, BlockedShape shape, const int32_t* panel_rows, int64_t p) {
  const int64_t begin = panel_rows != nullptr ? panel_rows[p] : p * shape.panel;
  return {begin, std::min(a.rows, begin + shape.panel)};
}

void collect(const CsrView& a, RowRange rows, int64_t id, ColumnSet& set) {
  set.start(id);
  set.add(a.indices + a.indptr[rows.begin], a.indices + a.indptr[rows.end]);
}

// Calls body(row in panel, slot, nonzero) for every nonzero of the panel.
template <class Body>
void for_each_nonzero(const CsrView& a, RowRange rows, const ColumnSet& set, Body body) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t e = a.indptr[r]; e < a.indptr[r + 1]; ++e) {
      body(r - rows.begin, set.position(a.indices[e]), e);
    }
  }
}

// The bricks of one panel as a grid of 64-bit maps, in storage order: brick columns outside,
// windows inside. Only shapes whose bricks have at most 64 elements are packed in block order.
class BrickGrid {
 public:
  BrickGrid(BlockedShape shape, int64_t slots)
      : shape_(shape),
        windows_(shape.panel / shape.window),
        maps_(slots / shape.brick * windows_) {}

  int64_t cell(int64_t row, int64_t position) const {
    return position / shape_.brick * windows_ + row / shape_.window;
  }
  int bit(int64_t row, int64_t position) const {
    return static_cast<int>(row % shape_.window * shape_.brick + position % shape_.brick);
  }
  void set(int64_t row, int64_t position) {
    maps_[cell(row, position)] |= uint64_t{1} << bit(row, position);
  }
  // Ordinal of an element among the nonzeros of its brick.
  int64_t rank(int64_t row, int64_t position) const {
    const uint64_t below = (uint64_t{1} << bit(row, position)) - 1;
    return __builtin_popcountll(maps_[cell(row, position)] & below);
  }
  uint64_t map(int64_t cell) const { return maps_[cell]; }
  int64_t windows() const { return windows_; }
  int64_t cells() const { return static_cast<int64_t>(maps_.size()); }

 private:
  BlockedShape shape_;
  int64_t windows_;
  std::vector<uint64_t> maps_;
};

void write_columns(const std::vector<int32_t>& columns, BlockedShape shape, int64_t slots,
                   int32_t* out) {
  std::copy(columns.begin(), columns.end(), out);
  const int32_t last = columns.empty() ? 0 : columns.back();
  std::fill(out + columns.size(), out + slots, shape.lane_order ? -1 : last);
}

// What fill_blocked hands to the writers of one panel.
struct Panel {
  RowRange rows;
  int64_t first;  // slot
  int64_t slots;
  int64_t bricks;  // first stored brick
  int64_t values;  // first packed value
};

void write_dense(const CsrView& a, BlockedShape shape, const Panel& panel, const ColumnSet& set,
                 const BlockedOutput& out) {
  for_each_nonzero(a, panel.rows, set, [&](int64_t row, int64_t position, int64_t e) {
    out.value_index[e] = dense_offset(shape, panel.first, panel.slots, row, position);
  });
}

// Every brick stored, values elsewhere in row order.
void write_plain_bitmap(const CsrView& a, BlockedShape shape, const Panel& panel,
                        const ColumnSet& set, const BlockedOutput& out) {
  for_each_nonzero(a, panel.rows, set, [&](int64_t row, int64_t position, int64_t) {
    const int64_t bit = bit_offset(shape, panel.first, row, position);
    out.bitmap[bit / 8] |= static_cast<uint8_t>(1u << (bit % 8));
  });
}

void write_bank_bits(const CsrView& a, EntryLayout entries, const Panel& panel,
                     const ColumnSet& set, const BlockedOutput& out) {
  for_each_nonzero(a, panel.rows, set, [&](int64_t row, int64_t position, int64_t) {
    const int64_t bit = entries.bank_bit(panel.first, row, position);
    out.bitmap[bit / 8] |= static_cast<uint8_t>(1u << (bit % 8));
  });
}

// Bitmaps of at most 64 bits with values packed brick after brick.
void write_packed_bitmap(const CsrView& a, BlockedShape shape, const Panel& panel,
                         const ColumnSet& set, const BlockedOutput& out) {
  BrickGrid grid(shape, panel.slots);
  for_each_nonzero(a, panel.rows, set,
                   [&](int64_t row, int64_t position, int64_t) { grid.set(row, position); });
  auto* bitmap = reinterpret_cast<uint64_t*>(out.bitmap);
  const int64_t cells_of_block = int64_t{shape.block} / shape.brick * grid.windows();
  std::vector<int64_t> first_value(grid.cells());
  int64_t brick = panel.bricks;
  int64_t value = panel.values;
  for (int64_t cell = 0; cell < grid.cells(); ++cell) {
    if (cell % cells_of_block == 0) {
      out.value_ptr[panel.first / shape.block + cell / cells_of_block] = value;
    }
    if (out.brick_ptr != nullptr && cell % grid.windows() == 0) {
      out.brick_ptr[panel.first / shape.brick + cell / grid.windows()] = brick;
    }
    first_value[cell] = value;
    value += __builtin_popcountll(grid.map(cell));
    if (out.brick_ptr == nullptr) {
      bitmap[panel.first / shape.brick * grid.windows() + cell] = grid.map(cell);
    } else if (grid.map(cell) != 0) {
      out.brick_rows[brick] = static_cast<int32_t>(cell % grid.windows());
      bitmap[brick++] = grid.map(cell);
    }
  }
  for_each_nonzero(a, panel.rows, set, [&](int64_t row, int64_t position, int64_t e) {
    out.value_index[e] = first_value[grid.cell(row, position)] + grid.rank(row, position);
  });
}

int64_t count_bricks(const CsrView& a, BlockedShape shape, RowRange rows, const ColumnSet& set) {
  BrickGrid grid(shape, ceil_div<int64_t>(set.columns().size(), shape.brick) * shape.brick);
  for_each_nonzero(a, rows, set,
                   [&](int64_t row, int64_t position, int64_t) { grid.set(row, position); });
  int64_t active = 0;
  for (int64_t cell = 0; cell < grid.cells(); ++cell) active += grid.map(cell) != 0;
  return active;
}

}  // namespace

void count_panels(const CsrView& a, BlockedShape shape, const int32_t* panel_rows, int64_t panels,
                  const PanelCounts& counts, int threads) {
  parallel_chunks(panels, scratch_chunk(panels, threads), threads, [&](int64_t begin, int64_t end) {
    ColumnSet set(a.cols);
    for (int64_t p = begin; p < end; ++p) {
      const RowRange rows = rows_of_panel(a, shape, panel_rows, p);
      collect(a, rows, p, set);
      if (counts.columns != nullptr) {
        counts.columns[p] = static_cast<int64_t>(set.columns().size());
      }
      if (counts.values != nullptr) counts.values[p] = a.indptr[rows.end] - a.indptr[rows.begin];
      if (counts.bricks != nullptr) {
        set.sort();
        counts.bricks[p] = count_bricks(a, shape, rows, set);
      }
    }
  });
}

void count_columns(const CsrView& a, const int32_t* order, int64_t height, int64_t* counts,
                   int threads) {
  const int64_t groups = ceil_div(a.rows, height);
  parallel_chunks(groups, scratch_chunk(groups, threads), threads, [&](int64_t begin, int64_t end) {
    ColumnSet set(a.cols);
    for (int64_t g = begin; g < end; ++g) {
      set.start(g);
      for (int64_t i = g * height; i < std::min(a.rows, (g + 1) * height); ++i) {
        const int64_t r = order != nullptr ? order[i] : i;
        set.add(a.indices + a.indptr[r], a.indices + a.indptr[r + 1]);
      }
      counts[g] = static_cast<int64_t>(set.columns().size());
    }
  });
}

void fill_blocked(const CsrView& a, BlockedShape shape, Encoding encoding,
                  const int32_t* panel_rows, int64_t panels, const int64_t* panel_ptr,
                  const int64_t* panel_bricks, const int64_t* panel_values,
                  const BlockedOutput& out, int threads) {
  const EntryLayout entries{entry_value_bytes(encoding)};
  if (out.value_index != nullptr) std::fill(out.value_index, out.value_index + a.nnz, int64_t{-1});
  parallel_chunks(panels, scratch_chunk(panels, threads), threads, [&](int64_t begin, int64_t end) {
    ColumnSet set(a.cols);
    for (int64_t p = begin; p < end; ++p) {
      const Panel panel{rows_of_panel(a, shape, panel_rows, p), panel_ptr[p],
                        panel_ptr[p + 1] - panel_ptr[p],
                        panel_bricks != nullptr ? panel_bricks[p] : 0,
                        panel_values != nullptr ? panel_values[p] : 0};
      collect(a, panel.rows, p, set);
      set.sort();
      write_columns(set.columns(), shape, panel.slots, out.columns + panel.first);
      if (encoding == Encoding::kDense) {
        write_dense(a, shape, panel, set, out);
      } else if (entries.value_bytes > 0) {
        write_bank_bits(a, entries, panel, set, out);
      } else if (out.value_ptr != nullptr) {
        write_packed_bitmap(a, shape, panel, set, out);
      } else {
        write_plain_bitmap(a, shape, panel, set, out);
      }
    }
  });
  if (out.value_ptr != nullptr)
    out.value_ptr[panel_ptr[panels] / shape.block] = panel_values[panels];
  if (out.brick_ptr != nullptr)
    out.brick_ptr[panel_ptr[panels] / shape.brick] = panel_bricks[panels];
}

void count_entries(const uint32_t* banks, int64_t k_tiles, int64_t* counts) {
  for (int64_t k_tile = 0; k_tile < k_tiles; ++k_tile) {
    counts[k_tile] = 0;
    for (int b = 0; b < kBanks; ++b) counts[k_tile] += popcount(banks[k_tile * kBanks + b]);
  }
}

namespace {

template <class Value>
void fill_entries_of(const CsrView& a, const BlockedView& format, const uint32_t* banks,
                     const Value* values, void* entries, int threads) {
  constexpr EntryLayout kLayout{sizeof(Value)};
  const int64_t chunk = scratch_chunk(format.panels, threads);
  parallel_chunks(format.panels, chunk, threads, [&](int64_t begin, int64_t end) {
    ColumnSet set(a.cols);
    for (int64_t p = begin; p < end; ++p) {
      const RowRange rows = rows_of_panel(a, format.shape, format.panel_rows, p);
      collect(a, rows, p, set);
      set.sort();
      for_each_nonzero(a, rows, set, [&](int64_t row, int64_t position, int64_t e) {
        kLayout.write(format, banks, format.panel_ptr[p], row, position, values[e], entries);
      });
    }
  });
}

}  // namespace

void fill_entries(const CsrView& a, const BlockedView& format, const uint32_t* banks,
                  const void* values, void* entries, int threads) {
  if (format.encoding == Encoding::kWordEntries) {
    fill_entries_of(a, format, banks, static_cast<const uint32_t*>(values), entries, threads);
  } else {
    fill_entries_of(a, format, banks, static_cast<const uint16_t*>(values), entries, threads);
  }
}

RowSplit split_short_rows(const CsrView& a, int64_t window, int64_t short_nnz,
                          int64_t short_columns, int32_t* window_rows, int32_t* residual) {
  ColumnSet set(a.cols);
  RowSplit split;
  int64_t row = 0;
  for (int64_t id = 0; row < a.rows; ++id) {
    const int64_t nnz = a.indptr[row + 1] - a.indptr[row];
    if (nnz == 0) {
      ++row;
      continue;
    }
    if (nnz <= short_nnz) {
      collect(a, {row + 1, std::min(a.rows, row + window)}, id, set);
      const auto others = static_cast<int64_t>(set.columns().size());
      set.add(a.indices + a.indptr[row], a.indices + a.indptr[row + 1]);
      if (static_cast<int64_t>(set.columns().size()) - others < short_columns) {
        residual[split.residual++] = static_cast<int32_t>(row++);
        continue;
      }
    }
    window_rows[split.windows++] = static_cast<int32_t>(row);
    row += window;
  }
  return split;
}

}  // namespace gnnsparse::cpu
