#include <pybind11/stl.h>

#include "checks.h"
#include "gnnsparse/cpu_kernels.h"
#include "handles.h"

namespace gnnsparse::bindings {
namespace {

// Reads the arguments, or the outputs, one after another; the list keeps the tensors.
class Reader {
 public:
  Reader(const std::vector<py::object>& tensors, const char* name)
      : tensors_(tensors), name_(name) {}

  // At least rows x width elements in a storage type.
  template <class View>
  View features(int64_t rows, int64_t width) {
    const Strided<2> tensor = strided_of<2>(next(), current_.c_str());
    return host_matrix<View>(tensor, rows, width, current_.c_str());
  }
  // Exactly that many, without gaps.
  template <class T>
  T* numbers(int64_t rows, int64_t width = 1) {
    const py::object& tensor = next();
    Memory memory;
    if (!read_memory(tensor, &memory)) reject(current_, "is no tensor");
    return host_array<T>(memory, product(current_.c_str(), rows, width), current_.c_str());
  }
  void require_end() const {
    if (at_ == tensors_.size()) return;
    reject(name_,
           "are " + std::to_string(tensors_.size()) + " tensors; accepted: " + std::to_string(at_));
  }

 private:
  const py::object& next() {
    if (at_ == tensors_.size()) {
      reject(name_, "are too few: " + std::to_string(tensors_.size()) + " tensors");
    }
    current_ = std::string(name_) + "[" + std::to_string(at_) + "]";
    return tensors_[at_++];
  }

  const std::vector<py::object>& tensors_;
  const char* name_;
  std::string current_;
  size_t at_ = 0;
};

void read_inputs(cpu::EdgeArgs& args, int64_t edges, Reader reader) {
  for (const EdgeInput kind : args.program->inputs) {
    DenseView x;
    switch (kind) {
      case EdgeInput::kGathered:
      case EdgeInput::kGatheredWide:
        x = reader.features<DenseView>(args.a.cols, args.width);
        break;
      case EdgeInput::kRow:
      case EdgeInput::kRowWide:
        x = reader.features<DenseView>(args.a.rows, args.width);
        break;
      case EdgeInput::kEdge:
        x = reader.features<DenseView>(edges, args.width);
        break;
      case EdgeInput::kGatheredNumber:
        x.data = reader.numbers<const float>(args.a.cols);
        break;
      case EdgeInput::kRowNumber:
        x.data = reader.numbers<const float>(args.a.rows);
        break;
      case EdgeInput::kEdgeNumber:
        x.data = reader.numbers<const float>(edges);
        break;
      case EdgeInput::kVector:
        x.data = reader.numbers<const float>(args.width);
        break;
      case EdgeInput::kVectorNumber:
        x.data = reader.numbers<const float>(1);
        break;
      case EdgeInput::kMapped:
        x.data = reader.numbers<const float>(edges, args.program->size);
        args.map = reader.numbers<const float>(args.program->size, args.width);
        break;
      case EdgeInput::kGatheredWinner:
        x.data = reader.numbers<const int32_t>(args.a.cols, args.width);
        x.stride = args.width;
        break;
      case EdgeInput::kRowWinner:
        x.data = reader.numbers<const int32_t>(args.a.rows, args.width);
        x.stride = args.width;
    }
    args.inputs.push_back(x);
  }
  reader.require_end();
}

void read_outputs(cpu::EdgeArgs& args, int64_t edges, Reader reader) {
  const int64_t size = args.program->size;
  for (const EdgeOutput kind : args.program->outputs) {
    MutableDenseView y;
    int32_t* winners = nullptr;
    switch (kind) {
      case EdgeOutput::kSum:
        y = reader.features<MutableDenseView>(args.a.rows, args.width);
        break;
      case EdgeOutput::kMax:
      case EdgeOutput::kMin:
        y = reader.features<MutableDenseView>(args.a.rows, args.width);
        winners = reader.numbers<int32_t>(args.a.rows, args.width);
        break;
      case EdgeOutput::kEdge:
        y = reader.features<MutableDenseView>(edges, args.width);
        break;
      case EdgeOutput::kRowNumber:
        y.data = reader.numbers<float>(args.a.rows);
        break;
      case EdgeOutput::kEdgeNumber:
        y.data = reader.numbers<float>(edges);
        break;
      case EdgeOutput::kVector:
        y.data = reader.numbers<float>(args.width);
        break;
      case EdgeOutput::kMappedEdge:
        y.data = reader.numbers<float>(edges, size);
        break;
      case EdgeOutput::kMappedWeight:
        y.data = reader.numbers<float>(size, args.width);
    }
    args.outputs.push_back(y);
    args.winners.push_back(winners);
  }
  reader.require_end();
}

void run(const cpu::EdgeProgram& program, const CsrHandle& matrix, const Memory& row_ids,
         const Memory& edge_ids, int64_t edges, int64_t width,
         const std::vector<py::object>& arguments, const std::vector<py::object>& outputs,
         int threads) {
  cpu::EdgeArgs args;
  args.a = host(matrix);
  // Short rows are executed several at a time.
  constexpr int64_t kShort = 12, kMostFeatures = 256;
  const bool is_short = args.a.nnz < kShort * args.a.rows && width <= kMostFeatures;
  args.program = is_short ? program.spanning.get() : &program;
  args.width = width;
  require_at_least_one(width, "width");
  if (edges < 0 || edges > INT32_MAX || (!edge_ids.given && edges < args.a.nnz)) {
    reject("num_edges",
           "got " + std::to_string(edges) + "; accepted: as many as nonzeros, below 2^31");
  }
  args.row_ids = optional_host_array<const int32_t>(row_ids, args.a.rows, "row_ids");
  args.edge_ids = optional_host_array<const int32_t>(edge_ids, args.a.nnz, "edge_ids");
  read_inputs(args, edges, Reader(arguments, "arguments"));
  read_outputs(args, edges, Reader(outputs, "outputs"));
  const int count = require_threads(threads);
  const py::gil_scoped_release nogil;
  cpu::run_edges(args, count);
}

}  // namespace

void bind_cpu_edges(py::module_& m) {
  using cpu::EdgeProgram;
  py::class_<EdgeProgram>(m, "EdgeProgram")
      .def(py::init<const std::vector<std::string>&, const std::vector<int>&,
                    const std::vector<EdgeProgram::Step>&,
                    const std::vector<EdgeProgram::Output>&>(),
           py::arg("inputs"), py::arg("sizes"), py::arg("steps"), py::arg("outputs"));
  m.def("cpu_edges", &run, py::arg("program"), py::arg("a"), py::arg("row_ids"),
        py::arg("edge_ids"), py::arg("num_edges"), py::arg("width"), py::arg("arguments"),
        py::arg("outputs"), py::arg("threads"));
}

}  // namespace gnnsparse::bindings
