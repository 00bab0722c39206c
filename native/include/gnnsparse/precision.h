// What is known of a precision at compile time, and how a kernel is picked by one at run time.
//
// A precision is two things apart: how dense operands are stored, and the arithmetic that
// multiplies them. Kernels ask for the storage where they address, copy and load, and for the
// arithmetic where they multiply. A storage type of 8 bits is then a DType with its StorageTraits
// and its decoder (device/vector.cuh), and a Precision that combines it with an arithmetic. The csr
// kernels take it as it is. The Tensor Core kernels move stored elements into operands unchanged,
// so they need a conversion first where the two differ: operands_are_stored() is what they assert.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "gnnsparse/fragment.h"
#include "gnnsparse/types.h"

namespace gnnsparse {

// Elements as they lie in memory: their bits, as an unsigned integer.
template <DType kDType>
struct StorageTraits;
template <>
struct StorageTraits<DType::kFloat32> {
  using Bits = uint32_t;
};
template <>
struct StorageTraits<DType::kFloat16> {
  using Bits = uint16_t;
};
template <>
struct StorageTraits<DType::kBFloat16> {
  using Bits = uint16_t;
};

// How operands are multiplied. Sums are float32 in every case.
enum class Arithmetic : int { kFp32, kTf32, kFp16, kBf16 };

//   Fragment  which element each register of an mma holds, and the depth of the mma
//   kOperand  type of the elements in the registers; tf32 has the bits of a float32
//   kSplit    whether each operand is two tf32 numbers, whose products are added up: float32 on
//             Tensor Cores, which have no such mma
//   kOne      1.0 in the type of the operands
template <Arithmetic kArithmetic>
struct ArithmeticTraits;
template <>
struct ArithmeticTraits<Arithmetic::kFp32> {
  using Fragment = FragmentM16N8K8;
  static constexpr DType kOperand = DType::kFloat32;
  static constexpr bool kSplit = true;
  static constexpr uint32_t kOne = 0x3f800000u;
};
template <>
struct ArithmeticTraits<Arithmetic::kTf32> {
  using Fragment = FragmentM16N8K8;
  static constexpr DType kOperand = DType::kFloat32;
  static constexpr bool kSplit = false;
  static constexpr uint32_t kOne = 0x3f800000u;
};
template <>
struct ArithmeticTraits<Arithmetic::kFp16> {
  using Fragment = FragmentM16N8K16;
  static constexpr DType kOperand = DType::kFloat16;
  static constexpr bool kSplit = false;
  static constexpr uint32_t kOne = 0x3c00u;
};
template <>
struct ArithmeticTraits<Arithmetic::kBf16> {
  using Fragment = FragmentM16N8K16;
  static constexpr DType kOperand = DType::kBFloat16;
  static constexpr bool kSplit = false;
  static constexpr uint32_t kOne = 0x3f80u;
};

template <DType kDType, Arithmetic kMath>
struct StoredAndMultiplied {
  static constexpr DType kStorage = kDType;
  using Storage = typename StorageTraits<kDType>::Bits;
  static constexpr int kPerVector = 16 / sizeof(Storage);  // elements of 16 bytes

  static constexpr Arithmetic kArithmetic = kMath;
  using Fragment = typename ArithmeticTraits<kMath>::Fragment;
  static constexpr DType kOperand = ArithmeticTraits<kMath>::kOperand;
  using Operand = typename StorageTraits<kOperand>::Bits;
  static constexpr bool kWords = sizeof(Operand) == 4;  // an operand fills a register
  static constexpr bool kSplit = ArithmeticTraits<kMath>::kSplit;
  static constexpr uint32_t kOne = ArithmeticTraits<kMath>::kOne;
};

template <Precision P>
struct PrecisionTraits;
template <>
struct PrecisionTraits<Precision::kFp32> : StoredAndMultiplied<DType::kFloat32, Arithmetic::kFp32> {
};
template <>
struct PrecisionTraits<Precision::kTf32> : StoredAndMultiplied<DType::kFloat32, Arithmetic::kTf32> {
};
template <>
struct PrecisionTraits<Precision::kFp16> : StoredAndMultiplied<DType::kFloat16, Arithmetic::kFp16> {
};
template <>
struct PrecisionTraits<Precision::kBf16>
    : StoredAndMultiplied<DType::kBFloat16, Arithmetic::kBf16> {};

// Short names for what kernels ask for most.
template <Precision P>
using StorageOf = typename PrecisionTraits<P>::Storage;
template <Precision P>
inline constexpr int kPerVector = PrecisionTraits<P>::kPerVector;
template <Precision P>
inline constexpr Arithmetic kArithmetic = PrecisionTraits<P>::kArithmetic;
template <Precision P>
inline constexpr bool kWords = PrecisionTraits<P>::kWords;
template <Precision P>
inline constexpr bool kSplit = PrecisionTraits<P>::kSplit;

template <Precision P>
constexpr bool operands_are_stored() {
  return PrecisionTraits<P>::kStorage == PrecisionTraits<P>::kOperand;
}

// Calls run(p), where p is the precision as a compile-time constant: run<p>(...) uses it. `kernel`
// is named in the error where there is no such precision, or fp32 is asked for and
// kTakesFp32 is false.
template <bool kTakesFp32, class Run>
decltype(auto) dispatch_precision(Precision precision, const char* kernel, const Run& run) {
  switch (precision) {
    case Precision::kTf32:
      return run(std::integral_constant<Precision, Precision::kTf32>{});
    case Precision::kFp16:
      return run(std::integral_constant<Precision, Precision::kFp16>{});
    case Precision::kBf16:
      return run(std::integral_constant<Precision, Precision::kBf16>{});
    case Precision::kFp32:
      if constexpr (kTakesFp32) {
        return run(std::integral_constant<Precision, Precision::kFp32>{});
      }
  }
  throw std::invalid_argument(std::string("precision: the ") + kernel + " kernel has no fp32");
}

// The dtype that operands of a precision are stored in.
inline DType storage_of(Precision precision) {
  return dispatch_precision<true>(precision, "",
                                  [](auto p) { return PrecisionTraits<p>::kStorage; });
}

}  // namespace gnnsparse
