// What is known of a precision at compile time, and how a kernel is picked by one at run time.
//
// A precision is two things apart: how dense operands are stored, and the arithmetic that
// multiplies them. Kernels ask for the storage where they address, copy and load, and for the
// arithmetic where they multiply. The csr kernels convert every stored element to float32, so that
// they take any storage type. The Tensor Core kernels move stored elements into operands unchanged:
// they take a precision only where operands_are_stored(). notes/adding-a-kernel.md has the steps of
// adding a storage type.
#pragma once

#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

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

// The storage types, by the names that torch has for them, in the order of their codes.
struct NamedDType {
  DType type;
  const char* name;
};
inline constexpr NamedDType kDTypes[] = {
    {DType::kFloat32, "float32"}, {DType::kFloat16, "float16"}, {DType::kBFloat16, "bfloat16"}};

// How operands are multiplied. Sums are float32 in every case.
enum class Arithmetic : int { kFp32, kTf32, kFp16, kBf16 };

//   Fragment  which element each register of an mma holds, and the depth of the mma
//   kOperand  type of the elements in the registers; tf32 has the bits of a float32
//   kSplit    whether each operand is two tf32 numbers, whose products are added up: float32 on
//             Tensor Cores, which have no such mma
//   kOne      1.0 in the type of the operands
//
// The four have equal shapes and are written out, as rows of a table are.
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
  static_assert(sizeof(Storage) == size_of(kDType), "what size_of says");
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

// What is known of a precision at run time. The rows are in the order of the codes.
struct PrecisionRow {
  Precision precision;
  const char* name;  // in Python
  DType storage;
  bool operands_are_stored;
};
template <Precision P>
constexpr PrecisionRow precision_row(const char* name) {
  return {P, name, PrecisionTraits<P>::kStorage, operands_are_stored<P>()};
}
inline constexpr PrecisionRow kPrecisions[] = {
    precision_row<Precision::kFp32>("fp32"), precision_row<Precision::kTf32>("tf32"),
    precision_row<Precision::kFp16>("fp16"), precision_row<Precision::kBf16>("bf16")};

constexpr bool places_are_codes() {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (static_cast<size_t>(kDTypes[i].type) != i) return false;
  }
  for (size_t i = 0; i < std::size(kPrecisions); ++i) {
    if (static_cast<size_t>(kPrecisions[i].precision) != i) return false;
  }
  return true;
}
static_assert(places_are_codes(), "rows are found by their codes");

// Calls body(p) for every precision, where p is the precision as a compile-time constant.
template <class Body, size_t... kIndex>
void for_each_precision(const Body& body, std::index_sequence<kIndex...>) {
  (body(std::integral_constant<Precision, kPrecisions[kIndex].precision>{}), ...);
}
template <class Body>
void for_each_precision(const Body& body) {
  for_each_precision(body, std::make_index_sequence<std::size(kPrecisions)>{});
}

// The precisions that a kernel family is compiled for: one that converts what it loads takes every
// one; a Tensor Core kernel takes those whose operands are stored, and of these the ones whose
// operands are whole where it has no code for two tf32 numbers.
struct EveryPrecision {
  template <Precision P>
  static constexpr bool kTakes = true;
};
struct StoredOperands {
  template <Precision P>
  static constexpr bool kTakes = operands_are_stored<P>();
};
struct StoredWholeOperands {
  template <Precision P>
  static constexpr bool kTakes = operands_are_stored<P>() && !kSplit<P>;
};
struct OperandsOf16Bits {
  template <Precision P>
  static constexpr bool kTakes = size_of(PrecisionTraits<P>::kStorage) == 2;
};

// Calls run(p), where p is the precision as a compile-time constant: run<p>(...) uses it. `kernel`
// is named in the error where Family does not take the precision.
template <class Family, class Run>
void dispatch_precision(Precision precision, const char* kernel, const Run& run) {
  bool found = false;
  for_each_precision([&](auto p) {
    if constexpr (Family::template kTakes<decltype(p)::value>) {
      if (precision != p) return;
      found = true;
      run(p);
    }
  });
  if (found) return;
  throw std::invalid_argument(std::string("precision: the ") + kernel + " kernel has no " +
                              kPrecisions[static_cast<int>(precision)].name);
}

// The dtype that operands of a precision are stored in.
inline DType storage_of(Precision precision) {
  return kPrecisions[static_cast<int>(precision)].storage;
}

}  // namespace gnnsparse
