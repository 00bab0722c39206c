#include "kernels/panel_sddmm.cuh"

namespace gnnsparse::cuda {

void sddmm_panel(const PanelSddmm& problem, Precision precision, Stream stream) {
  switch (precision) {
    case Precision::kFp16:
      return run_panel_sddmm<Precision::kFp16>(problem, stream);
    case Precision::kBf16:
      return run_panel_sddmm<Precision::kBf16>(problem, stream);
    case Precision::kTf32:
      return run_panel_sddmm<Precision::kTf32>(problem, stream);
    case Precision::kFp32:
      return run_panel_sddmm<Precision::kFp32>(problem, stream);
  }
}

}  // namespace gnnsparse::cuda
