// What the kernels over rows with heads share: where a lane's features lie, a head's values of the
// nonzeros, and the winners of a maximum.
#pragma once

#include "device/vector.cuh"
#include "gnnsparse/heads_problem.h"
#include "kernels/common/csr_rows.cuh"

namespace gnnsparse::cuda {

// A vector of a row's features, all of one head.
template <Precision P>
struct HeadChunk {
  int head;    // heads or more: there is none
  int source;  // its first element in a row of an operand
  int target;  // and in a row of a result
  int count;   // elements that exist

  __device__ HeadChunk(const HeadShape& shape, int chunk) {
    constexpr int kElements = kPerVector<P>;
    const int of_head = shape.padded / kElements;
    head = chunk / of_head;
    const int inside = (chunk - head * of_head) * kElements;
    source = head * shape.padded + inside;
    target = head * shape.width + inside;
    count = min(kElements, shape.width - inside);
  }
};

// Vectors of a row of an operand.
template <Precision P>
inline int64_t chunks_of(const HeadShape& shape) {
  return int64_t{shape.heads} * (shape.padded / kPerVector<P>);
}

// Values of one head, of nonzeros by their numbers in the work.
template <Precision P, bool kWeighted>
class HeadValues {
 public:
  using Storage = StorageOf<P>;

  __device__ HeadValues(const StoredRows& stored, const HeadShape& shape, int64_t base, int head)
      : values_(static_cast<const Storage*>(stored.values) + base * shape.heads + head),
        heads_(shape.heads) {}
  __device__ Storage load(int number) const { return __ldg(values_ + int64_t{number} * heads_); }
  __device__ static float weight(Storage bits) { return scalar_to_float<P>(bits); }

 private:
  const Storage* values_;
  int heads_;
};
template <Precision P>
class HeadValues<P, false> {
 public:
  struct Storage {};
  __device__ HeadValues(const StoredRows&, const HeadShape&, int64_t, int) {}
  __device__ Storage load(int) const { return {}; }
  __device__ static float weight(Storage) { return 1.0f; }
};

// Whether the winners of every chunk lie in whole vectors.
inline bool has_winner_vectors(const HeadShape& shape, const int32_t* winners) {
  return shape.width % 4 == 0 && reinterpret_cast<uintptr_t>(winners) % 16 == 0;
}

// The winners of a chunk; -1, which is no column, for elements that do not exist.
template <int kElements>
__device__ __forceinline__ void load_winners(const int32_t* from, int count, bool vectors,
                                             int32_t (&won)[kElements]) {
  if (vectors && count == kElements) {
#pragma unroll
    for (int j = 0; j < kElements; j += 4) {
      const int4 v = __ldg(reinterpret_cast<const int4*>(from + j));
      won[j] = v.x;
      won[j + 1] = v.y;
      won[j + 2] = v.z;
      won[j + 3] = v.w;
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kElements; ++j) won[j] = j < count ? __ldg(from + j) : -1;
}

// Partial results of a chunk, of any type of 4 bytes.
template <int kElements, class T>
__device__ __forceinline__ void store_chunk_of(T* to, int count, bool vectors,
                                               const T (&v)[kElements]) {
  if (vectors && count == kElements) {
#pragma unroll
    for (int j = 0; j < kElements; j += 4) {
      uint4 words;
      memcpy(&words, v + j, sizeof words);
      *reinterpret_cast<uint4*>(to + j) = words;
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kElements; ++j) {
    if (j < count) to[j] = v[j];
  }
}

}  // namespace gnnsparse::cuda
