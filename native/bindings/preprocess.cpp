#include "checks.h"
#include "gnnsparse/blocked.h"
#include "gnnsparse/csr.h"
#include "gnnsparse/reorder.h"
#include "handles.h"
#include "problem_args.h"

namespace gnnsparse::bindings {
namespace {

cpu::IndexArray index_array(Address data, bool wide, int64_t count, const char* name) {
  return {index_view(data, wide, count, name), count};
}

int64_t coo_to_csr(const EdgesHandle& edges, int64_t rows, Address indptr, Address indices,
                   const NnzIndicesHandle& nnz_index, int threads) {
  return cpu::coo_to_csr(
      {edges.rows(), edges.count}, {edges.cols(), edges.count}, rows,
      array<int64_t>(indptr, rows + 1, "indptr"), array<int32_t>(indices, edges.count, "indices"),
      mutable_index_view(nnz_index, edges.count, "nnz_index"), require_threads(threads));
}

// Fills the arrays that `format` has addresses of, and `value_index`.
void fill_blocked(const CsrView& a, const BlockedView& format, Address panel_bricks,
                  Address panel_values, Address value_index, int threads) {
  cpu::BlockedOutput out;
  out.columns = const_cast<int32_t*>(format.columns);
  out.bitmap = const_cast<uint8_t*>(format.bitmap);
  out.brick_ptr = const_cast<int64_t*>(format.brick_ptr);
  out.brick_rows = const_cast<int32_t*>(format.brick_rows);
  out.value_ptr = const_cast<int64_t*>(format.value_ptr);
  out.value_index = optional_array<int64_t>(value_index, "value_index");
  if (out.value_ptr != nullptr && format.shape.window * format.shape.brick != 64) {
    reject("brick", "values packed in block order need bricks of 64 elements");
  }
  if (out.value_ptr != nullptr &&
      reinterpret_cast<Address>(format.bitmap) % alignof(uint64_t) != 0) {
    reject("bitmap", "must be aligned to 8 bytes");
  }
  cpu::fill_blocked(a, format.shape, format.encoding, format.panel_rows, format.panels,
                    format.panel_ptr, optional_array<const int64_t>(panel_bricks, "panel_bricks"),
                    optional_array<const int64_t>(panel_values, "panel_values"), out,
                    require_threads(threads));
}

}  // namespace

void bind_preprocess(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def(
      "first_out_of_range",
      [](Address data, bool wide, int64_t count, int64_t limit, int threads) {
        return cpu::first_out_of_range(index_array(data, wide, count, "values"), limit,
                                       require_threads(threads));
      },
      "First position whose value is outside [0, limit), or -1.", nogil, py::arg("data"),
      py::arg("wide"), py::arg("count"), py::arg("limit"), py::arg("threads"));
  m.def(
      "first_decreasing",
      [](Address data, bool wide, int64_t count, int threads) {
        return cpu::first_decreasing(index_array(data, wide, count, "indptr"),
                                     require_threads(threads));
      },
      "First row of an indptr whose offsets decrease, or -1.", nogil, py::arg("data"),
      py::arg("wide"), py::arg("count"), py::arg("threads"));
  m.def(
      "is_canonical",
      [](Address indptr, Address indices, bool wide, int64_t rows, int64_t nnz, int threads) {
        return cpu::is_canonical(array<const int64_t>(indptr, rows + 1, "indptr"),
                                 index_array(indices, wide, nnz, "indices"), rows,
                                 require_threads(threads));
      },
      "Whether the columns of every row ascend without repeats.", nogil, py::arg("indptr"),
      py::arg("indices"), py::arg("wide"), py::arg("rows"), py::arg("nnz"), py::arg("threads"));
  m.def(
      "is_permutation",
      [](Address data, bool wide, int64_t count, int threads) {
        return cpu::is_permutation(index_array(data, wide, count, "values"),
                                   require_threads(threads));
      },
      "Whether the values are the numbers below their count, each once.", nogil, py::arg("data"),
      py::arg("wide"), py::arg("count"), py::arg("threads"));
  m.def("coo_to_csr", &coo_to_csr, "Sorts and merges edges; returns the number of nonzeros.", nogil,
        py::arg("edges"), py::arg("rows"), py::arg("indptr"), py::arg("indices"),
        py::arg("nnz_index"), py::arg("threads"));
  m.def(
      "transpose",
      [](const CsrView& a, Address indptr, Address indices, const NnzIndicesHandle& source,
         int threads) {
        cpu::transpose(a, array<int64_t>(indptr, a.cols + 1, "indptr"),
                       array<int32_t>(indices, a.nnz, "indices"),
                       mutable_index_view(source, a.nnz, "source"), require_threads(threads));
      },
      "Writes the transpose and the index each of its nonzeros came from.", nogil, py::arg("a"),
      py::arg("indptr"), py::arg("indices"), py::arg("source"), py::arg("threads"));
  m.def(
      "permute_rows",
      [](const CsrView& a, Address order, Address indptr, Address indices,
         const NnzIndicesHandle& source, int threads) {
        cpu::permute_rows(a, array<const int32_t>(order, a.rows, "order"),
                          array<int64_t>(indptr, a.rows + 1, "indptr"),
                          array<int32_t>(indices, a.nnz, "indices"),
                          mutable_index_view(source, a.nnz, "source"), require_threads(threads));
      },
      "Writes the rows in the given order and the index each nonzero came from.", nogil,
      py::arg("a"), py::arg("order"), py::arg("indptr"), py::arg("indices"), py::arg("source"),
      py::arg("threads"));
  m.def(
      "add_self_loops",
      [](const CsrView& a, Address indptr, Address indices, const NnzIndicesHandle& source,
         int64_t count, int threads) {
        if (a.rows != a.cols) reject("matrix", "must be square to have self-loops");
        cpu::add_self_loops(a, array<int64_t>(indptr, a.rows + 1, "indptr"),
                            indices == 0 ? nullptr : array<int32_t>(indices, count, "indices"),
                            mutable_index_view(source, indices == 0 ? 0 : count, "source"),
                            require_threads(threads));
      },
      "Adds the diagonal elements that a square matrix lacks.", nogil, py::arg("a"),
      py::arg("indptr"), py::arg("indices"), py::arg("source"), py::arg("count"),
      py::arg("threads"));
  m.def(
      "count_columns",
      [](const CsrView& a, Address order, int64_t height, Address counts, int threads) {
        if (height < 1) reject("height", "must be at least 1");
        cpu::count_columns(a, optional_array<const int32_t>(order, "order"), height,
                           array<int64_t>(counts, ceil_div(a.rows, height), "counts"),
                           require_threads(threads));
      },
      "Distinct columns of every group of `height` rows of the order.", nogil, py::arg("a"),
      py::arg("order"), py::arg("height"), py::arg("counts"), py::arg("threads"));
  m.def(
      "community_order",
      [](const CsrView& a, int rounds, double resolution, Address order, int threads) {
        if (a.rows != a.cols) reject("matrix", "must be square to be a graph");
        if (rounds < 1) reject("rounds", "must be at least 1");
        if (!(resolution > 0)) reject("resolution", "must be above 0");
        cpu::community_order(a, {rounds, resolution}, array<int32_t>(order, a.rows, "order"),
                             require_threads(threads));
      },
      "Writes the rows in the order of their communities.", nogil, py::arg("a"), py::arg("rounds"),
      py::arg("resolution"), py::arg("order"), py::arg("threads"));
  m.def(
      "count_panels",
      [](const CsrView& a, const BlockedView& format, Address columns, Address bricks,
         Address values, int threads) {
        const cpu::PanelCounts counts{optional_array<int64_t>(columns, "columns"),
                                      optional_array<int64_t>(bricks, "bricks"),
                                      optional_array<int64_t>(values, "values")};
        cpu::count_panels(a, format.shape, format.panel_rows, format.panels, counts,
                          require_threads(threads));
      },
      "Distinct columns, bricks with a nonzero and nonzeros of every panel.", nogil, py::arg("a"),
      py::arg("format"), py::arg("columns"), py::arg("bricks"), py::arg("values"),
      py::arg("threads"));
  m.def("fill_blocked", &fill_blocked, "Fills the arrays of a blocked matrix.", nogil, py::arg("a"),
        py::arg("format"), py::arg("panel_bricks"), py::arg("panel_values"), py::arg("value_index"),
        py::arg("threads"));
  m.def(
      "first_unlike",
      [](const CsrView& a, const BlockedView& format, int threads) {
        if (format.rows != a.rows || format.cols != a.cols) reject("format", "has another size");
        const bool bits = format.encoding == Encoding::kBitmap;
        if (bits && format.shape.window * format.shape.brick % 8 != 0) {
          reject("brick", "must have whole bytes of bits");
        }
        if (bits && format.bitmap == nullptr && format.panel_ptr[format.panels] > 0) {
          reject("format", "has no bitmap");
        }
        const int64_t columns = format.panel_ptr[format.panels] / format.shape.brick;
        if (format.brick_ptr != nullptr && format.brick_rows == nullptr &&
            format.brick_ptr[columns] > 0) {
          reject("brick_rows", "go with brick_ptr");
        }
        return cpu::first_unlike(a, format, require_threads(threads));
      },
      "First panel whose columns or bits are not those of its rows, or -1.", nogil, py::arg("a"),
      py::arg("format"), py::arg("threads"));
  m.def(
      "count_entries",
      [](Address banks, int64_t k_tiles, Address counts) {
        cpu::count_entries(array<const uint32_t>(banks, k_tiles, "banks"), k_tiles,
                           array<int64_t>(counts, k_tiles, "counts"));
      },
      "Nonzeros of every K tile, from their bits by banks.", nogil, py::arg("banks"),
      py::arg("k_tiles"), py::arg("counts"));
  m.def(
      "fill_entries",
      [](const CsrView& a, const BlockedView& format, Address banks, Address values,
         Address entries, int threads) {
        require_entries(format);
        cpu::fill_entries(a, format, array<const uint32_t>(banks, a.nnz, "banks"),
                          array<const uint16_t>(values, a.nnz, "values"),
                          array<uint32_t>(entries, a.nnz, "entries"), require_threads(threads));
      },
      "Fills the entries of panels that store their nonzeros alone.", nogil, py::arg("a"),
      py::arg("format"), py::arg("banks"), py::arg("values"), py::arg("entries"),
      py::arg("threads"));
  m.def(
      "split_short_rows",
      [](const CsrView& a, int64_t window, int64_t short_nnz, int64_t short_columns,
         Address window_rows, Address residual) {
        const cpu::RowSplit split = cpu::split_short_rows(
            a, window, short_nnz, short_columns, array<int32_t>(window_rows, a.rows, "window_rows"),
            array<int32_t>(residual, a.rows, "residual"));
        return std::make_pair(split.windows, split.residual);
      },
      "RSH-SpMM's algorithm 1; returns (windows, residual rows).", nogil, py::arg("a"),
      py::arg("window"), py::arg("short_nnz"), py::arg("short_columns"), py::arg("window_rows"),
      py::arg("residual"));
}

}  // namespace gnnsparse::bindings
