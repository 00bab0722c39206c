#define GNNSPARSE_ISA avx2
#include "kernels.inl"
// After the kernels that it is made of.
#include "attention.inl"

namespace gnnsparse::cpu {
extern const KernelTable kAvx2Kernels = {"avx2",
                                         avx2::spmm_rows,
                                         avx2::sddmm_rows,
                                         avx2::softmax_rows,
                                         avx2::softmax_grad_rows,
                                         avx2::attention_items,
                                         avx2::attention_row_grads,
                                         avx2::attention_column_grads};
}  // namespace gnnsparse::cpu
