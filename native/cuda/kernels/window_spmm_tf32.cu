#include "kernels/window_spmm.cuh"

namespace gnnsparse::cuda {
template void run_window_spmm<Precision::kTf32>(const WindowSpmm&, Stream);
}  // namespace gnnsparse::cuda
