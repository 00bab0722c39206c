#include <pybind11/stl.h>

#include <optional>

#include "cuda_args.h"
#include "eight_bit_args.h"
#include "gnnsparse/byte_tile.h"
#include "problem_args.h"

namespace gnnsparse::bindings {
namespace {

// The width, padded, of rows of numbers [batches, heads, rows, width] for an x of `size`.
int64_t eight_bit_heads(const Strided<4>& out, const int64_t (&size)[4], const char* name) {
  const int64_t width = out.size[3];
  const int64_t n = size[3];
  if (!out.given || out.element != Element::kUint8) reject(name, "accepted: uint8");
  require_place(out, Place::kGpu, name);
  require_aligned(out, kEightBitPadding, name);
  bool fits = width % kEightBitPadding == 0 && width >= n && width - n < kEightBitPadding &&
              (width == 0 || out.stride[3] == 1);
  for (int i = 0; i < 3; ++i) {
    fits = fits && out.size[i] == size[i] &&
           (out.size[i] <= 1 || out.stride[i] % kEightBitPadding == 0);
  }
  if (!fits) reject(name, "accepted: the shape of x padded to 16, with rows 16-byte aligned");
  return width;
}

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
  p.out_row = p.stride;
  require_at_least_one(parts, "parts");
  p.parts = parts;
  p.scale = gpu_array<float>(scale, p.stride, "scale");
  p.peaks = gpu_array<int32_t>(peaks, p.stride, "peaks");
  cuda::quantize(p, stream_of(stream));
}

// Heads [batches, heads, rows, n] with a scale for each feature of each head, as attention reads
// them: 128 is added to integers. Those of one batch are the groups of a launch, or all of them
// where batch and head are one stride.
void quantize_heads(const Strided<4>& x, const Strided<4>& out, const Memory& scale,
                    const Memory& peaks, int64_t parts, int number_type, Address stream) {
  Quantize p;
  if (!x.given) reject("x", "is None");
  p.x_dtype = storage_dtype(x, "x");
  require_place(x, Place::kGpu, "x");
  p.type = eight_bit_of(number_type);
  p.change = p.type == EightBit::kInt8 ? kShiftedInt8 : 0;
  p.rows = x.size[2];
  p.n = x.size[3];
  p.row_stride = x.stride[2];
  p.column_stride = x.stride[3];
  p.stride = eight_bit_heads(out, x.size, "out");
  p.out_row = out.stride[2];
  const int64_t factors = product("scale", x.size[0], x.size[1], p.stride);
  float* const scales = gpu_array<float>(scale, factors, "scale");
  int32_t* const found = gpu_array<int32_t>(peaks, factors, "peaks");
  require_at_least_one(parts, "parts");
  p.parts = parts;
  const bool outer = x.size[1] == 1;  // the batches are the groups
  const bool folds =
      outer || x.size[0] == 1 ||
      (x.stride[0] == x.size[1] * x.stride[1] && out.stride[0] == out.size[1] * out.stride[1]);
  p.groups = folds ? x.size[0] * x.size[1] : x.size[1];
  p.group_stride = x.stride[outer ? 0 : 1];
  p.out_group = out.stride[outer ? 0 : 1];
  const int64_t size = size_of(p.x_dtype);
  for (int64_t b = 0; b < (folds ? 1 : x.size[0]); ++b) {
    p.x = x.data + b * x.stride[0] * size;
    p.out = reinterpret_cast<uint8_t*>(out.data) + b * out.stride[0];
    p.scale = scales + b * x.size[1] * p.stride;
    p.peaks = found + b * x.size[1] * p.stride;
    cuda::quantize(p, stream_of(stream));
  }
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
  if (entry_value_bytes(p.a.encoding) > 0 || !takes_bytes(p.a.shape.panel, p.integer_sums())) {
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
  m.def("cuda_quantize_heads", &quantize_heads, nogil, py::arg("x"), py::arg("out"),
        py::arg("scale"), py::arg("peaks"), py::arg("parts"), py::arg("number_type"),
        py::arg("stream"));
  m.def("cuda_spmm_quantized", &spmm_quantized, nogil, py::arg("a"), py::arg("rows"),
        py::arg("work"), py::arg("x"), py::arg("scale"), py::arg("number_type"), py::arg("y"),
        py::arg("n"), py::arg("slices"), py::arg("partial"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
