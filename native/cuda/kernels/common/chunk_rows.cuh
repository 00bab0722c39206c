// Rows of results that a warp puts together in shared memory, to write them in whole chunks: from
// registers it would write four elements at a time, and work out an address for each.
#pragma once

#include "device/async.cuh"
#include "device/mma.cuh"
#include "device/vector.cuh"
#include "device/vector_add.cuh"
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
// `own` is 2 KB that only this warp uses. kAdd: rounded, they are added to what is there.
template <Precision P, bool kAdd = false, int kTiles, class RowId>
__device__ __forceinline__ void store_chunks(const float (&sums)[kTiles][4],
                                             const float (&scale)[2], const RowId& row_id,
                                             const ChunkRows& to, int lane, uint32_t own) {
  __syncwarp();  // all lanes are done with what is there
  put_results<P>(sums, scale, lane, own);
  __syncwarp();
  const int at = kChunkBytes * copy_chunk(lane);
  const uint32_t first = own + own_address(lane);
  constexpr int kAtATime = kAdd ? 2 : 1;  // rows that are on their way before one is waited for
#pragma unroll
  for (int i = 0; i < kQueryRows / 4; i += kAtATime) {
    char* place[kAtATime];
    [[maybe_unused]] Vec16 there[kAtATime];
#pragma unroll
    for (int j = 0; j < kAtATime; ++j) {
      const int row = row_id(own_row(lane, i + j));
      const bool exists = row >= 0 && at < to.bytes;
      place[j] = to.data + at + uint64_t{static_cast<uint32_t>(row)} * to.stride;
      if (!exists) place[j] = nullptr;
      if constexpr (kAdd) {
        if (exists) there[j] = load_once(place[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kAtATime; ++j) {
      if (place[j] == nullptr) continue;
      uint32_t words[4];
      load_shared(own_address(first, i + j), words);
      if constexpr (kAdd) add_chunk<PrecisionTraits<P>::kStorage>(there[j], words);
      store_chunk(place[j], words);
    }
  }
}

// Where word `word` of row `row` is, of 16 rows of results that were put into shared memory.
template <bool kFloats>
__device__ __forceinline__ uint32_t result_word(int row, int word) {
  const uint32_t in_chunk = 4 * (word & 3);
  if constexpr (kFloats) return float_address(row, word >> 2) + in_chunk;
  return kChunkBytes * query_chunk(row, word >> 2) + in_chunk;
}

// A part of a row of two-byte results, whose words the lanes have one by one. Where it begins
// between two words of memory, each lane writes its upper half and the next lane's lower one.
__device__ __forceinline__ void store_half_words(char* to, int bytes, uint32_t word, int lane) {
  const uint32_t next = __shfl_down_sync(0xffffffffu, word, 1);
  const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(to) & 2);
  const int room = bytes - shift - 4 * lane;
  char* at = to + shift + 4 * lane;
  const uint32_t halves = shift != 0 ? word >> 16 | next << 16 : word;
  if (room >= 4) *reinterpret_cast<uint32_t*>(at) = halves;
  if (room == 2) *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(halves);
  if (shift != 0 && lane == 0 && bytes > 0) {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(word);
  }
}

// The same where rows begin anywhere: the warp writes one row after the other, a word a lane. Its
// 128 neighbouring bytes leave in one piece, and a row takes a handful of instructions; shifting
// chunks to those of memory takes five times as many (notes/log.md). kFloats: in float32 for
// operands of 16 bits, for which `own` is 4 KB. `rows` begins with the slice.
template <Precision P, bool kFloats, int kUnit, int kTiles, class RowId>
__device__ __forceinline__ void store_shifted_rows(const float (&sums)[kTiles][4],
                                                   const float (&scale)[2], const RowId& row_id,
                                                   const ShiftedRows& rows, int lane,
                                                   uint32_t own) {
  static_assert(kUnit == 4 || !kFloats, "float32 begins at words");
  __syncwarp();  // all lanes are done with what is there
  if constexpr (kFloats) {
    put_floats(sums, scale, lane, own);
  } else {
    put_results<P>(sums, scale, lane, own);
  }
  __syncwarp();
  constexpr int kRowWords = (kFloats ? 2 : 1) * kRowSliceBytes / 4;
  const int bytes = min(rows.bytes, 4 * kRowWords);
#pragma unroll 8
  for (int i = 0; i < kQueryRows; ++i) {
    const int row = row_id(i);
    char* const to = rows.row(row);
#pragma unroll
    for (int first = 0; first < kRowWords; first += kWarp) {
      const uint32_t word = load_shared_word(own + result_word<kFloats>(i, first + lane));
      if constexpr (kUnit == 2) {
        store_half_words(to, row < 0 ? 0 : bytes, word, lane);
      } else if (row >= 0 && 4 * (first + lane) < bytes) {
        *reinterpret_cast<uint32_t*>(to + 4 * (first + lane)) = word;
      }
    }
  }
}

}  // namespace gnnsparse::cuda
