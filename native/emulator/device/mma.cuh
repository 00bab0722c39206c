// In place of cuda/device/mma.cuh: products of all shapes, by the maps of fragment.h.
#pragma once

#include "cuda_language.h"
#include "gnnsparse/precision.h"

namespace gnnsparse::cuda {

// What a lane brings to a product, and takes: its sums.
struct MmaOperands {
  uint32_t a[4];
  uint32_t b[2];
  float d[4];
};
struct MmaSums {
  float d[4];
};
// `kHalf`: of half the depth; the operands' other registers are not used.
template <Arithmetic kMath, bool kHalf = false>
void multiply(const MmaOperands (&operands)[emulator::kLanes], MmaSums (&sums)[emulator::kLanes]);

template <Arithmetic kMath>
void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const MmaOperands mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
  const auto sums = emulator::Block::current().meet(mine, &multiply<kMath>);
  std::memcpy(d, sums.d, sizeof sums.d);
}

template <Arithmetic kMath>
void mma(float (&d)[4], const uint32_t (&a)[2], const uint32_t (&b)[1]) {
  const MmaOperands mine = {{a[0], a[1]}, {b[0]}, {d[0], d[1], d[2], d[3]}};
  const auto sums = emulator::Block::current().meet(mine, &multiply<kMath, true>);
  std::memcpy(d, sums.d, sizeof sums.d);
}

// Of bytes, with integers as sums.
struct ByteOperands {
  uint32_t a[4];
  uint32_t b[2];
  int32_t d[4];
};
struct ByteSums {
  int32_t d[4];
};
void multiply_bytes(const ByteOperands (&operands)[emulator::kLanes],
                    ByteSums (&sums)[emulator::kLanes]);

inline void mma(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const ByteOperands mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
  const auto sums = emulator::Block::current().meet(mine, &multiply_bytes);
  std::memcpy(d, sums.d, sizeof sums.d);
}

inline void transpose_pairs(const uint32_t (&pairs)[emulator::kLanes],
                            uint32_t (&turned)[emulator::kLanes]) {
  const auto element = [&](int row, int column) {
    return pairs[4 * row + column / 2] >> 16 * (column % 2) & 0xffffu;
  };
  for (unsigned lane = 0; lane < emulator::kLanes; ++lane) {
    const int row = 2 * (lane % 4);
    turned[lane] = element(row, lane / 4) | element(row + 1, lane / 4) << 16;
  }
}
inline uint32_t transpose_matrix(uint32_t pair) {
  return emulator::Block::current().meet(pair, &transpose_pairs);
}

}  // namespace gnnsparse::cuda
