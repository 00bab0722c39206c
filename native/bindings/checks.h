// Checks on numbers that Python hands over, and dense matrices.
#pragma once

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "gnnsparse/precision.h"
#include "memory.h"

namespace gnnsparse::bindings {

inline void require_code(int code, size_t count, const char* name) {
  if (code >= 0 && static_cast<size_t>(code) < count) return;
  reject(name, "code must be 0 to " + std::to_string(count - 1) + ", got " + std::to_string(code));
}

inline Precision precision_of(int code) {
  require_code(code, std::size(kPrecisions), "precision");
  return static_cast<Precision>(code);
}

// A matrix whose rows are contiguous.
struct Dense : Strided<2> {
  DType dtype = DType::kFloat32;
  bool rounded = false;
  py::object owner;
};

// The dtype and the row stride of a matrix whose rows have to be contiguous.
inline std::pair<DType, int64_t> row_major(const Strided<2>& matrix, const char* name) {
  if (!matrix.given) reject(name, "is None");
  const DType dtype = storage_dtype(matrix, name);
  // torch gives the dimensions of an empty tensor any strides, as it does one of a single element.
  if (matrix.count > 0 && matrix.size[1] > 1 && matrix.stride[1] != 1) {
    reject(name, "has rows that are not contiguous");
  }
  const int64_t stride = matrix.stride[0];
  const bool has_any = matrix.size[0] < 2 || matrix.count == 0;
  return {dtype, has_any ? std::max(stride, matrix.size[1]) : stride};
}

inline Dense make_dense(const py::object& tensor, bool rounded) {
  Dense dense{strided_of<2>(tensor, "dense"), DType::kFloat32, rounded, tensor};
  std::tie(dense.dtype, dense.stride[0]) = row_major(dense, "dense");
  return dense;
}

// A row-major matrix of at least rows x width elements.
template <class View>
View matrix(const Strided<2>& dense, DType dtype, int64_t stride, int64_t rows, int64_t width,
            Place place, const char* name) {
  require_size(rows, name);
  require_size(width, name);
  if (dense.size[0] < rows || dense.size[1] < width) {
    reject(name, "has shape (" + std::to_string(dense.size[0]) + ", " +
                     std::to_string(dense.size[1]) + "); accepted: at least (" +
                     std::to_string(rows) + ", " + std::to_string(width) + ")");
  }
  if (stride < width) {
    reject(name, "rows overlap: the row stride is smaller than the width");
  }
  require_place(dense, place, name);
  if (dense.data == nullptr && dense.count > 0) reject(name, "has no memory");
  require_aligned(dense, static_cast<uintptr_t>(size_of(dtype)), name);
  View view;
  view.data = dense.data;
  view.stride = stride;
  view.dtype = dtype;
  return view;
}

template <class View>
View host_matrix(const Strided<2>& dense, int64_t rows, int64_t width, const char* name) {
  const auto [dtype, stride] = row_major(dense, name);
  return matrix<View>(dense, dtype, stride, rows, width, Place::kHost, name);
}
template <class View>
View gpu_matrix(const Dense& dense, int64_t rows, int64_t width, const char* name) {
  View view = matrix<View>(dense, dense.dtype, dense.stride[0], rows, width, Place::kGpu, name);
  view.rounded = dense.rounded;
  return view;
}

inline int require_threads(int threads) {
  require_at_least_one(threads, "threads");
  if (threads > (1 << 16)) reject("threads", "must be at most 65536");
  return threads;
}

void bind_constants(py::module_& m);
void bind_views(py::module_& m);
void bind_preprocess(py::module_& m);
void bind_cpu(py::module_& m);
void bind_cpu_heads(py::module_& m);
void bind_cpu_edges(py::module_& m);
void bind_attention(py::module_& m);
void bind_graph_attention(py::module_& m);
void bind_graph_attention_args(py::module_& m);
void bind_sampling_args(py::module_& m);
void bind_sampling(py::module_& m);
void bind_cuda(py::module_& m);
void bind_cuda_attention(py::module_& m);
void bind_cuda_graph_attention(py::module_& m);
void bind_cuda_spmm(py::module_& m);
void bind_cuda_sddmm(py::module_& m);
void bind_cuda_softmax(py::module_& m);
void bind_cuda_heads(py::module_& m);
void bind_cuda_quantized(py::module_& m);
void bind_cuda_edges(py::module_& m);
void bind_cuda_network(py::module_& m);
void bind_cuda_preprocess(py::module_& m);
void bind_cuda_sampling(py::module_& m);

}  // namespace gnnsparse::bindings
