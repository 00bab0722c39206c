#include "block.h"
#include "checks.h"
#include "faults.h"
#include "gnnsparse/fragment.h"

namespace gnnsparse::emulator {
namespace {

namespace py = pybind11;
using bindings::reject;

// (row, col) of every element that the registers of operand `name` hold, in the order lane,
// register, half: for a test that compares the maps with the PTX ISA's formulas.
template <class Fragment>
py::list elements_of(const std::string& name) {
  py::list elements;
  const int halves = name == "c" ? 1 : Fragment::kElementsPerRegister;
  const int registers = name == "b" ? Fragment::kBRegisters : 4;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    for (int reg = 0; reg < registers; ++reg) {
      for (int half = 0; half < halves; ++half) {
        const Element2D e = name == "a"   ? Fragment::a(lane, reg, half)
                            : name == "b" ? Fragment::b(lane, reg, half)
                                          : Fragment::c(lane, reg);
        elements.append(py::make_tuple(e.row, e.col));
      }
    }
  }
  return elements;
}

py::list fragment_map(const std::string& shape, const std::string& operand) {
  if (operand != "a" && operand != "b" && operand != "c") reject("operand", "must be a, b or c");
  if (shape == "m16n8k16") return elements_of<FragmentM16N8K16>(operand);
  if (shape == "m16n8k8") return elements_of<FragmentM16N8K8>(operand);
  reject("shape", "must be m16n8k16 or m16n8k8");
}

}  // namespace
}  // namespace gnnsparse::emulator

// The CUDA kernels under the names that they have in `_native`, run on the CPU. Arguments are
// objects of `_native`.
PYBIND11_MODULE(_emulated, m) {
  gnnsparse::bindings::bind_cuda_attention(m);
  gnnsparse::bindings::bind_cuda_graph_attention(m);
  gnnsparse::bindings::bind_cuda_spmm(m);
  gnnsparse::bindings::bind_cuda_sddmm(m);
  gnnsparse::bindings::bind_cuda_softmax(m);
  gnnsparse::bindings::bind_cuda_heads(m);
  m.def("set_late", &gnnsparse::emulator::Block::set_late);
  m.def("copies_started", &gnnsparse::emulator::Block::copies_started);
  m.def("run_fault", [](const std::string& name) {
    pybind11::list out;
    for (const float value : gnnsparse::emulator::run_fault(name)) out.append(value);
    return out;
  });
  m.def("fragment_map", &gnnsparse::emulator::fragment_map);
}
