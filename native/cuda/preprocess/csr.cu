#include "preprocess/sorted_keys.cuh"

namespace gnnsparse::cuda {
namespace {

__global__ void __launch_bounds__(kSortThreads)
    edge_keys_kernel(IndexView row, IndexView col, int64_t edges, int64_t cols, uint64_t* keys,
                     uint32_t* ordinals) {
  const int64_t e = int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (e >= edges) return;
  keys[e] = static_cast<uint64_t>(row[e]) * cols + col[e];
  ordinals[e] = static_cast<uint32_t>(e);
}

// One thread an edge in sorted order; `number` counts distinct keys from 1.
__global__ void __launch_bounds__(kSortThreads)
    write_csr_kernel(const uint64_t* keys, const uint32_t* ordinals, const int64_t* number,
                     int64_t edges, int64_t rows, int64_t cols, int64_t* indptr, int32_t* indices,
                     MutableIndexView nnz_index) {
  const int64_t i = int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (i >= edges) return;
  const int64_t out = number[i] - 1;
  const auto row = static_cast<int64_t>(keys[i] / cols);
  nnz_index.set(ordinals[i], out);
  if (i == 0 || keys[i] != keys[i - 1]) {
    indices[out] = static_cast<int32_t>(keys[i] % cols);
    write_starts(indptr, i == 0 ? -1 : static_cast<int64_t>(keys[i - 1] / cols), row, out);
  }
  if (i == edges - 1) write_starts(indptr, row, rows, out + 1);
}

__global__ void __launch_bounds__(kSortThreads)
    column_keys_kernel(const int32_t* indices, int64_t nnz, uint32_t* keys, uint32_t* ordinals) {
  const int64_t e = int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (e >= nnz) return;
  keys[e] = static_cast<uint32_t>(indices[e]);
  ordinals[e] = static_cast<uint32_t>(e);
}

// The row that nonzero e lies in.
__device__ int64_t row_of(const CsrView& a, int64_t e) {
  int64_t low = 0;
  int64_t high = a.rows - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (a.indptr[middle] <= e) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__global__ void __launch_bounds__(kSortThreads)
    write_transpose_kernel(const CsrView a, const uint32_t* keys, const uint32_t* ordinals,
                           int64_t* indptr, int32_t* indices, MutableIndexView source) {
  const int64_t i = int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (i >= a.nnz) return;
  const auto column = static_cast<int64_t>(keys[i]);
  source.set(i, ordinals[i]);
  indices[i] = static_cast<int32_t>(row_of(a, ordinals[i]));
  if (i == 0 || keys[i] != keys[i - 1]) {
    write_starts(indptr, i == 0 ? -1 : static_cast<int64_t>(keys[i - 1]), column, i);
  }
  if (i == a.nnz - 1) write_starts(indptr, column, a.cols, a.nnz);
}

void require_ordinals(int64_t count, const char* name) {
  if (count > static_cast<int64_t>(UINT32_MAX)) {
    throw std::invalid_argument(std::string(name) + ": 2^32 or more are not supported on the GPU");
  }
}

}  // namespace

size_t coo_to_csr(IndexView row, IndexView col, int64_t edges, int64_t rows, int64_t cols,
                  int64_t* indptr, int32_t* indices, MutableIndexView nnz_index, Scratch scratch,
                  Stream stream) {
  require_ordinals(edges, "edges");
  Carver carver(scratch);
  auto arrays = take_keys<uint64_t>(carver, edges);
  carver.check("coo_to_csr");
  if (carver.dry()) return carver.used();
  const dim3 grid = grid_of(edges, kSortThreads, 1, "coo_to_csr");
  launch("coo_to_csr", edge_keys_kernel, grid, kSortThreads, stream, row, col, edges, cols,
         arrays.keys, arrays.ordinals);
  sort_keys(arrays, edges, bits_of(static_cast<uint64_t>(rows) * cols), stream);
  auto* number = reinterpret_cast<int64_t*>(arrays.keys);  // the unsorted keys are done with
  number_distinct(arrays, edges, number, stream);
  launch("coo_to_csr", write_csr_kernel, grid, kSortThreads, stream, arrays.sorted_keys,
         arrays.sorted_ordinals, number, edges, rows, cols, indptr, indices, nnz_index);
  return carver.used();
}

size_t transpose(const CsrView& a, int64_t* indptr, int32_t* indices, MutableIndexView source,
                 Scratch scratch, Stream stream) {
  require_ordinals(a.nnz, "nnz");
  Carver carver(scratch);
  auto arrays = take_keys<uint32_t>(carver, a.nnz);
  carver.check("transpose");
  if (carver.dry()) return carver.used();
  if (a.nnz == 0) {
    check(cudaMemsetAsync(indptr, 0, (a.cols + 1) * sizeof(int64_t), stream), "transpose");
    return carver.used();
  }
  const dim3 grid = grid_of(a.nnz, kSortThreads, 1, "transpose");
  launch("transpose", column_keys_kernel, grid, kSortThreads, stream, a.indices, a.nnz, arrays.keys,
         arrays.ordinals);
  sort_keys(arrays, a.nnz, bits_of(static_cast<uint64_t>(a.cols)), stream);
  launch("transpose", write_transpose_kernel, grid, kSortThreads, stream, a, arrays.sorted_keys,
         arrays.sorted_ordinals, indptr, indices, source);
  return carver.used();
}

}  // namespace gnnsparse::cuda
