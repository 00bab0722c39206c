// Rows by their numbers, from the GPU's memory, or over the bus from the host's. Reads over the bus
// wait long, so that each thread has several under way, and all threads of a block are busy
// whatever the length of a row.
#include "device/launch.cuh"
#include "gnnsparse/gathered_rows.h"

namespace gnnsparse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kDepth = 4;  // vectors that a thread has under way
constexpr int64_t kBlockVectors = kThreads * kDepth;

// All bits set: a NaN in every type that features are stored in.
template <class Vector>
__device__ Vector no_row() {
  Vector found;
  memset(&found, 0xFF, sizeof found);
  return found;
}

// `vectors` in a row, `rows_per_block` rows a block, whose product fits 32 bits.
template <class Vector>
__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(const GatherRows p, int64_t vectors, int64_t rows_per_block) {
  const int64_t first = int64_t{blockIdx.x} * rows_per_block;
  const int64_t here = p.count - first < rows_per_block ? p.count - first : rows_per_block;
  const auto length = static_cast<uint32_t>(vectors);
  const auto items = static_cast<uint32_t>(here) * length;
  const auto* rows = reinterpret_cast<const Vector*>(p.rows);
  const auto* kept = reinterpret_cast<const Vector*>(p.kept);
  auto* out = reinterpret_cast<Vector*>(p.out) + first * vectors;
  for (uint32_t begin = threadIdx.x; begin < items; begin += kBlockVectors) {
    const Vector* from[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const uint32_t item = begin + d * kThreads;
      from[d] = nullptr;
      if (item >= items) continue;
      const int64_t row = __ldg(p.wanted + first + item / length);
      if (row < 0 || row >= p.total) continue;
      const int32_t place = p.place == nullptr ? -1 : __ldg(p.place + row);
      from[d] = (place < 0 ? rows + row * vectors : kept + place * vectors) + item % length;
    }
    Vector found[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) found[d] = from[d] == nullptr ? no_row<Vector>() : *from[d];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const uint32_t item = begin + d * kThreads;
      if (item < items) out[item] = found[d];
    }
  }
}

template <class Vector>
void run(const GatherRows& p, Stream stream) {
  const int64_t vectors = p.row_bytes / static_cast<int64_t>(sizeof(Vector));
  const int64_t rows_per_block = vectors < kBlockVectors ? kBlockVectors / vectors : 1;
  launch("gather_rows", gather_rows_kernel<Vector>,
         grid_of(p.count, rows_per_block, 1, "gather_rows"), kThreads, stream, p, vectors,
         rows_per_block);
}

}  // namespace

void gather_rows(const GatherRows& p, Stream stream) {
  if (p.row_bytes == 0) return;
  // The longest vectors that rows are made of, wherever they begin.
  const uint64_t places = reinterpret_cast<uintptr_t>(p.rows) |
                          reinterpret_cast<uintptr_t>(p.kept) | reinterpret_cast<uintptr_t>(p.out) |
                          static_cast<uint64_t>(p.row_bytes);
  if (places % 16 == 0) return run<uint4>(p, stream);
  if (places % 8 == 0) return run<uint2>(p, stream);
  if (places % 4 == 0) return run<uint32_t>(p, stream);
  if (places % 2 == 0) return run<uint16_t>(p, stream);
  run<uint8_t>(p, stream);
}

}  // namespace gnnsparse::cuda
