#include "cuda_args.h"
#include "gnnsparse/packed_entries.h"
#include "handles.h"
#include "problem_args.h"

namespace gnnsparse::bindings {
namespace {

cuda::Scratch scratch_of(const Memory& scratch) {
  if (!scratch.given) return {nullptr, 0};
  return {gpu_array<char>(scratch, scratch.count, "scratch"), static_cast<size_t>(scratch.count)};
}

MutableIndexView indices_of_nonzeros(const Memory& memory, int64_t count, const char* name) {
  return index_array(memory, count, Place::kGpu, name);
}

size_t coo_to_csr(const EdgesHandle& edges, int64_t rows, int64_t cols, const Memory& indptr,
                  const Memory& indices, const Memory& nnz_index, const Memory& scratch,
                  Address stream) {
  require_size(rows, "rows");
  require_size(cols, "cols");
  const int64_t count = edges.count();
  return cuda::coo_to_csr(
      edges.rows(Place::kGpu), edges.cols(Place::kGpu), count, rows, cols,
      gpu_array<int64_t>(indptr, rows + 1, "indptr"), gpu_array<int32_t>(indices, count, "indices"),
      indices_of_nonzeros(nnz_index, count, "nnz_index"), scratch_of(scratch), stream_of(stream));
}

size_t transpose(const CsrHandle& matrix, const Memory& indptr, const Memory& indices,
                 const Memory& source, const Memory& scratch, Address stream) {
  const CsrView& a = gpu(matrix);
  return cuda::transpose(a, gpu_array<int64_t>(indptr, a.cols + 1, "indptr"),
                         gpu_array<int32_t>(indices, a.nnz, "indices"),
                         indices_of_nonzeros(source, a.nnz, "source"), scratch_of(scratch),
                         stream_of(stream));
}

size_t count_panels(const CsrHandle& matrix, int64_t height, const Memory& columns,
                    const Memory& position, const Memory& scratch, Address stream) {
  const CsrView& a = gpu(matrix);
  require_at_least_one(height, "height");
  return cuda::count_panels(
      a, height, gpu_array<int64_t>(columns, ceil_div(a.rows, height), "columns"),
      gpu_array<int32_t>(position, a.nnz, "position"), scratch_of(scratch), stream_of(stream));
}

// The format of a matrix, whose panels are one window.
const BlockedView& gpu_format(const CsrView& a, const BlockedHandle& format) {
  const BlockedView& view = gpu(format);
  if (view.rows != a.rows || view.cols != a.cols || format.nnz != a.nnz) {
    reject("format", "is of another matrix");
  }
  if (view.shape.panel != view.shape.window) reject("panel", "must equal window");
  return view;
}

// Fills the columns and bits of `handle`, and `value_index`.
void fill_blocked(const CsrHandle& matrix, const BlockedHandle& handle, const Memory& position,
                  const Memory& value_index, Address stream) {
  const CsrView& a = gpu(matrix);
  const BlockedView& format = gpu_format(a, handle);
  require_aligned(handle.bitmap, 4, "bitmap");
  cuda::fill_blocked(a, format, gpu_array<const int32_t>(position, a.nnz, "position"),
                     const_cast<int32_t*>(format.columns), const_cast<uint8_t*>(format.bitmap),
                     optional_gpu_array<int64_t>(value_index, a.nnz, "value_index"),
                     stream_of(stream));
}

void count_entries(const Memory& banks, const Memory& counts, Address stream) {
  const int64_t k_tiles = counts.count;
  const int64_t words = product("counts", k_tiles, kBanks);
  cuda::count_entries(gpu_array<const uint32_t>(banks, words, "banks"), k_tiles,
                      gpu_array<int64_t>(counts, k_tiles, "counts"), stream_of(stream));
}

void fill_entries(const CsrHandle& matrix, const BlockedHandle& handle, const Memory& position,
                  const Memory& banks, const Memory& values, const Memory& entries,
                  Address stream) {
  const CsrView& a = gpu(matrix);
  const BlockedView& format = gpu_format(a, handle);
  require_entries(handle);
  const int64_t words = product("banks", handle.slots / format.shape.block, kBanks);
  cuda::fill_entries(a, format, gpu_array<const int32_t>(position, a.nnz, "position"),
                     gpu_array<const uint32_t>(banks, words, "banks"),
                     entry_values(format, values, a.nnz, Place::kGpu),
                     gpu_array<uint32_t>(entries, entries.count, "entries"), stream_of(stream));
}

}  // namespace

// Those with `scratch` return the bytes that they need; called with None they do nothing else.
void bind_cuda_preprocess(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cuda_coo_to_csr", &coo_to_csr, nogil, py::arg("edges"), py::arg("rows"), py::arg("cols"),
        py::arg("indptr"), py::arg("indices"), py::arg("nnz_index"), py::arg("scratch"),
        py::arg("stream"));
  m.def("cuda_transpose", &transpose, nogil, py::arg("a"), py::arg("indptr"), py::arg("indices"),
        py::arg("source"), py::arg("scratch"), py::arg("stream"));
  m.def("cuda_count_panels", &count_panels, nogil, py::arg("a"), py::arg("height"),
        py::arg("columns"), py::arg("position"), py::arg("scratch"), py::arg("stream"));
  m.def("cuda_fill_blocked", &fill_blocked, nogil, py::arg("a"), py::arg("format"),
        py::arg("position"), py::arg("value_index"), py::arg("stream"));
  m.def("cuda_count_entries", &count_entries, nogil, py::arg("banks"), py::arg("counts"),
        py::arg("stream"));
  m.def("cuda_fill_entries", &fill_entries, nogil, py::arg("a"), py::arg("format"),
        py::arg("position"), py::arg("banks"), py::arg("values"), py::arg("entries"),
        py::arg("stream"));
}

}  // namespace gnnsparse::bindings
