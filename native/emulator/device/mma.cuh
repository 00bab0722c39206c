// In place of cuda/device/mma.cuh: m16n8k16 by the maps of the PTX ISA.
#pragma once

#include "cuda_language.h"
#include "gnnsparse/rounding.h"

namespace gnnsparse::cuda {

template <Precision P>
void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(P == Precision::kFp16 || P == Precision::kBf16, "operands of 16 bits");
  auto& block = emulator::Block::current();
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  block.publish(mine, sizeof mine);
  block.sync_warp();
  // Register `reg` of a lane, 0 to 3 of A and 4, 5 of B.
  const auto element = [&](int lane, int reg, int half) {
    uint16_t bits;
    std::memcpy(&bits, block.published(lane) + 4 * reg + 2 * half, sizeof bits);
    return P == Precision::kFp16 ? half_to_float(bits) : bf16_to_float(bits);
  };
  for (int r = 0; r < 4; ++r) {
    const int row = block.lane() / 4 + 8 * (r / 2);
    const int col = 2 * (block.lane() % 4) + r % 2;
    float sum = 0.0f;
    for (int k = 0; k < 16; ++k) {
      const int quad = k % 8 / 2;
      sum += element(4 * (row % 8) + quad, row / 8 + 2 * (k / 8), k % 2) *
             element(4 * col + quad, 4 + k / 8, k % 2);
    }
    d[r] += sum;
  }
  block.sync_warp();
}

inline uint32_t transpose_matrix(uint32_t pair) {
  auto& block = emulator::Block::current();
  block.publish(&pair, sizeof pair);
  block.sync_warp();
  const int column = block.lane() / 4;
  uint16_t turned[2];
  for (int half = 0; half < 2; ++half) {
    const int row = 2 * (block.lane() % 4) + half;
    std::memcpy(&turned[half], block.published(4 * row + column / 2) + 2 * (column % 2), 2);
  }
  block.sync_warp();
  uint32_t result;
  std::memcpy(&result, turned, sizeof result);
  return result;
}

}  // namespace gnnsparse::cuda
