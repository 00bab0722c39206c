#include <pybind11/stl.h>

#include <algorithm>
#include <array>

#include "attention_args.h"
#include "checks.h"
#include "eight_bit_args.h"
#include "gnnsparse/attention_problem.h"
#include "gnnsparse/cpu_kernels.h"
#include "gnnsparse/precision.h"
#include "handles.h"

namespace gnnsparse::bindings {
namespace {

HeadsHandle viewed(HeadsHandle heads) {
  if (!heads.given) return heads;
  HeadsView& view = heads.view;
  view.dtype = storage_dtype(heads, "heads");
  if (heads.count > 0 && heads.size[3] > 1 && heads.stride[3] != 1) {
    reject("heads", "has rows that are not contiguous");
  }
  view.data = heads.data;
  view.batch = heads.stride[0];
  view.head = heads.stride[1];
  view.row = heads.stride[2];
  return heads;
}

HeadsHandle make_heads(const py::object& tensor) {
  return viewed(HeadsHandle{strided_of<4>(tensor, "heads"), HeadsView(), tensor});
}

// Of [rows, heads or 1, width], or numbers [rows, heads or 1], as [1, heads, rows, width]. Views of
// the tensor in that shape would take longer to make than a small kernel to run.
HeadsHandle make_heads_of_rows(const py::object& tensor, int64_t heads) {
  Strided<3> rows;
  if (!read_strided(tensor, &rows)) {
    const Strided<2> numbers = strided_of<2>(tensor, "heads");
    rows = Strided<3>{
        numbers, {numbers.size[0], numbers.size[1], 1}, {numbers.stride[0], numbers.stride[1], 1}};
  }
  HeadsHandle made;
  if (!rows.given) return made;
  require_at_least_one(heads, "heads");
  if (rows.size[1] != heads && rows.size[1] != 1) {
    reject("heads", "has " + std::to_string(rows.size[1]) + " heads; accepted: 1 or " +
                        std::to_string(heads));
  }
  static_cast<Memory&>(made) = rows;
  made.count = product("heads", rows.size[0], heads, rows.size[2]);
  const int64_t shared = rows.size[1] == heads ? rows.stride[1] : 0;
  const int64_t size[4] = {1, heads, rows.size[0], rows.size[2]};
  const int64_t stride[4] = {0, shared, rows.stride[0], rows.stride[2]};
  std::copy(size, size + 4, made.size);
  std::copy(stride, stride + 4, made.stride);
  made.owner = tensor;
  return viewed(made);
}

EdgeValuesHandle of_edges(const py::object& tensor) {
  EdgeValuesHandle edges;
  static_cast<Memory&>(edges) = hold(tensor, "edge values");
  if (!edges.given) return edges;
  if (!edges.contiguous) reject("edge values", "is not contiguous");
  edges.nnz = edges.count;
  return edges;
}

EdgeValuesHandle of_heads_and_edges(const Strided<3>& tensor) {
  EdgeValuesHandle edges;
  static_cast<Memory&>(edges) = tensor;
  if (tensor.count > 0 && tensor.size[2] > 1 && tensor.stride[2] != 1) {
    reject("edge values", "has edges that are not contiguous");
  }
  edges.batches = tensor.size[0];
  edges.heads = tensor.size[1];
  edges.nnz = tensor.size[2];
  // A stride of 0 shares what there is one of.
  edges.view.batch = edges.batches == 1 ? 0 : tensor.stride[0];
  edges.view.head = edges.heads == 1 ? 0 : tensor.stride[1];
  return edges;
}

EdgeValuesHandle make_edge_values(const py::object& tensor) {
  Strided<3> many;
  EdgeValuesHandle edges =
      read_strided(tensor, &many) && many.given ? of_heads_and_edges(many) : of_edges(tensor);
  if (!edges.given) return edges;
  edges.view.data = edges.data;
  edges.view.dtype = storage_dtype(edges, "edge values");
  edges.owner = tensor;
  return edges;
}

// Without k and v.
AttentionHandle make_call(const HeadsHandle& q, int64_t keys, int64_t value_width,
                          const EdgeValuesHandle& bias, double scale, bool is_causal,
                          double dropout_p, const py::object& seed, Precision precision) {
  if (!(dropout_p >= 0 && dropout_p < 1)) reject("dropout_p", "must be in [0, 1)");
  AttentionHandle call{AttentionProblem(), q.size[2], keys, q, {}, {}, bias, hold(seed, "seed")};
  AttentionProblem& problem = call.problem;
  problem.precision = precision;
  if (!q.given || q.view.dtype != storage_of(precision)) {
    reject("q", "must be given, in the storage dtype of the precision");
  }
  problem.q = q.view;
  problem.bias = bias.view;
  problem.batches = q.size[0];
  problem.heads = q.size[1];
  problem.d = q.size[3];
  problem.dv = value_width;
  product("q", problem.batches, problem.heads, call.queries, problem.d);
  problem.scale = static_cast<float>(scale);
  problem.is_causal = is_causal;
  if (call.seed.given) {
    problem.seed =
        array<const int64_t>(call.seed, 1, call.seed.on_host ? Place::kHost : Place::kGpu, "seed");
    problem.threshold = dropout_threshold(dropout_p);
    problem.kept_scale = static_cast<float>(1 / (1 - dropout_p));
  }
  return call;
}

AttentionHandle make_attention_problem(const HeadsHandle& q, const HeadsHandle& k,
                                       const HeadsHandle& v, const EdgeValuesHandle& bias,
                                       double scale, bool is_causal, double dropout_p,
                                       const py::object& seed, int precision) {
  const Precision rounded = precision_of(precision);
  for (const HeadsHandle* heads : {&q, &k, &v}) {
    if (!heads->given) reject("q, k and v", "must be given");
    if (heads->view.dtype != storage_of(rounded)) {
      reject("q, k and v", "must have the storage dtype of the precision");
    }
  }
  AttentionHandle call =
      make_call(q, k.size[2], v.size[3], bias, scale, is_causal, dropout_p, seed, rounded);
  call.k = k;
  call.v = v;
  call.problem.k = k.view;
  call.problem.v = v.view;
  return call;
}

Strided<4> numbers_of(const py::object& tensor, const char* name) {
  Strided<4> numbers = strided_of<4>(tensor, name);
  if (!numbers.given || numbers.element != Element::kUint8) reject(name, "accepted: uint8");
  if (numbers.size[3] > 1 && numbers.stride[3] != 1)
    reject(name, "has rows that are not contiguous");
  return numbers;
}

QuantizedAttentionHandle make_quantized(const HeadsHandle& q, const py::object& k,
                                        const py::object& v, const py::object& value_scale,
                                        int number_type, const EdgeValuesHandle& bias, double scale,
                                        bool is_causal, double dropout_p, const py::object& seed) {
  QuantizedAttentionHandle made;
  made.k = numbers_of(k, "k");
  made.v = numbers_of(v, "v");
  made.value_scale = strided_of<3>(value_scale, "value_scale");
  made.type = eight_bit_of(number_type);
  made.owners = py::make_tuple(k, v, value_scale);
  made.call = make_call(q, made.k.size[2], made.v.size[3], bias, scale, is_causal, dropout_p, seed,
                        Precision::kFp16);
  return made;
}

// What the passes over `a` share, which is the pattern or its transpose. `one_batch`, `one_head`:
// all of them in one group.
cpu::AttentionArgs attention_args(const AttentionHandle& call, const CsrHandle& matrix,
                                  const Memory& row_ids, bool one_batch, bool one_head,
                                  const Memory& stats, bool transposed) {
  const CsrView& a = host(matrix);
  cpu::AttentionArgs args;
  args.problem = transposed ? call.checked(a.cols, a.rows, a.nnz, Place::kHost)
                            : call.checked(a.rows, a.cols, a.nnz, Place::kHost);
  args.a = a;
  args.transposed = transposed;
  args.row_ids = optional_host_array<const int32_t>(row_ids, a.rows, "row_ids");
  args.batch_groups = one_batch ? 1 : args.problem.batches;
  args.head_groups = one_head ? 1 : args.problem.heads;
  args.stats = reinterpret_cast<SoftmaxStats*>(
      host_array<float>(stats, product("stats", call.head_count(), call.queries, 2), "stats"));
  return args;
}

void attention_forward(const AttentionHandle& call, const CsrHandle& a, const Memory& row_ids,
                       bool one_head, const HeadsHandle& out, const Memory& stats, int threads) {
  cpu::AttentionArgs args = attention_args(call, a, row_ids, false, one_head, stats, false);
  args.out = out.checked(args.problem.batches, args.problem.heads, call.queries, args.problem.dv,
                         Place::kHost, "out");
  if (call.head_count() > 0) cpu::attention(args, require_threads(threads));
}

void row_grads(const AttentionHandle& call, const CsrHandle& a, const Memory& row_ids,
               bool one_batch, bool one_head, const Memory& stats, const Memory& delta,
               const AttentionGradsHandle& grads, int threads) {
  cpu::AttentionArgs args = attention_args(call, a, row_ids, one_batch, one_head, stats, false);
  args.grad = grads.checked_out(call, Place::kHost);
  args.delta = host_array<float>(delta, call.head_count() * call.queries, "delta");
  args.dq = call.of_queries(grads.dq, args.problem.d, Place::kHost, "dq");
  args.dbias = grads.checked_dbias(call, args.a.nnz, Place::kHost);
  // One thread adds the gradients of heads that share a bias.
  if (args.dbias.data != nullptr && ((grads.dbias.batches == 1 && args.batch_groups > 1) ||
                                     (grads.dbias.heads == 1 && args.head_groups > 1))) {
    reject("dbias", "is shared by heads that are not in one group");
  }
  if (call.head_count() > 0) cpu::attention_row_grads(args, require_threads(threads));
}

void column_grads(const AttentionHandle& call, const CsrHandle& a, const Memory& row_ids,
                  bool one_head, const Memory& nnz_index_map, const Memory& stats,
                  const Memory& delta, const AttentionGradsHandle& grads, int threads) {
  cpu::AttentionArgs args = attention_args(call, a, row_ids, false, one_head, stats, true);
  args.grad = grads.checked_out(call, Place::kHost);
  const MutableIndexView map =
      index_array(nnz_index_map, args.a.nnz, Place::kHost, "nnz_index_map");
  args.nnz_index_map = {map.data, map.wide};
  args.delta = host_array<float>(delta, call.head_count() * call.queries, "delta");
  args.dk = call.of_keys(grads.dk, args.problem.d, Place::kHost, "dk");
  args.dv = call.of_keys(grads.dv, args.problem.dv, Place::kHost, "dv");
  if (call.head_count() > 0) cpu::attention_column_grads(args, require_threads(threads));
}

py::tuple philox(const std::array<uint32_t, 4>& c, int64_t seed) {
  const PhiloxWords words = philox4x32({{c[0], c[1], c[2], c[3]}}, philox_key(seed));
  return py::make_tuple(words.word[0], words.word[1], words.word[2], words.word[3]);
}

void bind_attention_handles(py::module_& m) {
  const py::object none = py::none();
  py::class_<HeadsHandle>(m, "Heads")
      .def(py::init(&make_heads), py::arg("tensor") = none)
      .def_static("of_rows", &make_heads_of_rows, py::arg("tensor"), py::arg("heads"));
  py::class_<EdgeValuesHandle>(m, "EdgeValues")
      .def(py::init(&make_edge_values), py::arg("tensor") = none);
  py::class_<AttentionHandle>(m, "Attention")
      .def(py::init(&make_attention_problem), py::arg("q"), py::arg("k"), py::arg("v"),
           py::arg("bias"), py::arg("scale"), py::arg("is_causal"), py::arg("dropout_p"),
           py::arg("seed"), py::arg("precision"));
  py::class_<QuantizedAttentionHandle>(m, "QuantizedAttention")
      .def(py::init(&make_quantized), py::arg("q"), py::arg("k"), py::arg("v"),
           py::arg("value_scale"), py::arg("number_type"), py::arg("bias"), py::arg("scale"),
           py::arg("is_causal"), py::arg("dropout_p"), py::arg("seed"));
  py::class_<AttentionRowsHandle>(m, "AttentionRows")
      .def(py::init([](const HeadsHandle& out, const py::object& stats,
                       const py::object& row_stats) {
             return AttentionRowsHandle{out, hold(stats, "stats"), hold(row_stats, "row_stats")};
           }),
           py::arg("out"), py::arg("stats"), py::arg("row_stats") = none);
  py::class_<AttentionGradsHandle>(m, "AttentionGrads")
      .def(py::init([](const HeadsHandle& out, const HeadsHandle& dq, const HeadsHandle& dk,
                       const HeadsHandle& dv, const EdgeValuesHandle& dbias) {
             return AttentionGradsHandle{out, dq, dk, dv, dbias};
           }),
           py::arg("out"), py::arg("dq"), py::arg("dk"), py::arg("dv"), py::arg("dbias"));
  py::class_<DkvWeightsHandle>(m, "DkvWeights")
      .def(py::init([](const py::object& weights, int64_t heads, const py::object& slot_of_entry,
                       const py::object& columns, const py::object& panels,
                       const py::object& range_starts, int32_t range) {
             return DkvWeightsHandle{hold(weights, "weights"),
                                     heads,
                                     hold(slot_of_entry, "slot_of_entry"),
                                     hold(columns, "columns"),
                                     hold(panels, "panels"),
                                     hold(range_starts, "range_starts"),
                                     range,
                                     {},
                                     {}};
           }),
           py::arg("weights"), py::arg("heads"), py::arg("slot_of_entry"), py::arg("columns"),
           py::arg("panels"), py::arg("range_starts"), py::arg("range"))
      .def(py::init([](const py::object& weights, int64_t heads, const py::object& entries,
                       const py::object& starts) {
             DkvWeightsHandle handle{};
             handle.weights = hold(weights, "weights");
             handle.heads = heads;
             handle.tile_entries = hold(entries, "entries");
             handle.tile_starts = hold(starts, "starts");
             return handle;
           }),
           py::arg("weights"), py::arg("heads"), py::arg("entries"), py::arg("starts"));
}

}  // namespace

void bind_attention(py::module_& m) {
  bind_attention_handles(m);
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cpu_attention", &attention_forward, nogil, py::arg("problem"), py::arg("a"),
        py::arg("row_ids"), py::arg("one_head"), py::arg("out"), py::arg("stats"),
        py::arg("threads"));
  m.def("cpu_attention_row_grads", &row_grads, nogil, py::arg("problem"), py::arg("a"),
        py::arg("row_ids"), py::arg("one_batch"), py::arg("one_head"), py::arg("stats"),
        py::arg("delta"), py::arg("grads"), py::arg("threads"));
  m.def("cpu_attention_column_grads", &column_grads, nogil, py::arg("problem"), py::arg("a"),
        py::arg("row_ids"), py::arg("one_head"), py::arg("nnz_index_map"), py::arg("stats"),
        py::arg("delta"), py::arg("grads"), py::arg("threads"));
  m.def("philox4x32", &philox, "The four words of a counter under the key of a seed.",
        py::arg("counter"), py::arg("seed"));
}

}  // namespace gnnsparse::bindings
