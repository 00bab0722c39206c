#define GNNSPARSE_ISA portable
#include "kernels.inl"
// After the kernels that it is made of.
#include "attention.inl"

namespace gnnsparse::cpu {
extern const KernelTable kPortableKernels = {"portable",
                                             portable::spmm_rows,
                                             portable::sddmm_rows,
                                             portable::softmax_rows,
                                             portable::softmax_grad_rows,
                                             portable::attention_items,
                                             portable::attention_row_grads,
                                             portable::attention_column_grads};
}  // namespace gnnsparse::cpu
