#include "kernels/panel_attention_forward.cuh"

namespace gnnsparse::cuda {
template void run_attention_forward<Precision::kFp32>(const PanelAttention&, Stream);
}  // namespace gnnsparse::cuda
