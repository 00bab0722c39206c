#include "kernels/attention/block_attention.cuh"
#include "kernels/attention/block_attention_hopper.cuh"

namespace gnnsparse::cuda {

void attention_blocks(const BlockAttention& p, Stream stream) {
  const bool has_groups = current_architecture().warpgroup_products;
  dispatch_precision<OperandsOf16Bits>(p.problem.precision, "attention_blocks",
                                       [&](auto precision) {
                                         has_groups ? run_block_groups<precision>(p, stream)
                                                    : run_block_attention<precision>(p, stream);
                                       });
}

}  // namespace gnnsparse::cuda
