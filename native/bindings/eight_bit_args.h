// Checks of matrices of 8-bit numbers, on the CPU and on a GPU.
#pragma once

#include "checks.h"
#include "gnnsparse/quantize.h"

namespace gnnsparse::bindings {

inline EightBit eight_bit_of(int code) {
  require_code(code, 2, "number_type");
  return static_cast<EightBit>(code);
}

// The row stride of a matrix of 8-bit numbers, which has `rows` rows of at least `n` numbers.
// Kernels of a GPU read 16 of them at once.
inline int64_t eight_bit_stride(const Strided<2>& numbers, int64_t rows, int64_t n, Place place,
                                const char* name) {
  const int64_t stride = numbers.size[1];
  const bool dense = numbers.stride[1] == 1 && numbers.stride[0] == stride;
  if (!numbers.given || numbers.element != Element::kUint8) reject(name, "accepted: uint8");
  if (numbers.size[0] != rows || stride < n || stride % kEightBitPadding != 0 ||
      (numbers.count > 0 && !dense)) {
    reject(name, "accepted: contiguous, [" + std::to_string(rows) + ", at least " +
                     std::to_string(n) + " padded to " + std::to_string(kEightBitPadding) + "]");
  }
  require_place(numbers, place, name);
  if (place == Place::kGpu) require_aligned(numbers, 16, name);
  return stride;
}

// The row stride of what [rows, n] numbers are rounded into: n, padded.
inline int64_t padded_stride(const Strided<2>& out, int64_t rows, int64_t n, Place place) {
  const int64_t stride = eight_bit_stride(out, rows, n, place, "out");
  if (stride - n >= kEightBitPadding) reject("out", "has more columns than x, padded");
  return stride;
}

}  // namespace gnnsparse::bindings
