// Register maps of the window kernels. A warp multiplies a window of 8 rows of A by 16 column
// slots at a time, with the operands swapped: C^T = X^T A^T, so that the 8 of m16n8k* runs along
// A's rows (FlashSparse, section 3.2; SSpMM, section III).
//
// Every lane loads 16 bytes of each of four rows of X, and the same bytes become mma operands
// without leaving the lane (SSpMM's register shuffle, section IV). That works because the order of
// the features (M) and of the column slots (K) inside an mma is free: only the two operands and
// the result have to agree on it. Notation: g = lane / 4, t = lane % 4.
//   column slots of a lane   4t .. 4t + 3
//   features of a lane       E g .. E g + E - 1, with E = 8 (16-bit) or 4 (tf32)
//   rows of A in the result  2t, 2t + 1
// All functions compile for the host too: native/emulator runs the kernels with them there.
#pragma once

#include <cstdint>

#include "gnnsparse/architecture.h"
#include "gnnsparse/fragment.h"
#include "gnnsparse/precision.h"
#include "gnnsparse/rounding.h"
#include "gnnsparse/types.h"

namespace gnnsparse {

inline constexpr int kWarp = 32;
inline constexpr int kWindowKTile = 16;  // column slots a warp consumes at a time
inline constexpr int kLaneSlots = 4;     // of them, those of one lane
inline constexpr int kTileRows = 8;      // rows of A in one mma

struct Vec16 {
  uint32_t word[4];
};

GNNSPARSE_HD constexpr int lane_slot(int lane) { return kLaneSlots * (lane & 3); }
GNNSPARSE_HD constexpr int lane_row(int lane) { return lane >> 2; }
GNNSPARSE_HD constexpr int result_row(int lane, int i) { return 2 * (lane & 3) + i; }

GNNSPARSE_HD inline uint32_t low_halves(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, 0x5410);
#else
  return (a & 0xffffu) | (b << 16);
#endif
}

GNNSPARSE_HD inline uint32_t high_halves(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, 0x7632);
#else
  return (a >> 16) | (b & 0xffff0000u);
#endif
}

// Rounds a float32 to tf32: ties to even where the GPU has an instruction for that, ties away from
// zero where it does not.
GNNSPARSE_HD inline uint32_t to_tf32(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  if constexpr (kArchitecture.tf32_nearest_even) {
    uint32_t rounded;
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
    return rounded;
  } else if constexpr (kArchitecture.tf32_conversion) {
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
    return rounded;
  }
#endif
  return float_bits(round_tf32(bits_float(bits)));
}

// The values of A at a lane's four slots, in one of the lane's rows.
template <int kRegisters>
struct SlotValues {
  uint32_t reg[kRegisters];
};

// float16 and bfloat16.
struct TileM16N8K16 {
  using Fragment = FragmentM16N8K16;
  using Storage = uint16_t;
  static constexpr int kLaneFeatures = 8;
  static constexpr int kFeatures = 64;     // of a warp
  static constexpr int kAccumulators = 4;  // of 4 floats
  static constexpr int kMmas = 4;          // a K tile
  using Values = SlotValues<2>;

  GNNSPARSE_HD static constexpr int lane_feature(int lane) { return kLaneFeatures * (lane >> 2); }
  GNNSPARSE_HD static constexpr int accumulator(int m) { return m; }

  // Operand A of mma m: features 2m (row g) and 2m + 1 (row g + 8) of the lane's eight.
  GNNSPARSE_HD static void a_registers(const Vec16 (&rows)[kLaneSlots], int m, uint32_t (&a)[4]) {
    a[0] = low_halves(rows[0].word[m], rows[1].word[m]);
    a[1] = high_halves(rows[0].word[m], rows[1].word[m]);
    a[2] = low_halves(rows[2].word[m], rows[3].word[m]);
    a[3] = high_halves(rows[2].word[m], rows[3].word[m]);
  }
  GNNSPARSE_HD static void b_registers(const Values& values, int, uint32_t (&b)[2]) {
    b[0] = values.reg[0];
    b[1] = values.reg[1];
  }
  GNNSPARSE_HD static void set(Values& values, int i, uint16_t bits) {
    values.reg[i >> 1] |= static_cast<uint32_t>(bits) << (16 * (i & 1));
  }
  GNNSPARSE_HD static uint32_t pair_mask(uint32_t bits) {
    return ((0u - (bits & 1u)) & 0xffffu) | ((0u - (bits >> 1 & 1u)) & 0xffff0000u);
  }
  // `weights` where the bit is set, else zero.
  GNNSPARSE_HD static Values select(const Values& weights, uint32_t bits) {
    return {{weights.reg[0] & pair_mask(bits), weights.reg[1] & pair_mask(bits >> 2)}};
  }
};

