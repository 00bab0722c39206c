// Products of a warp. Operands are put where the PTX ISA's fragment layouts say, the tables of
// fragment.h, so that a kernel that fills its registers by another layout gives wrong numbers.
#include "device/mma.cuh"

#include "gnnsparse/fragment.h"
#include "gnnsparse/rounding.h"

namespace gnnsparse::cuda {
namespace {

// Tensor Cores cut off what a float32 sum has no room for.
float toward_zero(double sum) {
  const auto near = static_cast<float>(sum);
  return std::fabs(near) > std::fabs(sum) ? bits_float(float_bits(near) - 1u) : near;
}

// A row of B or C. Products of operands are exact in float64.
using Columns = double __attribute__((vector_size(8 * sizeof(double))));

template <Arithmetic kMath>
struct Elements {
  using Fragment = FragmentM16N8K16;
  using HalfFragment = FragmentM16N8K8Halves;
  static float of(uint32_t word, int half) {
    const auto bits = static_cast<uint16_t>(word >> 16 * half);
    return kMath == Arithmetic::kFp16 ? half_to_float(bits) : bf16_to_float(bits);
  }
};
struct Words {
  using Fragment = FragmentM16N8K8;
  using HalfFragment = FragmentM16N8K4;
  // What the Tensor Core reads of a word.
  static float of(uint32_t word, int) { return bits_float(word & 0xffffe000u); }
};
template <>
struct Elements<Arithmetic::kTf32> : Words {};
template <>
struct Elements<Arithmetic::kFp32> : Words {};

}  // namespace

template <Arithmetic kMath, bool kHalf>
void multiply(const MmaOperands (&operands)[emulator::kLanes], MmaSums (&sums)[emulator::kLanes]) {
  using Fragment = std::conditional_t<kHalf, typename Elements<kMath>::HalfFragment,
                                      typename Elements<kMath>::Fragment>;
  constexpr int kHalves = Fragment::kElementsPerRegister;
  double a[16][Fragment::kK];
  Columns b[Fragment::kK];
  Columns c[16];
  for (unsigned lane = 0; lane < emulator::kLanes; ++lane) {
    const MmaOperands& mine = operands[lane];
    for (int half = 0; half < kHalves; ++half) {
      for (int r = 0; r < Fragment::kARegisters; ++r) {
        const Element2D at = Fragment::a(lane, r, half);
        a[at.row][at.col] = Elements<kMath>::of(mine.a[r], half);
      }
      for (int r = 0; r < Fragment::kBRegisters; ++r) {
        const Element2D at = Fragment::b(lane, r, half);
        b[at.row][at.col] = Elements<kMath>::of(mine.b[r], half);
      }
    }
    for (int r = 0; r < 4; ++r) {
      const Element2D at = Fragment::c(lane, r);
      c[at.row][at.col] = mine.d[r];
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < Fragment::kK; ++k) c[row] += a[row][k] * b[k];
  }
  for (unsigned lane = 0; lane < emulator::kLanes; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const Element2D at = Fragment::c(lane, r);
      sums[lane].d[r] = toward_zero(c[at.row][at.col]);
    }
  }
}

void multiply_bytes(const ByteOperands (&operands)[emulator::kLanes],
                    ByteSums (&sums)[emulator::kLanes]) {
  using Fragment = FragmentM16N8K32;
  const auto byte_of = [](uint32_t word, int byte) {
    return static_cast<int8_t>(static_cast<uint8_t>(word >> 8 * byte));
  };
  int32_t a[16][Fragment::kK];
  int32_t b[Fragment::kK][8];
  for (unsigned lane = 0; lane < emulator::kLanes; ++lane) {
    for (int byte = 0; byte < Fragment::kElementsPerRegister; ++byte) {
      for (int r = 0; r < Fragment::kARegisters; ++r) {
        const Element2D at = Fragment::a(lane, r, byte);
        a[at.row][at.col] = byte_of(operands[lane].a[r], byte);
      }
      for (int r = 0; r < Fragment::kBRegisters; ++r) {
        const Element2D at = Fragment::b(lane, r, byte);
        b[at.row][at.col] = byte_of(operands[lane].b[r], byte);
      }
    }
  }
  for (unsigned lane = 0; lane < emulator::kLanes; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const Element2D at = Fragment::c(lane, r);
      int32_t sum = operands[lane].d[r];
      for (int k = 0; k < Fragment::kK; ++k) sum += a[at.row][k] * b[k][at.col];
      sums[lane].d[r] = sum;
    }
  }
}

template void multiply<Arithmetic::kFp16>(const MmaOperands (&)[emulator::kLanes],
                                          MmaSums (&)[emulator::kLanes]);
template void multiply<Arithmetic::kBf16>(const MmaOperands (&)[emulator::kLanes],
                                          MmaSums (&)[emulator::kLanes]);
template void multiply<Arithmetic::kTf32>(const MmaOperands (&)[emulator::kLanes],
                                          MmaSums (&)[emulator::kLanes]);
template void multiply<Arithmetic::kFp32>(const MmaOperands (&)[emulator::kLanes],
                                          MmaSums (&)[emulator::kLanes]);
template void multiply<Arithmetic::kFp16, true>(const MmaOperands (&)[emulator::kLanes],
                                                MmaSums (&)[emulator::kLanes]);
template void multiply<Arithmetic::kBf16, true>(const MmaOperands (&)[emulator::kLanes],
                                                MmaSums (&)[emulator::kLanes]);
template void multiply<Arithmetic::kTf32, true>(const MmaOperands (&)[emulator::kLanes],
                                                MmaSums (&)[emulator::kLanes]);

}  // namespace gnnsparse::cuda
