#include "kernels/panel_spmm.cuh"

namespace gnnsparse::cuda {
template void run_panel_spmm<Precision::kFp32>(const PanelSpmm&, Stream);
}  // namespace gnnsparse::cuda
