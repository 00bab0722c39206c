// Checks of what only CUDA kernels are given.
#pragma once

#include "checks.h"
#include "gnnsparse/cuda_api.h"

namespace gnnsparse::bindings {

using Address = std::uintptr_t;

inline cuda::Stream stream_of(Address stream) { return reinterpret_cast<cuda::Stream>(stream); }

// A dense argument whose rows are read `bytes` at a time.
inline DenseView vector_matrix(const Dense& dense, int64_t rows, int64_t width, Precision precision,
                               const char* name, int bytes = 16) {
  const auto view = gpu_matrix<DenseView>(dense, rows, width, name);
  if (view.dtype != storage_of(precision)) {
    reject(name, "must be in the storage type of the precision");
  }
  require_aligned(dense, static_cast<uintptr_t>(bytes), name);
  if (rows > 1 && view.stride * size_of(view.dtype) % bytes != 0) {
    reject(name, "rows must be " + std::to_string(bytes) + "-byte aligned");
  }
  return view;
}

inline void require_vectors(const Dense& dense, int64_t rows, int64_t width, Precision precision,
                            const char* name) {
  vector_matrix(dense, rows, width, precision, name);
}

// Sets what a kernel knows of a matrix x of any strides.
template <class Problem>
void set_strided(Problem& p, const Strided<2>& x) {
  if (!x.given) reject("x", "is None");
  p.x = x.data;
  p.x_dtype = storage_dtype(x, "x");
  require_place(x, Place::kGpu, "x");
  if (x.data == nullptr && x.count > 0) reject("x", "has no memory");
  p.rows = x.size[0];
  p.n = x.size[1];
  p.row_stride = x.stride[0];
  p.column_stride = x.stride[1];
}

}  // namespace gnnsparse::bindings
