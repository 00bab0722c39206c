#include "sampling_args.h"

namespace gnnsparse::bindings {
namespace {

SampleDraw make_draw(int rule, int64_t fanout, int64_t seed, int64_t step, int64_t layer,
                     bool loops) {
  require_code(rule, kSampleRules, "rule");
  SampleDraw draw;
  draw.rule = static_cast<SampleRule>(rule);
  if (draw.rule != SampleRule::kAll) require_at_least_one(fanout, "fanout");
  if (fanout > INT32_MAX) reject("fanout", "must be below 2^31");
  require_size(step, "step");
  require_size(layer, "layer");
  if (step > UINT32_MAX) reject("step", "must be below 2^32");
  if (layer >= kNegativeLayer) reject("layer", "must be below 2^32 - 1");
  draw.fanout = fanout;
  draw.key = philox_key(seed);
  draw.step = static_cast<uint32_t>(step);
  draw.layer = static_cast<uint32_t>(layer);
  draw.loops = loops;
  return draw;
}

}  // namespace

SampleGraph SampleGraphHandle::checked(const SampleDraw& draw, Place place) const {
  SampleGraph graph;
  graph.a = a.on(place);
  if (draw.rule == SampleRule::kWeighted) {
    if (!weights.given) reject("weights", "is None");
    graph.weights = array<const float>(weights, graph.a.nnz, place, "weights");
  }
  if (draw.rule == SampleRule::kWeightedReplaced) {
    if (!running.given) reject("running", "is None");
    graph.running = array<const double>(running, graph.a.nnz, place, "running");
  }
  return graph;
}

SampleRows SampleRowsHandle::checked(Place place) const {
  SampleRows rows;
  rows.most = targets.count;
  rows.targets = array<const int32_t>(targets, rows.most, place, "targets");
  if (used.given) rows.used = gpu_array<const int32_t>(used, 1, "used");
  if (windows.given) {
    rows.windows = array<const int64_t>(windows, 2 * rows.most, place, "windows");
  }
  if (trees.given) rows.trees = array<const int32_t>(trees, rows.most, place, "trees");
  if (step.given) rows.step = gpu_array<const int64_t>(step, 1, "step");
  return rows;
}

SampleDrawn SampleDrawnHandle::checked(const SampleDraw& draw, int64_t rows, Place place) const {
  SampleDrawn drawn;
  if (!draw.draws_first()) return drawn;
  const int64_t count = product("places", rows, draw.fanout);
  drawn.places = array<int32_t>(places, count, place, "places");
  if (draw.replaces()) drawn.copies = array<int32_t>(copies, count, place, "copies");
  if (draw.rule == SampleRule::kWeighted) drawn.keys = array<double>(keys, count, place, "keys");
  return drawn;
}

SampleEdges sampled_edges(const Memory& indptr, int64_t rows, const Memory& nodes,
                          const Memory& edges, const Memory& copies, Place place) {
  SampleEdges out;
  out.indptr = array<const int64_t>(indptr, rows + 1, place, "indptr");
  out.nodes = array<int32_t>(nodes, nodes.count, place, "nodes");
  out.edges = array<int64_t>(edges, nodes.count, place, "edges");
  if (copies.given) out.copies = array<float>(copies, nodes.count, place, "copies");
  return out;
}

void require_sequence(int64_t rows, int64_t edges) {
  if (rows + edges >= kNoPlace) reject("nodes", "are with the targets 2^31 - 1 or more");
}

void bind_sampling_args(py::module_& m) {
  py::class_<SampleGraphHandle>(m, "SampleGraph")
      .def(py::init([](const CsrHandle& a, const py::object& weights, const py::object& running) {
             return SampleGraphHandle{a, hold(weights, "weights"), hold(running, "running")};
           }),
           py::arg("a"), py::arg("weights"), py::arg("running"));
  py::class_<SampleDraw>(m, "SampleDraw")
      .def(py::init(&make_draw), py::arg("rule"), py::arg("fanout"), py::arg("seed"),
           py::arg("step"), py::arg("layer"), py::arg("loops"))
      .def_property_readonly("draws_first", &SampleDraw::draws_first)
      .def_property_readonly("replaces", &SampleDraw::replaces);
  py::class_<SampleNegatives>(m, "SampleNegatives")
      .def(py::init<bool, bool>(), py::arg("distinct"), py::arg("keeps_source"));
  py::class_<SampleRowsHandle>(m, "SampleRows")
      .def(py::init([](const py::object& targets, const py::object& used, const py::object& windows,
                       const py::object& trees, const py::object& step) {
             return SampleRowsHandle{hold(targets, "targets"), hold(used, "used"),
                                     hold(windows, "windows"), hold(trees, "trees"),
                                     hold(step, "step")};
           }),
           py::arg("targets"), py::arg("used"), py::arg("windows"), py::arg("trees"),
           py::arg("step") = py::none());
  py::class_<SampleDrawnHandle>(m, "SampleDrawn")
      .def(py::init([](const py::object& places, const py::object& copies, const py::object& keys) {
             return SampleDrawnHandle{hold(places, "places"), hold(copies, "copies"),
                                      hold(keys, "keys")};
           }),
           py::arg("places"), py::arg("copies"), py::arg("keys"));
}

}  // namespace gnnsparse::bindings
