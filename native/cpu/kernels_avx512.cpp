#define GNNSPARSE_ISA avx512
#include "kernels.inl"

namespace gnnsparse::cpu {
extern const KernelTable kAvx512Kernels = {"avx512", avx512::spmm_rows, avx512::sddmm_rows,
                                           avx512::softmax_rows, avx512::softmax_grad_rows};
}  // namespace gnnsparse::cpu
