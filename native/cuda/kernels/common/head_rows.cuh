// What the kernels over rows with heads share: where a lane's features lie, a head's values of the
// nonzeros, and the winners of a maximum.
#pragma once

#include "device/async.cuh"
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

  // The vectors of all heads are numbered on, or those of a head from zero.
  __device__ HeadChunk(const HeadShape& shape, int chunk) {
    const int of_head = shape.padded / kPerVector<P>;
    head = chunk / of_head;
    place(shape, chunk - head * of_head);
  }
  __device__ HeadChunk(const HeadShape& shape, int in_head, int chunk) : head(in_head) {
    place(shape, chunk);
  }

 private:
  __device__ void place(const HeadShape& shape, int chunk) {
    const int inside = chunk * kPerVector<P>;
    source = head * shape.padded + inside;
    target = head * shape.width + inside;
    count = min(kPerVector<P>, shape.width - inside);
  }
};

// Vectors of a row of an operand.
template <Precision P>
inline int64_t chunks_of(const HeadShape& shape) {
  return int64_t{shape.heads} * (shape.padded / kPerVector<P>);
}

// A row of an operand, from a pointer to an element of row 0. Rows are shorter than 4 GiB.
__device__ __forceinline__ const char* row_at(const char* first, uint32_t stride, int32_t row) {
  return first + uint64_t{static_cast<uint32_t>(row)} * stride;
}

// Nonzeros a lane has in flight: beside their rows of X there are a value and a winner of each.
inline constexpr int kHeadBatch = 4;

// Columns of nonzeros [at, at + kCount) of the work, where `at` is a multiple of kCount. In place
// of those that the work lacks there is `safe`, one that it has: what a lane reads for nothing.
template <int kCount>
__device__ __forceinline__ void load_columns(const int32_t* indices, int at, int room,
                                             uint32_t mask, int32_t safe,
                                             int32_t (&columns)[kCount]) {
  static_assert(kCount == 2 || kCount == 4, "one load");
  if (at + kCount <= room) {
    if constexpr (kCount == 4) {
      const int4 v = __ldg(reinterpret_cast<const int4*>(indices + at));
      columns[0] = v.x;
      columns[1] = v.y;
      columns[2] = v.z;
      columns[3] = v.w;
    } else {
      const int2 v = __ldg(reinterpret_cast<const int2*>(indices + at));
      columns[0] = v.x;
      columns[1] = v.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) columns[i] = at + i < room ? __ldg(indices + at + i) : safe;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) columns[i] = mask & 1u << i ? columns[i] : safe;
}

// Values of one head, of nonzeros by their numbers in the work.
template <Precision P, bool kWeighted>
class HeadValues {
 public:
  using Storage = StorageOf<P>;

  __device__ HeadValues(const StoredRows& stored, const HeadShape& shape, int64_t base, int head)
      : values_(static_cast<const Storage*>(stored.values) + base * shape.heads + head),
        heads_(static_cast<uint32_t>(shape.heads)) {}
  __device__ Storage load(int number) const {
    return __ldg(values_ + uint64_t{static_cast<uint32_t>(number)} * heads_);
  }
  __device__ static float weight(Storage bits) { return scalar_to_float<P>(bits); }

 private:
  const Storage* values_;
  uint32_t heads_;
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
