#include "cuda_args.h"
#include "window_args.h"

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

// What the three passes share: `queries` is L, also where `a` is the transpose.
PanelAttention panel_attention(const AttentionProblem& problem, const BlockedView& a,
                               const WorkList& items, Address indptr, Address row_ids, Address cuts,
                               int64_t cut_count, int64_t partials, Address partial,
                               int64_t queries) {
  require_head_vectors(problem.q, problem.precision, "q");
  require_head_vectors(problem.k, problem.precision, "k");
  require_head_vectors(problem.v, problem.precision, "v");
  PanelAttention p = attention_over(problem, a, items, row_ids);
  p.indptr = array<const int64_t>(indptr, a.rows + 1, "indptr");
  p.row_offsets = array<const int32_t>(items.row_offsets, items.count, "row_offsets");
  p.cuts = array<const int32_t>(cuts, cut_count, "cuts");
  p.cut_count = cut_count;
  p.partials = partials;
  p.partial = array<float>(partial, partials, "partial");
  p.head_count = problem.batches * problem.heads;
  p.queries = queries;
  return p;
}

void attention_panel(const AttentionProblem& problem, const BlockedView& a, const WorkList& items,
                     Address indptr, Address row_ids, Address cuts, int64_t cut_count,
                     int64_t partials, Address partial, const HeadsView& out, Address lse,
                     Address stream) {
  PanelAttention p = panel_attention(problem, a, items, indptr, row_ids, cuts, cut_count, partials,
                                     partial, a.rows);
  p.out = out;
  p.lse = array<float>(lse, p.head_count * a.rows, "lse");
  cuda::attention_panel(p, cuda::AttentionPass::kForward, stream_of(stream));
}

void set_grad(PanelAttention& p, const HeadsView& grad, Address row_stats) {
  require_head_vectors(grad, p.problem.precision, "grad");
  require_aligned(row_stats, "row_stats");
  p.grad = grad;
  p.row_stats = array<float>(row_stats, p.head_count * p.queries, "row_stats");
}

// What the pass over rows is given, alone or as part of both in one.
void set_rows(PanelAttention& p, const HeadsView& grad, const HeadsView& out, Address lse,
              Address row_stats, const HeadsView& dq, const EdgeValuesView& dbias) {
  set_grad(p, grad, row_stats);
  p.out = out;
  p.lse = array<float>(lse, p.head_count * p.queries, "lse");
  if (dbias.data != nullptr && dbias.dtype != DType::kFloat32) reject("dbias", "must be float32");
  p.dq = dq;
  p.dbias = dbias;
}

void attention_panel_rows(const AttentionProblem& problem, const BlockedView& a,
                          const WorkList& items, Address indptr, Address row_ids, Address cuts,
                          int64_t cut_count, int64_t partials, Address partial,
                          const HeadsView& grad, const HeadsView& out, Address lse,
                          Address row_stats, const HeadsView& dq, const EdgeValuesView& dbias,
                          Address stream) {
  PanelAttention p = panel_attention(problem, a, items, indptr, row_ids, cuts, cut_count, partials,
                                     partial, a.rows);
  set_rows(p, grad, out, lse, row_stats, dq, dbias);
  cuda::attention_panel(p, cuda::AttentionPass::kRows, stream_of(stream));
}

void attention_panel_columns(const AttentionProblem& problem, const BlockedView& a,
                             const WorkList& items, Address indptr, Address row_ids, Address cuts,
                             int64_t cut_count, int64_t partials, Address partial,
                             Address nnz_index_map, bool wide_map, const HeadsView& grad,
                             Address row_stats, const HeadsView& dk, const HeadsView& dv,
                             Address stream) {
  PanelAttention p = panel_attention(problem, a, items, indptr, row_ids, cuts, cut_count, partials,
                                     partial, a.cols);
  set_grad(p, grad, row_stats);
  p.nnz_index_map = optional_array<const int32_t>(nnz_index_map, "nnz_index_map");
  p.wide_map = wide_map;
  p.dk = dk;
  p.dv = dv;
  cuda::attention_panel(p, cuda::AttentionPass::kColumns, stream_of(stream));
}

void attention_panel_fused_backward(const AttentionProblem& problem, const BlockedView& a,
                                    const WorkList& items, Address indptr, Address row_ids,
                                    Address cuts, int64_t cut_count, int64_t partials,
                                    Address partial, const HeadsView& grad, const HeadsView& out,
                                    Address lse, Address row_stats, const HeadsView& dq,
                                    const EdgeValuesView& dbias, Address dkv_partials,
                                    int64_t heads, int64_t count, Address place_of_slot,
                                    Address column_starts, const HeadsView& dk, const HeadsView& dv,
                                    Address stream) {
  PanelAttention p = panel_attention(problem, a, items, indptr, row_ids, cuts, cut_count, partials,
                                     partial, a.rows);
  set_rows(p, grad, out, lse, row_stats, dq, dbias);
  if (heads < 1) reject("heads", "must be at least 1");
  require_size(count, "count");
  require_aligned(dkv_partials, "dkv_partials");
  require_aligned(place_of_slot, "place_of_slot");
  p.dk = dk;
  p.dv = dv;
  p.dkv_partials.data = array<char>(dkv_partials, heads * count, "dkv_partials");
  p.dkv_partials.heads = heads;
  p.dkv_partials.count = count;
  p.dkv_partials.place_of_slot = array<const int32_t>(place_of_slot, count, "place_of_slot");
  p.dkv_partials.column_starts = array<const int32_t>(column_starts, a.cols + 1, "column_starts");
  cuda::attention_panel(p, cuda::AttentionPass::kFused, stream_of(stream));
}

}  // namespace

void bind_cuda_attention(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cuda_attention_panel", &attention_panel, nogil);
  m.def("cuda_attention_panel_rows", &attention_panel_rows, nogil);
  m.def("cuda_attention_panel_columns", &attention_panel_columns, nogil);
  m.def("cuda_attention_panel_fused_backward", &attention_panel_fused_backward, nogil);
}

}  // namespace gnnsparse::bindings
