#include "cuda_args.h"
#include "problem_args.h"

namespace gnnsparse::bindings {
namespace {

void sddmm_csr(const CsrView& a, const StoredRowsHandle& rows, const WorkListHandle& work,
               const CsrLanesHandle& lanes, const Dense& q, const Dense& k,
               const EdgeValuesView& out, int64_t d, int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  CsrSddmm p;
  p.a = a;
  p.stored = stored_rows(rows);
  p.work = work_list<RowItem>(work, false);
  p.lanes = csr_lanes(lanes);
  p.q = vector_matrix(q, a.rows, d, precision, "q");
  p.k = vector_matrix(k, a.cols, d, precision, "k");
  p.out = array<uint16_t>(reinterpret_cast<Address>(out.data), a.nnz, "out");
  p.out_dtype = out.dtype;
  p.d = d;
  cuda::sddmm_csr(p, precision, stream_of(stream));
}

void sddmm_panel(const BlockedView& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                 const Dense& q, const Dense& k, const EdgeValuesView& out, int64_t d,
                 int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_vectors(q, a.rows, d, precision, "q");
  require_vectors(k, a.cols, d, precision, "k");
  cuda::sddmm_panel(panel_sddmm(a, rows, work, q, k, out, d, precision), precision,
                    stream_of(stream));
}

void sddmm_window(const BlockedView& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                  const Dense& q, const Dense& k, const EdgeValuesView& out, int64_t d,
                  int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_vectors(q, a.rows, d, precision, "q");
  require_vectors(k, a.cols, d, precision, "k");
  cuda::sddmm_window(window_sddmm(a, rows, work, q, k, out, d, precision), precision,
                     stream_of(stream));
}

}  // namespace

void bind_cuda_sddmm(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cuda_sddmm_csr", &sddmm_csr, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("lanes"), py::arg("q"), py::arg("k"), py::arg("out"), py::arg("d"),
        py::arg("precision"), py::arg("stream"));
  m.def("cuda_sddmm_panel", &sddmm_panel, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("q"), py::arg("k"), py::arg("out"), py::arg("d"), py::arg("precision"),
        py::arg("stream"));
  m.def("cuda_sddmm_window", &sddmm_window, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("q"), py::arg("k"), py::arg("out"), py::arg("d"), py::arg("precision"),
        py::arg("stream"));
}

}  // namespace gnnsparse::bindings
