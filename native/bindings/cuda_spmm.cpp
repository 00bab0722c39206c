#include "cuda_args.h"
#include "problem_args.h"

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

void spmm_csr(const CsrView& a, const StoredRowsHandle& rows, const WorkListHandle& work,
              const CsrLanesHandle& lanes, const Dense& x, const Dense& y, int64_t n,
              Address partial, int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_aligned(rows.values, "values");
  CsrSpmm p;
  p.a = a;
  p.stored = stored_rows(rows);
  p.work = work_list<RowItem>(work, false);
  p.lanes = csr_lanes(lanes);
  p.x = vector_matrix(x, a.cols, n, precision, "x");
  if (p.x.stride * size_of(p.x.dtype) > UINT32_MAX) reject("x", "rows are 4 GiB long or longer");
  p.y = matrix<MutableDenseView>(y, a.rows, n, "y");
  p.n = n;
  p.partial = array<float>(partial, p.work.partials, "partial");
  cuda::spmm_csr(p, precision, stream_of(stream));
}

void spmm_window(const BlockedView& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                 const Dense& x, const Dense& y, int64_t n, Address partial, int precision_code,
                 Address stream) {
  const Precision precision = precision_of(precision_code);
  require_window_shape(a);
  require_vectors(x, a.cols, n, precision, "x");
  const WindowSpmm p = window_spmm(a, rows, work, x, y, n, partial, precision);
  array<float>(partial, p.work.partials, "partial");
  cuda::spmm_window(p, precision, stream_of(stream));
}

void spmm_panel(const BlockedView& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                const Dense& x, const Dense& y, int64_t n, int slices, Address partial,
                int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_vectors(x, a.cols, n, precision, "x");
  const PanelSpmm p = panel_spmm(a, rows, work, x, y, n, slices, partial, precision);
  array<float>(partial, p.work.partials, "partial");
  cuda::spmm_panel(p, precision, stream_of(stream));
}

}  // namespace

void bind_cuda_spmm(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cuda_pack", &pack, nogil, py::arg("x"), py::arg("x_dtype"), py::arg("row_stride"),
        py::arg("column_stride"), py::arg("scale"), py::arg("rows"), py::arg("n"), py::arg("out"),
        py::arg("stream"));
  m.def("cuda_spmm_csr", &spmm_csr, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("lanes"), py::arg("x"), py::arg("y"), py::arg("n"), py::arg("partial"),
        py::arg("precision"), py::arg("stream"));
  m.def("cuda_spmm_window", &spmm_window, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("x"), py::arg("y"), py::arg("n"), py::arg("partial"), py::arg("precision"),
        py::arg("stream"));
  m.def("cuda_spmm_panel", &spmm_panel, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("x"), py::arg("y"), py::arg("n"), py::arg("slices"), py::arg("partial"),
        py::arg("precision"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
