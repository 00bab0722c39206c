#include "cuda_args.h"
#include "graph_attention_args.h"

namespace gnnsparse::bindings {
namespace {

void require_row_stride(const HeadsHandle& x, const char* name) {
  if (!x.given || x.size[2] < 2) return;
  if (x.stride[2] < 0 || x.stride[2] * size_of(x.view.dtype) > UINT32_MAX) {
    reject(name, "rows are 4 GiB long or longer");
  }
}

// 16-byte vectors of every row of every head.
void require_vectors(const HeadsHandle& x, const char* name) {
  if (!x.given) return;
  require_aligned(x, 16, name);
  for (int i = 0; i < 3; ++i) {
    if (x.size[i] > 1 && x.stride[i] * size_of(x.view.dtype) % 16 != 0) {
      reject(name, "rows must be 16-byte aligned");
    }
  }
  require_row_stride(x, name);
}

// Vectors in the storage type.
void require_stored(const HeadsHandle& x, Precision precision, const char* name) {
  require_vectors(x, name);
  if (x.given && x.view.dtype != storage_of(precision)) {
    reject(name, "must have the storage dtype of the precision");
  }
}

void require_chunks(const GraphAttentionProblem& problem) {
  const AttentionProblem& base = problem.base;
  const int64_t per_vector = 16 / size_of(storage_of(base.precision));
  for (const int64_t width : {base.d, base.dv, problem.terms.de}) {
    if (ceil_div(width, per_vector) > kGraphChunks) {
      reject("d", "heads have at most 32 vectors of 16 bytes");
    }
  }
  if (base.heads < 1 || base.batches < 1) reject("heads", "must be at least 1");
}

// What every pass is given. `transposed`: the rows are keys.
GraphAttentionPass make_pass(const GraphAttentionHandle& call, const GraphRowsHandle& rows,
                             bool transposed) {
  GraphAttentionPass p;
  p.a = gpu(rows.a);
  p.problem = transposed ? call.checked(p.a.cols, p.a.rows, p.a.nnz, Place::kGpu)
                         : call.checked(p.a.rows, p.a.cols, p.a.nnz, Place::kGpu);
  require_chunks(p.problem);
  if (p.problem.score != Score::kAdditive) {
    require_vectors(call.q, "q");
    require_vectors(call.k, "k");
    require_vectors(call.features, "features");
  }
  require_row_stride(call.q, "q");
  require_row_stride(call.k, "k");
  require_row_stride(call.features, "features");
  require_row_stride(call.bias, "bias");
  require_vectors(call.v, "v");
  require_vectors(call.gate, "gate");
  require_vectors(call.mapped, "mapped");
  require_vectors(call.mapped_q, "mapped_q");
  p.row_ids = optional_gpu_array<const int32_t>(rows.row_ids, p.a.rows, "row_ids");
  p.entry_count = rows.entry_count();
  require_aligned(rows.entries, 16, "entries");
  p.entries = reinterpret_cast<const GraphEntry*>(
      optional_gpu_array<const int32_t>(rows.entries, 4 * p.entry_count, "entries"));
  require_aligned(rows.cuts, 16, "cuts");
  p.work.cut_count = rows.cuts.count / 4;
  p.work.cuts = reinterpret_cast<const Cut*>(
      optional_gpu_array<const int32_t>(rows.cuts, 4 * p.work.cut_count, "cuts"));
  p.work.partials = rows.partials;
  p.rounds = static_cast<int>(rows.rounds);
  p.side_by_side = static_cast<int>(rows.side_by_side);
  if (p.side_by_side != graph_lanes(p.problem).rows()) {
    reject("side_by_side", "is not what the heads leave room for");
  }
  const int64_t sums = product("partial", call.head_count(), p.work.partials);
  p.partial = gpu_array<float>(rows.partial, product("partial", sums, partial_floats_of(p.problem)),
                               "partial");
  return p;
}

void forward(const GraphAttentionHandle& call, const GraphRowsHandle& rows,
             const GraphAttentionResultHandle& result, Address stream) {
  GraphAttentionPass p = make_pass(call, rows, false);
  p.result = result.checked(call, Place::kGpu);
  cuda::graph_attention(p, cuda::AttentionPass::kForward, stream_of(stream));
}

// What the passes of the gradient read as vectors, and as pairs of numbers.
void require_grads(const GraphAttentionGradsHandle& grads) {
  require_vectors(grads.out, "grad");
  require_vectors(grads.mapped, "grad_mapped");
  require_row_stride(grads.weights, "grad_weights");
  require_row_stride(grads.edges, "edges");
  require_vectors(grads.numbers, "numbers");
  require_aligned(grads.edges, 8, "edges");
  for (int i = 0; i < 3; ++i) {
    if (grads.edges.size[i] > 1 && grads.edges.stride[i] % 2 != 0) {
      reject("edges", "must be aligned to 8 bytes");
    }
  }
}

void rows_pass(const GraphAttentionHandle& call, const GraphRowsHandle& rows,
               const GraphAttentionResultHandle& result, const GraphAttentionGradsHandle& grads,
               Address stream) {
  GraphAttentionPass p = make_pass(call, rows, false);
  require_grads(grads);
  p.result = result.checked(call, Place::kGpu);
  require_stored(result.out, p.problem.base.precision, "out");
  require_stored(result.mapped, p.problem.base.precision, "mapped");
  require_stored(result.sloped, p.problem.base.precision, "sloped");
  require_row_stride(result.stats, "stats");
  p.grads = grads.of_rows(call, p.a.nnz, p.warps(), Place::kGpu);
  cuda::graph_attention(p, cuda::AttentionPass::kRows, stream_of(stream));
}

void mapped_pass(const GraphAttentionHandle& call, const GraphRowsHandle& rows,
                 const GraphAttentionGradsHandle& grads, Address stream) {
  GraphAttentionPass p = make_pass(call, rows, false);
  require_grads(grads);
  if (p.problem.terms.de < 1) reject("mapped", "is None");
  if (p.problem.base.heads > kMostMappedHeads) reject("heads", "are more than fit shared memory");
  p.grads = grads.for_mapped(call, p.a.nnz, Place::kGpu);
  cuda::graph_mapped_grad(p, stream_of(stream));
}

void map_grad(const HeadsHandle& x, const HeadsHandle& y, const HeadsHandle& other_x,
              const HeadsHandle& other_y, const HeadsHandle& to, int precision, Address stream) {
  const Precision of = precision_of(precision);
  if (!x.given || !y.given || !to.given) reject("x, y and to", "must be given");
  if (other_x.given != other_y.given) reject("other_x", "goes with other_y");
  GraphMapGrad p;
  p.heads = static_cast<int>(x.size[1]);
  p.rows = x.size[2];
  p.width = static_cast<int>(x.size[3]);
  p.features = static_cast<int>(y.size[3]);
  p.pairs = other_x.given ? 2 : 1;
  if (p.features > GraphMapGrad::kFeatures) reject("y", "has more than 32 features");
  const HeadsHandle* pairs[2][2] = {{&x, &y}, {&other_x, &other_y}};
  for (int i = 0; i < p.pairs; ++i) {
    for (const HeadsHandle* operand : pairs[i]) require_stored(*operand, of, "x and y");
    p.x[i] = pairs[i][0]->checked(1, p.heads, p.rows, p.width, Place::kGpu, "x");
    p.y[i] = pairs[i][1]->checked(1, p.heads, p.rows, p.features, Place::kGpu, "y");
  }
  p.slices = to.size[0];
  const HeadsView sums =
      to.checked(p.slices, p.heads, p.width, GraphMapGrad::kFeatures, Place::kGpu, "to");
  const bool is_dense = sums.row == GraphMapGrad::kFeatures && sums.head == p.width * sums.row &&
                        sums.batch == p.heads * sums.head;
  if (sums.dtype != DType::kFloat32 || !is_dense) reject("to", "must be float32 and contiguous");
  p.to = static_cast<float*>(const_cast<void*>(sums.data));
  cuda::graph_map_grad(p, of, stream_of(stream));
}

void columns_pass(const GraphAttentionHandle& call, const GraphRowsHandle& rows,
                  const GraphAttentionGradsHandle& grads, const Memory& nnz_index_map,
                  Address stream) {
  GraphAttentionPass p = make_pass(call, rows, true);
  require_grads(grads);
  p.grads = grads.of_columns(call, p.a.nnz, Place::kGpu);
  const MutableIndexView map = index_array(nnz_index_map, p.a.nnz, Place::kGpu, "nnz_index_map");
  p.nnz_index_map = {map.data, map.wide};
  cuda::graph_attention(p, cuda::AttentionPass::kColumns, stream_of(stream));
}

}  // namespace

void bind_cuda_graph_attention(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cuda_graph_attention", &forward, nogil, py::arg("problem"), py::arg("rows"),
        py::arg("result"), py::arg("stream"));
  m.def("cuda_graph_attention_rows", &rows_pass, nogil, py::arg("problem"), py::arg("rows"),
        py::arg("result"), py::arg("grads"), py::arg("stream"));
  m.def("cuda_graph_attention_mapped", &mapped_pass, nogil, py::arg("problem"), py::arg("rows"),
        py::arg("grads"), py::arg("stream"));
  m.def("cuda_graph_map_grad", &map_grad, nogil, py::arg("x"), py::arg("y"), py::arg("other_x"),
        py::arg("other_y"), py::arg("to"), py::arg("precision"), py::arg("stream"));
  m.def("cuda_graph_attention_columns", &columns_pass, nogil, py::arg("problem"), py::arg("rows"),
        py::arg("grads"), py::arg("nnz_index_map"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
