#include "cuda_args.h"
#include "sampling_args.h"

namespace gnnsparse::bindings {
namespace {

// `used` is None, or has the number of rows that are used.
SampleRows sample_rows(const Memory& targets, const Memory& used) {
  SampleRows rows;
  rows.most = targets.count;
  rows.targets = gpu_array<const int32_t>(targets, rows.most, "targets");
  if (used.given) rows.used = gpu_array<const int32_t>(used, 1, "used");
  return rows;
}

// `indptr` is None, or ends with the number of nodes that are used.
SampleSources sample_sources(const SampleRows& rows, const Memory& nodes, const Memory& indptr) {
  require_sequence(rows.most, nodes.count);
  SampleSources sources;
  sources.most = nodes.count;
  sources.nodes = gpu_array<const int32_t>(nodes, sources.most, "nodes");
  if (indptr.given) {
    require_at_least_one(indptr.count, "indptr");
    sources.used = gpu_array<const int64_t>(indptr, indptr.count, "indptr") + indptr.count - 1;
  }
  return sources;
}

void draw_neighbors(const SampleGraphHandle& handle, const SampleDraw& draw,
                    const SampleRowsHandle& targets, const SampleDrawnHandle& drawn,
                    const Memory& counts, Address stream) {
  const SampleRows rows = targets.checked(Place::kGpu);
  cuda::draw_neighbors(handle.checked(draw, Place::kGpu), draw, rows,
                       drawn.checked(draw, rows.most, Place::kGpu),
                       gpu_array<int64_t>(counts, rows.most, "counts"), stream_of(stream));
}

void gather_neighbors(const SampleGraphHandle& handle, const SampleDraw& draw,
                      const SampleRowsHandle& targets, const SampleDrawnHandle& drawn,
                      const Memory& indptr, const Memory& nodes, const Memory& edges,
                      const Memory& copies, Address stream) {
  const SampleRows rows = targets.checked(Place::kGpu);
  cuda::gather_neighbors(
      handle.checked(draw, Place::kGpu), draw, rows, drawn.checked(draw, rows.most, Place::kGpu),
      sampled_edges(indptr, rows.most, nodes, edges, copies, Place::kGpu), stream_of(stream));
}

void mark_first(const Memory& targets, const Memory& nodes, const Memory& place,
                const Memory& first, const Memory& used, const Memory& indptr, Address stream) {
  const SampleRows rows = sample_rows(targets, used);
  cuda::mark_first(
      rows, sample_sources(rows, nodes, indptr), gpu_array<int32_t>(place, place.count, "place"),
      gpu_array<int32_t>(first, targets.count + nodes.count, "first"), stream_of(stream));
}

void number_nodes(const Memory& targets, const Memory& nodes, const Memory& rank,
                  const Memory& place, const Memory& sources, const Memory& numbers,
                  const Memory& used, const Memory& indptr, const Memory& uses, const Memory& sizes,
                  Address stream) {
  const SampleRows rows = sample_rows(targets, used);
  SampleNumbers out;
  out.sources = gpu_array<int32_t>(sources, sources.count, "sources");
  out.numbers = gpu_array<int32_t>(numbers, nodes.count, "numbers");
  if (sizes.given) {
    out.sizes = reinterpret_cast<SampleSizes*>(gpu_array<int32_t>(sizes, 4, "sizes"));
    out.uses = gpu_array<int32_t>(uses, sources.count, "uses");
  }
  cuda::number_nodes(rows, sample_sources(rows, nodes, indptr),
                     gpu_array<const int32_t>(rank, targets.count + nodes.count, "rank"),
                     gpu_array<int32_t>(place, place.count, "place"), out, stream_of(stream));
}

void draw_negatives(const CsrHandle& a, const SampleDraw& draw, const SampleNegatives& of,
                    const Memory& pairs, const Memory& missing, Address stream) {
  const int64_t count = pairs.count / 2;
  if (count > INT32_MAX) reject("pairs", "must be fewer than 2^31");
  const CsrView& view = gpu(a);
  if (count > 0 && (view.rows == 0 || view.cols == 0)) reject("a", "has no nodes");
  cuda::draw_negatives(view, draw, of, count, gpu_array<int64_t>(pairs, 2 * count, "pairs"),
                       gpu_array<int32_t>(missing, 1, "missing"), stream_of(stream));
}

void gather_rows(const Memory& rows, const Memory& kept, const Memory& place, const Memory& wanted,
                 const Memory& out, int64_t row_bytes, Address stream) {
  require_at_least_one(row_bytes, "row_bytes");
  if (row_bytes > INT32_MAX) reject("row_bytes", "must be below 2^31");
  GatherRows p;
  p.row_bytes = row_bytes;
  p.total = rows.count / row_bytes;
  // The host's rows are in pinned memory, which a GPU reads at the same address.
  p.rows = array<const char>(rows, p.total * row_bytes, rows.on_host ? Place::kHost : Place::kGpu,
                             "rows");
  if (place.given) {
    p.kept = gpu_array<const char>(kept, kept.count, "kept");
    p.place = gpu_array<const int32_t>(place, p.total, "place");
  }
  p.count = wanted.count;
  p.wanted = gpu_array<const int64_t>(wanted, p.count, "wanted");
  p.out = gpu_array<char>(out, product("out", p.count, row_bytes), "out");
  cuda::gather_rows(p, stream_of(stream));
}

}  // namespace

void bind_cuda_sampling(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cuda_draw_neighbors", &draw_neighbors, nogil, py::arg("graph"), py::arg("draw"),
        py::arg("rows"), py::arg("drawn"), py::arg("counts"), py::arg("stream"));
  m.def("cuda_gather_neighbors", &gather_neighbors, nogil, py::arg("graph"), py::arg("draw"),
        py::arg("rows"), py::arg("drawn"), py::arg("indptr"), py::arg("nodes"), py::arg("edges"),
        py::arg("copies"), py::arg("stream"));
  m.def("cuda_mark_first", &mark_first, nogil, py::arg("targets"), py::arg("nodes"),
        py::arg("place"), py::arg("first"), py::arg("used"), py::arg("indptr"), py::arg("stream"));
  m.def("cuda_number_nodes", &number_nodes, nogil, py::arg("targets"), py::arg("nodes"),
        py::arg("rank"), py::arg("place"), py::arg("sources"), py::arg("numbers"), py::arg("used"),
        py::arg("indptr"), py::arg("uses"), py::arg("sizes"), py::arg("stream"));
  m.def("cuda_draw_negatives", &draw_negatives, nogil, py::arg("a"), py::arg("draw"), py::arg("of"),
        py::arg("pairs"), py::arg("missing"), py::arg("stream"));
  m.def("cuda_gather_rows", &gather_rows, nogil, py::arg("rows"), py::arg("kept"), py::arg("place"),
        py::arg("wanted"), py::arg("out"), py::arg("row_bytes"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
