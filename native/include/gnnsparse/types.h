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

GNNSPARSE_HD constexpr DType storage_of(Precision precision) {
  return precision == Precision::kFp16   ? DType::kFloat16
         : precision == Precision::kBf16 ? DType::kBFloat16
                                         : DType::kFloat32;
}

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
