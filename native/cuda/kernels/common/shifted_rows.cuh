// Results that begin anywhere, as rows of y do whose width is no multiple of 16 bytes. Neighbouring
// lanes have 16 bytes each of a part of a row. They are shifted to the chunks of 16 bytes that
// memory has, so that a warp writes whole chunks but for the two ends of the part. Element by
// element each store would touch all sectors of the part again.
#pragma once

#include <cstdint>

#include "device/vector.cuh"
#include "gnnsparse/panel_tile.h"

namespace gnnsparse::cuda {

// Rows of a matrix in memory, in bytes; `unit`, 4 or 2, divides the address of each element's row
// and the rows' length. Null where rows are written in another way.
struct ShiftedRows {
  char* data = nullptr;
  uint32_t stride = 0;
  int bytes = 0;
  int unit = 0;

  ShiftedRows() = default;
  ShiftedRows(const MutableDenseView& to, int64_t width) {
    const auto address = reinterpret_cast<uintptr_t>(to.data);
    const int64_t stride_bytes = to.stride * size_of(to.dtype);
    const int64_t row_bytes = width * size_of(to.dtype);
    if (stride_bytes > UINT32_MAX || row_bytes > INT32_MAX) return;
    data = static_cast<char*>(to.data);
    stride = static_cast<uint32_t>(stride_bytes);
    bytes = static_cast<int>(row_bytes);
    unit = (address | stride | static_cast<uint32_t>(bytes)) % 4 == 0 ? 4 : 2;
  }

  GNNSPARSE_HD char* row(int at) const {
    return data + uint64_t{static_cast<uint32_t>(at)} * stride;
  }
};

// Whether all rows start at multiples of a sector, 32 bytes, or of a chunk.
inline bool starts_at(const MutableDenseView& to, int bytes) {
  return (reinterpret_cast<uintptr_t>(to.data) | to.stride * size_of(to.dtype)) % bytes == 0;
}
inline bool whole_sectors(const MutableDenseView& to) { return starts_at(to, 32); }
inline bool starts_chunks(const MutableDenseView& to) { return starts_at(to, kChunkBytes); }

// Bytes [begin, end) of a chunk, where `at` is the chunk's place: at most one store of each size
// for each end that is not the chunk's.
template <int kUnit>
__device__ __forceinline__ void store_chunk_part(char* at, const uint32_t (&words)[4], int begin,
                                                 int end) {
  if constexpr (kUnit == 2) {
    const auto half_at = [&](int byte) {
      const uint32_t low = byte & 4 ? words[1] : words[0];
      const uint32_t high = byte & 4 ? words[3] : words[2];
      return static_cast<uint16_t>((byte & 8 ? high : low) >> (byte & 2 ? 16 : 0));
    };
    if (begin & 2) *reinterpret_cast<uint16_t*>(at + begin) = half_at(begin);
    if (end & 2) *reinterpret_cast<uint16_t*>(at + end - 2) = half_at(end - 2);
    begin = (begin + 2) & ~3;
    end &= ~3;
  }
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    if (begin <= 8 * pair && end >= 8 * pair + 8) {
      *reinterpret_cast<uint2*>(at + 8 * pair) = make_uint2(words[2 * pair], words[2 * pair + 1]);
      continue;
    }
#pragma unroll
    for (int word = 2 * pair; word < 2 * pair + 2; ++word) {
      if (begin <= 4 * word && end >= 4 * word + 4) {
        *reinterpret_cast<uint32_t*>(at + 4 * word) = words[word];
      }
    }
  }
}

// 16 bytes turned by `by` of them: byte i goes to place (i + by) % 16.
template <int kUnit>
__device__ __forceinline__ void turn_chunk(uint32_t (&words)[4], int by) {
  if constexpr (kUnit == 2) {
    const bool half = by & 2;
    const uint32_t last = words[3];
#pragma unroll
    for (int i = 3; i >= 0; --i) {
      const uint32_t before = i > 0 ? words[i - 1] : last;
      words[i] = half ? words[i] << 16 | before >> 16 : words[i];
    }
  }
  const bool one = by & 4;
  const bool two = by & 8;
  const uint32_t once[4] = {one ? words[3] : words[0], one ? words[0] : words[1],
                            one ? words[1] : words[2], one ? words[2] : words[3]};
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = two ? once[i ^ 2] : once[i];
}

// Writes bytes [0, bytes) of a part of a row that begins at `to`. Of the `lanes` neighbouring lanes
// that share it, number `lane` has bytes [16 kChunks lane, ...) in `own`, which is overwritten. All
// lanes of `mask` call together, among them all that have bytes of the part; 0 bytes: nothing.
// Chunks stay in L2 like anything else: the part before or behind completes their sectors.
// kStep: only every so manieth of the warp's lanes has a number.
template <int kUnit, int kStep = 1, int kChunks>
__device__ __forceinline__ void store_shifted(char* to, int bytes, uint32_t (&own)[kChunks][4],
                                              int lane, int lanes, uint32_t mask) {
  const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(to) & 15);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) turn_chunk<kUnit>(own[c], shift);
  uint32_t before[4];  // what the chunk before left over
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    before[i] =
        kUnit == 4 && i == 3 ? 0 : __shfl_up_sync(mask, own[kChunks - 1][i], kStep, kStep * lanes);
  }
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int first = kChunkBytes * (kChunks * lane + c);  // of the chunk's own bytes
    char* at = to - shift + first;
    uint32_t chunk[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      chunk[i] = 4 * i + 4 <= shift ? before[i] : own[c][i];
      if (kUnit == 2 && 4 * i + 2 == shift) {
        chunk[i] = (before[i] & 0xffffu) | (own[c][i] & 0xffff0000u);
      }
      before[i] = own[c][i];
    }
    if (first >= bytes) continue;
    const int begin = first == 0 ? shift : 0;
    const int end = bytes - first + shift;
    if (begin == 0 && end >= kChunkBytes) {
      *reinterpret_cast<uint4*>(at) = make_uint4(chunk[0], chunk[1], chunk[2], chunk[3]);
    } else {
      store_chunk_part<kUnit>(at, chunk, begin, min(end, kChunkBytes));
    }
    if (end > kChunkBytes && bytes - first <= kChunkBytes) {
      store_chunk_part<kUnit>(at + kChunkBytes, own[c], 0, end - kChunkBytes);
    }
  }
}

}  // namespace gnnsparse::cuda
