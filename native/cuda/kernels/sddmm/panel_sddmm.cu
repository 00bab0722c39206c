#include "kernels/units.cuh"

namespace gnnsparse::cuda {

void sddmm_panel(const PanelSddmm& problem, Precision precision, Stream stream) {
  dispatch_precision<StoredOperands>(precision, "panel",
                                     [&](auto p) { PanelSddmmUnit<p>::run(problem, stream); });
}

}  // namespace gnnsparse::cuda
