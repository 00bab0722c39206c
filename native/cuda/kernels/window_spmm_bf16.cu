#include "kernels/window_spmm.cuh"

namespace gnnsparse::cuda {
template void run_window_spmm<Precision::kBf16>(const WindowSpmm&, Stream);
}  // namespace gnnsparse::cuda
