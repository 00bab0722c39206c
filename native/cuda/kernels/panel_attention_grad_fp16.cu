#include "kernels/panel_attention_grad.cuh"

namespace gnnsparse::cuda {
template void run_attention_row_grads<Precision::kFp16>(const PanelAttention&, Stream);
template void run_attention_column_grads<Precision::kFp16>(const PanelAttention&, Stream);
template void run_attention_fused_backward<Precision::kFp16>(const PanelAttention&, Stream);
template void sum_attention_dkv_partials<Precision::kFp16>(const PanelAttention&, Stream);
}  // namespace gnnsparse::cuda
