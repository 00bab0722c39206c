// The table of functions by which torch shows a tensor's memory to C code (DLPack's exchange
// interface, major version 1; torch has it from 2.10 on). Reading a tensor by it takes a fifth of
// the time that its attributes take.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "memory.h"

namespace gnnsparse::bindings {

// A tensor as the interface hands it over: the layout of these structures is part of it.
struct ExchangedTensor {
  void* data;
  int32_t device_type;
  int32_t device_index;
  int32_t dims;
  uint8_t type_code;
  uint8_t type_bits;
  uint16_t type_lanes;
  const int64_t* shape;
  const int64_t* strides;
  uint64_t byte_offset;
};
static_assert(sizeof(void*) != 8 || sizeof(ExchangedTensor) == 48, "DLPack's layout");

struct ExchangeTable {
  uint32_t major;
  uint32_t minor;
  void* older;
  void* allocate;
  void* take;
  void* give;
  int (*show)(void* object, ExchangedTensor* out);  // borrows; -1 with a Python error if it can't
};

// The interface's numbers of the host's memory, ordinary and pinned, and of a GPU's.
inline constexpr int kCpuDevice = 1;
inline constexpr int kCudaDevice = 2;
inline constexpr int kPinnedDevice = 3;

// torch's table, or null.
inline const ExchangeTable* find_exchange(PyObject* tensor_type) {
  PyObject* capsule = PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__");
  const char* name = "dlpack_exchange_api";
  const ExchangeTable* table = nullptr;
  if (capsule != nullptr && PyCapsule_IsValid(capsule, name) != 0) {
    table = static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule, name));
  }
  Py_XDECREF(capsule);
  PyErr_Clear();
  return table != nullptr && table->major == 1 ? table : nullptr;
}

inline Element element_of(const ExchangedTensor& t) {
  enum : uint8_t { kSigned = 0, kUnsigned = 1, kFloat = 2, kBFloat = 4 };
  if (t.type_lanes != 1) return Element::kOther;
  switch (t.type_code << 8 | t.type_bits) {
    case kFloat << 8 | 32:
      return Element::kFloat32;
    case kFloat << 8 | 16:
      return Element::kFloat16;
    case kBFloat << 8 | 16:
      return Element::kBFloat16;
    case kSigned << 8 | 32:
      return Element::kInt32;
    case kSigned << 8 | 64:
      return Element::kInt64;
    case kUnsigned << 8 | 8:
      return Element::kUint8;
    case kFloat << 8 | 64:
      return Element::kFloat64;
    default:
      return Element::kOther;
  }
}

// Shows a tensor whose type is exactly torch.Tensor or Parameter: the attributes of others may be
// those of a subclass. False where torch has no table, or there is no memory to be read.
bool show_tensor(pybind11::handle source, ExchangedTensor* out);

// Copies what was shown.
void set_memory(const ExchangedTensor& shown, Memory* memory);
template <int kDims>
bool set_strided(const ExchangedTensor& shown, Strided<kDims>* tensor);

}  // namespace gnnsparse::bindings
