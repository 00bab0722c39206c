// What the kernels of an X of 8 bits are called with.
#pragma once

#include "gnnsparse/panel_problem.h"
#include "gnnsparse/quantize.h"

namespace gnnsparse {

// X to 8 bits: weights[j] * x[j, f] = scale[f] * number. Or several X that have as many rows, the
// groups, such as the heads of attention.
struct Quantize {
  const void* x = nullptr;
  DType x_dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t n = 0;
  int64_t row_stride = 0;  // in elements
  int64_t column_stride = 0;
  int64_t groups = 1;
  int64_t group_stride = 0;
  const float* weights = nullptr;  // [rows], null: 1
  EightBit type = EightBit::kInt8;
  uint32_t change = 0;  // of every four bytes: kShiftedInt8, or none
  bool stochastic = false;
  PhiloxKey key;           // of stochastic rounding
  uint8_t* out = nullptr;  // 16-byte aligned rows of `stride`; zeros behind n
  int64_t out_row = 0;     // in bytes, as is the distance of groups
  int64_t out_group = 0;
  int64_t stride = 0;      // n, padded to kEightBitPadding
  float* scale = nullptr;  // [groups, stride]
  int32_t* peaks =
      nullptr;        // [groups, stride], zeros: workspace, for the bits of the largest magnitudes
  int64_t parts = 0;  // so many rows are read at a time
};

// y[row_ids[i], f] = scale[f] * row_scale[i] * (A x)[i, f]. x has bytes, and its stride counts
// them. Of A the bits, or, of panels of 16 rows, values in float16.
struct QuantizedSpmm : PanelSpmm {
  EightBit type = EightBit::kInt8;
  const float* scale = nullptr;  // [n, padded to kEightBitPadding], 16-byte aligned

  bool integer_sums() const { return type == EightBit::kInt8 && a.encoding == Encoding::kBitmap; }
};

// Whether an X of 8 bits is multiplied with panels of so many rows. 32 rows gain where sums are of
// integers, products of X and bits; otherwise their instructions take longer than the bytes that
// they save (notes/log.md).
constexpr bool takes_bytes(int64_t rows, bool integer_sums) {
  return rows == 16 || (rows == 32 && integer_sums);
}

}  // namespace gnnsparse
