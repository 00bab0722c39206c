#include "cuda_args.h"
#include "window_args.h"

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
      [](Address row, Address col, bool wide, int64_t edges, int64_t rows, int64_t cols,
         Address indptr, Address indices, Address slot, bool wide_slot, Address scratch,
         size_t bytes, Address stream) {
        return cuda::coo_to_csr({array<const uint32_t>(row, edges, "row"), wide},
                                {array<const uint32_t>(col, edges, "col"), wide}, edges, rows, cols,
                                array<int64_t>(indptr, rows + 1, "indptr"),
                                array<int32_t>(indices, edges, "indices"),
                                {array<uint32_t>(slot, edges, "slot"), wide_slot},
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
         Address bitmap, Address value_slot, Address stream) {
        if (format.shape.panel != format.shape.window) reject("panel", "must equal window");
        if (bitmap % 4 != 0) reject("bitmap", "must be aligned to 4 bytes");
        cuda::fill_blocked(a, format, array<const int32_t>(position, a.nnz, "position"),
                           optional_array<int32_t>(columns, "columns"),
                           optional_array<uint8_t>(bitmap, "bitmap"),
                           optional_array<int64_t>(value_slot, "value_slot"), stream_of(stream));
      },
      nogil);
  m.def(
      "cuda_count_entries",
      [](Address banks, int64_t stages, Address counts, Address stream) {
        cuda::count_entries(array<const uint32_t>(banks, stages, "banks"), stages,
                            array<int64_t>(counts, stages, "counts"), stream_of(stream));
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

}  // namespace gnnsparse::bindings
