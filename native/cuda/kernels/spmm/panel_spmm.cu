#include "kernels/common/reduce.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

void spmm_panel(const PanelSpmm& problem, Precision precision, Stream stream) {
  dispatch_precision<StoredOperands>(precision, "panel",
                                     [&](auto p) { PanelSpmmUnit<p>::run(problem, stream); });
  reduce_cut(problem, problem.a.shape.panel, stream, problem.add);
}

}  // namespace gnnsparse::cuda
