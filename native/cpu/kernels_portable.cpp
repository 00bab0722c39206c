#define GNNSPARSE_ISA portable
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
extern const KernelTable kPortableKernels = {"portable",
                                             portable::spmm_rows,
                                             portable::sddmm_rows,
                                             portable::quantize_peaks,
                                             portable::quantize_rows,
                                             portable::quantized_spmm_rows,
                                             portable::softmax_rows,
                                             portable::softmax_grad_rows,
                                             portable::heads_spmm_rows,
                                             portable::extreme_spmm_rows,
                                             portable::heads_sddmm_rows,
                                             portable::softmax_heads_rows,
                                             portable::softmax_heads_grad_rows,
                                             portable::attention_items,
                                             portable::attention_row_grads,
                                             portable::attention_column_grads,
                                             portable::graph_attention_rows,
                                             portable::graph_attention_row_grads,
                                             portable::graph_attention_column_grads,
                                             portable::edge_rows};
}  // namespace gnnsparse::cpu
