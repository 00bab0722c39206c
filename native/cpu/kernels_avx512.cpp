#define GNNSPARSE_ISA avx512
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
extern const KernelTable kAvx512Kernels = {"avx512",
                                           avx512::spmm_rows,
                                           avx512::sddmm_rows,
                                           avx512::quantize_peaks,
                                           avx512::quantize_rows,
                                           avx512::quantized_spmm_rows,
                                           avx512::softmax_rows,
                                           avx512::softmax_grad_rows,
                                           avx512::heads_spmm_rows,
                                           avx512::extreme_spmm_rows,
                                           avx512::heads_sddmm_rows,
                                           avx512::softmax_heads_rows,
                                           avx512::softmax_heads_grad_rows,
                                           avx512::attention_items,
                                           avx512::attention_row_grads,
                                           avx512::attention_column_grads,
                                           avx512::graph_attention_rows,
                                           avx512::graph_attention_row_grads,
                                           avx512::graph_attention_column_grads,
                                           avx512::edge_rows};
}  // namespace gnnsparse::cpu
