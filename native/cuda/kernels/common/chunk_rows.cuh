// Rows of results that a warp puts together in shared memory, to write them in whole chunks: from
// registers it would write four elements at a time, and work out an address for each.
#pragma once

#include "device/async.cuh"
#include "device/mma.cuh"
#include "device/vector.cuh"
#include "gnnsparse/panel_tile.h"
#include "kernels/common/shifted_rows.cuh"

namespace gnnsparse::cuda {

// Rows of a dense matrix, in bytes.
struct ChunkRows {
  char* data = nullptr;
  uint32_t stride = 0;
  int bytes = 0;  // of a row

  ChunkRows() = default;
  GNNSPARSE_HD ChunkRows(char* rows, uint32_t row_stride, int row_bytes)
      : data(rows), stride(row_stride), bytes(row_bytes) {}
};

// Rows of `width` results where they are whole chunks of the storage type, null where not.
inline ChunkRows whole_chunks(const MutableDenseView& to, int64_t width, DType storage) {
  const int64_t stride = to.stride * size_of(storage);
  const int64_t bytes = width * size_of(storage);
  const bool whole = (reinterpret_cast<uintptr_t>(to.data) | stride | bytes) % kChunkBytes == 0;
  if (to.dtype != storage || stride > UINT32_MAX || !whole) return {};
  return {static_cast<char*>(to.data), static_cast<uint32_t>(stride), static_cast<int>(bytes)};
}

// 16 bytes of results. They leave L2 first: gathered rows are still in use.
__device__ __forceinline__ void store_chunk(char* to, const uint32_t (&words)[4]) {
  __stcs(reinterpret_cast<uint4*>(to), make_uint4(words[0], words[1], words[2], words[3]));
}
template <Precision P, int kElements>
__device__ __forceinline__ void store_vec16(char* to, const float (&v)[kElements]) {
  uint32_t words[4];
  encode<PrecisionTraits<P>::kStorage>(v, words);
  store_chunk(to, words);
}

// A lane's sums of rows g and g + 8, times `scale`, to their places in `own`, 2 KB.
template <Precision P, int kTiles>
__device__ __forceinline__ void put_results(const float (&sums)[kTiles][4], const float (&scale)[2],
                                            int lane, uint32_t own) {
  const int g = lane >> 2;
  if constexpr (sizeof(StorageOf<P>) == 4) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(scale[r >> 1] * sums[i][r]);
      store_shared(own + kChunkBytes * query_chunk(g + 8 * (r >> 1), word_pair_chunk(lane, r & 1)),
                   make_uint4(words[0], words[1], words[2], words[3]));
    }
  } else {
    const uint32_t place = own + kChunkBytes * query_chunk(g, 0) + 4 * (lane & 3);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float (&v)[4] = sums[tile];
      const uint32_t at = place ^ static_cast<uint32_t>(kChunkBytes) * tile;
      store_shared(at, pack_pair<PrecisionTraits<P>::kStorage>(scale[0] * v[0], scale[0] * v[1]));
      store_shared(at + 8 * kRowChunks * kChunkBytes,
                   pack_pair<PrecisionTraits<P>::kStorage>(scale[1] * v[2], scale[1] * v[3]));
    }
  }
}

// The same in float32, 4 KB, whatever the storage type.
template <int kTiles>
__device__ __forceinline__ void put_floats(const float (&sums)[kTiles][4], const float (&scale)[2],
                                           int lane, uint32_t own) {
  const int g = lane >> 2;
  const int t = lane & 3;
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
    const int upper = i % 2;
    const float* v = sums[i / 2] + 2 * upper;
    const uint32_t at = own + float_address(g + 8 * upper, 2 * (i / 2) + (t >> 1)) + 8 * (t & 1);
    store_shared(
        at, make_uint2(__float_as_uint(scale[upper] * v[0]), __float_as_uint(scale[upper] * v[1])));
  }
}

// Writes 16 rows: row_id(i), which all lanes ask for together, is where row i goes; -1: nowhere.
// `own` is 2 KB that only this warp uses.
template <Precision P, int kTiles, class RowId>
__device__ __forceinline__ void store_chunks(const float (&sums)[kTiles][4],
                                             const float (&scale)[2], const RowId& row_id,
                                             const ChunkRows& to, int lane, uint32_t own) {
  __syncwarp();  // all lanes are done with what is there
  put_results<P>(sums, scale, lane, own);
  __syncwarp();
  const int at = kChunkBytes * copy_chunk(lane);
  const uint32_t first = own + own_address(lane);
#pragma unroll
  for (int i = 0; i < kQueryRows / 4; ++i) {
    const int row = row_id(own_row(lane, i));
    if (row < 0 || at >= to.bytes) continue;
    uint32_t words[4];
    load_shared(own_address(first, i), words);
    store_chunk(to.data + at + uint64_t{static_cast<uint32_t>(row)} * to.stride, words);
  }
}

// The same where rows begin anywhere. kFloats: in float32 for operands of 16 bits, for which `own`
// is 4 KB. `rows` begins with the slice.
template <Precision P, bool kFloats, int kUnit, int kTiles, class RowId>
__device__ __forceinline__ void store_shifted_rows(const float (&sums)[kTiles][4],
                                                   const float (&scale)[2], const RowId& row_id,
                                                   const ShiftedRows& rows, int lane,
                                                   uint32_t own) {
  __syncwarp();  // all lanes are done with what is there
  if constexpr (kFloats) {
    put_floats(sums, scale, lane, own);
  } else {
    put_results<P>(sums, scale, lane, own);
  }
  __syncwarp();
  constexpr int kLanes = kFloats ? kFloatChunks : kRowChunks;
  const int chunk = lane % kLanes;
  const int bytes = min(rows.bytes, kChunkBytes * kLanes);
#pragma unroll 2
  for (int i = 0; i < kQueryRows * kLanes / kWarp; ++i) {
    const int in_tile = kFloats ? float_row(lane, i) : own_row(lane, i);
    const int row = row_id(in_tile);
    uint32_t words[1][4];
    load_shared(own + (kFloats ? float_address(in_tile, chunk) : own_address(own_address(lane), i)),
                words[0]);
    store_shifted<kUnit>(rows.row(row), row < 0 ? 0 : bytes, words, chunk, kLanes, 0xffffffffu);
  }
}

}  // namespace gnnsparse::cuda
