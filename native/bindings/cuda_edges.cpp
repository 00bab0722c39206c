#include <memory>
#include <vector>

#include "cuda_args.h"
#include "handles.h"

namespace gnnsparse::bindings {
namespace {

// A kernel that was compiled for a pass, and what it takes and gives.
struct EdgeKernelHandle {
  std::shared_ptr<cuda::LoadedEdgeKernel> kernel;
  std::vector<EdgeInput> inputs;
  std::vector<EdgeOutput> outputs;
  int size = 0;
  DType dtype = DType::kFloat32;
  int lanes = 0;  // along the features
  int ring_bytes = 0;

  // Features of a lane: with a map, which a lane holds for all of its own, fewer.
  int64_t elements() const { return size > 0 ? 4 : 16 / size_of(dtype); }
};

template <class Kind>
std::vector<Kind> kinds_of(const py::list& codes, size_t known, size_t most, const char* name) {
  if (codes.size() > most) reject(name, "are more than " + std::to_string(most));
  std::vector<Kind> kinds;
  for (const py::handle item : codes) {
    const int code = item.cast<int>();
    require_code(code, known, name);
    kinds.push_back(static_cast<Kind>(code));
  }
  return kinds;
}

EdgeKernelHandle make_kernel(const py::bytes& code, const py::list& inputs, const py::list& outputs,
                             int size, int dtype, int lanes_log, int ring_bytes) {
  EdgeKernelHandle handle;
  handle.inputs = kinds_of<EdgeInput>(inputs, 13, kMostEdgeInputs, "inputs");
  handle.outputs = kinds_of<EdgeOutput>(outputs, 9, kMostEdgeOutputs, "outputs");
  require_code(dtype, 3, "dtype");
  if (lanes_log < 2 || lanes_log > 5) reject("lanes_log", "must be 2 to 5");
  if (size < 0 || size > 16) reject("size", "must be 0 to 16");
  require_size(ring_bytes, "ring_bytes");
  handle.size = size;
  handle.dtype = static_cast<DType>(dtype);
  handle.lanes = 1 << lanes_log;
  handle.ring_bytes = ring_bytes;
  handle.kernel = cuda::load_edge_kernel(std::string(code));
  return handle;
}

// Numbers in float32, contiguous, at least `count`.
EdgeArray numbers(const py::handle& source, int64_t count, const char* name) {
  Memory memory;
  if (!read_memory(source, &memory)) reject(name, "is no tensor");
  return {reinterpret_cast<const char*>(gpu_array<const float>(memory, count, name)), 0};
}

// Rows of features as whole vectors of 16 bytes.
EdgeArray vectors(const py::handle& source, int64_t rows, int64_t width, Element element,
                  const char* name) {
  Strided<2> x;
  if (!read_strided(source, &x) || !x.given) reject(name, "is no tensor of 2 dimensions");
  if (x.element != element) {
    reject(name, std::string("has ") + name_of(x.element) + "; accepted: " + name_of(element));
  }
  if (x.size[0] < rows || x.size[1] < width) {
    reject(name, "has shape (" + std::to_string(x.size[0]) + ", " + std::to_string(x.size[1]) +
                     "); accepted: at least (" + std::to_string(rows) + ", " +
                     std::to_string(width) + ")");
  }
  require_place(x, Place::kGpu, name);
  require_aligned(x, 16, name);
  const int64_t bytes = x.stride[0] * bytes_of(element);
  if ((width > 1 && x.stride[1] != 1) || (rows > 1 && (bytes % 16 != 0 || x.stride[0] < width))) {
    reject(name, "rows must be contiguous and 16-byte aligned");
  }
  if (rows > 1 && bytes > UINT32_MAX) reject(name, "rows are 4 GiB long or longer");
  return {x.data, rows > 1 ? static_cast<uint32_t>(bytes) : 0};
}

// Features that a kernel writes, in the storage type or float32.
EdgeTarget features(const py::handle& source, int64_t rows, int64_t width,
                    const EdgeKernelHandle& kernel, const char* name) {
  Memory memory;
  if (!read_memory(source, &memory)) reject(name, "is no tensor");
  const DType dtype = storage_dtype(memory, name);
  if (dtype != kernel.dtype && dtype != DType::kFloat32) {
    reject(name, "must be in the storage type or float32");
  }
  EdgeTarget to = {};
  to.data = static_cast<char*>(
      stored_array(memory, product(name, rows, width), dtype, Place::kGpu, name));
  to.row = width * size_of(dtype);
  to.is_float = dtype == DType::kFloat32;
  to.is_vectors = width % kernel.elements() == 0 && reinterpret_cast<uintptr_t>(to.data) % 16 == 0;
  return to;
}

Element element_of(DType dtype) {
  constexpr Element kElements[] = {Element::kFloat32, Element::kFloat16, Element::kBFloat16};
  return kElements[static_cast<int>(dtype)];
}

void edge_rows(EdgeKernelHandle& kernel, const CsrHandle& matrix, const Memory& row_ids,
               const Memory& edge_ids, int64_t edges, const WorkListHandle& handle,
               int64_t row_limit, int64_t rows_per_warp, int64_t blocks, int64_t width,
               const py::list& arguments, const py::list& results, const Memory& partial,
               Address stream) {
  const CsrView& a = gpu(matrix);
  require_at_least_one(width, "width");
  require_size(edges, "num_edges");
  if (a.nnz > INT32_MAX || edges > INT32_MAX) reject("a", "has 2^31 edges or more");
  if (!edge_ids.given && edges < a.nnz) reject("num_edges", "is less than the nonzeros");
  require_at_least_one(rows_per_warp, "rows_per_warp");
  if (rows_per_warp > 32) reject("rows_per_warp", "must be at most 32");
  if (row_limit < 1 || row_limit > INT32_MAX) reject("row_limit", "must be 1 to 2^31 - 1");
  require_size(blocks, "blocks");
  const int64_t chunks = ceil_div(width, kernel.elements());
  const int64_t parts = ceil_div<int64_t>(chunks, kernel.lanes);
  if (chunks > INT32_MAX / 16 || (parts > 1 && kernel.lanes < 32)) {
    reject("width", "is more than the kernel was compiled for");
  }
  const WorkList<RowItem> work = work_list<RowItem>(handle, 0);
  static_assert(sizeof(EdgePart) == sizeof(RowItem) && sizeof(EdgeCut) == sizeof(Cut));

  EdgeLaunch p = {};
  p.indptr = a.indptr;
  p.indices = a.indices;
  p.rows = a.rows;
  p.edges = edges;
  p.row_ids = optional_gpu_array<const int32_t>(row_ids, a.rows, "row_ids");
  p.edge_ids = optional_gpu_array<const int32_t>(edge_ids, a.nnz, "edge_ids");
  p.parts = reinterpret_cast<const EdgePart*>(work.items);
  p.part_count = work.item_count;
  p.cuts = reinterpret_cast<const EdgeCut*>(work.cuts);
  p.cut_count = work.cut_count;
  p.row_limit = static_cast<int>(row_limit);
  p.rows_per_warp = static_cast<int>(rows_per_warp);
  p.items = work.item_count + ceil_div(a.rows, rows_per_warp);
  p.warps = kEdgeWarps * blocks;
  if (p.items > 0 && blocks < 1) reject("blocks", "must be at least 1");
  p.width = static_cast<int>(width);
  p.chunks = static_cast<int>(chunks);

  const auto take = [&](size_t i) -> py::handle {
    if (i >= arguments.size()) reject("arguments", "are too few");
    return arguments[i];
  };
  size_t next = 0;
  const Element storage = element_of(kernel.dtype);
  for (size_t i = 0; i < kernel.inputs.size(); ++i) {
    const py::handle x = take(next++);
    EdgeArray& to = p.inputs[i];
    switch (kernel.inputs[i]) {
      case EdgeInput::kGathered:
        to = vectors(x, a.cols, width, storage, "gathered");
        break;
      case EdgeInput::kRow:
        to = vectors(x, a.rows, width, storage, "row");
        break;
      case EdgeInput::kEdge:
        to = vectors(x, edges, width, storage, "edge");
        break;
      case EdgeInput::kGatheredWinner:
        to = vectors(x, a.cols, width, Element::kInt32, "gathered_winner");
        break;
      case EdgeInput::kRowWinner:
        to = vectors(x, a.rows, width, Element::kInt32, "row_winner");
        break;
      case EdgeInput::kGatheredWide:
        to = vectors(x, a.cols, width, Element::kFloat32, "gathered_wide");
        break;
      case EdgeInput::kRowWide:
        to = vectors(x, a.rows, width, Element::kFloat32, "row_wide");
        break;
      case EdgeInput::kGatheredNumber:
        to = numbers(x, a.cols, "gathered_number");
        break;
      case EdgeInput::kRowNumber:
        to = numbers(x, a.rows, "row_number");
        break;
      case EdgeInput::kEdgeNumber:
        to = numbers(x, edges, "edge_number");
        break;
      case EdgeInput::kVector:
        to = numbers(x, width, "vector");
        break;
      case EdgeInput::kVectorNumber:
        to = numbers(x, 1, "vector_number");
        break;
      case EdgeInput::kMapped:
        to = numbers(x, product("mapped", edges, kernel.size), "mapped");
        p.map = numbers(take(next++), product("map", width, kernel.size), "map");
        p.map.row = static_cast<uint32_t>(4 * width);
        break;
    }
  }
  if (next != arguments.size()) reject("arguments", "are too many");

  if (results.size() != 2 * kernel.outputs.size()) reject("outputs", "must be two for each output");
  int64_t sums = 0;  // of partial sums, vectors and numbers
  int64_t row_numbers = 0;
  for (size_t k = 0; k < kernel.outputs.size(); ++k) {
    const py::handle y = results[2 * k];
    EdgeTarget& to = p.outputs[k];
    const auto number = [&](int64_t count, const char* name) {
      to.data = const_cast<char*>(numbers(y, count, name).data);
    };
    switch (kernel.outputs[k]) {
      case EdgeOutput::kSum:
        to = features(y, a.rows, width, kernel, "sum");
        ++sums;
        break;
      case EdgeOutput::kMax:
      case EdgeOutput::kMin: {
        to = features(y, a.rows, width, kernel, "max");
        sums += 2;
        Memory winners;
        if (!read_memory(results[2 * k + 1], &winners)) reject("winners", "is no tensor");
        to.winners = gpu_array<int32_t>(winners, product("winners", a.rows, width), "winners");
        break;
      }
      case EdgeOutput::kEdge:
        to = features(y, edges, width, kernel, "edge");
        break;
      case EdgeOutput::kRowNumber:
        number(product("row_number", parts, a.rows), "row_number");
        ++row_numbers;
        break;
      case EdgeOutput::kEdgeNumber:
        number(product("edge_number", parts, edges), "edge_number");
        break;
      case EdgeOutput::kVector:
        number(product("vector", p.warps, width), "vector");
        break;
      case EdgeOutput::kMappedEdge:
        number(product("mapped_edge", parts, edges, kernel.size), "mapped_edge");
        break;
      case EdgeOutput::kMappedWeight:
        number(product("mapped_weight", p.warps, width, kernel.size), "mapped_weight");
        break;
    }
  }
  p.partial_floats = sums * chunks * kernel.elements() + parts * row_numbers;
  p.partial =
      gpu_array<float>(partial, product("partial", work.partials, p.partial_floats), "partial");
  cuda::edge_rows(*kernel.kernel, p, blocks, parts, kernel.ring_bytes, stream_of(stream));
}

}  // namespace

void bind_cuda_edges(py::module_& m) {
  py::class_<EdgeKernelHandle>(m, "EdgeKernel", py::module_local())
      .def(py::init(&make_kernel), py::arg("code"), py::arg("inputs"), py::arg("outputs"),
           py::arg("size"), py::arg("dtype"), py::arg("lanes_log"), py::arg("ring_bytes"));
  m.def("cuda_edge_rows", &edge_rows, py::arg("kernel"), py::arg("a"), py::arg("row_ids"),
        py::arg("edge_ids"), py::arg("num_edges"), py::arg("work"), py::arg("row_limit"),
        py::arg("rows_per_warp"), py::arg("blocks"), py::arg("width"), py::arg("arguments"),
        py::arg("outputs"), py::arg("partial"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
