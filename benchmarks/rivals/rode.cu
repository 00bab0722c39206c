// RoDe (PPoPP 2024): float32, widths that are multiples of 64. Adds to y.
#include "RoDe_SpMM/RoDeSpmm.h"
#include "rival.h"

namespace {
// Rows are cut at every 512 nonzeros, counted from the last multiple of 4 before the row, so that
// vectors of four are aligned; what is left of a part over a multiple of 32 is the work of a second
// kernel.
constexpr int kSegment = 512, kVector = 4, kBlock = 32;

struct Matrix {
  int cols, segments, residues;
  int *indptr, *indices, *segment_rows, *segment_starts, *residue_rows;
  float* values;
  cudaStream_t streams[2];
};
}  // namespace

void* prepare(int rows, int cols, int nnz, const int* indptr, const int* indices,
              const float* values, int) {
  std::vector<int> offsets = to_host(indptr, rows + 1), segment_rows, starts, residues;
  for (int row = 0; row < rows; ++row) {
    const int aligned = offsets[row] / kVector * kVector, end = offsets[row + 1];
    int begin = aligned;
    auto cut = [&] {
      segment_rows.push_back(row);
      starts.push_back(begin == aligned ? offsets[row] : begin);
    };
    for (; end - begin > kSegment; begin += kSegment) cut();
    if (end - begin >= kBlock) cut();
    if ((end - begin) % kBlock) residues.push_back(row);
  }
  auto* a = new Matrix{cols, int(segment_rows.size()), int(residues.size())};
  a->indptr = to_device(indptr, rows + 1);
  a->indices = to_device(indices, nnz);
  a->values = to_device(values, nnz);
  starts.push_back(nnz);
  a->segment_rows = to_device(segment_rows.data(), segment_rows.size());
  a->segment_starts = to_device(starts.data(), starts.size());
  a->residue_rows = to_device(residues.data(), residues.size());
  // Streams that wait for the default stream and that it waits for, as its benchmark has them.
  for (cudaStream_t& stream : a->streams) cudaStreamCreate(&stream);
  return a;
}

int multiply(void* matrix, const void* x, void* y, int width) {
  auto* a = static_cast<Matrix*>(matrix);
  RoDeSpmm_n128(a->segments, a->residues, a->cols, width, a->values, a->indices, a->indptr,
                a->segment_rows, a->residue_rows, a->segment_starts, static_cast<const float*>(x),
                static_cast<float*>(y), a->streams[0], a->streams[1]);
  // A class without rows makes a grid of no blocks, whose launch fails and changes nothing; the
  // library's own benchmark does not look. Whether the other one ran shows in the result.
  const cudaError_t status = cudaGetLastError();
  return a->segments && a->residues ? status : cudaSuccess;
}
