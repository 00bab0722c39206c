#define GNNSPARSE_ISA avx2
#include "kernels.inl"
// After the kernels that they are made of, in this order.
#include "attention.inl"
#include "edge_sums.inl"
#include "edges.inl"
#include "graph_attention.inl"
#include "graph_attention_grads.inl"
#include "heads.inl"
#include "quantized.inl"

namespace gnnsparse::cpu {
extern const KernelTable kAvx2Kernels = {"avx2",
                                         avx2::spmm_rows,
                                         avx2::sddmm_rows,
                                         avx2::quantize_peaks,
                                         avx2::quantize_rows,
                                         avx2::quantized_spmm_rows,
                                         avx2::softmax_rows,
                                         avx2::softmax_grad_rows,
                                         avx2::heads_spmm_rows,
                                         avx2::extreme_spmm_rows,
                                         avx2::heads_sddmm_rows,
                                         avx2::softmax_heads_rows,
                                         avx2::softmax_heads_grad_rows,
                                         avx2::attention_items,
                                         avx2::attention_row_grads,
                                         avx2::attention_column_grads,
                                         avx2::graph_attention_rows,
                                         avx2::graph_attention_row_grads,
                                         avx2::graph_attention_column_grads,
                                         avx2::edge_rows};
}  // namespace gnnsparse::cpu
