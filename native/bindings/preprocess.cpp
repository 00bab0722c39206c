#include "checks.h"
#include "gnnsparse/blocked.h"
#include "gnnsparse/csr.h"
#include "gnnsparse/packed_entries.h"
#include "gnnsparse/reorder.h"
#include "handles.h"
#include "problem_args.h"

namespace gnnsparse::bindings {
namespace {

cpu::IndexArray host_indices(const Memory& memory, const char* name) {
  const MutableIndexView view = index_array(memory, memory.count, Place::kHost, name);
  return {{view.data, view.wide}, memory.count};
}

// Indices of nonzeros that a function writes; None: it writes none.
MutableIndexView optional_indices(const Memory& memory, int64_t count, const char* name) {
  return memory.given ? index_array(memory, count, Place::kHost, name) : MutableIndexView();
}

// Indices that lie in [0, limit).
void require_range(cpu::IndexArray values, int64_t limit, int threads, const char* name) {
  const int64_t at = cpu::first_out_of_range(values, limit, threads);
  if (at >= 0) {
    reject(name, "element " + std::to_string(at) + " is " + std::to_string(values[at]) +
                     "; accepted: 0 to " + std::to_string(limit - 1));
  }
}

// An order of the rows of a matrix.
const int32_t* row_order(const Memory& order, int64_t rows, int threads) {
  const auto* begin = host_array<const int32_t>(order, rows, "order");
  require_range({{begin, false}, rows}, rows, require_threads(threads), "order");
  return begin;
}

int64_t coo_to_csr(const EdgesHandle& edges, int64_t rows, const Memory& indptr,
                   const Memory& indices, const Memory& nnz_index, int threads) {
  require_size(rows, "rows");
  const int64_t count = edges.count();
  const cpu::IndexArray row{edges.rows(Place::kHost), count}, col{edges.cols(Place::kHost), count};
  require_range(row, rows, require_threads(threads), "row");
  require_range(col, int64_t{1} << 31, threads, "col");
  return cpu::coo_to_csr(row, col, rows, host_array<int64_t>(indptr, rows + 1, "indptr"),
                         host_array<int32_t>(indices, count, "indices"),
                         index_array(nnz_index, count, Place::kHost, "nnz_index"), threads);
}

void transpose(const CsrHandle& matrix, const Memory& indptr, const Memory& indices,
               const Memory& source, int threads) {
  const CsrView& a = host(matrix);
  cpu::transpose(a, host_array<int64_t>(indptr, a.cols + 1, "indptr"),
                 host_array<int32_t>(indices, a.nnz, "indices"),
                 optional_indices(source, a.nnz, "source"), require_threads(threads));
}

void permute_rows(const CsrHandle& matrix, const Memory& order, const Memory& indptr,
                  const Memory& indices, const Memory& source, int threads) {
  const CsrView& a = host(matrix);
  cpu::permute_rows(a, row_order(order, a.rows, threads),
                    host_array<int64_t>(indptr, a.rows + 1, "indptr"),
                    host_array<int32_t>(indices, a.nnz, "indices"),
                    index_array(source, a.nnz, Place::kHost, "source"), threads);
}

void add_self_loops(const CsrHandle& matrix, const Memory& indptr, const Memory& indices,
                    const Memory& places, int threads) {
  const CsrView& a = host(matrix);
  if (a.rows != a.cols) reject("matrix", "must be square to have self-loops");
  auto* offsets = host_array<int64_t>(indptr, a.rows + 1, "indptr");
  cpu::add_self_loops(a, offsets, nullptr, MutableIndexView(), require_threads(threads));
  if (!indices.given) return;
  auto* columns = host_array<int32_t>(indices, offsets[a.rows], "indices");
  cpu::add_self_loops(a, offsets, columns, index_array(places, a.nnz, Place::kHost, "places"),
                      threads);
}

void count_columns(const CsrHandle& matrix, const Memory& order, int64_t height,
                   const Memory& counts, int threads) {
  const CsrView& a = host(matrix);
  require_at_least_one(height, "height");
  height = std::min<int64_t>(height, INT32_MAX);  // as many rows as there can be
  const int32_t* rows = order.given ? row_order(order, a.rows, threads) : nullptr;
  cpu::count_columns(a, rows, height,
                     host_array<int64_t>(counts, ceil_div(a.rows, height), "counts"),
                     require_threads(threads));
}

void community_order(const CsrHandle& matrix, int rounds, double resolution, const Memory& order,
                     int threads) {
  const CsrView& a = host(matrix);
  if (a.rows != a.cols) reject("matrix", "must be square to be a graph");
  require_at_least_one(rounds, "rounds");
  if (!(resolution > 0)) reject("resolution", "must be above 0");
  cpu::community_order(a, {rounds, resolution}, host_array<int32_t>(order, a.rows, "order"),
                       require_threads(threads));
}

// The rows of each number in the orders that rows of similar columns are grouped by.
void require_numbers(std::initializer_list<std::pair<int64_t, const char*>> numbers) {
  for (const auto& [value, name] : numbers) {
    require_at_least_one(value, name);
    if (value > INT32_MAX) reject(name, "must be below 2^31");
  }
}

// How many rows were matched as similar, as complementary, or filled up; tiles, and short ones.
py::tuple shuffle_rows(const CsrHandle& matrix, int64_t height, int64_t width, double threshold,
                       int64_t bin, bool fill, const Memory& order) {
  const CsrView& a = host(matrix);
  require_numbers({{height, "height"}, {width, "width"}, {bin, "bin"}});
  if (!(threshold >= 0)) reject("threshold", "must be at least 0");
  auto* rows = host_array<int32_t>(order, a.rows, "order");
  cpu::ShuffleCounts counts;
  {
    const py::gil_scoped_release release;
    counts = cpu::shuffle_rows(a, {height, width, threshold, bin, fill}, rows);
  }
  return py::make_tuple(counts.similar, counts.complementary, counts.filled, counts.tiles,
                        counts.short_tiles);
}

// The sums of distances in the given order and after each stage, and the rows that were moved.
py::tuple jaccard_order(const CsrHandle& matrix, int64_t k, double alpha, bool tree, bool two_opt,
                        int64_t window, bool isolation, double isolated, const Memory& order,
                        int threads) {
  const CsrView& a = host(matrix);
  require_numbers({{k, "k"}, {window, "window"}});
  if (!(alpha >= 0)) reject("alpha", "must be at least 0");
  if (!(isolated >= 0)) reject("isolated", "must be at least 0");
  auto* rows = host_array<int32_t>(order, a.rows, "order");
  require_threads(threads);
  cpu::JaccardStages stages;
  {
    const py::gil_scoped_release release;
    stages = cpu::jaccard_order(a, {k, alpha, tree, two_opt, window, isolation, isolated}, rows,
                                threads);
  }
  return py::make_tuple(stages.given, stages.tree, stages.two_opt, stages.isolation, stages.moved);
}

void cluster_order(const CsrHandle& matrix, int64_t height, int64_t group, int64_t k,
                   const Memory& order, int threads) {
  const CsrView& a = host(matrix);
  require_numbers({{height, "height"}, {group, "group"}, {k, "k"}});
  cpu::cluster_order(a, {height, group, k}, host_array<int32_t>(order, a.rows, "order"),
                     require_threads(threads));
}

// The format of a matrix, on the CPU. Its panels begin at rows of the matrix.
const BlockedView& host_format(const CsrView& a, const BlockedHandle& format) {
  const BlockedView& view = host(format);
  if (view.rows != a.rows || view.cols != a.cols || format.nnz != a.nnz) {
    reject("format", "is of another matrix");
  }
  for (int64_t p = 0; view.panel_rows != nullptr && p < view.panels; ++p) {
    if (view.panel_rows[p] < 0 || view.panel_rows[p] > a.rows) {
      reject("panel_rows", "element " + std::to_string(p) + " is no row");
    }
  }
  return view;
}

void count_panels(const CsrHandle& matrix, const BlockedHandle& handle, const Memory& columns,
                  const Memory& bricks, const Memory& values, int threads) {
  const CsrView& a = host(matrix);
  const BlockedView& format = host_format(a, handle);
  if (bricks.given && format.shape.window * format.shape.brick > 64) {
    reject("brick", "bricks are counted of at most 64 elements");
  }
  const cpu::PanelCounts counts{optional_host_array<int64_t>(columns, format.panels, "columns"),
                                optional_host_array<int64_t>(bricks, format.panels, "bricks"),
                                optional_host_array<int64_t>(values, format.panels, "values")};
  cpu::count_panels(a, format.shape, format.panel_rows, format.panels, counts,
                    require_threads(threads));
}

// Running sums that start at 0, never decrease and end at `end`.
void require_running_sum(const int64_t* sums, int64_t count, int64_t end, const char* name) {
  bool ascends = sums[0] == 0 && sums[count] == end;
  for (int64_t i = 0; i < count; ++i) ascends = ascends && sums[i] <= sums[i + 1];
  if (!ascends) reject(name, "must never decrease, from 0 to " + std::to_string(end));
}

// Fills the arrays that `handle` has, and `value_index`.
void fill_blocked(const CsrHandle& matrix, const BlockedHandle& handle, const Memory& panel_bricks,
                  const Memory& panel_values, const Memory& value_index, int threads) {
  const CsrView& a = host(matrix);
  const BlockedView& format = host_format(a, handle);
  require_running_sum(format.panel_ptr, format.panels, handle.slots, "panel_ptr");
  cpu::BlockedOutput out;
  out.columns = const_cast<int32_t*>(format.columns);
  out.bitmap = const_cast<uint8_t*>(format.bitmap);
  out.brick_ptr = const_cast<int64_t*>(format.brick_ptr);
  out.brick_rows = const_cast<int32_t*>(format.brick_rows);
  out.value_ptr = const_cast<int64_t*>(format.value_ptr);
  out.value_index = optional_host_array<int64_t>(value_index, a.nnz, "value_index");
  const bool dense = format.encoding == Encoding::kDense;
  const bool packed = !dense && out.value_ptr != nullptr;
  if (!dense && handle.slots > 0 && out.bitmap == nullptr) reject("bitmap", "is None");
  if ((dense || packed) && a.nnz > 0 && out.value_index == nullptr) {
    reject("value_index", "is None");
  }
  if (packed && format.shape.window * format.shape.brick != 64) {
    reject("brick", "values packed in block order need bricks of 64 elements");
  }
  if (packed) require_aligned(handle.bitmap, alignof(uint64_t), "bitmap");
  if (out.brick_ptr != nullptr && !packed) reject("brick_ptr", "goes with packed values");
  const auto* bricks =
      optional_host_array<const int64_t>(panel_bricks, format.panels + 1, "panel_bricks");
  const auto* values =
      optional_host_array<const int64_t>(panel_values, format.panels + 1, "panel_values");
  if (out.brick_ptr != nullptr) {
    if (bricks == nullptr) reject("panel_bricks", "is None");
    require_running_sum(bricks, format.panels, handle.brick_rows.count, "panel_bricks");
  }
  if (packed) {
    if (values == nullptr) reject("panel_values", "is None");
    if (values[format.panels] > a.nnz) reject("panel_values", "counts more values than there are");
    require_running_sum(values, format.panels, values[format.panels], "panel_values");
  }
  cpu::fill_blocked(a, format.shape, format.encoding, format.panel_rows, format.panels,
                    format.panel_ptr, bricks, values, out, require_threads(threads));
}

// What the comparison of bits reads: whole blocks of bits, and bricks that lie in their panel.
void require_bits(const BlockedHandle& handle, int threads) {
  const BlockedView& format = handle.view;
  const BlockedShape& shape = format.shape;
  if (shape.window * shape.brick % 8 != 0) reject("brick", "must have whole bytes of bits");
  if (handle.slots > 0 && format.bitmap == nullptr) reject("bitmap", "is None");
  for (int64_t p = 0; p <= format.panels; ++p) {
    if (format.panel_ptr[p] % shape.block != 0) reject("panel_ptr", "has panels of broken blocks");
  }
  if (format.brick_ptr == nullptr) return;
  if (shape.lane_order) reject("brick_ptr", "does not go with lane order");
  const int64_t bricks = handle.brick_rows.count;
  require_running_sum(format.brick_ptr, handle.slots / shape.brick, bricks, "brick_ptr");
  require_range({{format.brick_rows, false}, bricks}, shape.panel / shape.window, threads,
                "brick_rows");
}

// Records in whole blocks, each in its place of the packed blocks.
void require_records(const BlockedHandle& handle, int64_t value_bytes) {
  const BlockedView& format = handle.view;
  const int64_t bytes = product("packed_blocks", handle.packed_blocks.count, value_bytes);
  require_running_sum(handle.records.size_ptr, handle.slots / kRecordSlots, bytes, "size_ptr");
  for (int64_t p = 0; p <= format.panels; ++p) {
    if (format.panel_ptr[p] % kRecordSlots != 0) reject("panel_ptr", "has panels of broken blocks");
  }
}

int64_t first_unlike(const CsrHandle& matrix, const BlockedHandle& handle, int threads) {
  const CsrView& a = host(matrix);
  const BlockedView& format = host_format(a, handle);
  require_running_sum(a.indptr, a.rows, a.nnz, "indptr");
  require_running_sum(format.panel_ptr, format.panels, handle.slots, "panel_ptr");
  int64_t value_bytes = 0;
  if (handle.records.size_ptr != nullptr) {
    value_bytes = bytes_of(handle.packed_blocks.element);
    require_records(handle, value_bytes);
  } else if (format.encoding == Encoding::kBitmap) {
    require_bits(handle, require_threads(threads));
  }
  return cpu::first_unlike(a, format, handle.records, value_bytes, require_threads(threads));
}

void count_entries(const Memory& banks, const Memory& counts) {
  const int64_t k_tiles = counts.count;
  const int64_t words = product("counts", k_tiles, kBanks);
  cpu::count_entries(host_array<const uint32_t>(banks, words, "banks"), k_tiles,
                     host_array<int64_t>(counts, k_tiles, "counts"));
}

void fill_entries(const CsrHandle& matrix, const BlockedHandle& handle, const Memory& banks,
                  const Memory& values, const Memory& entries, int threads) {
  const CsrView& a = host(matrix);
  const BlockedView& format = host_format(a, handle);
  require_entries(handle);
  require_running_sum(format.panel_ptr, format.panels, handle.slots, "panel_ptr");
  const int64_t k_tiles = handle.slots / format.shape.block;
  const EntryLayout layout{entry_value_bytes(format.encoding)};
  const int64_t groups = 4 * entries.count / (layout.bytes() * layout.group());
  require_running_sum(format.value_ptr, k_tiles, groups * layout.group(), "value_ptr");
  const int64_t words = product("banks", k_tiles, kBanks);
  cpu::fill_entries(a, format, host_array<const uint32_t>(banks, words, "banks"),
                    entry_values(format, values, a.nnz, Place::kHost),
                    host_array<uint32_t>(entries, entries.count, "entries"),
                    require_threads(threads));
}

std::pair<int64_t, int64_t> split_short_rows(const CsrHandle& matrix, int64_t window,
                                             int64_t short_nnz, int64_t short_columns,
                                             const Memory& window_rows, const Memory& residual) {
  const CsrView& a = host(matrix);
  require_at_least_one(window, "window");
  if (window > INT32_MAX) reject("window", "must be below 2^31");
  require_size(short_nnz, "short_nnz");
  require_size(short_columns, "short_columns");
  const cpu::RowSplit split = cpu::split_short_rows(
      a, window, short_nnz, short_columns, host_array<int32_t>(window_rows, a.rows, "window_rows"),
      host_array<int32_t>(residual, a.rows, "residual"));
  return {split.windows, split.residual};
}

void bind_csr(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def(
      "first_out_of_range",
      [](const Memory& values, int64_t limit, int threads) {
        require_size(limit, "limit");
        return cpu::first_out_of_range(host_indices(values, "values"), limit,
                                       require_threads(threads));
      },
      "First position whose value is outside [0, limit), or -1.", nogil, py::arg("values"),
      py::arg("limit"), py::arg("threads"));
  m.def(
      "first_decreasing",
      [](const Memory& indptr, int threads) {
        return cpu::first_decreasing(host_indices(indptr, "indptr"), require_threads(threads));
      },
      "First row of an indptr whose offsets decrease, or -1.", nogil, py::arg("indptr"),
      py::arg("threads"));
  m.def(
      "is_canonical",
      [](const Memory& indptr, const Memory& indices, int threads) {
        const cpu::IndexArray columns = host_indices(indices, "indices");
        require_at_least_one(indptr.count, "indptr");
        const auto* offsets = host_array<const int64_t>(indptr, indptr.count, "indptr");
        require_running_sum(offsets, indptr.count - 1, columns.count, "indptr");
        return cpu::is_canonical(offsets, columns, indptr.count - 1, require_threads(threads));
      },
      "Whether the columns of every row ascend without repeats.", nogil, py::arg("indptr"),
      py::arg("indices"), py::arg("threads"));
  m.def(
      "is_permutation",
      [](const Memory& values, int threads) {
        return cpu::is_permutation(host_indices(values, "values"), require_threads(threads));
      },
      "Whether the values are the numbers below their count, each once.", nogil, py::arg("values"),
      py::arg("threads"));
  m.def("coo_to_csr", &coo_to_csr, "Sorts and merges edges; returns the number of nonzeros.", nogil,
        py::arg("edges"), py::arg("rows"), py::arg("indptr"), py::arg("indices"),
        py::arg("nnz_index"), py::arg("threads"));
  m.def("transpose", &transpose,
        "Writes the transpose and the index each of its nonzeros came from.", nogil, py::arg("a"),
        py::arg("indptr"), py::arg("indices"), py::arg("source"), py::arg("threads"));
  m.def("permute_rows", &permute_rows,
        "Writes the rows in the given order and the index each nonzero came from.", nogil,
        py::arg("a"), py::arg("order"), py::arg("indptr"), py::arg("indices"), py::arg("source"),
        py::arg("threads"));
  m.def("add_self_loops", &add_self_loops,
        "Adds the diagonal elements that a square matrix lacks; without `indices` counts them.",
        nogil, py::arg("a"), py::arg("indptr"), py::arg("indices"), py::arg("places"),
        py::arg("threads"));
  m.def("community_order", &community_order, "Writes the rows in the order of their communities.",
        nogil, py::arg("a"), py::arg("rounds"), py::arg("resolution"), py::arg("order"),
        py::arg("threads"));
  m.def("shuffle_rows", &shuffle_rows,
        "Writes the rows in the order of Tiled-CSR's row shuffle; returns its counts.",
        py::arg("a"), py::arg("height"), py::arg("width"), py::arg("threshold"), py::arg("bin"),
        py::arg("fill"), py::arg("order"));
  m.def("jaccard_order", &jaccard_order,
        "Writes the rows in RSH-SpMM's order; returns the objective of each stage.", py::arg("a"),
        py::arg("k"), py::arg("alpha"), py::arg("tree"), py::arg("two_opt"), py::arg("window"),
        py::arg("isolation"), py::arg("isolated"), py::arg("order"), py::arg("threads"));
  m.def("cluster_order", &cluster_order, "Writes the rows in groups of clusters of similar rows.",
        nogil, py::arg("a"), py::arg("height"), py::arg("group"), py::arg("k"), py::arg("order"),
        py::arg("threads"));
}

}  // namespace

void bind_preprocess(py::module_& m) {
  bind_csr(m);
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("count_columns", &count_columns,
        "Distinct columns of every group of `height` rows of the order.", nogil, py::arg("a"),
        py::arg("order"), py::arg("height"), py::arg("counts"), py::arg("threads"));
  m.def("count_panels", &count_panels,
        "Distinct columns, bricks with a nonzero and nonzeros of every panel.", nogil, py::arg("a"),
        py::arg("format"), py::arg("columns"), py::arg("bricks"), py::arg("values"),
        py::arg("threads"));
  m.def("fill_blocked", &fill_blocked, "Fills the arrays of a blocked matrix.", nogil, py::arg("a"),
        py::arg("format"), py::arg("panel_bricks"), py::arg("panel_values"), py::arg("value_index"),
        py::arg("threads"));
  m.def("first_unlike", &first_unlike,
        "First panel whose columns or bits are not those of its rows, or -1.", nogil, py::arg("a"),
        py::arg("format"), py::arg("threads"));
  m.def("count_entries", &count_entries, "Nonzeros of every K tile, from their bits by banks.",
        nogil, py::arg("banks"), py::arg("counts"));
  m.def("fill_entries", &fill_entries,
        "Fills the entries of panels that store their nonzeros alone.", nogil, py::arg("a"),
        py::arg("format"), py::arg("banks"), py::arg("values"), py::arg("entries"),
        py::arg("threads"));
  m.def("split_short_rows", &split_short_rows,
        "RSH-SpMM's algorithm 1; returns (windows, residual rows).", nogil, py::arg("a"),
        py::arg("window"), py::arg("short_nnz"), py::arg("short_columns"), py::arg("window_rows"),
        py::arg("residual"));
}

}  // namespace gnnsparse::bindings
