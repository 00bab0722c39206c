#include "kernels/attention/block_attention_grad.cuh"

namespace gnnsparse::cuda {

void attention_blocks_backward(const BlockAttentionGrad& p, Stream stream) {
  dispatch_precision<OperandsOf16Bits>(
      p.problem.precision, "attention_blocks_backward", [&](auto precision) {
        const bool wide = p.problem.d > 64 || p.problem.dv > 64;
        wide ? run_block_grad<precision, 128>(p, stream) : run_block_grad<precision, 64>(p, stream);
      });
}

}  // namespace gnnsparse::cuda
