#include <pybind11/stl.h>

#include <optional>

#include "cuda_args.h"
#include "eight_bit_args.h"
#include "gnnsparse/byte_tile.h"
#include "problem_args.h"

namespace gnnsparse::bindings {
namespace {

void quantize(const Strided<2>& x, const Memory& weights, const Strided<2>& out,
              const Memory& scale, const Memory& peaks, int64_t parts, int number_type,
              const std::optional<int64_t>& seed, Address stream) {
  Quantize p;
  set_strided(p, x);
  p.weights = optional_gpu_array<const float>(weights, p.rows, "weights");
  p.type = eight_bit_of(number_type);
  p.stochastic = seed.has_value();
  if (seed) p.key = philox_key(*seed);
  p.stride = padded_stride(out, p.rows, p.n, Place::kGpu);
  p.out = reinterpret_cast<uint8_t*>(out.data);
  require_at_least_one(parts, "parts");
  p.parts = parts;
  p.scale = gpu_array<float>(scale, p.stride, "scale");
  p.peaks = gpu_array<int32_t>(peaks, p.stride, "peaks");
  cuda::quantize(p, stream_of(stream));
}

void spmm_quantized(const BlockedHandle& a, const StoredRowsHandle& rows,
                    const WorkListHandle& work, const Strided<2>& x, const Memory& scale,
                    int number_type, const Dense& y, int64_t n, int slices, const Memory& partial,
                    Address stream) {
  require_at_least_one(slices, "slices");
  if (n > INT32_MAX - kByteFeatures) reject("n", "must be below 2^31 - 128");
  QuantizedSpmm p;
  p.type = eight_bit_of(number_type);
  p.a = gpu(a);
  require_spmm_panels(p.a, a.slots, Precision::kFp16);
  a.require_storage(Precision::kFp16);
  if (entry_value_bytes(p.a.encoding) > 0 || p.a.shape.panel != kQuantizedRows) {
    reject("format", "an X of 8 bits has no kernel for such panels");
  }
  if (p.a.slot_scale != nullptr) reject("a", "has column weights, which belong into X");
  p.stored = stored_rows(rows, p.a.rows, a.nnz, Precision::kFp16);
  p.work = work_list<PanelItem>(work, 0);
  p.x.stride = eight_bit_stride(x, p.a.cols, n, Place::kGpu, "x");
  if (p.x.stride > UINT32_MAX) reject("x", "rows are 4 GiB long or longer");
  p.x.data = x.data;
  require_aligned(scale, 16, "scale");
  p.scale = gpu_array<const float>(scale, p.x.stride, "scale");
  p.y = gpu_matrix<MutableDenseView>(y, p.a.rows, n, "y");
  p.n = n;
  p.slices = slices;
  p.partial = partial_sums(partial, p.work.partials, p.a.shape.panel, n);
  cuda::spmm_quantized(p, stream_of(stream));
}

}  // namespace

void bind_cuda_quantized(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cuda_quantize", &quantize, nogil, py::arg("x"), py::arg("weights"), py::arg("out"),
        py::arg("scale"), py::arg("peaks"), py::arg("parts"), py::arg("number_type"),
        py::arg("seed"), py::arg("stream"));
  m.def("cuda_spmm_quantized", &spmm_quantized, nogil, py::arg("a"), py::arg("rows"),
        py::arg("work"), py::arg("x"), py::arg("scale"), py::arg("number_type"), py::arg("y"),
        py::arg("n"), py::arg("slices"), py::arg("partial"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
