#include "kernels/attention/block_attention.cuh"

namespace gnnsparse::cuda {

void attention_blocks(const BlockAttention& p, Stream stream) {
  dispatch_precision<OperandsOf16Bits>(
      p.problem.precision, "attention_blocks",
      [&](auto precision) { run_block_attention<precision>(p, stream); });
}

}  // namespace gnnsparse::cuda
