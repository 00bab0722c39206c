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

void gather_floor(Address columns, int64_t count, const Dense& x, int64_t n, Address out,
                  Address stream) {
  const auto view = matrix<DenseView>(x, count, n, "x");
  require_aligned(x.data, "x");
  if (view.stride * size_of(view.dtype) % 16 != 0) reject("x", "rows must be 16-byte aligned");
  cuda::gather_floor(array<const int32_t>(columns, count, "columns"), count, view, n,
                     array<uint32_t>(out, cuda::kGatherFloorWords, "out"), stream_of(stream));
}

Softmax softmax_problem(const CsrView& a, const WorkListHandle& work, int64_t row_limit,
                        Address scores, Address grad, Address out) {
  Softmax p;
  p.a = a;
  p.work = cut_list(work);
  p.row_limit = row_limit;
  p.scores = array<const float>(scores, a.nnz, "scores");
  p.grad = optional_array<const float>(grad, "grad");
  p.out = array<float>(out, a.nnz, "out");
  return p;
}

cuda::Scratch scratch_of(Address data, size_t bytes) {
  return {reinterpret_cast<void*>(data), bytes};
}

void bind_kernels(py::module_& m) {
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
  m.def("cuda_gather_floor", &gather_floor, nogil, py::arg("columns"), py::arg("count"),
        py::arg("x"), py::arg("n"), py::arg("out"), py::arg("stream"));
  m.def(
      "cuda_softmax",
      [](const CsrView& a, const WorkListHandle& work, int64_t row_limit, Address scores,
         Address out, Address stream) {
        cuda::softmax(softmax_problem(a, work, row_limit, scores, 0, out), stream_of(stream));
      },
      nogil, py::arg("a"), py::arg("work"), py::arg("row_limit"), py::arg("scores"), py::arg("out"),
      py::arg("stream"));
  m.def(
      "cuda_softmax_grad",
      [](const CsrView& a, const WorkListHandle& work, int64_t row_limit, Address weights,
         Address grad, Address out, Address stream) {
        array<const float>(grad, a.nnz, "grad");
        cuda::softmax_grad(softmax_problem(a, work, row_limit, weights, grad, out),
                           stream_of(stream));
      },
      nogil, py::arg("a"), py::arg("work"), py::arg("row_limit"), py::arg("weights"),
      py::arg("grad"), py::arg("out"), py::arg("stream"));
}

// Each returns the scratch bytes it needs; called with scratch 0 it does nothing else.
void bind_preprocessing(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def(
      "cuda_coo_to_csr",
      [](const EdgesHandle& edges, int64_t rows, int64_t cols, Address indptr, Address indices,
         const NnzIndicesHandle& nnz_index, Address scratch, size_t bytes, Address stream) {
        return cuda::coo_to_csr(edges.rows(), edges.cols(), edges.count, rows, cols,
                                array<int64_t>(indptr, rows + 1, "indptr"),
                                array<int32_t>(indices, edges.count, "indices"),
                                mutable_index_view(nnz_index, edges.count, "nnz_index"),
                                scratch_of(scratch, bytes), stream_of(stream));
      },
      nogil, py::arg("edges"), py::arg("rows"), py::arg("cols"), py::arg("indptr"),
      py::arg("indices"), py::arg("nnz_index"), py::arg("scratch"), py::arg("bytes"),
      py::arg("stream"));
  m.def(
      "cuda_transpose",
      [](const CsrView& a, Address indptr, Address indices, const NnzIndicesHandle& source,
         Address scratch, size_t bytes, Address stream) {
        return cuda::transpose(a, array<int64_t>(indptr, a.cols + 1, "indptr"),
                               array<int32_t>(indices, a.nnz, "indices"),
                               mutable_index_view(source, a.nnz, "source"),
                               scratch_of(scratch, bytes), stream_of(stream));
      },
      nogil, py::arg("a"), py::arg("indptr"), py::arg("indices"), py::arg("source"),
      py::arg("scratch"), py::arg("bytes"), py::arg("stream"));
  m.def(
      "cuda_count_panels",
      [](const CsrView& a, int64_t height, Address columns, Address position, Address scratch,
         size_t bytes, Address stream) {
        if (height < 1) reject("height", "must be at least 1");
        return cuda::count_panels(a, height,
                                  array<int64_t>(columns, ceil_div(a.rows, height), "columns"),
                                  array<int32_t>(position, a.nnz, "position"),
                                  scratch_of(scratch, bytes), stream_of(stream));
      },
      nogil, py::arg("a"), py::arg("height"), py::arg("columns"), py::arg("position"),
      py::arg("scratch"), py::arg("bytes"), py::arg("stream"));
  m.def(
      "cuda_fill_blocked",
      [](const CsrView& a, const BlockedView& format, Address position, Address columns,
         Address bitmap, Address value_index, Address stream) {
        if (format.shape.panel != format.shape.window) reject("panel", "must equal window");
        if (bitmap % 4 != 0) reject("bitmap", "must be aligned to 4 bytes");
        cuda::fill_blocked(a, format, array<const int32_t>(position, a.nnz, "position"),
                           optional_array<int32_t>(columns, "columns"),
                           optional_array<uint8_t>(bitmap, "bitmap"),
                           optional_array<int64_t>(value_index, "value_index"), stream_of(stream));
      },
      nogil, py::arg("a"), py::arg("format"), py::arg("position"), py::arg("columns"),
      py::arg("bitmap"), py::arg("value_index"), py::arg("stream"));
  m.def(
      "cuda_count_entries",
      [](Address banks, int64_t k_tiles, Address counts, Address stream) {
        cuda::count_entries(array<const uint32_t>(banks, k_tiles, "banks"), k_tiles,
                            array<int64_t>(counts, k_tiles, "counts"), stream_of(stream));
      },
      nogil, py::arg("banks"), py::arg("k_tiles"), py::arg("counts"), py::arg("stream"));
  m.def(
      "cuda_fill_entries",
      [](const CsrView& a, const BlockedView& format, Address position, Address banks,
         Address values, Address entries, Address stream) {
        require_entries(format);
        cuda::fill_entries(a, format, array<const int32_t>(position, a.nnz, "position"),
                           array<const uint32_t>(banks, a.nnz, "banks"),
                           array<const uint16_t>(values, a.nnz, "values"),
                           array<uint32_t>(entries, a.nnz, "entries"), stream_of(stream));
      },
      nogil, py::arg("a"), py::arg("format"), py::arg("position"), py::arg("banks"),
      py::arg("values"), py::arg("entries"), py::arg("stream"));
}

}  // namespace

void bind_cuda(py::module_& m) {
  bind_cuda_attention(m);
  bind_cuda_spmm(m);
  bind_kernels(m);
  bind_preprocessing(m);
}

}  // namespace gnnsparse::bindings
