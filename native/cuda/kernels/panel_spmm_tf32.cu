#include "kernels/panel_spmm.cuh"

namespace gnnsparse::cuda {
template void run_panel_spmm<Precision::kTf32>(const PanelSpmm&, Stream);
}  // namespace gnnsparse::cuda
