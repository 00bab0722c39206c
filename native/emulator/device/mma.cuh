// In place of cuda/device/mma.cuh: m16n8k16, and m16n8k8 of words, by the maps of the PTX ISA.
#pragma once

#include "cuda_language.h"
#include "gnnsparse/rounding.h"

namespace gnnsparse::cuda {

// Tensor Cores cut off what a float32 sum has no room for.
inline float toward_zero(double sum) {
  const auto near = static_cast<float>(sum);
  return std::fabs(near) > std::fabs(sum) ? std::nextafter(near, 0.0f) : near;
}

// Element `half` of register `reg` of a lane's operands, 0 to 3 of A and 4, 5 of B.
template <Precision P>
float operand_element(int lane, int reg, int half) {
  const char* at = emulator::Block::current().published(lane) + 4 * reg;
  if (P == Precision::kTf32 || P == Precision::kFp32) {
    uint32_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return bits_float(bits & 0xffffe000u);  // what the Tensor Core reads of a word
  }
  uint16_t bits;
  std::memcpy(&bits, at + 2 * half, sizeof bits);
  return P == Precision::kFp16 ? half_to_float(bits) : bf16_to_float(bits);
}

template <Precision P>
void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  constexpr bool kWords = P == Precision::kTf32 || P == Precision::kFp32;
  constexpr int kPerWord = kWords ? 1 : 2;
  auto& block = emulator::Block::current();
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  block.publish(mine, sizeof mine);
  block.sync_warp();
  for (int r = 0; r < 4; ++r) {
    const int row = block.lane() / 4 + 8 * (r / 2);
    const int col = 2 * (block.lane() % 4) + r % 2;
    double sum = d[r];
    for (int k = 0; k < 8 * kPerWord; ++k) {
      const int upper = k / (4 * kPerWord);
      const int quad = k % (4 * kPerWord) / kPerWord;
      const int half = k % kPerWord;
      sum += double{operand_element<P>(4 * (row % 8) + quad, row / 8 + 2 * upper, half)} *
             operand_element<P>(4 * col + quad, 4 + upper, half);
    }
    d[r] = toward_zero(sum);
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
