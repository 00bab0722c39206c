#include "kernels/panel_spmm.cuh"
#include "kernels/reduce.cuh"

namespace gnnsparse::cuda {

void spmm_panel(const PanelSpmm& problem, const Cut* cuts, int64_t cut_count, Precision precision,
                Stream stream) {
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
    default:
      throw std::invalid_argument("precision: the panel kernel has no fp32");
  }
  reduce_windows(problem, cuts, cut_count, stream);
}

}  // namespace gnnsparse::cuda
