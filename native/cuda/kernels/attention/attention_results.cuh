// Where the attention kernels write: results, and the partial sums of panels that were cut.
#pragma once

#include "gnnsparse/panel_attention.h"
#include "kernels/attention/attention_stream.cuh"

namespace gnnsparse::cuda {

// Where partial sums lie in the workspace: rows of `stride` floats, part after part, and behind all
// of them the two statistics of each row.
struct PartialShape {
  int64_t stride;  // floats of a row
  int64_t parts;   // of all heads
  int rows;        // of a part

  __host__ __device__ PartialShape(const PanelAttention& p, int64_t width)
      : stride(partial_stride(width)),
        parts(p.work.partials * p.head_count),
        rows(static_cast<int>(p.a.shape.panel)) {}
  __host__ __device__ int64_t at(int64_t part, int row) const {
    return (part * rows + row) * stride;
  }
  __host__ __device__ int64_t row_stat(int64_t part, int which, int row) const {
    return parts * rows * stride + (part * 2 + which) * rows + row;
  }
};

// An array of results, and, where its rows are whole chunks of the storage type, as such.
struct ResultHeads {
  HeadsView view;
  int64_t width = 0;
  ChunkedHeads chunks;  // null: they are not

  ResultHeads() = default;
  ResultHeads(const HeadsView& to, int64_t to_width, DType storage) : view(to), width(to_width) {
    const auto whole = [&](int64_t stride) {
      const int64_t bytes = stride * size_of(storage);
      return bytes % kChunkBytes == 0 && bytes / kChunkBytes <= UINT32_MAX;
    };
    const ChunkRows first = whole_chunks(to.mutable_of(0, 0), width, storage);
    if (first.data != nullptr && whole(to.batch) && whole(to.head)) {
      chunks = ChunkedHeads(to, width);
    }
  }
};

}  // namespace gnnsparse::cuda
