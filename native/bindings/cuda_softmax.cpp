#include "cuda_args.h"
#include "handles.h"

namespace gnnsparse::bindings {
namespace {

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

}  // namespace

void bind_cuda_softmax(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
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

}  // namespace gnnsparse::bindings
