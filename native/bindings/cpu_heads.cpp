#include "checks.h"
#include "gnnsparse/cpu_kernels.h"
#include "heads_args.h"

namespace gnnsparse::bindings {
namespace {

// The pattern, the rows and the values of the nonzeros, [nnz, heads].
template <class Args>
void set_rows(Args& args, const CsrHandle& matrix, const StoredRowsHandle& rows) {
  args.a = host(matrix);
  args.row_ids = optional_host_array<const int32_t>(rows.row_ids, args.a.rows, "row_ids");
  args.row_scale = optional_host_array<const float>(rows.row_scale, args.a.rows, "row_scale");
  const int64_t values = product("values", args.a.nnz, args.shape.heads);
  args.values = optional_host_array<const float>(rows.values, values, "values");
}

void spmm_heads(const CsrHandle& matrix, const StoredRowsHandle& rows, const Strided<2>& x,
                const Strided<2>& y, int64_t heads, int64_t width, const Memory& winners,
                int threads) {
  cpu::HeadsSpmmArgs args;
  args.shape = head_shape(heads, width);
  set_rows(args, matrix, rows);
  const int64_t features = args.shape.features();
  args.x = host_matrix<DenseView>(x, args.a.cols, features, "x");
  args.y = host_matrix<MutableDenseView>(y, args.a.rows, features, "y");
  args.winners = optional_host_array<const int32_t>(
      winners, product("winners", args.a.cols, features), "winners");
  cpu::spmm_heads(args, require_threads(threads));
}

void spmm_extreme(const CsrHandle& matrix, const StoredRowsHandle& rows, const Strided<2>& x,
                  const Strided<2>& y, int64_t heads, int64_t width, bool largest,
                  const Memory& winners, int threads) {
  cpu::ExtremeSpmmArgs args;
  args.shape = head_shape(heads, width);
  set_rows(args, matrix, rows);
  const int64_t features = args.shape.features();
  args.sign = largest ? 1.0f : -1.0f;
  args.x = host_matrix<DenseView>(x, args.a.cols, features, "x");
  args.y = host_matrix<MutableDenseView>(y, args.a.rows, features, "y");
  args.winners = host_array<int32_t>(winners, product("winners", args.a.rows, features), "winners");
  cpu::spmm_extreme(args, require_threads(threads));
}

void sddmm_heads(const CsrHandle& matrix, const Memory& row_ids, const Strided<2>& q,
                 const Strided<2>& k, int64_t heads, int64_t width, const Memory& winners,
                 const Memory& out, int threads) {
  cpu::HeadsSddmmArgs args;
  args.shape = head_shape(heads, width);
  args.a = host(matrix);
  args.row_ids = optional_host_array<const int32_t>(row_ids, args.a.rows, "row_ids");
  const int64_t features = args.shape.features();
  args.q = host_matrix<DenseView>(q, args.a.rows, features, "q");
  args.k = host_matrix<DenseView>(k, args.a.cols, features, "k");
  if (args.q.dtype != args.k.dtype) reject("k", "must have the dtype of q");
  args.winners = optional_host_array<const int32_t>(
      winners, product("winners", args.a.rows, features), "winners");
  args.out_dtype = storage_dtype(out, "out");
  args.out =
      stored_array(out, product("out", args.a.nnz, heads), args.out_dtype, Place::kHost, "out");
  cpu::sddmm_heads(args, require_threads(threads));
}

cpu::HeadsSoftmaxArgs softmax_args(const CsrHandle& matrix, const Memory& scores, int64_t heads,
                                   const Memory& out) {
  cpu::HeadsSoftmaxArgs args;
  args.heads = head_shape(heads, 1).heads;
  args.a = host(matrix);
  const int64_t count = product("scores", args.a.nnz, heads);
  args.scores = host_array<const float>(scores, count, "scores");
  args.out = host_array<float>(out, count, "out");
  return args;
}

void softmax_heads(const CsrHandle& a, const Memory& scores, int64_t heads, const Memory& out,
                   int threads) {
  cpu::softmax_heads(softmax_args(a, scores, heads, out), require_threads(threads));
}

void softmax_heads_grad(const CsrHandle& a, const Memory& weights, const Memory& grad,
                        int64_t heads, const Memory& out, int threads) {
  cpu::HeadsSoftmaxArgs args = softmax_args(a, weights, heads, out);
  args.grad = host_array<const float>(grad, product("grad", args.a.nnz, heads), "grad");
  cpu::softmax_heads_grad(args, require_threads(threads));
}

}  // namespace

void bind_cpu_heads(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cpu_spmm_heads", &spmm_heads, nogil, py::arg("a"), py::arg("rows"), py::arg("x"),
        py::arg("y"), py::arg("heads"), py::arg("width"), py::arg("winners"), py::arg("threads"));
  m.def("cpu_spmm_extreme", &spmm_extreme, nogil, py::arg("a"), py::arg("rows"), py::arg("x"),
        py::arg("y"), py::arg("heads"), py::arg("width"), py::arg("largest"), py::arg("winners"),
        py::arg("threads"));
  m.def("cpu_sddmm_heads", &sddmm_heads, nogil, py::arg("a"), py::arg("row_ids"), py::arg("q"),
        py::arg("k"), py::arg("heads"), py::arg("width"), py::arg("winners"), py::arg("out"),
        py::arg("threads"));
  m.def("cpu_softmax_heads", &softmax_heads, nogil, py::arg("a"), py::arg("scores"),
        py::arg("heads"), py::arg("out"), py::arg("threads"));
  m.def("cpu_softmax_heads_grad", &softmax_heads_grad, nogil, py::arg("a"), py::arg("weights"),
        py::arg("grad"), py::arg("heads"), py::arg("out"), py::arg("threads"));
}

}  // namespace gnnsparse::bindings
