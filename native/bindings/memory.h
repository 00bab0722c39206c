// The one place where pointers are made of what Python hands over. Python hands over tensors, and a
// pointer is made of one only after its dtype, length, device and alignment have been checked. A
// failed check is a ValueError that names the argument.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "gnnsparse/types.h"

namespace gnnsparse::bindings {

namespace py = pybind11;

[[noreturn]] inline void reject(const std::string& name, const std::string& problem) {
  throw std::invalid_argument(name + ": " + problem);
}

// The dtypes of tensors that native code takes.
enum class Element { kFloat32, kFloat16, kBFloat16, kInt32, kInt64, kUint8, kFloat64, kOther };

int64_t bytes_of(Element element);
const char* name_of(Element element);

// Where a function's arrays have to be. The emulator runs kernels of a GPU on the host's arrays.
enum class Place { kHost, kGpu };
#ifdef GNNSPARSE_EMULATED
inline constexpr bool kGpuIsHost = true;
#else
inline constexpr bool kGpuIsHost = false;
#endif

// A tensor's memory, or that of None. It does not own the tensor: see Held.
struct Memory {
  char* data = nullptr;
  int64_t count = 0;  // elements
  Element element = Element::kOther;
  bool given = false;  // not None
  bool contiguous = true;
  bool on_host = true;
};

// Reads a tensor's memory. False where `source` is neither a tensor nor None.
bool read_memory(py::handle source, Memory* memory);

// A tensor that a handle keeps alive for as long as it exists. It is made, copied and destroyed
// with the GIL held.
struct Held : Memory {
  py::object owner;
};
Held hold(const py::object& tensor, const char* name);

// A tensor of `kDims` dimensions with its strides, in elements. It does not own the tensor either.
template <int kDims>
struct Strided : Memory {
  int64_t size[kDims] = {};
  int64_t stride[kDims] = {};
};
// False where `source` is neither a tensor of so many dimensions nor None.
template <int kDims>
bool read_strided(py::handle source, Strided<kDims>* tensor);
template <int kDims>
Strided<kDims> strided_of(const py::object& tensor, const char* name);

inline void require_size(int64_t value, const char* name) {
  if (value < 0) reject(name, "must not be negative, got " + std::to_string(value));
}

inline void require_at_least_one(int64_t value, const char* name) {
  if (value < 1) reject(name, "must be at least 1, got " + std::to_string(value));
}

// The product of sizes, which fits 64 bits.
template <class... Sizes>
int64_t product(const char* name, Sizes... sizes) {
  int64_t result = 1;
  for (const int64_t size : {static_cast<int64_t>(sizes)...}) {
    require_size(size, name);
    if (size != 0 && result > std::numeric_limits<int64_t>::max() / size) {
      reject(name, "has sizes whose product does not fit 64 bits");
    }
    result *= size;
  }
  return result;
}

void require_place(const Memory& memory, Place place, const char* name);
void require_aligned(const Memory& memory, uintptr_t bytes, const char* name);

// Checks an array of `count` elements of `bytes` bytes each, and returns where it begins.
char* checked_array(const Memory& memory, int64_t count, int64_t bytes, uintptr_t alignment,
                    bool dtype_fits, const char* wanted, Place place, const char* name);

// Which dtypes an array of T may have. Raw bits, and structures of int32, have several.
template <class T>
bool fits(Element element) {
  if constexpr (std::is_same_v<T, int64_t>) return element == Element::kInt64;
  if constexpr (std::is_same_v<T, int32_t>) return element == Element::kInt32;
  if constexpr (std::is_same_v<T, float>) return element == Element::kFloat32;
  if constexpr (std::is_same_v<T, double>) return element == Element::kFloat64;
  if constexpr (std::is_same_v<T, uint16_t>) return bytes_of(element) == 2;
  if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, char>) {
    return element == Element::kUint8;
  }
  return element == Element::kInt32 || element == Element::kUint8;
}

template <class T>
constexpr const char* wanted_by() {
  if constexpr (std::is_same_v<T, int64_t>) return "int64";
  if constexpr (std::is_same_v<T, int32_t>) return "int32";
  if constexpr (std::is_same_v<T, float>) return "float32";
  if constexpr (std::is_same_v<T, double>) return "float64";
  if constexpr (std::is_same_v<T, uint16_t>) return "a dtype of 16 bits";
  if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, char>) return "uint8";
  return "int32";
}

// A typed pointer to at least `count` elements. None is accepted for an empty array only.
template <class T>
T* array(const Memory& memory, int64_t count, Place place, const char* name) {
  using Value = std::remove_const_t<T>;
  return reinterpret_cast<T*>(checked_array(memory, count, sizeof(T), alignof(T),
                                            fits<Value>(memory.element), wanted_by<Value>(), place,
                                            name));
}
template <class T>
T* host_array(const Memory& memory, int64_t count, const char* name) {
  return array<T>(memory, count, Place::kHost, name);
}
template <class T>
T* gpu_array(const Memory& memory, int64_t count, const char* name) {
  return array<T>(memory, count, Place::kGpu, name);
}

// The same, but null for None.
template <class T>
T* optional_host_array(const Memory& memory, int64_t count, const char* name) {
  return memory.given ? host_array<T>(memory, count, name) : nullptr;
}
template <class T>
T* optional_gpu_array(const Memory& memory, int64_t count, const char* name) {
  return memory.given ? gpu_array<T>(memory, count, name) : nullptr;
}

// Values of the nonzeros, or results, in a storage dtype.
DType storage_dtype(const Memory& memory, const char* name);
void* stored_array(const Memory& memory, int64_t count, DType dtype, Place place, const char* name);

// Indices of 32 or 64 bits.
MutableIndexView index_array(const Memory& memory, int64_t count, Place place, const char* name);

}  // namespace gnnsparse::bindings

namespace pybind11::detail {

// Arguments of functions: the caller of a function keeps them alive until it returns.
template <>
struct type_caster<gnnsparse::bindings::Memory> {
  PYBIND11_TYPE_CASTER(gnnsparse::bindings::Memory, const_name("torch.Tensor | None"));

  bool load(handle source, bool) { return gnnsparse::bindings::read_memory(source, &value); }
};
template <int kDims>
struct type_caster<gnnsparse::bindings::Strided<kDims>> {
  PYBIND11_TYPE_CASTER(gnnsparse::bindings::Strided<kDims>, const_name("torch.Tensor | None"));

  bool load(handle source, bool) { return gnnsparse::bindings::read_strided(source, &value); }
};

}  // namespace pybind11::detail
