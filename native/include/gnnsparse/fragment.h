// Which matrix element each register of each lane holds in a warp-wide mma, from the PTX ISA,
// "Matrix Fragments for mma.m16n8k16 with floating point type", "... mma.m16n8k8" and (.tf32)
// "... mma.m16n8k4".
// native/emulator multiplies by these maps, so a kernel that fills its registers by another layout
// gives wrong numbers without a GPU; a test compares them with the formulas of the PTX ISA.
#pragma once

#include "gnnsparse/types.h"

namespace gnnsparse {

struct Element2D {
  int row;
  int col;
};

// 16-bit operands: registers hold two elements, `half` 0 in the low bits. A is 16 x 16.
struct FragmentM16N8K16 {
  static constexpr int kK = 16;
  static constexpr int kARegisters = 4;
  static constexpr int kBRegisters = 2;
  static constexpr int kElementsPerRegister = 2;
  GNNSPARSE_HD static constexpr Element2D a(int lane, int reg, int half) {
    return {lane / 4 + 8 * (reg & 1), 2 * (lane % 4) + half + 8 * (reg >> 1)};
  }
  // B is 16 x 8: row is k, col is n.
  GNNSPARSE_HD static constexpr Element2D b(int lane, int reg, int half) {
    return {2 * (lane % 4) + half + 8 * reg, lane / 4};
  }
  GNNSPARSE_HD static constexpr Element2D c(int lane, int reg) {
    return {lane / 4 + 8 * (reg >> 1), 2 * (lane % 4) + (reg & 1)};
  }
};

// tf32 operands, one a register. A is 16 x 8, B is 8 x 8.
struct FragmentM16N8K8 {
  static constexpr int kK = 8;
  static constexpr int kARegisters = 4;
  static constexpr int kBRegisters = 2;
  static constexpr int kElementsPerRegister = 1;
  GNNSPARSE_HD static constexpr Element2D a(int lane, int reg, int) {
    return {lane / 4 + 8 * (reg & 1), lane % 4 + 4 * (reg >> 1)};
  }
  GNNSPARSE_HD static constexpr Element2D b(int lane, int reg, int) {
    return {lane % 4 + 4 * reg, lane / 4};
  }
  GNNSPARSE_HD static constexpr Element2D c(int lane, int reg) {
    return {lane / 4 + 8 * (reg >> 1), 2 * (lane % 4) + (reg & 1)};
  }
};

// Half as deep. 16-bit operands: A is 16 x 8, B is 8 x 8.
struct FragmentM16N8K8Halves {
  static constexpr int kK = 8;
  static constexpr int kARegisters = 2;
  static constexpr int kBRegisters = 1;
  static constexpr int kElementsPerRegister = 2;
  GNNSPARSE_HD static constexpr Element2D a(int lane, int reg, int half) {
    return {lane / 4 + 8 * reg, 2 * (lane % 4) + half};
  }
  GNNSPARSE_HD static constexpr Element2D b(int lane, int, int half) {
    return {2 * (lane % 4) + half, lane / 4};
  }
  GNNSPARSE_HD static constexpr Element2D c(int lane, int reg) {
    return {lane / 4 + 8 * (reg >> 1), 2 * (lane % 4) + (reg & 1)};
  }
};

// tf32: A is 16 x 4, B is 4 x 8.
struct FragmentM16N8K4 {
  static constexpr int kK = 4;
  static constexpr int kARegisters = 2;
  static constexpr int kBRegisters = 1;
  static constexpr int kElementsPerRegister = 1;
  GNNSPARSE_HD static constexpr Element2D a(int lane, int reg, int) {
    return {lane / 4 + 8 * reg, lane % 4};
  }
  GNNSPARSE_HD static constexpr Element2D b(int lane, int, int) { return {lane % 4, lane / 4}; }
  GNNSPARSE_HD static constexpr Element2D c(int lane, int reg) {
    return {lane / 4 + 8 * (reg >> 1), 2 * (lane % 4) + (reg & 1)};
  }
};

// 8-bit operands: registers hold four elements, `byte` 0 in the lowest bits. A is 16 x 32, B is
// 32 x 8 ("Matrix Fragments for mma.m16n8k32").
struct FragmentM16N8K32 {
  static constexpr int kK = 32;
  static constexpr int kARegisters = 4;
  static constexpr int kBRegisters = 2;
  static constexpr int kElementsPerRegister = 4;
  GNNSPARSE_HD static constexpr Element2D a(int lane, int reg, int byte) {
    return {lane / 4 + 8 * (reg & 1), 4 * (lane % 4) + byte + 16 * (reg >> 1)};
  }
  GNNSPARSE_HD static constexpr Element2D b(int lane, int reg, int byte) {
    return {4 * (lane % 4) + byte + 16 * reg, lane / 4};
  }
  GNNSPARSE_HD static constexpr Element2D c(int lane, int reg) {
    return {lane / 4 + 8 * (reg >> 1), 2 * (lane % 4) + (reg & 1)};
  }
};

}  // namespace gnnsparse