struct TileM16N8K8 {
  using Fragment = FragmentM16N8K8;
  using Storage = uint32_t;
  static constexpr int kLaneFeatures = 4;
  static constexpr int kFeatures = 32;
  static constexpr int kAccumulators = 2;
  static constexpr int kMmas = 4;  // two pairs of features by two pairs of slots
  using Values = SlotValues<4>;

  GNNSPARSE_HD static constexpr int lane_feature(int lane) { return kLaneFeatures * (lane >> 2); }
  GNNSPARSE_HD static constexpr int accumulator(int m) { return m >> 1; }

  // Operand A of mma m: features 2j (row g) and 2j + 1 (row g + 8), j = m / 2, at the slots
  // 2s (k = t) and 2s + 1 (k = t + 4), s = m % 2, of the lane's four.
  GNNSPARSE_HD static void a_registers(const Vec16 (&rows)[kLaneSlots], int m, uint32_t (&a)[4]) {
    const int feature = m & ~1;
    const int slot = 2 * (m & 1);
    a[0] = to_tf32(rows[slot].word[feature]);
    a[1] = to_tf32(rows[slot].word[feature + 1]);
    a[2] = to_tf32(rows[slot + 1].word[feature]);
    a[3] = to_tf32(rows[slot + 1].word[feature + 1]);
  }
  GNNSPARSE_HD static void b_registers(const Values& values, int m, uint32_t (&b)[2]) {
    b[0] = values.reg[2 * (m & 1)];
    b[1] = values.reg[2 * (m & 1) + 1];
  }
  GNNSPARSE_HD static void set(Values& values, int i, uint32_t bits) {
    values.reg[i] = to_tf32(bits);
  }
  GNNSPARSE_HD static Values select(const Values& weights, uint32_t bits) {
    Values values;
    for (int i = 0; i < 4; ++i) values.reg[i] = bits >> i & 1u ? weights.reg[i] : 0u;
    return values;
  }
};

template <Precision P>
using WindowTile = std::conditional_t<kWords<P>, TileM16N8K8, TileM16N8K16>;

// Feature i of the lane's kLaneFeatures, in result row r (0 or 1) of the lane.
GNNSPARSE_HD constexpr int result_accumulator(int i) { return i >> 1; }
GNNSPARSE_HD constexpr int result_register(int i, int r) { return 2 * (i & 1) + r; }

// SDDMM keeps the same slots and rows but contracts over features: operand A holds 16 gathered
// rows of K (slots g and g + 8), operand B the 8 rows of Q (row g), and lane t supplies features
// [E t, E t + E) of every chunk of 4 E. The result is C^T again: slots g and g + 8, rows 2t, 2t+1.
GNNSPARSE_HD constexpr int sddmm_slot(int lane, int i) { return (lane >> 2) + 8 * i; }

template <class Tile>
GNNSPARSE_HD void sddmm_a_registers(const Vec16& low, const Vec16& high, int m, uint32_t (&a)[4]) {
  constexpr bool kRound = Tile::Fragment::kElementsPerRegister == 1;
  a[0] = kRound ? to_tf32(low.word[2 * m]) : low.word[2 * m];
  a[1] = kRound ? to_tf32(high.word[2 * m]) : high.word[2 * m];
  a[2] = kRound ? to_tf32(low.word[2 * m + 1]) : low.word[2 * m + 1];
  a[3] = kRound ? to_tf32(high.word[2 * m + 1]) : high.word[2 * m + 1];
}

template <class Tile>
GNNSPARSE_HD void sddmm_b_registers(const Vec16& q, int m, uint32_t (&b)[2]) {
  constexpr bool kRound = Tile::Fragment::kElementsPerRegister == 1;
  b[0] = kRound ? to_tf32(q.word[2 * m]) : q.word[2 * m];
  b[1] = kRound ? to_tf32(q.word[2 * m + 1]) : q.word[2 * m + 1];
}

// Mmas per chunk of 4 * kLaneFeatures features.
inline constexpr int kSddmmMmas = 2;

}  // namespace gnnsparse
