#include "cuda_args.h"

namespace gnnsparse::bindings {
namespace {

cuda::Softmax softmax_problem(const CsrView& a, Address long_rows, int64_t long_row_count,
                              int64_t row_limit, Address scores, Address grad, Address out) {
  cuda::Softmax p;
  p.a = a;
  p.long_rows = array<const cuda::Cut>(long_rows, long_row_count, "long_rows");
  p.long_row_count = long_row_count;
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
      [](const CsrView& a, Address long_rows, int64_t count, int64_t limit, Address scores,
         Address out, Address stream) {
        cuda::softmax(softmax_problem(a, long_rows, count, limit, scores, 0, out),
                      stream_of(stream));
      },
      nogil);
  m.def(
      "cuda_softmax_grad",
      [](const CsrView& a, Address long_rows, int64_t count, int64_t limit, Address weights,
         Address grad, Address out, Address stream) {
        array<const float>(grad, a.nnz, "grad");
        cuda::softmax_grad(softmax_problem(a, long_rows, count, limit, weights, grad, out),
                           stream_of(stream));
      },
      nogil);
}

}  // namespace gnnsparse::bindings
