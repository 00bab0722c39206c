// Acc-SpMM (PPoPP 2025): TF32, square matrices, widths that are multiples of 32. The load-balanced
// kernel, which it takes by its own rule, adds to y; its conversion runs on one core of the CPU.
#include "format.hpp"
#include "mma_tf32.cuh"
#include "rival.h"
#include "utils.hpp"

namespace {
struct Matrix {
  vint rows, blocks;
  bool balanced;
  vint *offsets, *tiles, *row_indices, *columns;
  TCLOCAL_TYPE* bits;
  float* values;
};

template <typename Format>
void copy_tiles(Matrix& a, const Format& from) {
  a.tiles = to_device(from.tcOffset.data(), from.tcOffset.size());
  a.columns = to_device(from.sparseA2B.data(), from.sparseA2B.size());
  a.bits = to_device(from.tcLocalBit.data(), from.tcLocalBit.size());
  a.values = to_device(from.data.data(), from.data.size());
}
}  // namespace

void* prepare(int rows, int cols, int nnz, const int* indptr, const int* indices,
              const float* values, int) {
  CSR<float> csr;
  csr.rows = rows, csr.cols = cols, csr.nnz = nnz;
  std::vector<int> offsets = to_host(indptr, rows + 1), columns = to_host(indices, nnz);
  csr.row_ptr.assign(offsets.begin(), offsets.end());
  csr.col_idx.assign(columns.begin(), columns.end());
  csr.data = to_host(values, nnz);
  METCFBit<float> plain;
  plain.convertFromCSR(csr);
  auto* a = new Matrix{vint(rows)};
  a->balanced = balanceStrategy(plain, plain.tcOffset.size() - 1, plain.rowWindowOffset.size() - 1);
  if (a->balanced) {
    AdpBME<float> balanced;
    balanced.CSR2AdpBME(csr, 3, 1, 2);
    a->blocks = balanced.groupOffset.size() - 1;
    a->offsets = to_device(balanced.groupOffset.data(), balanced.groupOffset.size());
    a->row_indices = to_device(balanced.rowIndices.data(), balanced.rowIndices.size());
    copy_tiles(*a, balanced);
  } else {
    a->blocks = plain.rowWindowOffset.size() - 1;
    a->offsets = to_device(plain.rowWindowOffset.data(), plain.rowWindowOffset.size());
    copy_tiles(*a, plain);
  }
  return a;
}

int multiply(void* matrix, const void* x, void* y, int width) {
  auto* a = static_cast<Matrix*>(matrix);
  auto* in = static_cast<const float*>(x);
  auto* out = static_cast<float*>(y);
  const vint columns = width;
  if (!a->balanced)
    tf32_mma_kernel<<<a->blocks, dim3(32, width / 32)>>>(a->bits, a->columns, a->values, a->offsets,
                                                         a->tiles, in, out, a->rows, columns);
  else if (width <= 128)
    tf32_mma_balance_kernel<<<a->blocks, dim3(32, width / 32)>>>(
        a->offsets, a->tiles, a->row_indices, a->bits, a->columns, a->values, in, out, a->rows,
        columns);
  else
    tf32_mma_balance_g128_kernel<<<a->blocks, dim3(32, width / 64)>>>(
        a->offsets, a->tiles, a->row_indices, a->bits, a->columns, a->values, in, out, a->rows,
        columns);
  return cudaGetLastError();
}
