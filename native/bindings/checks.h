// Checks on the raw addresses and sizes that Python hands over. A failed check is a ValueError
// that names the argument; nothing is read before every check has passed.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>

#include "gnnsparse/precision.h"

namespace gnnsparse::bindings {

namespace py = pybind11;
using Address = std::uintptr_t;

[[noreturn]] inline void reject(const std::string& name, const std::string& problem) {
  throw std::invalid_argument(name + ": " + problem);
}

inline void require_size(int64_t value, const char* name) {
  if (value < 0) reject(name, "must not be negative, got " + std::to_string(value));
}

// A typed pointer to `count` elements. A null address is accepted only for an empty array.
template <class T>
T* array(Address address, int64_t count, const char* name) {
  require_size(count, name);
  if (address == 0 && count > 0)
    reject(name, "is null but has " + std::to_string(count) + " elements");
  if (address % alignof(T) != 0) reject(name, "is not aligned to its element type");
  return reinterpret_cast<T*>(address);
}

// A typed pointer that may be null.
template <class T>
T* optional_array(Address address, const char* name) {
  return array<T>(address, 0, name);
}

inline void require_code(int code, size_t count, const char* name) {
  if (code >= 0 && static_cast<size_t>(code) < count) return;
  reject(name, "code must be 0 to " + std::to_string(count - 1) + ", got " + std::to_string(code));
}

inline DType dtype_of(int code) {
  require_code(code, std::size(kDTypes), "dtype");
  return static_cast<DType>(code);
}

inline Precision precision_of(int code) {
  require_code(code, std::size(kPrecisions), "precision");
  return static_cast<Precision>(code);
}

struct Dense {
  Address data;
  int64_t stride;
  int dtype;
  bool rounded;
};

// A row-major matrix of at least rows x width elements.
template <class View>
View matrix(const Dense& dense, int64_t rows, int64_t width, const char* name) {
  const DType dtype = dtype_of(dense.dtype);
  if (dense.stride < width) reject(name, "rows overlap: the row stride is smaller than the width");
  if (dense.data == 0 && rows * width > 0) reject(name, "is null");
  if (dense.data % size_of(dtype) != 0) reject(name, "is not aligned to its element type");
  View view;
  view.data = reinterpret_cast<decltype(view.data)>(dense.data);
  view.stride = dense.stride;
  view.dtype = dtype;
  view.rounded = dense.rounded;
  return view;
}

inline int require_threads(int threads) {
  if (threads < 1) reject("threads", "must be at least 1, got " + std::to_string(threads));
  return threads;
}

void bind_constants(py::module_& m);
void bind_views(py::module_& m);
void bind_preprocess(py::module_& m);
void bind_cpu(py::module_& m);
void bind_attention(py::module_& m);
void bind_cuda(py::module_& m);
void bind_cuda_attention(py::module_& m);
void bind_cuda_spmm(py::module_& m);
void bind_cuda_sddmm(py::module_& m);
void bind_cuda_softmax(py::module_& m);
void bind_cuda_preprocess(py::module_& m);

}  // namespace gnnsparse::bindings
