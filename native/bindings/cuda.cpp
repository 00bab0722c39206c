#include "cuda_args.h"

namespace gnnsparse::bindings {
namespace {

// `columns` lists rows of `x`, and `out` has room for each multiprocessor of its GPU.
void gather_floor(const Memory& columns, const Dense& x, int64_t n, const Memory& out,
                  Address stream) {
  const auto view = gpu_matrix<DenseView>(x, 0, n, "x");
  require_aligned(x, 16, "x");
  if (view.stride * size_of(view.dtype) % 16 != 0) reject("x", "rows must be 16-byte aligned");
  cuda::gather_floor(gpu_array<const int32_t>(columns, columns.count, "columns"), columns.count,
                     view, n, gpu_array<uint32_t>(out, out.count, "out"),
                     out.count / cuda::kGatherFloorWords, stream_of(stream));
}

}  // namespace

void bind_cuda(py::module_& m) {
  bind_cuda_attention(m);
  bind_cuda_graph_attention(m);
  bind_cuda_spmm(m);
  bind_cuda_sddmm(m);
  bind_cuda_softmax(m);
  bind_cuda_heads(m);
  bind_cuda_quantized(m);
  bind_cuda_edges(m);
  bind_cuda_network(m);
  bind_cuda_preprocess(m);
  bind_cuda_sampling(m);
  m.def("cuda_gather_floor", &gather_floor, py::call_guard<py::gil_scoped_release>(),
        py::arg("columns"), py::arg("x"), py::arg("n"), py::arg("out"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
