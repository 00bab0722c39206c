#include "cuda_args.h"
#include "window_args.h"

namespace gnnsparse::bindings {
namespace {

void sddmm_csr(const CsrView& a, Address row_ids, const Segments& segments, int64_t row_limit,
               int lanes, int row_lanes, const Dense& q, const Dense& k, Address out, int out_dtype,
               int64_t d, int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_lanes(lanes, row_lanes);
  cuda::CsrSddmm p;
  p.a = a;
  p.row_ids = optional_array<const int32_t>(row_ids, "row_ids");
  p.segments = array<const cuda::RowSegment>(segments.data, segments.count, "segments");
  p.segment_count = segments.count;
  p.row_limit = row_limit;
  p.lanes = lanes;
  p.row_lanes = row_lanes;
  p.q = vector_matrix(q, a.rows, d, precision, "q");
  p.k = vector_matrix(k, a.cols, d, precision, "k");
  p.out = array<uint16_t>(out, a.nnz, "out");
  p.out_dtype = dtype_of(out_dtype);
  p.d = d;
  cuda::sddmm_csr(p, precision, stream_of(stream));
}

void sddmm_panel(const BlockedView& a, const Segments& items, Address indptr, Address row_ids,
                 const Dense& q, const Dense& k, Address out, int out_dtype, int64_t d,
                 int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_vectors(q, a.rows, d, precision, "q");
  require_vectors(k, a.cols, d, precision, "k");
  cuda::sddmm_panel(panel_sddmm(a, items, indptr, row_ids, q, k, out, out_dtype, d, precision),
                    precision, stream_of(stream));
}

void sddmm_window(const BlockedView& a, const Segments& segments, Address indptr, Address row_ids,
                  const Dense& q, const Dense& k, Address out, int out_dtype, int64_t d,
                  int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_vectors(q, a.rows, d, precision, "q");
  require_vectors(k, a.cols, d, precision, "k");
  cuda::sddmm_window(window_sddmm(a, segments, indptr, row_ids, q, k, out, out_dtype, d, precision),
                     precision, stream_of(stream));
}

}  // namespace

void bind_cuda_sddmm(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cuda_sddmm_csr", &sddmm_csr, nogil);
  m.def("cuda_sddmm_panel", &sddmm_panel, nogil);
  m.def("cuda_sddmm_window", &sddmm_window, nogil);
}

}  // namespace gnnsparse::bindings
