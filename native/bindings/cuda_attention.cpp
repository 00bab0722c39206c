#include "attention_args.h"
#include "cuda_args.h"
#include "problem_args.h"

namespace gnnsparse::bindings {
namespace {

// 16-byte vectors of every row of every head.
void require_head_vectors(const HeadsView& view, Precision precision, const char* name) {
  const auto in_bytes = [&](int64_t stride) { return stride * size_of(view.dtype); };
  if (view.dtype != storage_of(precision)) {
    reject(name, "must be in the storage type of the precision");
  }
  require_aligned(reinterpret_cast<Address>(view.data), name);
  if (in_bytes(view.batch) % 16 != 0 || in_bytes(view.head) % 16 != 0 ||
      in_bytes(view.row) % 16 != 0) {
    reject(name, "rows must be 16-byte aligned");
  }
  if (in_bytes(view.row) > UINT32_MAX) reject(name, "rows are 4 GiB long or longer");
  if (in_bytes(view.batch) / 16 > UINT32_MAX || in_bytes(view.head) / 16 > UINT32_MAX) {
    reject(name, "heads are 64 GiB or more apart");
  }
}

// What every pass is given. `queries` is L, also where `a` is the transpose.
PanelAttention panel_attention(const AttentionProblem& problem, const BlockedView& a,
                               const StoredRowsHandle& rows, const WorkListHandle& work,
                               Address partial, int64_t queries) {
  require_head_vectors(problem.q, problem.precision, "q");
  require_head_vectors(problem.k, problem.precision, "k");
  require_head_vectors(problem.v, problem.precision, "v");
  PanelAttention p = attention_over(problem, a, rows, work, true);
  p.stored = stored_rows(rows, a.rows);
  p.partial = array<float>(partial, p.work.partials, "partial");
  p.head_count = problem.batches * problem.heads;
  p.queries = queries;
  return p;
}

void set_output(PanelAttention& p, const AttentionRowsHandle& given) {
  p.out = given.out;
  p.lse = array<float>(given.lse, p.head_count * p.queries, "lse");
}

void attention_panel(const AttentionProblem& problem, const BlockedView& a,
                     const StoredRowsHandle& rows, const WorkListHandle& work, Address partial,
                     const AttentionRowsHandle& given, Address stream) {
  PanelAttention p = panel_attention(problem, a, rows, work, partial, a.rows);
  set_output(p, given);
  cuda::attention_panel(p, cuda::AttentionPass::kForward, stream_of(stream));
}

void set_grad(PanelAttention& p, const AttentionRowsHandle& given,
              const AttentionGradsHandle& grads) {
  require_head_vectors(grads.out, p.problem.precision, "grad");
  require_aligned(given.row_stats, "row_stats");
  p.grad = grads.out;
  p.row_stats = array<float>(given.row_stats, p.head_count * p.queries, "row_stats");
}

// What the pass over rows is given, alone or as part of the fused backward pass.
void set_rows(PanelAttention& p, const AttentionRowsHandle& given,
              const AttentionGradsHandle& grads) {
  set_grad(p, given, grads);
  set_output(p, given);
  require_float32(grads.dbias);
  p.dq = grads.dq;
  p.dbias = grads.dbias;
}

void attention_panel_rows(const AttentionProblem& problem, const BlockedView& a,
                          const StoredRowsHandle& rows, const WorkListHandle& work, Address partial,
                          const AttentionRowsHandle& given, const AttentionGradsHandle& grads,
                          Address stream) {
  PanelAttention p = panel_attention(problem, a, rows, work, partial, a.rows);
  set_rows(p, given, grads);
  cuda::attention_panel(p, cuda::AttentionPass::kRows, stream_of(stream));
}

void attention_panel_columns(const AttentionProblem& problem, const BlockedView& a,
                             const StoredRowsHandle& rows, const WorkListHandle& work,
                             Address partial, const AttentionRowsHandle& given,
                             const AttentionGradsHandle& grads,
                             const NnzIndicesHandle& nnz_index_map, Address stream) {
  PanelAttention p = panel_attention(problem, a, rows, work, partial, a.cols);
  set_grad(p, given, grads);
  p.nnz_index_map = index_view(nnz_index_map.data, nnz_index_map.wide, 0, "nnz_index_map");
  p.dk = grads.dk;
  p.dv = grads.dv;
  cuda::attention_panel(p, cuda::AttentionPass::kColumns, stream_of(stream));
}

DkvPartials dkv_partials_of(const DkvPartialsHandle& handle, int64_t columns) {
  if (handle.heads < 1) reject("heads", "must be at least 1");
  require_size(handle.count, "count");
  require_aligned(handle.data, "dkv_partials");
  require_aligned(handle.place_of_slot, "place_of_slot");
  DkvPartials partials;
  partials.data = array<char>(handle.data, handle.heads * handle.count, "dkv_partials");
  partials.heads = handle.heads;
  partials.count = handle.count;
  partials.place_of_slot =
      array<const int32_t>(handle.place_of_slot, handle.count, "place_of_slot");
  partials.column_starts = array<const int32_t>(handle.column_starts, columns + 1, "column_starts");
  return partials;
}

void attention_panel_fused_backward(const AttentionProblem& problem, const BlockedView& a,
                                    const StoredRowsHandle& rows, const WorkListHandle& work,
                                    Address partial, const AttentionRowsHandle& given,
                                    const AttentionGradsHandle& grads,
                                    const DkvPartialsHandle& dkv_partials, Address stream) {
  PanelAttention p = panel_attention(problem, a, rows, work, partial, a.rows);
  set_rows(p, given, grads);
  p.dk = grads.dk;
  p.dv = grads.dv;
  p.dkv_partials = dkv_partials_of(dkv_partials, a.cols);
  cuda::attention_panel(p, cuda::AttentionPass::kFused, stream_of(stream));
}

}  // namespace

void bind_cuda_attention(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cuda_attention_panel", &attention_panel, nogil, py::arg("problem"), py::arg("a"),
        py::arg("rows"), py::arg("work"), py::arg("partial"), py::arg("given"), py::arg("stream"));
  m.def("cuda_attention_panel_rows", &attention_panel_rows, nogil, py::arg("problem"), py::arg("a"),
        py::arg("rows"), py::arg("work"), py::arg("partial"), py::arg("given"), py::arg("grads"),
        py::arg("stream"));
  m.def("cuda_attention_panel_columns", &attention_panel_columns, nogil, py::arg("problem"),
        py::arg("a"), py::arg("rows"), py::arg("work"), py::arg("partial"), py::arg("given"),
        py::arg("grads"), py::arg("nnz_index_map"), py::arg("stream"));
  m.def("cuda_attention_panel_fused_backward", &attention_panel_fused_backward, nogil,
        py::arg("problem"), py::arg("a"), py::arg("rows"), py::arg("work"), py::arg("partial"),
        py::arg("given"), py::arg("grads"), py::arg("dkv_partials"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
