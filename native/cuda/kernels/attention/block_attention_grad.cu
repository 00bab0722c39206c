#include "kernels/attention/block_attention_hopper.cuh"

namespace gnnsparse::cuda {

void attention_blocks_backward(const BlockAttentionGrad& p, Stream stream) {
  dispatch_precision<OperandsOf16Bits>(
      p.problem.precision, "attention_blocks_backward",
      [&](auto precision) { run_block_groups<precision>(p, stream); });
}

}  // namespace gnnsparse::cuda
