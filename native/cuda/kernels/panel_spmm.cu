#include "kernels/panel_spmm.cuh"
#include "kernels/reduce.cuh"

namespace gnnsparse::cuda {

void spmm_panel(const PanelSpmm& problem, Precision precision, Stream stream) {
  switch (precision) {
    case Precision::kFp16:
      run_panel_spmm<Precision::kFp16>(problem, stream);
      break;
    case Precision::kBf16:
      run_panel_spmm<Precision::kBf16>(problem, stream);
      break;
    case Precision::kTf32:
      run_panel_spmm<Precision::kTf32>(problem, stream);
      break;
    case Precision::kFp32:
      run_panel_spmm<Precision::kFp32>(problem, stream);
      break;
  }
  reduce_windows(problem, stream);
}

}  // namespace gnnsparse::cuda
