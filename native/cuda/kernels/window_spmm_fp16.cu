#include "kernels/window_spmm.cuh"

namespace gnnsparse::cuda {
template void run_window_spmm<Precision::kFp16>(const WindowSpmm&, Stream);
}  // namespace gnnsparse::cuda
