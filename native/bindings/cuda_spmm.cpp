#include "cuda_args.h"
#include "window_args.h"

namespace gnnsparse::bindings {
namespace {

void pack(Address x, int x_dtype, int64_t row_stride, int64_t column_stride, Address scale,
          int64_t rows, int64_t n, const Dense& out, Address stream) {
  cuda::Pack p;
  p.x = array<const uint16_t>(x, rows * n, "x");
  p.x_dtype = dtype_of(x_dtype);
  p.row_stride = row_stride;
  p.column_stride = column_stride;
  p.scale = optional_array<const float>(scale, "scale");
  p.rows = rows;
  p.n = n;
  p.out = matrix<MutableDenseView>(out, rows, n, "out");
  require_aligned(out.data, "out");
  if (p.out.stride * size_of(p.out.dtype) % 16 != 0) reject("out", "rows must be 16-byte aligned");
  cuda::pack(p, stream_of(stream));
}

void spmm_csr(const CsrView& a, Address row_ids, Address values, Address row_scale,
              const WorkList& items, Address cuts, int64_t cut_count, int64_t row_limit,
              Address groups, int64_t group_count, int lanes, int row_lanes, const Dense& x,
              const Dense& y, int64_t n, Address partial, int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_lanes(lanes, row_lanes);
  require_aligned(values, "values");
  cuda::CsrSpmm p;
  p.a = a;
  p.row_ids = optional_array<const int32_t>(row_ids, "row_ids");
  p.values = optional_array<const uint16_t>(values, "values");
  p.row_scale = optional_array<const float>(row_scale, "row_scale");
  p.items = array<const cuda::RowItem>(items.data, items.count, "items");
  p.item_count = items.count;
  p.cuts = array<const cuda::Cut>(cuts, cut_count, "cuts");
  p.cut_count = cut_count;
  p.row_limit = row_limit;
  p.groups = group_count > 0 ? array<const int32_t>(groups, group_count + 1, "groups") : nullptr;
  p.group_count = group_count;
  p.lanes = lanes;
  p.row_lanes = row_lanes;
  p.x = vector_matrix(x, a.cols, n, precision, "x");
  if (p.x.stride * size_of(p.x.dtype) > UINT32_MAX) reject("x", "rows are 4 GiB long or longer");
  p.y = matrix<MutableDenseView>(y, a.rows, n, "y");
  p.n = n;
  p.partial = array<float>(partial, cut_count, "partial");
  cuda::spmm_csr(p, precision, stream_of(stream));
}

void spmm_window(const BlockedView& a, const WorkList& items, Address cuts, int64_t cut_count,
                 Address indptr, Address edge_values, Address row_ids, Address row_scale,
                 const Dense& x, const Dense& y, int64_t n, Address partial, int precision_code,
                 Address stream) {
  const Precision precision = precision_of(precision_code);
  require_window_shape(a);
  require_vectors(x, a.cols, n, precision, "x");
  const WindowSpmm p =
      window_spmm(a, items, indptr, edge_values, row_ids, row_scale, x, y, n, partial, precision);
  cuda::spmm_window(p, array<const cuda::Cut>(cuts, cut_count, "cuts"), cut_count, precision,
                    stream_of(stream));
}

void spmm_panel(const BlockedView& a, const WorkList& items, Address cuts, int64_t cut_count,
                Address row_ids, Address row_scale, const Dense& x, const Dense& y, int64_t n,
                int slices, Address partial, int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_vectors(x, a.cols, n, precision, "x");
  const PanelSpmm p = panel_spmm(a, items, row_ids, row_scale, x, y, n, slices, partial, precision);
  cuda::spmm_panel(p, array<const cuda::Cut>(cuts, cut_count, "cuts"), cut_count, precision,
                   stream_of(stream));
}

}  // namespace

void bind_cuda_spmm(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cuda_pack", &pack, nogil);
  m.def("cuda_spmm_csr", &spmm_csr, nogil);
  m.def("cuda_spmm_window", &spmm_window, nogil);
  m.def("cuda_spmm_panel", &spmm_panel, nogil);
}

}  // namespace gnnsparse::bindings
