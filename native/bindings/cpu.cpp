#include "checks.h"
#include "gnnsparse/cpu_kernels.h"

namespace gnnsparse::bindings {
namespace {

void spmm(const CsrView& a, Address row_ids, Address values, Address col_scale, Address row_scale,
          const Dense& x, const Dense& y, int64_t n, int threads) {
  cpu::SpmmArgs args;
  args.a = a;
  args.row_ids = optional_array<const int32_t>(row_ids, "row_ids");
  args.values = optional_array<const float>(values, "values");
  args.col_scale = optional_array<const float>(col_scale, "col_scale");
  args.row_scale = optional_array<const float>(row_scale, "row_scale");
  args.x = matrix<DenseView>(x, a.cols, n, "x");
  args.y = matrix<MutableDenseView>(y, a.rows, n, "y");
  args.n = n;
  cpu::spmm(args, require_threads(threads));
}

void sddmm(const CsrView& a, Address row_ids, const Dense& q, const Dense& k, Address out,
           int out_dtype, int64_t d, int threads) {
  cpu::SddmmArgs args;
  args.a = a;
  args.row_ids = optional_array<const int32_t>(row_ids, "row_ids");
  args.q = matrix<DenseView>(q, a.rows, d, "q");
  args.k = matrix<DenseView>(k, a.cols, d, "k");
  if (args.q.dtype != args.k.dtype) reject("k", "must have the dtype of q");
  args.out = array<uint16_t>(out, a.nnz, "out");
  args.out_dtype = dtype_of(out_dtype);
  args.d = d;
  cpu::sddmm(args, require_threads(threads));
}

cpu::SoftmaxArgs softmax_args(const CsrView& a, Address scores, Address grad, Address out) {
  cpu::SoftmaxArgs args;
  args.a = a;
  args.scores = array<const float>(scores, a.nnz, "scores");
  args.grad = optional_array<const float>(grad, "grad");
  args.out = array<float>(out, a.nnz, "out");
  return args;
}

}  // namespace

void bind_cpu(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cpu_spmm", &spmm, nogil, py::arg("a"), py::arg("row_ids"), py::arg("values"),
        py::arg("col_scale"), py::arg("row_scale"), py::arg("x"), py::arg("y"), py::arg("n"),
        py::arg("threads"));
  m.def("cpu_sddmm", &sddmm, nogil, py::arg("a"), py::arg("row_ids"), py::arg("q"), py::arg("k"),
        py::arg("out"), py::arg("out_dtype"), py::arg("d"), py::arg("threads"));
  m.def(
      "cpu_softmax",
      [](const CsrView& a, Address scores, Address out, int threads) {
        cpu::softmax(softmax_args(a, scores, 0, out), require_threads(threads));
      },
      nogil, py::arg("a"), py::arg("scores"), py::arg("out"), py::arg("threads"));
  m.def(
      "cpu_softmax_grad",
      [](const CsrView& a, Address weights, Address grad, Address out, int threads) {
        array<const float>(grad, a.nnz, "grad");
        cpu::softmax_grad(softmax_args(a, weights, grad, out), require_threads(threads));
      },
      nogil, py::arg("a"), py::arg("weights"), py::arg("grad"), py::arg("out"), py::arg("threads"));
  m.def(
      "cpu_round_tf32",
      [](Address source, Address out, int64_t count, int threads) {
        cpu::round_to_tf32(array<const float>(source, count, "source"),
                           array<float>(out, count, "out"), count, require_threads(threads));
      },
      nogil, py::arg("source"), py::arg("out"), py::arg("count"), py::arg("threads"));
  m.def("cpu_isa", [] { return cpu::kernels().name; }, "Name of the instruction set in use.");
  m.def("set_cpu_isa", &cpu::select_kernels,
        "Uses the kernels of `name` (portable, avx2, avx512, auto); False if they can't run here.",
        py::arg("name"));
}

}  // namespace gnnsparse::bindings
