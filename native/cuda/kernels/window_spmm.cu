#include "kernels/window_spmm.cuh"

namespace gnnsparse::cuda {

void spmm_window(const WindowSpmm& problem, Precision precision, Stream stream) {
  switch (precision) {
    case Precision::kFp16:
      run_window_spmm<Precision::kFp16>(problem, stream);
      break;
    case Precision::kBf16:
      run_window_spmm<Precision::kBf16>(problem, stream);
      break;
    case Precision::kTf32:
      run_window_spmm<Precision::kTf32>(problem, stream);
      break;
    default:
      throw std::invalid_argument("precision: the window kernel has no fp32");
  }
  reduce_windows(problem, stream);
}

}  // namespace gnnsparse::cuda
