// DTC-SpMM (ASPLOS 2024): TF32, square matrices of ones, widths that are multiples of 128. Variant
// 1, its load-balanced kernel, adds to y. Its file has Sputnik's product as well, which the build
// leaves out.
#include "DTCSpMM_kernel.cu"
#include "rival.h"

namespace {
struct Matrix {
  int rows, nnz, tiles, variant;
  torch::Tensor window_offsets, tile_windows, places, tile_offsets, columns, ones;
};
}  // namespace

void* prepare(int rows, int, int nnz, const int* indptr, const int* indices, const float*,
              int variant) {
  const auto int32 = torch::TensorOptions().dtype(torch::kInt32).device(torch::kCUDA);
  const int windows = (rows + BLK_H - 1) / BLK_H;
  auto zeros = [&](int count) { return torch::zeros({count}, int32); };
  auto partition = zeros(windows), to_column = zeros(nnz), to_row = zeros(nnz),
       segments = zeros(nnz);
  auto offsets = zeros(windows + 1), count = zeros(1);
  int *nodes = to_device(indptr, rows + 1), *edges = to_device(indices, nnz);
  fill_edgeToRow_cuda(to_row.data_ptr<int>(), nodes, rows);
  fill_segment_cuda(nodes, segments.data_ptr<int>(), BLK_H, BLK_W, rows);
  auto [tile_offsets, tile_windows, places, columns, tiles] =
      seg_sort_dequ(segments.data_ptr<int>(), edges, nodes, to_column.data_ptr<int>(),
                    to_row.data_ptr<int>(), partition.data_ptr<int>(), count.data_ptr<int>(),
                    offsets.data_ptr<int>(), BLK_H, BLK_W, rows, nnz, windows);
  cudaFree(nodes);
  cudaFree(edges);
  auto ones = torch::ones({nnz}, int32.dtype(torch::kFloat32));
  return new Matrix{rows,         nnz,    tiles,        variant, offsets,
                    tile_windows, places, tile_offsets, columns, ones};
}

int multiply(void* matrix, const void* x, void* y, int width) {
  auto* a = static_cast<Matrix*>(matrix);
  auto *in = static_cast<float*>(const_cast<void*>(x)), *out = static_cast<float*>(y);
  const int *offsets = a->tile_offsets.data_ptr<int>(), *columns = a->columns.data_ptr<int>();
  const uint8_t* places = a->places.data_ptr<uint8_t>();
  const float* ones = a->ones.data_ptr<float>();
  const dim3 block(WARP_SIZE, 4);
  if (a->variant) {
    const dim3 grid((a->tiles + TCBLOCK_PER_WARP - 1) / TCBLOCK_PER_WARP, width / 128);
    spmm_forward_cuda_kernel_improved_ptx_1684_uint8_v1_with_value_double_buffer_float4_split_balance<<<
        grid, block>>>(a->tile_windows.data_ptr<int>(), places, offsets, columns, ones, a->tiles,
                       a->rows, a->nnz, width, in, out);
  } else {
    const dim3 grid(a->window_offsets.size(0) - 1, width / 128);
    spmm_forward_cuda_kernel_improved_ptx_1684_uint8_v1_with_value_double_buffer_float4_split<<<
        grid, block>>>(a->window_offsets.data_ptr<int>(), places, offsets, columns, ones, a->rows,
                       a->nnz, width, in, out);
  }
  return cudaGetLastError();
}
