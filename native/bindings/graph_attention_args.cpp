#include "graph_attention_args.h"

#include <cmath>

namespace gnnsparse::bindings {
namespace {

void require_dtype(const HeadsHandle& x, DType dtype, const char* wanted, const char* name) {
  if (x.given && x.view.dtype != dtype) reject(name, std::string("must have ") + wanted);
}

void require_finite(double value, const char* name) {
  if (!std::isfinite(value)) reject(name, "must be finite");
}

// Sets the sizes and views of the arguments that every score has.
void set_base(GraphAttentionHandle& call, double scale, bool is_causal, double dropout_p) {
  for (const HeadsHandle* x : {&call.q, &call.k, &call.v}) {
    if (!x->given) reject("q, k and v", "must be given");
  }
  AttentionProblem& base = call.problem.base;
  base.q = call.q.view;
  base.k = call.k.view;
  base.v = call.v.view;
  base.batches = call.q.size[0];
  base.heads = call.q.size[1];
  base.d = call.q.size[3];
  base.dv = call.v.size[3];
  call.queries = call.q.size[2];
  call.keys = call.k.size[2];
  product("q", base.batches, base.heads, call.queries, base.d);
  base.scale = static_cast<float>(scale);
  base.is_causal = is_causal;
  if (!(dropout_p >= 0 && dropout_p < 1)) reject("dropout_p", "must be in [0, 1)");
  if (!call.seed.given) return;
  const Place place = call.seed.on_host ? Place::kHost : Place::kGpu;
  base.seed = array<const int64_t>(call.seed, 1, place, "seed");
  base.threshold = dropout_threshold(dropout_p);
  base.kept_scale = static_cast<float>(1 / (1 - dropout_p));
}

void require_dtypes(const GraphAttentionHandle& call) {
  const DType storage = storage_of(call.problem.base.precision);
  const bool additive = call.problem.score == Score::kAdditive;
  const DType scored = additive ? DType::kFloat32 : storage;
  const char* of_scores = additive ? "float32" : "the storage dtype of the precision";
  require_dtype(call.q, scored, of_scores, "q");
  require_dtype(call.k, scored, of_scores, "k");
  require_dtype(call.features, scored, of_scores, "features");
  require_dtype(call.v, storage, "the storage dtype of the precision", "v");
  require_dtype(call.gate, storage, "the storage dtype of the precision", "gate");
  require_dtype(call.mapped, storage, "the storage dtype of the precision", "mapped");
  require_dtype(call.mapped_q, storage, "the storage dtype of the precision", "mapped_q");
  require_dtype(call.att, DType::kFloat32, "float32", "att");
  require_dtype(call.bias, DType::kFloat32, "float32", "bias");
}

// Raises for terms that the score does not have.
void require_terms(const GraphAttentionHandle& call) {
  const Score score = call.problem.score;
  const EdgeTerms& terms = call.problem.terms;
  if (score == Score::kAdditive && call.problem.base.d != 1) reject("q", "must have one number");
  if ((score == Score::kGatv2) != call.att.given) reject("att", "goes with the score gatv2 alone");
  if (call.gate.given && score != Score::kDot) reject("gate", "goes with the score dot alone");
  if (call.mapped.given && score != Score::kDot) reject("mapped", "goes with the score dot alone");
  if (call.mapped.given && (call.gate.given || call.features.given)) {
    reject("mapped", "goes without features and gate");
  }
  if (call.mapped_q.given && !call.mapped.given) reject("mapped_q", "goes with mapped alone");
  if (call.features.given && !terms.to_keys && !terms.to_values) {
    reject("features", "must go to keys or values");
  }
  if (call.features.given && terms.to_values) {
    if (score == Score::kAdditive) reject("features", "can't go to values with additive scores");
    if (call.problem.base.d != call.problem.base.dv) reject("features", "need v as wide as k");
  }
}

GraphAttentionHandle make_graph_attention_problem(
    const HeadsHandle& q, const HeadsHandle& k, const HeadsHandle& v, const HeadsHandle& att,
    const HeadsHandle& bias, const HeadsHandle& features, bool to_keys, bool to_values,
    const HeadsHandle& gate, const HeadsHandle& mapped, const HeadsHandle& mapped_q, int score,
    double scale, double negative_slope, double clamp, bool normalize, bool is_causal,
    double dropout_p, const py::object& seed, int precision) {
  GraphAttentionHandle call;
  call.q = q;
  call.k = k;
  call.v = v;
  call.att = att;
  call.bias = bias;
  call.features = features;
  call.gate = gate;
  call.mapped = mapped;
  call.mapped_q = mapped_q;
  call.seed = hold(seed, "seed");
  require_code(score, kScores, "score");
  require_finite(scale, "scale");
  require_finite(negative_slope, "negative_slope");
  if (!(clamp >= 0)) reject("clamp", "must not be negative");
  GraphAttentionProblem& problem = call.problem;
  problem.base.precision = precision_of(precision);
  set_base(call, scale, is_causal, dropout_p);
  problem.score = static_cast<Score>(score);
  problem.att = att.view;
  problem.negative_slope = static_cast<float>(negative_slope);
  problem.clamp = static_cast<float>(clamp);
  problem.normalize = normalize;
  problem.terms = {bias.view, features.view, to_keys,       to_values,
                   gate.view, mapped.view,   mapped_q.view, mapped.given ? mapped.size[3] : 0};
  require_terms(call);
  require_dtypes(call);
  return call;
}

}  // namespace

HeadsView GraphAttentionHandle::numbers(const HeadsHandle& x, int64_t rows, int64_t width,
                                        Place place, const char* name) const {
  require_dtype(x, DType::kFloat32, "float32", name);
  return array(x, rows, width, place, name);
}

const GraphAttentionProblem& GraphAttentionHandle::checked(int64_t rows, int64_t cols, int64_t nnz,
                                                           Place place) const {
  if (rows != queries || cols != keys) {
    reject("a", "is " + std::to_string(rows) + " x " + std::to_string(cols) + "; accepted: " +
                    std::to_string(queries) + " x " + std::to_string(keys) + ", as q and k");
  }
  const AttentionProblem& base = problem.base;
  array(q, queries, base.d, place, "q");
  array(k, keys, base.d, place, "k");
  array(v, keys, base.dv, place, "v");
  array(att, 1, base.d, place, "att");
  array(bias, nnz, 1, place, "bias");
  array(features, nnz, base.d, place, "features");
  array(gate, nnz, base.d, place, "gate");
  array(mapped, nnz, problem.terms.de, place, "mapped");
  array(mapped_q, queries, problem.terms.de, place, "mapped_q");
  if (seed.given) bindings::array<const int64_t>(seed, 1, place, "seed");
  return problem;
}

GraphAttentionResult GraphAttentionResultHandle::checked(const GraphAttentionHandle& call,
                                                         Place place) const {
  const int64_t rows = call.queries;
  if (!out.given) reject("out", "is None");
  if (!stats.given) reject("stats", "is None");
  if (sloped.given && place == Place::kHost) reject("sloped", "is for kernels of a GPU");
  return {call.array(out, rows, call.problem.base.dv, place, "out"),
          call.array(mapped, rows, call.problem.terms.de, place, "mapped"),
          call.numbers(stats, rows, sloped.given ? 3 : 2, place, "stats"),
          call.array(sloped, rows, call.problem.base.dv, place, "sloped")};
}

void GraphAttentionGradsHandle::require_edges(const GraphAttentionHandle& call, Place place) const {
  const bool by_rows = place == Place::kGpu && call.problem.score == Score::kAdditive;
  if (!out.given || !(by_rows ? numbers : edges).given) {
    reject(by_rows ? "out and numbers" : "out and edges", "must be given");
  }
  if (numbers.given && !by_rows) reject("numbers", "is for kernels of a GPU");
}

GraphAttentionGrads GraphAttentionGradsHandle::of_rows(const GraphAttentionHandle& call,
                                                       int64_t nnz, int64_t att_groups,
                                                       Place place) const {
  const GraphAttentionProblem& problem = call.problem;
  const int64_t d = problem.base.d;
  const DType storage = storage_of(problem.base.precision);
  for (const HeadsHandle* x : {&out, &mapped}) {
    require_dtype(*x, storage, "the storage dtype of the precision", "grad");
  }
  require_edges(call, place);
  if (inner.given && place == Place::kHost) reject("inner", "is for kernels of a GPU");
  if (problem.score == Score::kAdditive) require_dtype(q, DType::kFloat32, "float32", "dq");
  GraphAttentionGrads grads;
  grads.out = call.array(out, call.queries, problem.base.dv, place, "grad");
  grads.mapped = call.array(mapped, call.queries, problem.terms.de, place, "grad_mapped");
  grads.weights = call.numbers(weights, nnz, 1, place, "grad_weights");
  grads.inner = call.numbers(inner, call.queries, 1, place, "inner");
  grads.edges = call.numbers(edges, nnz, 2, place, "edges");
  grads.numbers = call.numbers(numbers, call.queries, 4, place, "numbers");
  grads.bias = call.numbers(bias, nnz, 1, place, "dbias");
  grads.q = call.array(q, call.queries, d, place, "dq");
  grads.mapped_q = call.array(mapped_q, call.queries, problem.terms.de, place, "dmapped_q");
  grads.features = call.array(features, nnz, d, place, "dfeatures");
  grads.gate = call.array(gate, nnz, d, place, "dgate");
  grads.att = call.numbers(att, att_groups, d, place, "datt");
  return grads;
}

GraphAttentionGrads GraphAttentionGradsHandle::for_mapped(const GraphAttentionHandle& call,
                                                          int64_t nnz, Place place) const {
  const AttentionProblem& base = call.problem.base;
  if (!edges.given || !of_mapped.given) reject("edges and of_mapped", "must be given");
  GraphAttentionGrads grads;
  grads.mapped = call.array(mapped, call.queries, call.problem.terms.de, place, "grad_mapped");
  grads.edges = call.numbers(edges, nnz, 2, place, "edges");
  grads.of_mapped =
      of_mapped.checked(base.batches, 1, nnz, call.problem.terms.de, place, "of_mapped");
  return grads;
}

GraphAttentionGrads GraphAttentionGradsHandle::of_columns(const GraphAttentionHandle& call,
                                                          int64_t nnz, Place place) const {
  const GraphAttentionProblem& problem = call.problem;
  require_edges(call, place);
  require_dtype(out, storage_of(problem.base.precision), "the storage dtype of the precision",
                "grad");
  if (problem.score == Score::kAdditive) require_dtype(k, DType::kFloat32, "float32", "dk");
  GraphAttentionGrads grads;
  grads.out = call.array(out, call.queries, problem.base.dv, place, "grad");
  grads.edges = call.numbers(edges, nnz, 2, place, "edges");
  grads.numbers = call.numbers(numbers, call.queries, 4, place, "numbers");
  if (numbers.given) {
    grads.weights = call.numbers(weights, nnz, 1, place, "grad_weights");
    grads.bias = call.numbers(bias, nnz, 1, place, "dbias");
    grads.features = call.numbers(features, nnz, 1, place, "dfeatures");
  }
  grads.k = call.array(k, call.keys, problem.base.d, place, "dk");
  grads.v = call.array(v, call.keys, problem.base.dv, place, "dv");
  return grads;
}

namespace {

GraphRowsHandle make_graph_rows(const CsrHandle& a, const py::object& row_ids,
                                const py::object& entries, const py::object& cuts, int64_t partials,
                                int64_t side_by_side, int64_t rounds, const py::object& partial) {
  require_size(partials, "partials");
  require_at_least_one(side_by_side, "side_by_side");
  require_at_least_one(rounds, "rounds");
  if (side_by_side > 32) reject("side_by_side", "must be at most 32");
  if (rounds > INT32_MAX) reject("rounds", "must have 31 bits");
  return {a,
          hold(row_ids, "row_ids"),
          hold(entries, "entries"),
          hold(cuts, "cuts"),
          partials,
          side_by_side,
          rounds,
          hold(partial, "partial")};
}

}  // namespace

void bind_graph_attention_args(py::module_& m) {
  m.attr("GRAPH_ATTENTION_CHUNKS") = kGraphChunks;
  m.attr("GRAPH_MAPPED_HEADS") = kMostMappedHeads;
  m.attr("GRAPH_MAP_WIDTH") = GraphMapGrad::kFeatures;
  m.def(
      "graph_rows_side_by_side",
      [](int64_t chunks, int64_t heads) { return GraphLanes::of(chunks, heads).rows(); },
      py::arg("chunks"), py::arg("heads"));
  m.def("graph_partial_floats", &graph_partial_floats, py::arg("d"), py::arg("dv"), py::arg("de"));
  py::class_<GraphRowsHandle>(m, "GraphRows")
      .def(py::init(&make_graph_rows), py::arg("a"), py::arg("row_ids"), py::arg("entries"),
           py::arg("cuts"), py::arg("partials"), py::arg("side_by_side"), py::arg("rounds"),
           py::arg("partial"))
      .def_property_readonly("warps", &GraphRowsHandle::warps);
  py::class_<GraphAttentionHandle>(m, "GraphAttention")
      .def(py::init(&make_graph_attention_problem), py::arg("q"), py::arg("k"), py::arg("v"),
           py::arg("att"), py::arg("bias"), py::arg("features"), py::arg("to_keys"),
           py::arg("to_values"), py::arg("gate"), py::arg("mapped"), py::arg("mapped_q"),
           py::arg("score"), py::arg("scale"), py::arg("negative_slope"), py::arg("clamp"),
           py::arg("normalize"), py::arg("is_causal"), py::arg("dropout_p"), py::arg("seed"),
           py::arg("precision"));
  using Result = GraphAttentionResultHandle;
  py::class_<Result>(m, "GraphAttentionResult")
      .def(py::init([](const HeadsHandle& out, const HeadsHandle& mapped, const HeadsHandle& stats,
                       const HeadsHandle& sloped) { return Result{out, mapped, stats, sloped}; }),
           py::arg("out"), py::arg("mapped"), py::arg("stats"), py::arg("sloped"));
  using Grads = GraphAttentionGradsHandle;
  py::class_<Grads>(m, "GraphAttentionGrads")
      .def(py::init<>())
      .def_readwrite("out", &Grads::out)
      .def_readwrite("mapped", &Grads::mapped)
      .def_readwrite("weights", &Grads::weights)
      .def_readwrite("inner", &Grads::inner)
      .def_readwrite("edges", &Grads::edges)
      .def_readwrite("numbers", &Grads::numbers)
      .def_readwrite("bias", &Grads::bias)
      .def_readwrite("q", &Grads::q)
      .def_readwrite("mapped_q", &Grads::mapped_q)
      .def_readwrite("features", &Grads::features)
      .def_readwrite("gate", &Grads::gate)
      .def_readwrite("att", &Grads::att)
      .def_readwrite("k", &Grads::k)
      .def_readwrite("v", &Grads::v)
      .def_readwrite("of_mapped", &Grads::of_mapped);
}

}  // namespace gnnsparse::bindings
