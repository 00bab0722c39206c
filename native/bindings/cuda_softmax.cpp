#include "cuda_args.h"
#include "handles.h"

namespace gnnsparse::bindings {
namespace {

Softmax softmax_problem(const CsrHandle& a, const WorkListHandle& work, int64_t row_limit,
                        const Memory& scores, int64_t heads, const Memory& out) {
  require_size(row_limit, "row_limit");
  require_at_least_one(heads, "heads");
  Softmax p;
  p.a = gpu(a);
  p.work = cut_list(work);
  p.row_limit = row_limit;
  p.heads = heads;
  const int64_t count = product("scores", p.a.nnz, heads);
  p.scores = gpu_array<const float>(scores, count, "scores");
  p.out = gpu_array<float>(out, count, "out");
  return p;
}

}  // namespace

void bind_cuda_softmax(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def(
      "cuda_softmax",
      [](const CsrHandle& a, const WorkListHandle& work, int64_t row_limit, const Memory& scores,
         int64_t heads, const Memory& out, Address stream) {
        cuda::softmax(softmax_problem(a, work, row_limit, scores, heads, out), stream_of(stream));
      },
      nogil, py::arg("a"), py::arg("work"), py::arg("row_limit"), py::arg("scores"),
      py::arg("heads"), py::arg("out"), py::arg("stream"));
  m.def(
      "cuda_softmax_grad",
      [](const CsrHandle& a, const WorkListHandle& work, int64_t row_limit, const Memory& weights,
         const Memory& grad, int64_t heads, const Memory& out, Address stream) {
        Softmax p = softmax_problem(a, work, row_limit, weights, heads, out);
        p.grad = gpu_array<const float>(grad, product("grad", p.a.nnz, heads), "grad");
        cuda::softmax_grad(p, stream_of(stream));
      },
      nogil, py::arg("a"), py::arg("work"), py::arg("row_limit"), py::arg("weights"),
      py::arg("grad"), py::arg("heads"), py::arg("out"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
