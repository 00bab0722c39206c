#include "gnnsparse/fragment.h"
#include "gnnsparse/panel_attention.h"
#include "problem_args.h"

namespace gnnsparse::bindings {
namespace {

// (row, col) of every element that the registers of operand `name` hold, in the order lane,
// register, half: for a test that compares the maps with the PTX ISA's formulas.
template <class Fragment>
py::list fragment_map(const std::string& name) {
  py::list elements;
  const int halves = name == "c" ? 1 : Fragment::kElementsPerRegister;
  const int registers = name == "b" ? Fragment::kBRegisters : 4;
  for (int lane = 0; lane < kWarp; ++lane) {
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

}  // namespace

void bind_emulation(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("fragment_map", [](const std::string& shape, const std::string& operand) {
    if (operand != "a" && operand != "b" && operand != "c") reject("operand", "must be a, b or c");
    if (shape == "m16n8k16") return fragment_map<FragmentM16N8K16>(operand);
    if (shape == "m16n8k8") return fragment_map<FragmentM16N8K8>(operand);
    reject("shape", "must be m16n8k16 or m16n8k8");
  });
  m.def(
      "emulate_window_spmm",
      [](const BlockedView& a, const WorkListHandle& items, Address indptr, Address edge_values,
         Address row_ids, Address row_scale, const Dense& x, const Dense& y, int64_t n,
         int precision) {
        const Precision p = precision_of(precision);
        require_window_shape(a);
        cpu::emulate_spmm(
            window_spmm(a, {indptr, row_ids, row_scale, edge_values}, items, x, y, n, 0, p), p);
      },
      nogil);
  m.def(
      "emulate_panel_spmm",
      [](const BlockedView& a, const WorkListHandle& items, Address row_ids, Address row_scale,
         const Dense& x, const Dense& y, int64_t n, int precision) {
        const Precision p = precision_of(precision);
        cpu::emulate_panel(panel_spmm(a, {0, row_ids, row_scale, 0}, items, x, y, n, 1, 0, p), p);
      },
      nogil);
  m.def(
      "emulate_panel_sddmm",
      [](const BlockedView& a, const WorkListHandle& items, Address indptr, Address row_ids,
         const Dense& q, const Dense& k, Address out, int out_dtype, int64_t d, int precision) {
        const Precision p = precision_of(precision);
        cpu::emulate_panel_sddmm(
            panel_sddmm(a, {indptr, row_ids, 0, 0}, items, q, k,
                        {reinterpret_cast<void*>(out), 0, 0, dtype_of(out_dtype)}, d, p),
            p);
      },
      nogil);
  m.def(
      "emulate_panel_attention",
      [](const AttentionProblem& problem, const BlockedView& a, const WorkListHandle& items,
         Address row_ids, const HeadsView& out, Address lse) {
        PanelAttention p = attention_over(problem, a, {0, row_ids, 0, 0}, items, false);
        p.out = out;
        p.lse = array<float>(lse, a.rows, "lse");
        cpu::emulate_attention(p);
      },
      nogil);
  m.def(
      "emulate_panel_attention_grad",
      [](const AttentionProblem& problem, const BlockedView& a, const WorkListHandle& items,
         Address row_ids, const HeadsView& grad, Address row_stats, const HeadsView& dq,
         const HeadsView& dk, const HeadsView& dv) {
        PanelAttention p = attention_over(problem, a, {0, row_ids, 0, 0}, items, false);
        p.grad = grad;
        p.row_stats = array<float>(row_stats, dq.data != nullptr ? a.rows : a.cols, "row_stats");
        p.dq = dq;
        p.dk = dk;
        p.dv = dv;
        if (dq.data == nullptr && (dk.data == nullptr || dv.data == nullptr)) {
          reject("dk and dv", "are null, and so is dq");
        }
        cpu::emulate_attention_grad(p);
      },
      nogil);
  m.def(
      "emulate_window_sddmm",
      [](const BlockedView& a, const WorkListHandle& items, Address indptr, Address row_ids,
         const Dense& q, const Dense& k, Address out, int out_dtype, int64_t d, int precision) {
        const Precision p = precision_of(precision);
        cpu::emulate_sddmm(
            window_sddmm(a, {indptr, row_ids, 0, 0}, items, q, k,
                         {reinterpret_cast<void*>(out), 0, 0, dtype_of(out_dtype)}, d, p),
            p);
      },
      nogil);
}

}  // namespace gnnsparse::bindings
