// Python handles on the structures that many calls share. They hold addresses only: whoever makes
// one keeps the arrays alive.
#include "checks.h"
#include "gnnsparse/blocked.h"
#include "gnnsparse/packed_entries.h"
#include "gnnsparse/panel_heights.h"
#include "gnnsparse/panel_tile.h"
#include "handles.h"

namespace gnnsparse::bindings {
namespace {

CsrView make_csr(Address indptr, Address indices, int64_t rows, int64_t cols, int64_t nnz) {
  require_size(rows, "rows");
  require_size(cols, "cols");
  if (rows > INT32_MAX || cols > INT32_MAX) reject("rows and cols", "must be below 2^31");
  CsrView a;
  a.indptr = array<const int64_t>(indptr, rows + 1, "indptr");
  a.indices = array<const int32_t>(indices, nnz, "indices");
  a.rows = rows;
  a.cols = cols;
  a.nnz = nnz;
  return a;
}

BlockedShape make_shape(int window, int panel, int block, int brick, bool lane_order) {
  if (window < 1 || panel < window || panel % window != 0) {
    reject("panel", "must be a positive multiple of window");
  }
  if (brick < 1 || block < brick || block % brick != 0) {
    reject("block", "must be a positive multiple of brick");
  }
  const bool rows_fit = panel_height(panel).brick_rows == window;
  if (lane_order && !(rows_fit && block == kPanelKTile && brick == kPanelKTile)) {
    reject("lane_order", "goes with bricks of 16 or 32 rows x 32 columns");
  }
  return {window, panel, block, brick, lane_order};
}

Encoding make_encoding(int encoding, const BlockedShape& shape) {
  const auto result = static_cast<Encoding>(encoding);
  const bool entries = result == Encoding::kEntries;
  if (!entries && result != Encoding::kDense && result != Encoding::kBitmap) {
    reject("encoding", "must be 0 (dense), 1 (bitmap) or 2 (entries)");
  }
  if (entries && !(shape.lane_order && shape.window == kPackedRows)) {
    reject("encoding", "entries go with panels of 32 rows in lane order");
  }
  return result;
}

void bind_handles(py::module_& m) {
  py::class_<WorkListHandle>(m, "WorkList")
      .def(py::init([](Address items, int64_t item_count, Address row_offsets, Address cuts,
                       int64_t cut_count, int64_t partials, int64_t prefetch_distance) {
             return WorkListHandle{items,     item_count, row_offsets,      cuts,
                                   cut_count, partials,   prefetch_distance};
           }),
           py::arg("items"), py::arg("item_count"), py::arg("row_offsets"), py::arg("cuts"),
           py::arg("cut_count"), py::arg("partials"), py::arg("prefetch_distance"));
  py::class_<StoredRowsHandle>(m, "StoredRows")
      .def(py::init([](Address indptr, Address row_ids, Address row_scale, Address values) {
             return StoredRowsHandle{indptr, row_ids, row_scale, values};
           }),
           py::arg("indptr"), py::arg("row_ids"), py::arg("row_scale") = 0, py::arg("values") = 0);
  py::class_<CsrLanesHandle>(m, "CsrLanes")
      .def(py::init([](int lanes, int row_lanes, int64_t row_limit, Address groups,
                       int64_t group_count) {
             return CsrLanesHandle{lanes, row_lanes, row_limit, groups, group_count};
           }),
           py::arg("lanes"), py::arg("row_lanes"), py::arg("row_limit"), py::arg("groups") = 0,
           py::arg("group_count") = 0);
  py::class_<NnzIndicesHandle>(m, "NnzIndices")
      .def(py::init([](Address data, bool wide) { return NnzIndicesHandle{data, wide}; }),
           py::arg("data"), py::arg("wide"));
  py::class_<EdgesHandle>(m, "Edges")
      .def(py::init([](Address row, Address col, bool wide, int64_t count) {
             return EdgesHandle{row, col, wide, count};
           }),
           py::arg("row"), py::arg("col"), py::arg("wide"), py::arg("count"));
}

}  // namespace

void bind_views(py::module_& m) {
  py::class_<CsrView>(m, "Csr")
      .def(py::init(&make_csr), py::arg("indptr"), py::arg("indices"), py::arg("rows"),
           py::arg("cols"), py::arg("nnz"))
      .def_readonly("rows", &CsrView::rows)
      .def_readonly("cols", &CsrView::cols)
      .def_readonly("nnz", &CsrView::nnz);

  py::class_<Dense>(m, "Dense")
      .def(py::init([](Address data, int64_t stride, int dtype, bool rounded) {
             return Dense{data, stride, dtype, rounded};
           }),
           py::arg("data"), py::arg("stride"), py::arg("dtype"), py::arg("rounded") = false);

  py::class_<BlockedView>(m, "Blocked")
      .def(py::init([](int window, int panel, int block, int brick, bool lane_order, int encoding,
                       int64_t rows, int64_t cols, int64_t panels) {
             BlockedView view;
             view.shape = make_shape(window, panel, block, brick, lane_order);
             view.encoding = make_encoding(encoding, view.shape);
             view.rows = rows;
             view.cols = cols;
             view.panels = panels;
             return view;
           }),
           py::arg("window"), py::arg("panel"), py::arg("block"), py::arg("brick"),
           py::arg("lane_order"), py::arg("encoding"), py::arg("rows"), py::arg("cols"),
           py::arg("panels"))
      .def(
          "attach",
          [](BlockedView& view, Address panel_rows, Address panel_ptr, Address columns,
             Address bitmap, Address brick_ptr, Address brick_rows, Address value_ptr,
             Address values, Address slot_scale) {
            view.panel_rows = optional_array<const int32_t>(panel_rows, "panel_rows");
            view.panel_ptr = array<const int64_t>(panel_ptr, view.panels + 1, "panel_ptr");
            view.columns = optional_array<const int32_t>(columns, "columns");
            view.bitmap = optional_array<const uint8_t>(bitmap, "bitmap");
            view.brick_ptr = optional_array<const int64_t>(brick_ptr, "brick_ptr");
            view.brick_rows = optional_array<const int32_t>(brick_rows, "brick_rows");
            view.value_ptr = optional_array<const int64_t>(value_ptr, "value_ptr");
            view.values = optional_array<const uint16_t>(values, "values");
            view.slot_scale = optional_array<const uint16_t>(slot_scale, "slot_scale");
          },
          "Sets the arrays. An address of 0 means that the format does not have this one.",
          py::arg("panel_rows"), py::arg("panel_ptr"), py::arg("columns"), py::arg("bitmap"),
          py::arg("brick_ptr"), py::arg("brick_rows"), py::arg("value_ptr"), py::arg("values"),
          py::arg("slot_scale"));
  bind_handles(m);
}

}  // namespace gnnsparse::bindings
