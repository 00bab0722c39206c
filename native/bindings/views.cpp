// Python handles on the structures that many calls share.
#include "checks.h"
#include "gnnsparse/blocked.h"
#include "gnnsparse/packed_entries.h"
#include "gnnsparse/panel_heights.h"
#include "gnnsparse/panel_tile.h"
#include "handles.h"

namespace gnnsparse::bindings {
namespace {

Place place_of(const Memory& memory) { return memory.on_host ? Place::kHost : Place::kGpu; }

// In a build for GPUs alone arrays are where they are said to be; the emulator's are on the host.
template <class T>
T* array_there(const Memory& memory, int64_t count, const Memory& first, const char* name) {
  if (memory.given && memory.on_host != first.on_host) reject(name, "is on another device");
  return array<T>(memory, count, place_of(memory), name);
}

// The ends of offsets that can be read here.
void require_offsets(const int64_t* offsets, int64_t last, const Memory& memory, int64_t end,
                     const char* name) {
  if (!memory.on_host) return;
  if (offsets[0] != 0 || offsets[last] != end) {
    reject(name, "runs from " + std::to_string(offsets[0]) + " to " +
                     std::to_string(offsets[last]) + "; accepted: 0 to " + std::to_string(end));
  }
}

CsrHandle make_csr(const py::object& indptr, const py::object& indices, int64_t cols) {
  CsrHandle a{CsrView(), hold(indptr, "indptr"), hold(indices, "indices")};
  require_size(cols, "cols");
  if (a.indptr.count < 1) reject("indptr", "must have at least one element");
  if (a.indptr.count > INT32_MAX || cols > INT32_MAX) reject("rows and cols", "must be below 2^31");
  a.view.rows = a.indptr.count - 1;
  a.view.cols = cols;
  a.view.nnz = a.indices.count;
  a.view.indptr = array_there<const int64_t>(a.indptr, a.indptr.count, a.indptr, "indptr");
  a.view.indices = array_there<const int32_t>(a.indices, a.view.nnz, a.indptr, "indices");
  require_offsets(a.view.indptr, a.view.rows, a.indptr, a.view.nnz, "indptr");
  return a;
}

BlockedShape make_shape(int window, int panel, int block, int brick, bool lane_order) {
  if (window < 1 || panel < window || panel % window != 0) {
    reject("panel", "must be a positive multiple of window");
  }
  if (brick < 1 || block < brick || block % brick != 0) {
    reject("block", "must be a positive multiple of brick");
  }
  constexpr int kLargest = 1 << 15;  // products of two of them fit 32 bits
  if (panel > kLargest || block > kLargest) reject("panel and block", "must be at most 32768");
  const bool rows_fit = panel_height(panel).brick_rows == window;
  if (lane_order && !(rows_fit && block == kPanelKTile && brick == kPanelKTile)) {
    reject("lane_order", "goes with bricks of 16 or 32 rows x 32 columns");
  }
  return {window, panel, block, brick, lane_order};
}

Encoding make_encoding(int encoding, const BlockedShape& shape) {
  const auto result = static_cast<Encoding>(encoding);
  const bool entries = entry_value_bytes(result) > 0;
  if (!entries && result != Encoding::kDense && result != Encoding::kBitmap) {
    reject("encoding", "must be 0 (dense), 1 (bitmap), 2 (entries) or 3 (word_entries)");
  }
  if (entries && !(shape.lane_order && shape.window == kPackedRows)) {
    reject("encoding", "entries go with panels of 32 rows in lane order");
  }
  return result;
}

BlockedHandle make_blocked(int window, int panel, int block, int brick, bool lane_order,
                           int encoding, int64_t rows, int64_t cols, int64_t nnz) {
  require_size(rows, "rows");
  require_size(cols, "cols");
  require_size(nnz, "nnz");
  if (rows > INT32_MAX || cols > INT32_MAX) reject("rows and cols", "must be below 2^31");
  BlockedHandle a;
  a.view.shape = make_shape(window, panel, block, brick, lane_order);
  a.view.encoding = make_encoding(encoding, a.view.shape);
  a.view.rows = rows;
  a.view.cols = cols;
  a.nnz = nnz;
  return a;
}

// The arrays that describe panels and column slots.
void attach_columns(BlockedHandle& a, const py::object& panel_rows, const py::object& panel_ptr,
                    const py::object& columns) {
  a.panel_ptr = hold(panel_ptr, "panel_ptr");
  a.panel_rows = hold(panel_rows, "panel_rows");
  a.columns = hold(columns, "columns");
  if (a.panel_ptr.count < 1) reject("panel_ptr", "must have at least one element");
  BlockedView& view = a.view;
  view.panels = a.panel_ptr.count - 1;
  a.slots = a.columns.count;
  const Memory& first = a.panel_ptr;
  view.panel_ptr = array_there<const int64_t>(a.panel_ptr, view.panels + 1, first, "panel_ptr");
  view.columns = array_there<const int32_t>(a.columns, a.slots, first, "columns");
  if (a.panel_rows.given) {
    view.panel_rows = array_there<const int32_t>(a.panel_rows, view.panels, first, "panel_rows");
  } else if (view.panels > ceil_div<int64_t>(view.rows, view.shape.panel)) {
    reject("panel_ptr", "has more panels than the rows make");
  }
  // Before they are counted, all panels are empty.
  if (a.slots > 0) require_offsets(view.panel_ptr, view.panels, a.panel_ptr, a.slots, "panel_ptr");
}

// The arrays of the encoding. Bits of every brick are there, or of those that brick_rows lists.
void attach_contents(BlockedHandle& a, const py::object& bitmap, const py::object& brick_ptr,
                     const py::object& brick_rows, const py::object& value_ptr,
                     const py::object& values, const py::object& slot_scale) {
  a.bitmap = hold(bitmap, "bitmap");
  a.brick_ptr = hold(brick_ptr, "brick_ptr");
  a.brick_rows = hold(brick_rows, "brick_rows");
  a.value_ptr = hold(value_ptr, "value_ptr");
  a.values = hold(values, "values");
  a.slot_scale = hold(slot_scale, "slot_scale");
  BlockedView& view = a.view;
  const BlockedShape& shape = view.shape;
  const Memory& first = a.panel_ptr;
  const auto per_slots = [&](int size) { return a.slots / size; };
  int64_t bricks = product("bitmap", per_slots(shape.brick), shape.panel / shape.window);
  if (a.brick_ptr.given != a.brick_rows.given) {
    reject("brick_rows", "goes together with brick_ptr");
  }
  if (a.brick_ptr.given) {
    bricks = a.brick_rows.count;
    view.brick_rows = array_there<const int32_t>(a.brick_rows, bricks, first, "brick_rows");
    view.brick_ptr =
        array_there<const int64_t>(a.brick_ptr, per_slots(shape.brick) + 1, first, "brick_ptr");
  }
  if (a.bitmap.given) {
    const int64_t bytes = product("bitmap", bricks, shape.window, shape.brick) / 8;
    view.bitmap = array_there<const uint8_t>(a.bitmap, bytes, first, "bitmap");
  }
  if (a.value_ptr.given) {
    view.value_ptr =
        array_there<const int64_t>(a.value_ptr, per_slots(shape.block) + 1, first, "value_ptr");
  }
  if (a.values.given) {
    const int64_t dense =
        view.encoding == Encoding::kDense ? product("values", a.slots, shape.window) : 0;
    int64_t least = dense;
    if (view.value_ptr != nullptr && first.on_host) {
      const int64_t packed = view.value_ptr[per_slots(shape.block)];
      const EntryLayout entries{entry_value_bytes(view.encoding)};
      const bool has_entries = entries.value_bytes > 0;
      least = product("value_ptr", packed, has_entries ? entries.bytes() : 1);
      if (has_entries) least = ceil_div<int64_t>(least, entries.value_bytes);
    }
    view.values =
        stored_array(a.values, least, storage_dtype(a.values, "values"), place_of(first), "values");
  }
  if (a.slot_scale.given) {
    view.slot_scale = stored_array(a.slot_scale, a.slots, storage_dtype(a.slot_scale, "slot_scale"),
                                   place_of(first), "slot_scale");
  }
}

// The columns of the zeros that each row stores.
void attach_zero_index(BlockedHandle& a, const py::object& zero_ptr, const py::object& zero_cols) {
  if (!a.panel_ptr.given) reject("format", "has no arrays: attach them");
  a.zero_ptr = hold(zero_ptr, "zero_ptr");
  a.zero_cols = hold(zero_cols, "zero_cols");
  const Memory& first = a.panel_ptr;
  a.view.zero_ptr = array_there<const int64_t>(a.zero_ptr, a.view.rows + 1, first, "zero_ptr");
  a.view.zero_cols = array_there<const int32_t>(a.zero_cols, a.zero_cols.count, first, "zero_cols");
}

// Records in place of the encoding's arrays.
void attach_records(BlockedHandle& a, const py::object& size_ptr, const py::object& packed_blocks) {
  const BlockedShape& shape = a.view.shape;
  if (!a.panel_ptr.given) reject("format", "has no arrays: attach them");
  if (shape.window != kRecordBrickRows || shape.block != kRecordSlots ||
      shape.brick != kRecordBrickWidth || shape.panel > kRecordPanelBricks * kRecordBrickRows) {
    reject("packed_blocks", "are of panels of 16 or 32 rows in bricks of 16 x 4, 16 columns wide");
  }
  a.size_ptr = hold(size_ptr, "size_ptr");
  a.packed_blocks = hold(packed_blocks, "packed_blocks");
  const Memory& first = a.panel_ptr;
  const int64_t blocks = a.slots / shape.block;
  a.records.size_ptr = array_there<const int64_t>(a.size_ptr, blocks + 1, first, "size_ptr");
  const DType dtype = storage_dtype(a.packed_blocks, "packed_blocks");
  const int64_t bytes = product("packed_blocks", a.packed_blocks.count, size_of(dtype));
  a.records.packed_blocks = static_cast<const uint8_t*>(stored_array(
      a.packed_blocks, a.packed_blocks.count, dtype, place_of(first), "packed_blocks"));
  require_offsets(a.records.size_ptr, blocks, a.size_ptr, bytes, "size_ptr");
}

// The rows that the format keeps out of its windows.
void attach_residual(BlockedHandle& a, const py::object& rows, const py::object& columns,
                     const py::object& values) {
  if (!a.panel_ptr.given) reject("format", "has no arrays: attach them");
  a.residual_rows = hold(rows, "residual_rows");
  a.residual_cols = hold(columns, "residual_cols");
  a.residual_values = hold(values, "residual_values");
  const Memory& first = a.panel_ptr;
  ResidualView& residual = a.residual;
  residual.count = a.residual_rows.count;
  residual.width = residual.count == 0 ? 0 : a.residual_cols.count / residual.count;
  const int64_t places = residual.count * residual.width;
  if (places != a.residual_cols.count) {
    reject("residual_cols", "must have as many places for each row of residual_rows");
  }
  residual.rows =
      array_there<const int32_t>(a.residual_rows, residual.count, first, "residual_rows");
  residual.columns = array_there<const int32_t>(a.residual_cols, places, first, "residual_cols");
  if (a.residual_values.given) {
    residual.values =
        stored_array(a.residual_values, places, storage_dtype(a.residual_values, "residual_values"),
                     place_of(first), "residual_values");
  }
}

void bind_handles(py::module_& m) {
  const py::object none = py::none();
  py::class_<WorkListHandle>(m, "WorkList")
      .def(py::init([](const py::object& items, const py::object& cuts, int64_t partials,
                       const py::object& row_offsets, int64_t prefetch_distance) {
             return WorkListHandle{hold(items, "items"), hold(cuts, "cuts"),
                                   hold(row_offsets, "row_offsets"), partials, prefetch_distance};
           }),
           py::arg("items"), py::arg("cuts"), py::arg("partials"), py::arg("row_offsets") = none,
           py::arg("prefetch_distance") = 0);
  py::class_<StoredRowsHandle>(m, "StoredRows")
      .def(py::init([](const py::object& indptr, const py::object& row_ids,
                       const py::object& row_scale, const py::object& values,
                       const py::object& col_scale) {
             return StoredRowsHandle{hold(indptr, "indptr"), hold(row_ids, "row_ids"),
                                     hold(row_scale, "row_scale"), hold(values, "values"),
                                     hold(col_scale, "col_scale")};
           }),
           py::arg("indptr") = none, py::arg("row_ids") = none, py::arg("row_scale") = none,
           py::arg("values") = none, py::arg("col_scale") = none);
  py::class_<PackedPolicyHandle>(m, "PackedPolicy")
      .def(py::init([](int stage_a, bool stage_x, int coarsening, bool residual_with_windows) {
             return PackedPolicyHandle{stage_a, stage_x, coarsening, residual_with_windows};
           }),
           py::arg("stage_a"), py::arg("stage_x"), py::arg("coarsening"),
           py::arg("residual_with_windows"));
  py::class_<CsrLanesHandle>(m, "CsrLanes")
      .def(py::init([](int lanes, int row_lanes, int64_t row_limit, const py::object& groups,
                       bool narrow) {
             return CsrLanesHandle{lanes, row_lanes, row_limit, hold(groups, "groups"), narrow};
           }),
           py::arg("lanes"), py::arg("row_lanes"), py::arg("row_limit"), py::arg("groups") = none,
           py::arg("narrow") = false);
  py::class_<WindowPolicyHandle>(m, "WindowPolicy")
      .def(py::init([](bool swapped, bool deep, int x_load, bool shuffle, int stage_a, bool stage_x,
                       int coarsening, bool grid_3d, const py::object& zero_ptr,
                       const py::object& zero_cols) {
             if (x_load < 0 || x_load > 2) reject("x_load", "must be 0, 1 or 2");
             if (stage_a < 0 || stage_a > 2) reject("stage_a", "must be 0, 1 or 2");
             const WindowPolicy policy = {swapped,
                                          deep,
                                          static_cast<XLoad>(x_load),
                                          shuffle,
                                          static_cast<Staging>(stage_a),
                                          stage_x,
                                          coarsening,
                                          grid_3d};
             return WindowPolicyHandle{policy, hold(zero_ptr, "zero_ptr"),
                                       hold(zero_cols, "zero_cols")};
           }),
           py::arg("swapped"), py::arg("deep"), py::arg("x_load"), py::arg("shuffle"),
           py::arg("stage_a"), py::arg("stage_x"), py::arg("coarsening"), py::arg("grid_3d"),
           py::arg("zero_ptr") = none, py::arg("zero_cols") = none);
  py::class_<EdgesHandle>(m, "Edges")
      .def(py::init([](const py::object& row, const py::object& col) {
             EdgesHandle edges{hold(row, "row"), hold(col, "col")};
             if (edges.row.count != edges.col.count || edges.row.element != edges.col.element) {
               reject("col", "must have the length and the dtype of row");
             }
             return edges;
           }),
           py::arg("row"), py::arg("col"));
}

}  // namespace

void bind_views(py::module_& m) {
  py::class_<CsrHandle>(m, "Csr")
      .def(py::init(&make_csr), py::arg("indptr"), py::arg("indices"), py::arg("cols"))
      .def_property_readonly("rows", [](const CsrHandle& a) { return a.view.rows; })
      .def_property_readonly("cols", [](const CsrHandle& a) { return a.view.cols; })
      .def_property_readonly("nnz", [](const CsrHandle& a) { return a.view.nnz; });

  py::class_<Dense>(m, "Dense")
      .def(py::init(&make_dense), py::arg("tensor"), py::arg("rounded") = false);

  py::class_<BlockedHandle>(m, "Blocked")
      .def(py::init(&make_blocked), py::arg("window"), py::arg("panel"), py::arg("block"),
           py::arg("brick"), py::arg("lane_order"), py::arg("encoding"), py::arg("rows"),
           py::arg("cols"), py::arg("nnz"))
      .def(
          "attach",
          [](BlockedHandle& a, const py::object& panel_rows, const py::object& panel_ptr,
             const py::object& columns, const py::object& bitmap, const py::object& brick_ptr,
             const py::object& brick_rows, const py::object& value_ptr, const py::object& values,
             const py::object& slot_scale) {
            BlockedHandle made = a;  // a rejected array changes nothing
            made.records = {};       // they were of other panels
            made.residual = {};
            attach_columns(made, panel_rows, panel_ptr, columns);
            attach_contents(made, bitmap, brick_ptr, brick_rows, value_ptr, values, slot_scale);
            a = made;
          },
          "Sets the arrays. None means that the format does not have this one.",
          py::arg("panel_rows"), py::arg("panel_ptr"), py::arg("columns"), py::arg("bitmap"),
          py::arg("brick_ptr"), py::arg("brick_rows"), py::arg("value_ptr"), py::arg("values"),
          py::arg("slot_scale"))
      .def(
          "attach_zero_index",
          [](BlockedHandle& a, const py::object& zero_ptr, const py::object& zero_cols) {
            BlockedHandle made = a;
            attach_zero_index(made, zero_ptr, zero_cols);
            a = made;
          },
          "Sets the Zero Index, after attach.", py::arg("zero_ptr"), py::arg("zero_cols"))
      .def(
          "attach_records",
          [](BlockedHandle& a, const py::object& size_ptr, const py::object& packed_blocks) {
            BlockedHandle made = a;
            attach_records(made, size_ptr, packed_blocks);
            a = made;
          },
          "Sets the arrays of a format of packed blocks, after attach.", py::arg("size_ptr"),
          py::arg("packed_blocks"))
      .def(
          "attach_residual",
          [](BlockedHandle& a, const py::object& rows, const py::object& columns,
             const py::object& values) {
            BlockedHandle made = a;
            attach_residual(made, rows, columns, values);
            a = made;
          },
          "Sets the rows that are kept out of the windows, after attach.", py::arg("rows"),
          py::arg("columns"), py::arg("values"));
  bind_handles(m);
}

}  // namespace gnnsparse::bindings
