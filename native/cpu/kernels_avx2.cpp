#define GNNSPARSE_ISA avx2
#include "kernels.inl"

namespace gnnsparse::cpu {
extern const KernelTable kAvx2Kernels = {"avx2", avx2::spmm_rows, avx2::sddmm_rows,
                                         avx2::softmax_rows, avx2::softmax_grad_rows};
}  // namespace gnnsparse::cpu
