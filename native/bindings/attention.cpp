#include <pybind11/stl.h>

#include <array>

#include "attention_args.h"
#include "checks.h"
#include "gnnsparse/attention_problem.h"
#include "gnnsparse/cpu_kernels.h"
#include "gnnsparse/precision.h"
#include "handles.h"

namespace gnnsparse::bindings {
namespace {

HeadsView make_heads(Address data, int64_t batch, int64_t head, int64_t row, int dtype) {
  HeadsView view;
  view.dtype = dtype_of(dtype);
  if (data % size_of(view.dtype) != 0) reject("data", "is not aligned to its element type");
  require_size(batch, "batch");
  require_size(head, "head");
  require_size(row, "row");
  view.data = reinterpret_cast<const void*>(data);
  view.batch = batch;
  view.head = head;
  view.row = row;
  return view;
}

EdgeValuesView make_edge_values(Address data, int64_t batch, int64_t head, int dtype) {
  const HeadsView checked = make_heads(data, batch, head, 0, dtype);
  return {checked.data, checked.batch, checked.head, checked.dtype};
}

void require_heads(const HeadsView& view, int64_t elements, const char* name) {
  if (view.data == nullptr && elements > 0) reject(name, "is null");
}

struct AttentionSizes {
  int64_t batches;
  int64_t heads;
  int64_t d;
  int64_t dv;
};

struct Dropout {
  double p;
  Address seed;  // int64 [1] where the kernel runs; 0: no dropout
};

Dropout make_dropout(double p, Address seed) {
  if (!(p >= 0 && p < 1)) reject("dropout_p", "must be in [0, 1)");
  return {p, seed};
}

AttentionProblem make_problem(const HeadsView& q, const HeadsView& k, const HeadsView& v,
                              const EdgeValuesView& bias, const AttentionSizes& sizes, double scale,
                              bool is_causal, const Dropout& dropout, int precision) {
  AttentionProblem problem;
  for (const int64_t size : {sizes.batches, sizes.heads, sizes.d, sizes.dv}) {
    require_size(size, "sizes");
  }
  problem.precision = precision_of(precision);
  for (const HeadsView* view : {&q, &k, &v}) {
    if (view->dtype != storage_of(problem.precision)) {
      reject("q, k and v", "must have the storage dtype of the precision");
    }
  }
  problem.q = q;
  problem.k = k;
  problem.v = v;
  problem.bias = bias;
  problem.batches = sizes.batches;
  problem.heads = sizes.heads;
  problem.d = sizes.d;
  problem.dv = sizes.dv;
  problem.scale = static_cast<float>(scale);
  problem.is_causal = is_causal;
  problem.seed = optional_array<const int64_t>(dropout.seed, "seed");
  if (problem.seed != nullptr) {
    problem.threshold = dropout_threshold(dropout.p);
    problem.kept_scale = static_cast<float>(1 / (1 - dropout.p));
  }
  return problem;
}

// What the passes over `a` share. `one_batch`, `one_head`: all of them in one group.
cpu::AttentionArgs make_args(const AttentionProblem& problem, const CsrView& a, Address row_ids,
                             bool one_batch, bool one_head, Address lse, int64_t rows) {
  const int64_t heads = problem.batches * problem.heads;
  require_heads(problem.q, heads * rows * problem.d, "q");
  const int64_t columns = a.rows + a.cols - rows;
  require_heads(problem.k, heads * columns * problem.d, "k");
  require_heads(problem.v, heads * columns * problem.dv, "v");
  cpu::AttentionArgs args;
  args.problem = problem;
  args.a = a;
  args.row_ids = optional_array<const int32_t>(row_ids, "row_ids");
  args.batch_groups = one_batch ? 1 : problem.batches;
  args.head_groups = one_head ? 1 : problem.heads;
  args.lse = array<float>(lse, heads * rows, "lse");
  return args;
}

void forward(const AttentionProblem& problem, const CsrView& a, Address row_ids, bool one_head,
             const HeadsView& out, Address lse, int threads) {
  cpu::AttentionArgs args = make_args(problem, a, row_ids, false, one_head, lse, a.rows);
  require_heads(out, problem.batches * problem.heads * a.rows * problem.dv, "out");
  args.out = out;
  if (problem.batches * problem.heads > 0) cpu::attention(args, require_threads(threads));
}

void require_grad(const AttentionProblem& problem, const HeadsView& grad, int64_t rows) {
  require_heads(grad, problem.batches * problem.heads * rows * problem.dv, "grad");
  if (grad.dtype != problem.q.dtype) reject("grad", "must have the dtype of q");
}

void row_grads(const AttentionProblem& problem, const CsrView& a, Address row_ids, bool one_batch,
               bool one_head, Address lse, Address delta, const AttentionGradsHandle& grads,
               int threads) {
  cpu::AttentionArgs args = make_args(problem, a, row_ids, one_batch, one_head, lse, a.rows);
  const int64_t heads = problem.batches * problem.heads;
  require_grad(problem, grads.out, a.rows);
  require_float32(grads.dbias);
  args.grad = grads.out;
  args.delta = array<float>(delta, heads * a.rows, "delta");
  args.dq = grads.dq;
  args.dbias = grads.dbias;
  if (heads > 0) cpu::attention_row_grads(args, require_threads(threads));
}

void column_grads(const AttentionProblem& problem, const CsrView& a, Address row_ids, bool one_head,
                  const NnzIndicesHandle& nnz_index_map, Address lse, Address delta,
                  const AttentionGradsHandle& grads, int threads) {
  cpu::AttentionArgs args = make_args(problem, a, row_ids, false, one_head, lse, a.cols);
  const int64_t heads = problem.batches * problem.heads;
  require_grad(problem, grads.out, a.cols);
  args.nnz_index_map = index_view(nnz_index_map.data, nnz_index_map.wide, a.nnz, "nnz_index_map");
  args.transposed = true;
  args.grad = grads.out;
  args.delta = array<float>(delta, heads * a.cols, "delta");
  args.dk = grads.dk;
  args.dv = grads.dv;
  if (heads > 0) cpu::attention_column_grads(args, require_threads(threads));
}

py::tuple philox(const std::array<uint32_t, 4>& c, int64_t seed) {
  const PhiloxWords words = philox4x32({{c[0], c[1], c[2], c[3]}}, philox_key(seed));
  return py::make_tuple(words.word[0], words.word[1], words.word[2], words.word[3]);
}

void bind_handles(py::module_& m) {
  py::class_<HeadsView>(m, "Heads")
      .def(py::init(&make_heads), py::arg("data"), py::arg("batch"), py::arg("head"),
           py::arg("row"), py::arg("dtype"));
  py::class_<EdgeValuesView>(m, "EdgeValues")
      .def(py::init(&make_edge_values), py::arg("data"), py::arg("batch"), py::arg("head"),
           py::arg("dtype"));
  py::class_<AttentionSizes>(m, "AttentionSizes")
      .def(py::init([](int64_t batches, int64_t heads, int64_t d, int64_t dv) {
             return AttentionSizes{batches, heads, d, dv};
           }),
           py::arg("batches"), py::arg("heads"), py::arg("d"), py::arg("dv"));
  py::class_<Dropout>(m, "Dropout").def(py::init(&make_dropout), py::arg("p"), py::arg("seed"));
  py::class_<AttentionProblem>(m, "Attention")
      .def(py::init(&make_problem), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("bias"),
           py::arg("sizes"), py::arg("scale"), py::arg("is_causal"), py::arg("dropout"),
           py::arg("precision"));
  py::class_<AttentionRowsHandle>(m, "AttentionRows")
      .def(py::init([](const HeadsView& out, Address lse, Address row_stats) {
             return AttentionRowsHandle{out, lse, row_stats};
           }),
           py::arg("out"), py::arg("lse"), py::arg("row_stats") = 0);
  py::class_<AttentionGradsHandle>(m, "AttentionGrads")
      .def(py::init([](const HeadsView& out, const HeadsView& dq, const HeadsView& dk,
                       const HeadsView& dv, const EdgeValuesView& dbias) {
             return AttentionGradsHandle{out, dq, dk, dv, dbias};
           }),
           py::arg("out"), py::arg("dq"), py::arg("dk"), py::arg("dv"), py::arg("dbias"));
  py::class_<DkvPartialsHandle>(m, "DkvPartials")
      .def(py::init([](Address data, int64_t heads, int64_t count, Address place_of_slot,
                       Address column_starts) {
             return DkvPartialsHandle{data, heads, count, place_of_slot, column_starts};
           }),
           py::arg("data"), py::arg("heads"), py::arg("count"), py::arg("place_of_slot"),
           py::arg("column_starts"));
}

}  // namespace

void bind_attention(py::module_& m) {
  bind_handles(m);
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cpu_attention", &forward, nogil, py::arg("problem"), py::arg("a"), py::arg("row_ids"),
        py::arg("one_head"), py::arg("out"), py::arg("lse"), py::arg("threads"));
  m.def("cpu_attention_row_grads", &row_grads, nogil, py::arg("problem"), py::arg("a"),
        py::arg("row_ids"), py::arg("one_batch"), py::arg("one_head"), py::arg("lse"),
        py::arg("delta"), py::arg("grads"), py::arg("threads"));
  m.def("cpu_attention_column_grads", &column_grads, nogil, py::arg("problem"), py::arg("a"),
        py::arg("row_ids"), py::arg("one_head"), py::arg("nnz_index_map"), py::arg("lse"),
        py::arg("delta"), py::arg("grads"), py::arg("threads"));
  m.def("philox4x32", &philox, "The four words of a counter under the key of a seed.",
        py::arg("counter"), py::arg("seed"));
}

}  // namespace gnnsparse::bindings
