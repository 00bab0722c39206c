#include "cuda_args.h"
#include "window_args.h"

namespace gnnsparse::bindings {
namespace {

void sddmm_csr(const CsrView& a, Address row_ids, const WorkList& items, int64_t row_limit,
               int lanes, int row_lanes, const Dense& q, const Dense& k, Address out, int out_dtype,
               int64_t d, int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_lanes(lanes, row_lanes);
  cuda::CsrSddmm p;
  p.a = a;
  p.row_ids = optional_array<const int32_t>(row_ids, "row_ids");
  p.items = array<const cuda::RowItem>(items.data, items.count, "items");
  p.item_count = items.count;
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

void sddmm_panel(const BlockedView& a, const WorkList& items, Address indptr, Address row_ids,
                 const Dense& q, const Dense& k, Address out, int out_dtype, int64_t d,
                 int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_vectors(q, a.rows, d, precision, "q");
  require_vectors(k, a.cols, d, precision, "k");
  cuda::sddmm_panel(panel_sddmm(a, items, indptr, row_ids, q, k, out, out_dtype, d, precision),
                    precision, stream_of(stream));
}

void sddmm_window(const BlockedView& a, const WorkList& items, Address indptr, Address row_ids,
                  const Dense& q, const Dense& k, Address out, int out_dtype, int64_t d,
                  int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_vectors(q, a.rows, d, precision, "q");
  require_vectors(k, a.cols, d, precision, "k");
  cuda::sddmm_window(window_sddmm(a, items, indptr, row_ids, q, k, out, out_dtype, d, precision),
                     precision, stream_of(stream));
}

void gather_floor(Address columns, int64_t count, const Dense& x, int64_t n, Address out,
                  Address stream) {
  const auto view = matrix<DenseView>(x, count, n, "x");
  require_aligned(x.data, "x");
  if (view.stride * size_of(view.dtype) % 16 != 0) reject("x", "rows must be 16-byte aligned");
  cuda::gather_floor(array<const int32_t>(columns, count, "columns"), count, view, n,
                     array<uint32_t>(out, cuda::kGatherFloorWords, "out"), stream_of(stream));
}

cuda::Softmax softmax_problem(const CsrView& a, Address long_rows, int64_t long_row_count,
                              int64_t row_limit, Address scores, Address grad, Address out) {
  cuda::Softmax p;
  p.a = a;
  p.long_rows = array<const cuda::Cut>(long_rows, long_row_count, "long_rows");
  p.long_row_count = long_row_count;
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
  m.def("cuda_sddmm_csr", &sddmm_csr, nogil);
  m.def("cuda_sddmm_panel", &sddmm_panel, nogil);
  m.def("cuda_sddmm_window", &sddmm_window, nogil);
  m.def("cuda_gather_floor", &gather_floor, nogil);
  m.def(
      "cuda_softmax",
      [](const CsrView& a, Address long_rows, int64_t count, int64_t limit, Address scores,
         Address out, Address stream) {
        cuda::softmax(softmax_problem(a, long_rows, count, limit, scores, 0, out),
                      stream_of(stream));
      },
      nogil);
  m.def(
      "cuda_softmax_grad",
      [](const CsrView& a, Address long_rows, int64_t count, int64_t limit, Address weights,
         Address grad, Address out, Address stream) {
        array<const float>(grad, a.nnz, "grad");
        cuda::softmax_grad(softmax_problem(a, long_rows, count, limit, weights, grad, out),
                           stream_of(stream));
      },
      nogil);
}

// Each returns the scratch bytes it needs; called with scratch 0 it does nothing else.
void bind_preprocessing(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def(
      "cuda_coo_to_csr",
      [](Address row, Address col, bool wide, int64_t edges, int64_t rows, int64_t cols,
         Address indptr, Address indices, Address slot, bool wide_nnz_index, Address scratch,
         size_t bytes, Address stream) {
        return cuda::coo_to_csr({array<const uint32_t>(row, edges, "row"), wide},
                                {array<const uint32_t>(col, edges, "col"), wide}, edges, rows, cols,
                                array<int64_t>(indptr, rows + 1, "indptr"),
                                array<int32_t>(indices, edges, "indices"),
                                {array<uint32_t>(slot, edges, "slot"), wide_nnz_index},
                                scratch_of(scratch, bytes), stream_of(stream));
      },
      nogil);
  m.def(
      "cuda_transpose",
      [](const CsrView& a, Address indptr, Address indices, Address source, bool wide,
         Address scratch, size_t bytes, Address stream) {
        return cuda::transpose(a, array<int64_t>(indptr, a.cols + 1, "indptr"),
                               array<int32_t>(indices, a.nnz, "indices"),
                               {array<uint32_t>(source, a.nnz, "source"), wide},
                               scratch_of(scratch, bytes), stream_of(stream));
      },
      nogil);
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
      nogil);
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
      nogil);
  m.def(
      "cuda_count_entries",
      [](Address banks, int64_t k_tiles, Address counts, Address stream) {
        cuda::count_entries(array<const uint32_t>(banks, k_tiles, "banks"), k_tiles,
                            array<int64_t>(counts, k_tiles, "counts"), stream_of(stream));
      },
      nogil);
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
      nogil);
}

}  // namespace

void bind_cuda(py::module_& m) {
  bind_cuda_attention(m);
  bind_cuda_spmm(m);
  bind_kernels(m);
  bind_preprocessing(m);
}

}  // namespace gnnsparse::bindings
