// Graph attention on the CPU.
#include "checks.h"
#include "gnnsparse/cpu_kernels.h"
#include "graph_attention_args.h"
#include "handles.h"

namespace gnnsparse::bindings {
namespace {

// What the passes over `a` share, which is the pattern or its transpose.
cpu::GraphAttentionArgs graph_attention_args(const GraphAttentionHandle& call,
                                             const CsrHandle& matrix, const Memory& row_ids,
                                             bool transposed) {
  const CsrView& a = host(matrix);
  cpu::GraphAttentionArgs args;
  args.problem = transposed ? call.checked(a.cols, a.rows, a.nnz, Place::kHost)
                            : call.checked(a.rows, a.cols, a.nnz, Place::kHost);
  args.a = a;
  args.row_ids = optional_host_array<const int32_t>(row_ids, a.rows, "row_ids");
  return args;
}

void graph_attention_forward(const GraphAttentionHandle& call, const CsrHandle& a,
                             const Memory& row_ids, const GraphAttentionResultHandle& result,
                             int threads) {
  cpu::GraphAttentionArgs args = graph_attention_args(call, a, row_ids, false);
  args.result = result.checked(call, Place::kHost);
  if (call.head_count() > 0) cpu::graph_attention(args, require_threads(threads));
}

void rows(const GraphAttentionHandle& call, const CsrHandle& a, const Memory& row_ids,
          const GraphAttentionResultHandle& result, const GraphAttentionGradsHandle& grads,
          int threads) {
  cpu::GraphAttentionArgs args = graph_attention_args(call, a, row_ids, false);
  args.result = result.checked(call, Place::kHost);
  const int64_t groups = ceil_div(args.a.rows, cpu::kAttGroupRows);
  args.grads = grads.of_rows(call, args.a.nnz, groups, Place::kHost);
  if (call.head_count() > 0) cpu::graph_attention_row_grads(args, require_threads(threads));
}

void columns(const GraphAttentionHandle& call, const CsrHandle& a_transposed, const Memory& row_ids,
             const Memory& nnz_index_map, const GraphAttentionGradsHandle& grads, int threads) {
  cpu::GraphAttentionArgs args = graph_attention_args(call, a_transposed, row_ids, true);
  args.grads = grads.of_columns(call, args.a.nnz, Place::kHost);
  const MutableIndexView map =
      index_array(nnz_index_map, args.a.nnz, Place::kHost, "nnz_index_map");
  args.nnz_index_map = {map.data, map.wide};
  if (call.head_count() > 0) cpu::graph_attention_column_grads(args, require_threads(threads));
}

}  // namespace

void bind_graph_attention(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cpu_graph_attention", &graph_attention_forward, nogil, py::arg("problem"), py::arg("a"),
        py::arg("row_ids"), py::arg("result"), py::arg("threads"));
  m.def("cpu_graph_attention_rows", &rows, nogil, py::arg("problem"), py::arg("a"),
        py::arg("row_ids"), py::arg("result"), py::arg("grads"), py::arg("threads"));
  m.def("cpu_graph_attention_columns", &columns, nogil, py::arg("problem"), py::arg("a_transposed"),
        py::arg("row_ids"), py::arg("nnz_index_map"), py::arg("grads"), py::arg("threads"));
}

}  // namespace gnnsparse::bindings
