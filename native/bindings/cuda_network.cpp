#include <vector>

#include "cuda_args.h"
#include "gnnsparse/edge_network.h"

namespace gnnsparse::bindings {
namespace {

// A network's arguments, which it keeps alive, and the numbers of rows that arrays have.
struct EdgeNetworkHandle {
  EdgeNetwork network;
  Precision precision = Precision::kFp16;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t edges = 0;
  int64_t products = 0;  // that it has weights for
  std::vector<Held> held;

  // Rows of features in the storage type, which are read and written 16 bytes at a time.
  uint16_t* features(const Memory& x, int64_t count, int64_t width, const char* name) const {
    require_aligned(x, 16, name);
    return static_cast<uint16_t*>(
        stored_array(x, product(name, count, width), storage_of(precision), Place::kGpu, name));
  }
};

int features_of(int64_t count, int64_t width, const char* name) {
  if (count < 8 || count % 8 != 0 || count > width) {
    reject(name, "must be a multiple of 8 of at most " + std::to_string(width));
  }
  return static_cast<int>(count);
}

EdgeNetworkHandle make_network(int precision, const py::object& targets, const py::object& sources,
                               const py::object& edge_ids, int64_t rows, int64_t cols,
                               int64_t edges, int64_t edge_dim, int64_t hidden, int64_t width,
                               int64_t blocks, int act, const py::object& eps, const py::object& e,
                               const py::object& p, const py::object& q, const py::object& weights,
                               const py::object& vectors) {
  EdgeNetworkHandle handle;
  handle.precision = precision_of(precision);
  handle.rows = rows;
  handle.cols = cols;
  handle.edges = edges;
  EdgeNetwork& n = handle.network;
  const auto take = [&](const py::object& tensor, const char* name) -> const Memory& {
    handle.held.push_back(hold(tensor, name));
    return handle.held.back();
  };
  if (width != 64 && width != 128 && width != 256) reject("width", "must be 64, 128 or 256");
  if (blocks < 1 || blocks > 65535) reject("blocks", "must be 1 to 65535");
  require_code(act, 3, "act");
  n.width = static_cast<int>(width);
  n.blocks = static_cast<int>(blocks);
  n.act = static_cast<EdgeActivation>(act);
  n.edge_dim = features_of(edge_dim, width, "edge_dim");
  n.hidden = features_of(hidden, width, "hidden");
  n.has_norm = !eps.is_none();
  if (n.has_norm) n.eps = eps.cast<float>();
  const Memory& of = take(targets, "targets");
  n.edges = of.count;
  if (n.edges > INT32_MAX || edges > INT32_MAX) reject("targets", "has 2^31 edges or more");
  n.targets = gpu_array<const int32_t>(of, n.edges, "targets");
  n.sources = gpu_array<const int32_t>(take(sources, "sources"), n.edges, "sources");
  n.edge_ids = optional_gpu_array<const int32_t>(take(edge_ids, "edge_ids"), n.edges, "edge_ids");
  if (n.edge_ids == nullptr && edges < n.edges) reject("num_edges", "is less than the nonzeros");
  n.e = handle.features(take(e, "e"), edges, edge_dim, "e");
  n.p = handle.features(take(p, "p"), rows, hidden, "p");
  n.q = handle.features(take(q, "q"), cols, hidden, "q");
  const Memory& all = take(weights, "weights");
  handle.products = all.count / (width * width);
  n.weights = handle.features(all, 2 * width, width, "weights");
  n.vectors = gpu_array<const float>(take(vectors, "vectors"), 3 * width, "vectors");
  return handle;
}

void edge_network(const EdgeNetworkHandle& handle, const Memory& partial, const Memory& new_edges,
                  const Memory& sums, Address stream) {
  EdgeNetwork n = handle.network;
  n.partial = gpu_array<float>(partial, product("partial", n.tiles(), 2, n.width), "partial");
  n.new_edges = handle.features(new_edges, handle.edges, n.edge_dim, "new_edges");
  n.sums = handle.features(sums, handle.rows, n.edge_dim, "sums");
  const py::gil_scoped_release nogil;
  cuda::edge_network(n, handle.precision, stream_of(stream));
}

void edge_network_grad(const EdgeNetworkHandle& handle, int64_t first_tile, int64_t tile_count,
                       const Memory& grad_edges, const Memory& grad_sums, const Memory& partial,
                       const Memory& hidden_rows, const Memory& grad_out, const Memory& grad_hidden,
                       const Memory& grad_e, const Memory& grad_p, const Memory& grad_q,
                       const Memory& order, const Memory& starts, const Memory& columns,
                       const Memory& scratch, const Memory& sums, Address stream) {
  EdgeNetworkGrad g;
  EdgeNetwork& n = g.network;
  n = handle.network;
  const int64_t width = n.width;
  if (handle.products < 4) reject("network", "has not the transposed weights");
  require_size(first_tile, "first_tile");
  require_size(tile_count, "tile_count");
  if (first_tile + tile_count > n.tiles()) reject("tile_count", "is more than there are");
  g.first_tile = first_tile;
  g.tile_count = tile_count;
  const int64_t rows = std::min(tile_count * kNetworkRows, n.edges - first_tile * kNetworkRows);
  n.partial = gpu_array<float>(partial, product("partial", n.tiles(), 2, width), "partial");
  if (grad_edges.given) {
    g.grad_edges = handle.features(grad_edges, handle.edges, n.edge_dim, "grad_edges");
  }
  if (grad_sums.given) {
    g.grad_sums = handle.features(grad_sums, handle.rows, n.edge_dim, "grad_sums");
  }
  g.hidden_rows = handle.features(hidden_rows, rows, n.hidden, "hidden_rows");
  g.grad_out = handle.features(grad_out, rows, n.edge_dim, "grad_out");
  g.grad_hidden = handle.features(grad_hidden, rows, n.hidden, "grad_hidden");
  g.grad_e = handle.features(grad_e, handle.edges, n.edge_dim, "grad_e");
  g.grad_p = handle.features(grad_p, handle.rows, n.hidden, "grad_p");
  require_aligned(scratch, 16, "scratch");
  g.scratch = gpu_array<uint32_t>(scratch, product("scratch", n.blocks, kNetworkRows, width / 2),
                                  "scratch");
  g.columns = gpu_array<float>(
      sums, product("sums", n.blocks, kNetworkRowGroups, kNetworkColumnSums, width), "sums");
  NetworkColumnSums s;
  s.features = n.hidden;
  s.segments = columns.count;
  s.order = gpu_array<const int32_t>(order, rows, "order");
  s.starts = gpu_array<const int32_t>(starts, s.segments + 1, "starts");
  s.columns = gpu_array<const int32_t>(columns, s.segments, "columns");
  s.rows = g.grad_hidden;
  s.out = gpu_array<float>(grad_q, product("grad_q", handle.cols, n.hidden), "grad_q");
  const py::gil_scoped_release nogil;
  cuda::edge_network_grad(g, s, handle.precision, stream_of(stream));
}

}  // namespace

void bind_cuda_network(py::module_& m) {
  m.def("edge_network_width", &network_width, py::arg("features"), py::arg("capability"));
  m.attr("EDGE_NETWORK_ROWS") = kNetworkRows;
  m.attr("EDGE_NETWORK_SUMS") = py::make_tuple(kNetworkRowGroups, kNetworkColumnSums);
  py::class_<EdgeNetworkHandle>(m, "EdgeNetwork", py::module_local())
      .def(py::init(&make_network), py::arg("precision"), py::arg("targets"), py::arg("sources"),
           py::arg("edge_ids"), py::arg("rows"), py::arg("cols"), py::arg("num_edges"),
           py::arg("edge_dim"), py::arg("hidden"), py::arg("width"), py::arg("blocks"),
           py::arg("act"), py::arg("eps"), py::arg("e"), py::arg("p"), py::arg("q"),
           py::arg("weights"), py::arg("vectors"));
  m.def("cuda_edge_network", &edge_network, py::arg("network"), py::arg("partial"),
        py::arg("new_edges"), py::arg("sums"), py::arg("stream"));
  m.def("cuda_edge_network_grad", &edge_network_grad, py::arg("network"), py::arg("first_tile"),
        py::arg("tile_count"), py::arg("grad_edges"), py::arg("grad_sums"), py::arg("partial"),
        py::arg("hidden_rows"), py::arg("grad_out"), py::arg("grad_hidden"), py::arg("grad_e"),
        py::arg("grad_p"), py::arg("grad_q"), py::arg("order"), py::arg("starts"),
        py::arg("columns"), py::arg("scratch"), py::arg("sums"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
