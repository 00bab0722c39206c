#include "checks.h"
#include "gnnsparse/csr.h"
#include "sampling_args.h"

namespace gnnsparse::bindings {
namespace {

const int32_t* nodes_below(const Memory& nodes, int64_t limit, int threads, const char* name) {
  const auto* begin = host_array<const int32_t>(nodes, nodes.count, name);
  const cpu::IndexArray values{{begin, false}, nodes.count};
  const int64_t at = cpu::first_out_of_range(values, limit, require_threads(threads));
  if (at >= 0) {
    reject(name, "element " + std::to_string(at) + " is " + std::to_string(begin[at]) +
                     "; accepted: 0 to " + std::to_string(limit - 1));
  }
  return begin;
}

void running_sums(const CsrHandle& a, const Memory& weights, const Memory& running, int threads) {
  const CsrView& view = host(a);
  cpu::running_sums(view, host_array<const float>(weights, view.nnz, "weights"),
                    host_array<double>(running, view.nnz, "running"), require_threads(threads));
}

SampleRows rows_of(const SampleRowsHandle& handle, const SampleGraph& graph, int threads) {
  if (handle.used.given) reject("used", "must be None");
  const SampleRows rows = handle.checked(Place::kHost);
  nodes_below(handle.targets, graph.a.rows, threads, "targets");
  for (int64_t i = 0; rows.windows != nullptr && i < rows.most; ++i) {
    const int64_t* bounds = graph.a.indptr + rows.targets[i];
    const auto [begin, degree] = window_of(graph, rows, i);
    if (begin < bounds[0] || begin > bounds[1] || degree < 0 || degree > bounds[1] - begin) {
      reject("windows", "number " + std::to_string(i) + " is not inside its row");
    }
  }
  return rows;
}

void draw_neighbors(const SampleGraphHandle& handle, const SampleDraw& draw,
                    const SampleRowsHandle& targets, const SampleDrawnHandle& drawn,
                    const Memory& indptr, int threads) {
  const SampleGraph graph = handle.checked(draw, Place::kHost);
  const SampleRows rows = rows_of(targets, graph, threads);
  cpu::draw_neighbors(graph, draw, rows, drawn.checked(draw, rows.most, Place::kHost),
                      host_array<int64_t>(indptr, rows.most + 1, "indptr"), threads);
}

void gather_neighbors(const SampleGraphHandle& handle, const SampleDraw& draw,
                      const SampleRowsHandle& targets, const SampleDrawnHandle& drawn,
                      const Memory& indptr, const Memory& nodes, const Memory& edges,
                      const Memory& copies, int threads) {
  const SampleGraph graph = handle.checked(draw, Place::kHost);
  const SampleRows rows = rows_of(targets, graph, threads);
  const SampleEdges out = sampled_edges(indptr, rows.most, nodes, edges, copies, Place::kHost);
  bool ascends = out.indptr[0] == 0 && out.indptr[rows.most] == nodes.count;
  for (int64_t i = 0; i < rows.most; ++i) ascends &= out.indptr[i] <= out.indptr[i + 1];
  if (!ascends) reject("indptr", "must never decrease, from 0 to the number of nodes");
  cpu::gather_neighbors(graph, draw, rows, drawn.checked(draw, rows.most, Place::kHost), out,
                        threads);
}

int64_t number_nodes(const Memory& targets, const Memory& nodes, const Memory& place,
                     const Memory& sources, const Memory& numbers, int threads) {
  require_sequence(targets.count, nodes.count);
  const int32_t* first = nodes_below(targets, place.count, threads, "targets");
  const int32_t* behind = nodes_below(nodes, place.count, threads, "nodes");
  return cpu::number_nodes(first, targets.count, behind, nodes.count,
                           host_array<int32_t>(place, place.count, "place"),
                           host_array<int32_t>(sources, targets.count + nodes.count, "sources"),
                           host_array<int32_t>(numbers, nodes.count, "numbers"), threads);
}

int64_t draw_negatives(const CsrHandle& a, const SampleDraw& draw, const SampleNegatives& of,
                       const Memory& pairs, int threads) {
  const int64_t count = pairs.count / 2;
  if (count > INT32_MAX) reject("pairs", "must be fewer than 2^31");
  const CsrView& view = host(a);
  if (count > 0 && (view.rows == 0 || view.cols == 0)) reject("a", "has no nodes");
  return cpu::draw_negatives(view, draw, of, count, host_array<int64_t>(pairs, 2 * count, "pairs"),
                             require_threads(threads));
}

}  // namespace

void bind_sampling(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("running_sums", &running_sums, "Sums weights from each row's first edge on.", nogil,
        py::arg("a"), py::arg("weights"), py::arg("running"), py::arg("threads"));
  m.def("draw_neighbors", &draw_neighbors,
        "Counts the edges that are drawn of each target, as offsets, and notes the draws.", nogil,
        py::arg("graph"), py::arg("draw"), py::arg("rows"), py::arg("drawn"), py::arg("indptr"),
        py::arg("threads"));
  m.def("gather_neighbors", &gather_neighbors, "Writes the edges that were drawn.", nogil,
        py::arg("graph"), py::arg("draw"), py::arg("rows"), py::arg("drawn"), py::arg("indptr"),
        py::arg("nodes"), py::arg("edges"), py::arg("copies"), py::arg("threads"));
  m.def("number_nodes", &number_nodes,
        "Numbers nodes by their first appearance; returns how many there are, or -1 - i for a "
        "target i that is a repeat.",
        nogil, py::arg("targets"), py::arg("nodes"), py::arg("place"), py::arg("sources"),
        py::arg("numbers"), py::arg("threads"));
  m.def("draw_negatives", &draw_negatives,
        "Draws pairs without an edge; returns the first for which there was none, or -1.", nogil,
        py::arg("a"), py::arg("draw"), py::arg("of"), py::arg("pairs"), py::arg("threads"));
}

}  // namespace gnnsparse::bindings
