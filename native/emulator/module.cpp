#include "block.h"
#include "checks.h"
#include "faults.h"
#include "gnnsparse/fragment.h"
#include "gnnsparse/policy_tile.h"

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
  const int registers = name == "a"   ? Fragment::kARegisters
                        : name == "b" ? Fragment::kBRegisters
                                      : 4;
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
  if (shape == "m16n8k8 halves") return elements_of<FragmentM16N8K8Halves>(operand);
  if (shape == "m16n8k32") return elements_of<FragmentM16N8K32>(operand);
  if (shape == "m16n8k4") return elements_of<FragmentM16N8K4>(operand);
  reject("shape", "must be m16n8k32, m16n8k16, m16n8k8, m16n8k8 halves or m16n8k4");
}

// For each lane the slots of its registers, q = 0 to 3.
template <Precision P>
py::list slots_of_policy() {
  py::list slots;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    for (int q = 0; q < kLaneSlots; ++q) slots.append(PolicyTile<P>::slot(lane, q));
  }
  return slots;
}

// (row of the window, feature of the tile) of every element of the result, in the order lane, run,
// element of the run, row; with the register that holds it.
template <Precision P, bool kSwapped, int kRowTiles, FeatureOrder kOrder>
py::list result_of_policy() {
  using Result = PolicyResult<P, kSwapped, kRowTiles, kOrder>;
  py::list elements;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    for (int run = 0; run < Result::kRuns; ++run) {
      for (int m = 0; m < Result::kLength; ++m) {
        for (int r = 0; r < Result::kRows; ++r) {
          elements.append(py::make_tuple(lane, Result::sum(run, m, r), Result::row(lane, r),
                                         Result::feature(lane, run) + m));
        }
      }
    }
  }
  return elements;
}

template <Precision P>
py::dict policy_maps_of() {
  const auto features = [](FeatureOrder order) {
    py::list found;
    for (int group = 0; group < 8; ++group) {
      for (int i = 0; i < PolicyTile<P>::kLaneFeatures; ++i) {
        found.append(PolicyTile<P>::feature(order, group, i));
      }
    }
    return found;
  };
  const auto results = [](auto order) {
    constexpr FeatureOrder kOrder = decltype(order)::value;
    py::dict found;
    found["right 8"] = result_of_policy<P, true, 1, kOrder>();
    found["right 16"] = result_of_policy<P, true, 2, kOrder>();
    found["left 16"] = result_of_policy<P, false, 2, kOrder>();
    return found;
  };
  py::dict maps;
  maps["slots"] = slots_of_policy<P>();
  const auto add = [&](const char* name, auto order) {
    maps[name] = py::make_tuple(features(decltype(order)::value), results(order));
  };
  add("vector", std::integral_constant<FeatureOrder, FeatureOrder::kVector>{});
  add("pairs", std::integral_constant<FeatureOrder, FeatureOrder::kPairs>{});
  add("natural", std::integral_constant<FeatureOrder, FeatureOrder::kNatural>{});
  return maps;
}

// The register maps of policy_tile.h, for a test that compares them with the fragments'.
py::dict policy_maps(const std::string& precision) {
  if (precision == "fp16") return policy_maps_of<Precision::kFp16>();
  if (precision == "tf32") return policy_maps_of<Precision::kTf32>();
  reject("precision", "must be fp16 or tf32");
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
  gnnsparse::bindings::bind_cuda_sampling(m);
  gnnsparse::bindings::bind_cuda_quantized(m);
  gnnsparse::bindings::bind_cuda_edges(m);
  gnnsparse::bindings::bind_cuda_network(m);
  m.def("set_late", &gnnsparse::emulator::Block::set_late);
  m.def("set_capability", &gnnsparse::emulator::Block::set_capability);
  m.def("copies_started", &gnnsparse::emulator::Block::copies_started);
  m.def("run_fault", [](const std::string& name) {
    pybind11::list out;
    for (const float value : gnnsparse::emulator::run_fault(name)) out.append(value);
    return out;
  });
  m.def("fragment_map", &gnnsparse::emulator::fragment_map);
  m.def("policy_maps", &gnnsparse::emulator::policy_maps);
}
