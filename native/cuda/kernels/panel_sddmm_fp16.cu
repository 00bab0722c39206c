#include "kernels/panel_sddmm.cuh"

namespace gnnsparse::cuda {
template void run_panel_sddmm<Precision::kFp16>(const PanelSddmm&, Stream);
}  // namespace gnnsparse::cuda
