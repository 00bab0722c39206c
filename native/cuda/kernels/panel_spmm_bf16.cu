#include "kernels/panel_spmm.cuh"

namespace gnnsparse::cuda {
template void run_panel_spmm<Precision::kBf16>(const PanelSpmm&, Stream);
}  // namespace gnnsparse::cuda
