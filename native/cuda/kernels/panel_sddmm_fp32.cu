#include "kernels/panel_sddmm.cuh"

namespace gnnsparse::cuda {
template void run_panel_sddmm<Precision::kFp32>(const PanelSddmm&, Stream);
}  // namespace gnnsparse::cuda
