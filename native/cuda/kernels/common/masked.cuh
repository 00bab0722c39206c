// Loads for products that contract over features.
#pragma once

#include "device/vector.cuh"

namespace gnnsparse::cuda {

// The 16-byte vector of a row at `feature`, with elements from column `d` on set to zero: the
// padding of a row may hold anything, NaN too.
template <Precision P>
__device__ __forceinline__ Vec16 load_masked(const void* row, int64_t feature, int64_t d) {
  using Storage = StorageOf<P>;
  constexpr int kElements = kPerVector<P>;
  constexpr int kPerWord = kElements / 4;
  if (feature >= d) return Vec16{};
  Vec16 v = load_vec16(static_cast<const Storage*>(row) + feature);
  if (feature + kElements <= d) return v;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t inside = d - feature - i * kPerWord;
    if (inside <= 0) {
      v.word[i] = 0;
    } else if (inside < kPerWord) {
      v.word[i] &= (1u << 8 * sizeof(Storage) * inside) - 1;
    }
  }
  return v;
}

}  // namespace gnnsparse::cuda
