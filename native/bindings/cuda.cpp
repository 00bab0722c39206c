#include "cuda_args.h"

namespace gnnsparse::bindings {
namespace {

void gather_floor(Address columns, int64_t count, const Dense& x, int64_t n, Address out,
                  Address stream) {
  const auto view = matrix<DenseView>(x, count, n, "x");
  require_aligned(x.data, "x");
  if (view.stride * size_of(view.dtype) % 16 != 0) reject("x", "rows must be 16-byte aligned");
  cuda::gather_floor(array<const int32_t>(columns, count, "columns"), count, view, n,
                     array<uint32_t>(out, cuda::kGatherFloorWords, "out"), stream_of(stream));
}

}  // namespace

void bind_cuda(py::module_& m) {
  bind_cuda_attention(m);
  bind_cuda_spmm(m);
  bind_cuda_sddmm(m);
  bind_cuda_softmax(m);
  bind_cuda_preprocess(m);
  m.def("cuda_gather_floor", &gather_floor, py::call_guard<py::gil_scoped_release>(),
        py::arg("columns"), py::arg("count"), py::arg("x"), py::arg("n"), py::arg("out"),
        py::arg("stream"));
}

}  // namespace gnnsparse::bindings
