// A warp on the CPU: registers of 32 lanes, and products by the PTX fragment layouts.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "gnnsparse/window_problem.h"

namespace gnnsparse::cpu {

template <Precision P, int kElementsPerRegister>
float operand(uint32_t reg, int half) {
  if (kElementsPerRegister == 1) return bits_float(reg);
  const auto bits = static_cast<uint16_t>(reg >> (16 * half));
  return P == Precision::kFp16 ? half_to_float(bits) : bf16_to_float(bits);
}

struct WarpA {
  uint32_t reg[kWarp][4];
};
struct WarpB {
  uint32_t reg[kWarp][2];
};
struct WarpC {
  float reg[kWarp][4];
};

// d += a b over the whole warp, by the PTX fragment layouts.
template <Precision P>
void mma(WarpC& d, const WarpA& a, const WarpB& b) {
  using Fragment = typename TileOf<P>::Type::Fragment;
  constexpr int kPer = Fragment::kElementsPerRegister;
  float full_a[16][16] = {};
  float full_b[16][8] = {};
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int half = 0; half < kPer; ++half) {
      for (int r = 0; r < Fragment::kARegisters; ++r) {
        const Element2D e = Fragment::a(lane, r, half);
        full_a[e.row][e.col] = operand<P, kPer>(a.reg[lane][r], half);
      }
      for (int r = 0; r < Fragment::kBRegisters; ++r) {
        const Element2D e = Fragment::b(lane, r, half);
        full_b[e.row][e.col] = operand<P, kPer>(b.reg[lane][r], half);
      }
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const Element2D e = Fragment::c(lane, r);
      for (int k = 0; k < Fragment::kK; ++k) d.reg[lane][r] += full_a[e.row][k] * full_b[k][e.col];
    }
  }
}

inline void store_element(void* data, DType dtype, int64_t at, float value) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[at] = value;
  } else {
    static_cast<uint16_t*>(data)[at] =
        dtype == DType::kFloat16 ? float_to_half(value) : float_to_bf16(value);
  }
}

// 16 bytes of a row, zero behind column `width`.
template <class Storage>
Vec16 load_vec16(const DenseView& m, int64_t row, int64_t col, int64_t width) {
  constexpr int64_t kElements = 16 / sizeof(Storage);
  Vec16 v = {};
  const auto* data = static_cast<const Storage*>(m.data) + row * m.stride;
  const int64_t n = std::min(kElements, width - col);
  if (n > 0) memcpy(&v, data + col, n * sizeof(Storage));
  return v;
}

// Writes the sums [rows][n] as the kernels write them.
template <class Problem>
void store_rows(const Problem& p, const std::vector<float>& sums) {
  for (int64_t row = 0; row < p.a.rows; ++row) {
    const int64_t out = p.stored.row_ids != nullptr ? p.stored.row_ids[row] : row;
    const float scale = p.stored.row_scale != nullptr ? p.stored.row_scale[row] : 1.0f;
    for (int64_t f = 0; f < p.n; ++f) {
      store_element(p.y.data, p.y.dtype, out * p.y.stride + f, sums[row * p.n + f] * scale);
    }
  }
}

}  // namespace gnnsparse::cpu
