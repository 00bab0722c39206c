#include "cuda_args.h"
#include "handles.h"
#include "problem_args.h"

namespace gnnsparse::bindings {
namespace {

cuda::Scratch scratch_of(Address data, size_t bytes) {
  return {reinterpret_cast<void*>(data), bytes};
}

}  // namespace

// Each returns the scratch bytes it needs; called with scratch 0 it does nothing else.
void bind_cuda_preprocess(py::module_& m) {
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

}  // namespace gnnsparse::bindings
