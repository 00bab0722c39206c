#include "cuda_args.h"
#include "handles.h"

namespace gnnsparse::bindings {
namespace {

Softmax softmax_problem(const CsrHandle& a, const WorkListHandle& work, int64_t row_limit,
                        const Memory& scores, const Memory& out) {
  require_size(row_limit, "row_limit");
  Softmax p;
  p.a = gpu(a);
  p.work = cut_list(work);
  p.row_limit = row_limit;
  p.scores = gpu_array<const float>(scores, p.a.nnz, "scores");
  p.out = gpu_array<float>(out, p.a.nnz, "out");
  return p;
}

}  // namespace

void bind_cuda_softmax(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def(
      "cuda_softmax",
      [](const CsrHandle& a, const WorkListHandle& work, int64_t row_limit, const Memory& scores,
         const Memory& out, Address stream) {
        cuda::softmax(softmax_problem(a, work, row_limit, scores, out), stream_of(stream));
      },
      nogil, py::arg("a"), py::arg("work"), py::arg("row_limit"), py::arg("scores"), py::arg("out"),
      py::arg("stream"));
  m.def(
      "cuda_softmax_grad",
      [](const CsrHandle& a, const WorkListHandle& work, int64_t row_limit, const Memory& weights,
         const Memory& grad, const Memory& out, Address stream) {
        Softmax p = softmax_problem(a, work, row_limit, weights, out);
        p.grad = gpu_array<const float>(grad, p.a.nnz, "grad");
        cuda::softmax_grad(p, stream_of(stream));
      },
      nogil, py::arg("a"), py::arg("work"), py::arg("row_limit"), py::arg("weights"),
      py::arg("grad"), py::arg("out"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
