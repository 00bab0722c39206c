#include "kernels/panel_spmm.cuh"

namespace gnnsparse::cuda {
template void run_panel_spmm<Precision::kFp16>(const WindowSpmm&, Stream);
}  // namespace gnnsparse::cuda
