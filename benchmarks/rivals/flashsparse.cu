// FlashSparse (PPoPP 2025): FP16 and TF32, matrices of ones, widths that are multiples of 64.
// Variants: 0 and 1 are FP16, 2 and 3 TF32; 1 and 3 are load-balanced and add to y, which is
// float32 but in variant 0.
#include <torch/torch.h>

#include "SpMM/src/spmmKernel.cu"
#include "rival.h"

// Block_gpu/block_kernel.cu, which is compiled by itself. Some of the arrays are freed by it.
void fill_edgeToRow_cuda(int*, int*, int);
void fill_segment_cuda(int*, int*, int, int, int);
std::tuple<torch::Tensor, int, torch::Tensor> seg_sort_dequ_fs(int*, int*, int*, int*, int*, int*,
                                                               int*, int*, int*, int, int, int, int,
                                                               int);
std::tuple<torch::Tensor, int, torch::Tensor, torch::Tensor, torch::Tensor, torch::Tensor>
seg_sort_dequ_fs_balance(int*, int*, int*, int*, int*, int*, int*, int*, int*, int*, int*, int, int,
                         int, int, int, int);

namespace {
// Rows of a window; vectors of a load-balanced part, as in the paper's experiments.
constexpr int kWindow = 8, kPart = 32;

struct Matrix {
  int rows, variant, windows;
  torch::Tensor offsets, columns, values, rows_of_parts, shared;
};
}  // namespace

void* prepare(int rows, int, int nnz, const int* indptr, const int* indices, const float*,
              int variant) {
  const int padded = (rows + 15) / 16 * 16, windows = padded / kWindow, tile = variant < 2 ? 8 : 4;
  std::vector<int> offsets = to_host(indptr, rows + 1);
  offsets.resize(padded + 1, nnz);
  int *nodes = to_device(offsets.data(), offsets.size()), *edges = to_device(indices, nnz);
  int *segments = device_array<int>(nnz), *to_column = device_array<int>(nnz),
      *to_row = device_array<int>(nnz);
  int *partition = device_array<int>(windows), *vectors = device_array<int>(windows);
  int *group_offsets = device_array<int>(windows + 1),
      *vector_offsets = device_array<int>(windows + 1);
  int* counts = device_array<int>(2);
  fill_edgeToRow_cuda(to_row, nodes, padded);
  fill_segment_cuda(nodes, segments, kWindow, tile, padded);
  auto* a = new Matrix{rows, variant, windows};
  int groups;
  if (variant % 2) {
    std::tie(a->columns, groups, a->values, a->offsets, a->rows_of_parts, a->shared) =
        seg_sort_dequ_fs_balance(segments, edges, nodes, to_column, to_row, partition, vectors,
                                 counts, counts + 1, group_offsets, vector_offsets, kWindow, tile,
                                 padded, nnz, windows, kPart);
    a->rows_of_parts = a->rows_of_parts.cuda();
    a->shared = a->shared.cuda();
    a->offsets = a->offsets.cuda();
  } else {
    std::tie(a->columns, groups, a->values) =
        seg_sort_dequ_fs(segments, edges, nodes, to_column, to_row, partition, counts, counts + 1,
                         group_offsets, kWindow, tile, padded, nnz, windows);
    auto int32 = torch::TensorOptions().dtype(torch::kInt32).device(torch::kCUDA);
    a->offsets = torch::from_blob(group_offsets, {windows + 1}, int32).clone();
  }
  a->columns = a->columns.cuda();
  a->values = a->values.cuda().to(variant < 2 ? torch::kFloat16 : torch::kFloat32);
  for (int* array : {nodes, edges, to_column, to_row, group_offsets, vector_offsets, counts})
    cudaFree(array);
  return a;
}

int multiply(void* matrix, const void* x, void* y, int width) {
  auto* a = static_cast<Matrix*>(matrix);
  const int *offsets = a->offsets.data_ptr<int>(), *columns = a->columns.data_ptr<int>();
  const void* values = a->values.data_ptr();
  auto *half_values = static_cast<const double*>(values), *half_x = static_cast<const double*>(x);
  auto *float_values = static_cast<const float*>(values), *float_x = static_cast<const float*>(x);
  auto* out = static_cast<float*>(y);
  constexpr int kWidth = 64;  // columns of a block of 128 threads
  const int across = width / kWidth;
  if (a->variant % 2 == 0) {
    const dim3 grid(across, 200, a->windows / 200 + 1);  // 200 is in the kernels
    if (a->variant == 0)
      spmm_forward_cuda_kernel_fp16_map<<<grid, 128>>>(offsets, columns, half_values, half_x,
                                                       static_cast<half*>(y), width, a->windows,
                                                       width, a->rows, kWidth);
    else
      spmm_forward_cuda_kernel_tf32_map<kWidth><<<grid, 128>>>(
          offsets, columns, float_values, float_x, out, width, a->windows, width, a->rows);
    return cudaGetLastError();
  }
  const int parts = a->rows_of_parts.size(0),
            down = parts < 500000 ? 8 : (parts / 1250000 + 1) * 20;
  const int *rows = a->rows_of_parts.data_ptr<int>(), *shared = a->shared.data_ptr<int>();
  const dim3 grid(across, down, parts / down + 1);
  if (a->variant == 1)
    spmm_forward_cuda_kernel_fp16_balance<kWidth><<<grid, 128>>>(offsets, columns, half_values,
                                                                 rows, shared, half_x, out, width,
                                                                 parts, width, a->rows, down);
  else
    spmm_forward_cuda_kernel_tf32_balance<kWidth><<<grid, 128>>>(offsets, columns, float_values,
                                                                 rows, shared, float_x, out, width,
                                                                 parts, width, a->rows, down);
  return cudaGetLastError();
}
