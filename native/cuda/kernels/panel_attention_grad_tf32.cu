#include "kernels/panel_attention_grad.cuh"

namespace gnnsparse::cuda {
template void run_attention_row_grads<Precision::kTf32>(const PanelAttention&, Stream);
template void run_attention_column_grads<Precision::kTf32>(const PanelAttention&, Stream);
}  // namespace gnnsparse::cuda
