// Plain types shared by the CPU and the CUDA code. Nothing here knows Python or torch.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define GNNSPARSE_HD __host__ __device__
#else
#define GNNSPARSE_HD
#endif

namespace gnnsparse {

// Storage type of a dense matrix or of edge values.
enum class DType : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// Arithmetic of a product. kTf32 reads float32 and rounds each operand to 10 mantissa bits.
// Sums are float32 in every case.
enum class Precision : int { kFp32 = 0, kTf32 = 1, kFp16 = 2, kBf16 = 3 };

GNNSPARSE_HD constexpr int64_t size_of(DType type) { return type == DType::kFloat32 ? 4 : 2; }

template <class T>
GNNSPARSE_HD constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

GNNSPARSE_HD inline int popcount(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __popc(bits);
#else
  return __builtin_popcount(bits);
#endif
}

GNNSPARSE_HD inline int popcount64(uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return __popcll(bits);
#else
  return __builtin_popcountll(bits);
#endif
}

// A sparse matrix in CSR form: columns of a row ascend and do not repeat.
struct CsrView {
  const int64_t* indptr = nullptr;   // [rows + 1]
  const int32_t* indices = nullptr;  // [nnz]
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t nnz = 0;
};

// What a stored matrix says of its rows. Stored rows may be in another order than the caller's.
struct StoredRows {
  const int64_t* indptr = nullptr;  // [rows + 1] first nonzero of each stored row
  const int32_t* row_ids =
      nullptr;  // [rows] the caller's number of each stored row; null: the same
  const float* row_scale = nullptr;  // [rows] factor of each row of the result; null: 1
  // [nnz] values of the nonzeros in row order, in the storage type of the product; null: all are 1,
  // or the format has values of its own.
  const void* values = nullptr;
};

// Indices of nonzeros (or of rows and columns), 32 or 64 bits wide.
struct IndexView {
  const void* data = nullptr;
  bool wide = false;  // 64 bits

  GNNSPARSE_HD int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

struct MutableIndexView {
  void* data = nullptr;
  bool wide = false;

  GNNSPARSE_HD void set(int64_t i, int64_t value) const {
    if (wide) {
      static_cast<int64_t*>(data)[i] = value;
    } else {
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
    }
  }
};

// A row-major dense matrix whose rows lie `stride` elements apart.
struct DenseView {
  const void* data = nullptr;
  int64_t stride = 0;
  DType dtype = DType::kFloat32;
  bool rounded = false;  // to tf32 already
};

struct MutableDenseView {
  void* data = nullptr;
  int64_t stride = 0;
  DType dtype = DType::kFloat32;
  bool rounded = false;  // what is written is to be
};

}  // namespace gnnsparse
