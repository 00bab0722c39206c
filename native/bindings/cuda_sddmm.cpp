#include "cuda_args.h"
#include "problem_args.h"

namespace gnnsparse::bindings {
namespace {

void sddmm_csr(const CsrHandle& a, const StoredRowsHandle& rows, const WorkListHandle& work,
               const CsrLanesHandle& lanes, const Dense& q, const Dense& k,
               const EdgeValuesHandle& out, int64_t d, int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  CsrSddmm p;
  p.a = gpu(a);
  p.stored = stored_rows(rows, p.a.rows, p.a.nnz, precision);
  p.work = work_list<RowItem>(work, 0);
  p.lanes = csr_lanes(lanes);
  p.q = vector_matrix(q, p.a.rows, d, precision, "q");
  p.k = vector_matrix(k, p.a.cols, d, precision, "k");
  set_scores(p, out, p.a.nnz);
  p.d = d;
  cuda::sddmm_csr(p, precision, stream_of(stream));
}

void sddmm_panel(const BlockedHandle& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                 const Dense& q, const Dense& k, const EdgeValuesHandle& out, int64_t d,
                 int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_vectors(q, a.view.rows, d, precision, "q");
  require_vectors(k, a.view.cols, d, precision, "k");
  cuda::sddmm_panel(panel_sddmm(a, rows, work, q, k, out, d, precision), precision,
                    stream_of(stream));
}

void sddmm_window(const BlockedHandle& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                  const Dense& q, const Dense& k, const EdgeValuesHandle& out, int64_t d,
                  int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_vectors(q, a.view.rows, d, precision, "q");
  require_vectors(k, a.view.cols, d, precision, "k");
  cuda::sddmm_window(window_sddmm(a, rows, work, q, k, out, d, precision), precision,
                     stream_of(stream));
}

void sddmm_blocks(const BlockedHandle& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                  const Dense& q, const Dense& k, const Memory& blocks, const EdgeValuesHandle& out,
                  int64_t d, int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_vectors(q, a.view.rows, d, precision, "q");
  require_vectors(k, a.view.cols, d, precision, "k");
  cuda::sddmm_blocks(block_sddmm(a, rows, work, q, k, blocks, out, d, precision), precision,
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
  m.def("cuda_sddmm_blocks", &sddmm_blocks, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("q"), py::arg("k"), py::arg("blocks"), py::arg("out"), py::arg("d"),
        py::arg("precision"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
