// CoTC-SpMM (ICPP 2026): FP16, 256 columns alone. Its program measures kernels over matrices that
// it converts on the host in time that grows with rows times columns; here the same arrays are made
// window by window. It writes two results, which its host adds; here the second kernel adds to what
// the first one wrote in y.
#include <algorithm>

#include "rival.h"
#include "src/spmm/kernel/spmm_kernel_async.cu"

namespace {
struct Matrix {
  int windows, listed;
  int *tile_offsets, *tile_columns, *rows, *offsets, *columns;
  half *tile_values, *values;
};
}  // namespace

void* prepare(int rows, int, int nnz, const int* indptr, const int* indices, const float* values,
              int) {
  std::vector<int> starts = to_host(indptr, rows + 1), cols = to_host(indices, nnz);
  std::vector<float> weights = to_host(values, nnz);
  std::vector<int> tile_offsets{0}, tile_columns, listed, offsets{0}, left_columns;
  std::vector<half> tile_values, left_values;
  std::vector<int> sorted, dense;
  for (int first = 0; first < rows; first += ShapeX_row) {
    const int last = std::min(first + ShapeX_row, rows);
    sorted.assign(cols.begin() + starts[first], cols.begin() + starts[last]);
    std::sort(sorted.begin(), sorted.end());
    dense.clear();
    // Columns with two nonzeros or more go to tiles of eight; the last ones that fill no tile do
    // not.
    for (size_t i = 0, end; i < sorted.size(); i = end) {
      for (end = i; end < sorted.size() && sorted[end] == sorted[i];) ++end;
      if (end - i >= Col_size) dense.push_back(sorted[i]);
    }
    dense.resize(last - first < ShapeX_row ? 0 : dense.size() / ShapeX_col * ShapeX_col);
    const size_t base = tile_values.size();
    tile_columns.insert(tile_columns.end(), dense.begin(), dense.end());
    tile_values.resize(base + dense.size() * ShapeX_row, __float2half(0.0f));
    for (int row = first; row < last; ++row) {
      for (int i = starts[row]; i < starts[row + 1]; ++i) {
        const size_t place = std::lower_bound(dense.begin(), dense.end(), cols[i]) - dense.begin();
        if (place < dense.size() && dense[place] == cols[i]) {
          const size_t tile = place / ShapeX_col,
                       at = (row - first) * ShapeX_col + place % ShapeX_col;
          tile_values[base + tile * ShapeX_row * ShapeX_col + at] = __float2half(weights[i]);
        } else {
          left_columns.push_back(cols[i]);
          left_values.push_back(__float2half(weights[i]));
        }
      }
      if (int(left_columns.size()) > offsets.back()) {
        listed.push_back(row);
        offsets.push_back(left_columns.size());
      }
    }
    tile_offsets.push_back(tile_columns.size() / ShapeX_col);
  }
  auto copy = [](const auto& from) { return to_device(from.data(), from.size()); };
  return new Matrix{rows / ShapeX_row,  int(listed.size()), copy(tile_offsets),
                    copy(tile_columns), copy(listed),       copy(offsets),
                    copy(left_columns), copy(tile_values),  copy(left_values)};
}

int multiply(void* matrix, const void* x, void* y, int width) {
  auto* a = static_cast<Matrix*>(matrix);
  auto* in = static_cast<const half*>(x);
  auto* out = static_cast<half*>(y);
  if (a->listed)
    SpMM_GPU_kernel_CUDA<<<a->listed, width>>>(width, a->rows, a->offsets, a->columns, a->values,
                                               in, out);
  if (a->windows)
    SpMM_GPU_kernel_v6<<<a->windows, width>>>(width, a->windows * ShapeX_row, a->tile_offsets,
                                              a->tile_columns, a->tile_values, in, out);
  return cudaGetLastError();
}
