#define GNNSPARSE_ISA portable
#include "kernels.inl"

namespace gnnsparse::cpu {
extern const KernelTable kPortableKernels = {"portable", portable::spmm_rows, portable::sddmm_rows,
                                             portable::softmax_rows, portable::softmax_grad_rows};
}  // namespace gnnsparse::cpu
