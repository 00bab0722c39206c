// Results that are added to what memory has: rounded to its type first, as if another kernel had
// written them and a third one added the two.
#pragma once

#include "device/vector.cuh"

namespace gnnsparse::cuda {

// 16 bytes that the kernel writes itself, later, and reads once.
__device__ __forceinline__ Vec16 load_once(const char* from) {
  const uint4 v = __ldcs(reinterpret_cast<const uint4*>(from));
  return {{v.x, v.y, v.z, v.w}};
}

// Adds the stored elements of 16 bytes to those of `words`.
template <DType kStorage>
__device__ __forceinline__ void add_chunk(const Vec16& there, uint32_t (&words)[4]) {
  constexpr int kElements = 16 / sizeof(typename StorageTraits<kStorage>::Bits);
  float sum[kElements], other[kElements];
  decode<kStorage>(Vec16{{words[0], words[1], words[2], words[3]}}, sum);
  decode<kStorage>(there, other);
#pragma unroll
  for (int i = 0; i < kElements; ++i) sum[i] += other[i];
  encode<kStorage>(sum, words);
}

// Adds four neighbouring elements of y to those of `v`; elements from column `limit` on do not
// exist.
__device__ __forceinline__ void add_row(const MutableDenseView& y, int64_t row, int64_t col,
                                        int64_t limit, float (&v)[4]) {
  const int64_t at = row * y.stride + col;
  const char* from = static_cast<const char*>(y.data) + at * size_of(y.dtype);
  if (y.dtype == DType::kFloat32 && col + 4 <= limit &&
      reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    uint32_t words[4];
    encode<DType::kFloat32>(v, words);
    add_chunk<DType::kFloat32>(load_once(from), words);
    return decode<DType::kFloat32>(Vec16{{words[0], words[1], words[2], words[3]}}, v);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (col + i >= limit) continue;
    if (y.dtype == DType::kFloat16) v[i] = __half2float(__float2half_rn(v[i]));
    if (y.dtype == DType::kBFloat16) v[i] = __bfloat162float(__float2bfloat16_rn(v[i]));
    v[i] += load_scalar(y.data, y.dtype, at + i);
  }
}

}  // namespace gnnsparse::cuda
