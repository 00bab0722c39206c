// What the passes over tiles share: sixteen edges of a row at a time as operands of Tensor Core
// products, in all heads that a warp takes.
//
// Products have a column for each head. Scores are products of the tile's keys [16 edges x
// features] with a matrix [features x heads] that holds each head's query in its own features and
// zeros elsewhere. Sums of values are products of the tile's values, transposed [features x 16
// edges], with the weights [16 edges x heads]: of the result [features x heads] a head's own
// features are wanted, and the rest is thrown away. The Tensor Cores do up to eight times the work
// that is needed; the other units, which bound the kernels that multiply edge by edge, do a
// fraction of it.
#pragma once

#include "device/mma.cuh"
#include "kernels/graph_attention/graph_stream.cuh"

namespace gnnsparse::cuda {

// The sizes of a tile, for heads of kWidth features. Features come in groups of eight, which are
// vectors of 16 bytes.
template <Precision P, int kWidth>
struct GraphTile {
  static constexpr Precision kPrecision = P;
  static constexpr Arithmetic kMath = kArithmetic<P>;
  static constexpr DType kStorage = PrecisionTraits<P>::kStorage;
  static constexpr int kEdges = GraphTiles::kEdges;
  static constexpr int kPerHead = kWidth / 8;  // groups
  static constexpr int kHeads = static_cast<int>(GraphTiles::heads(kWidth));
  static constexpr int kGroups = kHeads * kPerHead;
  static constexpr int kSteps = kGroups / 2;  // products along the features
  static constexpr uint32_t kRowBytes = 16 * kGroups;
  static constexpr uint32_t kBytes = kEdges * kRowBytes;
  static constexpr int kRowsPerCopy = 32 / kGroups;
  static constexpr int kCopies = kEdges / kRowsPerCopy;
  static constexpr uint32_t kNumberBytes = 4 * GraphTiles::kMostHeads;  // of an edge or a row
};

// A lane's place in the products, and in the copies.
template <class Tile>
struct TileLane {
  int id;
  int slow;  // an edge, or a feature of a group; of the matrices of queries a head
  int fast;  // a pair of heads; of the matrices of queries a pair of features
  int block;
  int first_head;
  int heads;  // of the problem that are left for the warp, at most Tile::kHeads
  int batch;
  int64_t item;

  __device__ explicit TileLane(const GraphLaunch& p) {
    id = threadIdx.x % 32;
    slow = id / 4;
    fast = id % 4;
    const int all = static_cast<int>(p.problem.base.heads);
    const int blocks = (all + Tile::kHeads - 1) / Tile::kHeads;
    batch = static_cast<int>(blockIdx.y) / blocks;
    block = static_cast<int>(blockIdx.y) - batch * blocks;
    first_head = block * Tile::kHeads;
    heads = min(Tile::kHeads, all - first_head);
    item = int64_t{blockIdx.x} * kGraphWarps + threadIdx.x / 32;
  }
  // The heads whose numbers the lane has: one of its pair.
  __device__ __forceinline__ int head(int of_pair) const { return 2 * fast + of_pair; }
  // The group that it copies of a row, and which of the rows that are copied at once.
  __device__ __forceinline__ int group() const { return id % Tile::kGroups; }
  __device__ __forceinline__ int copied_row() const { return id / Tile::kGroups; }
  __device__ __forceinline__ bool has_group() const { return group() / Tile::kPerHead < heads; }

  // Where the lane's group begins in an array of features.
  __device__ __forceinline__ const char* group_of(const GraphArray& x) const {
    const int head = min(group() / Tile::kPerHead, heads - 1);
    return x.data + batch * x.batch + (first_head + head) * x.head +
           16 * (group() % Tile::kPerHead);
  }
  // Where a head begins in an array.
  __device__ __forceinline__ const char* head_of(const GraphArray& x, int head) const {
    return x.data + batch * x.batch + (first_head + min(head, heads - 1)) * x.head;
  }
};

// Where the lane puts its group of row i * kRowsPerCopy + copied_row() of a tile. A row's groups
// are exchanged by the row's number, so that neither copies nor loads of matrices meet a bank
// twice.
template <class Tile>
__device__ __forceinline__ uint32_t copied_to(const TileLane<Tile>& lane, int i) {
  constexpr int kRows = Tile::kRowsPerCopy;
  const uint32_t first =
      lane.copied_row() * Tile::kRowBytes + 16 * (lane.group() ^ lane.copied_row());
  return (first ^ (16 * (i * kRows & 7))) + i * kRows * Tile::kRowBytes;
}

// Copies the lane's groups of a tile's rows, of one array or of two that are read at equal rows.
template <class Tile, int kArrays>
class TileCopies {
 public:
  __device__ TileCopies(const TileLane<Tile>& lane, const GraphArray& first,
                        const GraphArray& second)
      : lane_(lane), from_{&first, &second} {
#pragma unroll
    for (int j = 0; j < kArrays; ++j) start_[j] = lane.group_of(*from_[j]);
  }
  // Array j goes to tile + j * Tile::kBytes.
  __device__ __forceinline__ void copy(uint32_t tile, int32_t rows, int edges) const {
    // The lane has no edge from here on.
    const int left = lane_.has_group() ? edges - lane_.copied_row() : 0;
#pragma unroll
    for (int i = 0; i < Tile::kCopies; ++i) {
      const int32_t row = __shfl_sync(kWarp, rows, i * Tile::kRowsPerCopy + lane_.copied_row());
      const uint32_t to = tile + copied_to(lane_, i);
#pragma unroll
      for (int j = 0; j < kArrays; ++j) {
        copy_async_or_zero(to + j * Tile::kBytes, row_at(start_[j], *from_[j], row),
                           i * Tile::kRowsPerCopy < left);
      }
    }
  }

 private:
  const TileLane<Tile>& lane_;
  const GraphArray* from_[2];
  const char* start_[kArrays];
};

// Copies a row's features, the groups in their order.
template <class Tile>
__device__ __forceinline__ void copy_row(uint32_t to, const GraphArray& from,
                                         const TileLane<Tile>& lane, int row) {
  if (lane.id >= Tile::kGroups) return;
  copy_async_or_zero(to + 16 * lane.id, row_at(lane.group_of(from), from, row), lane.has_group());
}
// Copies a row's numbers, one a head.
template <class Tile>
__device__ __forceinline__ void copy_row_numbers(uint32_t to, const GraphArray& from,
                                                 const TileLane<Tile>& lane, int row) {
  if (lane.id >= GraphTiles::kMostHeads) return;
  copy_number_async<4>(to + 4 * lane.id, row_at(lane.head_of(from, lane.id), from, row),
                       lane.id < lane.heads);
}
// Copies the numbers of a tile's edges, one a head. `columns`: lane i has that of edge i.
template <class Tile>
__device__ __forceinline__ void copy_numbers(uint32_t to, const GraphArray& from,
                                             const TileLane<Tile>& lane, int32_t columns,
                                             int edges) {
  const int head = lane.id % GraphTiles::kMostHeads;
  const char* start = lane.head_of(from, head);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int edge = 4 * i + lane.id / GraphTiles::kMostHeads;
    const int32_t column = __shfl_sync(kWarp, columns, edge);
    copy_number_async<4>(to + Tile::kNumberBytes * edge + 4 * head, row_at(start, from, column),
                         edge < edges && head < lane.heads);
  }
}

// The lane's two numbers of an edge or a row.
template <class Tile>
__device__ __forceinline__ float2 load_numbers(uint32_t from, const TileLane<Tile>& lane) {
  const uint32_t at = from + 8 * lane.fast;
  return make_float2(__uint_as_float(load_shared_word(at)),
                     __uint_as_float(load_shared_word(at + 4)));
}

template <DType kStorage>
__device__ __forceinline__ float2 decode_pair(uint32_t pair) {
  if constexpr (kStorage == DType::kFloat16) {
    __half2 both;
    memcpy(&both, &pair, sizeof both);
    return __half22float2(both);
  } else {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
}

// The lane's words of a copied row: a pair of features in every group of its head.
template <class Tile>
struct HeadWords {
  uint32_t word[Tile::kPerHead];

  __device__ __forceinline__ HeadWords(uint32_t from, const TileLane<Tile>& lane) {
    // Lanes of heads that a warp does not take read some head.
    const int head = lane.slow % Tile::kHeads;
#pragma unroll
    for (int j = 0; j < Tile::kPerHead; ++j) {
      word[j] = load_shared_word(from + 16 * (head * Tile::kPerHead + j) + 4 * lane.fast);
    }
  }
};

// A copied row as a matrix [features x heads]: each head's features in its own column.
template <class Tile>
struct HeadColumns {
  uint32_t word[Tile::kGroups] = {};

  __device__ __forceinline__ void set(const HeadWords<Tile>& own, const TileLane<Tile>& lane) {
#pragma unroll
    for (int c = 0; c < Tile::kGroups; ++c) {
      word[c] = c / Tile::kPerHead == lane.slow ? own.word[c % Tile::kPerHead] : 0u;
    }
  }
};

// Where the matrices of step s begin, of those of step 0: the steps exchange bits of an address, of
// which the highest is 0.
__device__ __forceinline__ uint32_t of_step(uint32_t first, int s) {
  return (first ^ 32 * (s % 4)) + 128 * (s / 4);
}

// Adds tile x columns: a number for each edge and head. The lane has those of edges `slow` and
// `slow` + 8, in each of two heads.
template <class Tile>
__device__ __forceinline__ void add_products(uint32_t tile, const TileLane<Tile>& lane,
                                             const HeadColumns<Tile>& columns, float (&to)[4]) {
  const int row = lane.id % 16;
  const uint32_t from = tile + row * Tile::kRowBytes + 16 * (lane.id / 16 ^ row % 8);
  float other[4] = {};  // every second product: two shorter chains
#pragma unroll
  for (int s = 0; s < Tile::kSteps; ++s) {
    uint32_t a[4];
    load_matrices_plain(of_step(from, s), a);
    const uint32_t b[2] = {columns.word[2 * s], columns.word[2 * s + 1]};
    mma<Tile::kMath>(s % 2 == 0 ? to : other, a, b);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] += other[i];
}

// Factors of a tile's edges in each head, as the second operand of a product.
struct TileFactors {
  uint32_t word[2];
};
// Of numbers as add_products gives them.
template <class Tile>
__device__ __forceinline__ TileFactors factors_of(const float (&x)[4]) {
  return {{transpose_matrix(pack_pair<Tile::kStorage>(x[0], x[1])),
           transpose_matrix(pack_pair<Tile::kStorage>(x[2], x[3]))}};
}

// Adds up the factors of a tile's edges, as they enter products: sums of the lane's two heads come
// twice.
template <class Tile>
__device__ __forceinline__ void add_factors(const TileFactors& factors, float (&to)[4]) {
  constexpr uint32_t kOnes = Tile::kMath == Arithmetic::kFp16 ? 0x3c003c00u : 0x3f803f80u;
  const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
  mma<Tile::kMath>(to, ones, factors.word);
}

// Sums over edges of a factor times a row, in every head.
template <class Tile>
struct TileSums {
  float value[Tile::kSteps][4] = {};

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int s = 0; s < Tile::kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) value[s][i] = 0.0f;
    }
  }
  // Multiplies those of the lane's two heads.
  __device__ __forceinline__ void scale(const float (&by)[2]) {
#pragma unroll
    for (int s = 0; s < Tile::kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) value[s][i] *= by[i % 2];
    }
  }
  __device__ __forceinline__ void add(uint32_t tile, const TileLane<Tile>& lane,
                                      const TileFactors& factors) {
    const int row = lane.id % 8 + 8 * (lane.id / 16);
    const uint32_t from = tile + row * Tile::kRowBytes + 16 * (lane.id / 8 % 2 ^ row % 8);
#pragma unroll
    for (int s = 0; s < Tile::kSteps; ++s) {
      uint32_t a[4];
      load_matrices(of_step(from, s), a);
      mma<Tile::kMath>(value[s], a, factors.word);
    }
  }
  // Feature 8 * group + lane.slow of one of the lane's two heads.
  __device__ __forceinline__ float own(const TileLane<Tile>& lane, int of_pair, int group) const {
    float found = value[(of_pair * Tile::kPerHead + group) / 2]
                       [(of_pair * Tile::kPerHead + group) % 2 * 2 + of_pair];
#pragma unroll
    for (int fast = 1; 2 * fast < Tile::kHeads; ++fast) {
      const int c = (2 * fast + of_pair) * Tile::kPerHead + group;
      if (lane.fast == fast) found = value[c / 2][c % 2 * 2 + of_pair];
    }
    return found;
  }
};

// Adds up over the lanes of the same heads, in a fixed order.
__device__ __forceinline__ void add_over_slow(float (&x)[2]) {
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) x[i] += __shfl_xor_sync(kWarp, x[i], offset);
  }
}

// The partial sums of one of the lane's heads.
template <class Tile>
__device__ __forceinline__ float* partial_of(const GraphLaunch& p, const TileLane<Tile>& lane,
                                             int head, int partial) {
  const AttentionProblem& base = p.problem.base;
  const int64_t of_all = lane.batch * base.heads + lane.first_head + head;
  const int64_t place = partial * (base.batches * base.heads) + of_all;
  return p.partial + place * p.partial_floats;
}

// Writes what the lanes have of a row's features or numbers in their two heads.
template <class Tile>
class TileResult {
 public:
  __device__ TileResult(const GraphLaunch& p, const TileLane<Tile>& lane, const GraphResult& to)
      : p_(p), lane_(lane), to_(to) {
    if (to.array.data != nullptr) start_ = const_cast<char*>(lane.head_of(to.array, lane.head(0)));
  }

  // The features of a row, times a factor for each head: to the result, or to the partial sums of a
  // part of a row, `before` floats after their first features.
  __device__ __forceinline__ void write(const GraphRow& row, const TileSums<Tile>& sums,
                                        const float (&by)[2], int before = 0) const {
    if (row.partial >= 0) return write_part(row.partial, sums, by, before);
    if (start_ == nullptr) return;
    const bool is_stored = to_.view.dtype == Tile::kStorage;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (lane_.head(i) >= lane_.heads) continue;
      char* out = place(i, row.row);
#pragma unroll
      for (int j = 0; j < Tile::kPerHead; ++j) {
        const float value = by[i] * sums.own(lane_, i, j);
        const int at = 8 * j + lane_.slow;
        if (is_stored) {
          const uint32_t pair = pack_pair<Tile::kStorage>(value, value);
          reinterpret_cast<uint16_t*>(out)[at] = static_cast<uint16_t>(pair);
        } else {
          reinterpret_cast<float*>(out)[at] = value;
        }
      }
    }
  }

  // A number of a row for each head, or of a part of a row.
  __device__ __forceinline__ void write(const GraphRow& row, const float (&x)[2]) const {
    if (lane_.slow != 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (lane_.head(i) >= lane_.heads) continue;
      if (row.partial >= 0) {
        partial_of(p_, lane_, lane_.head(i), row.partial)[0] = x[i];
      } else if (start_ != nullptr) {
        *reinterpret_cast<float*>(place(i, row.row)) = x[i];
      }
    }
  }

 private:
  __device__ __forceinline__ char* place(int of_pair, int row) const {
    const char* start = start_ + (of_pair == 0 ? 0 : to_.array.head);
    return const_cast<char*>(row_at(start, to_.array, row));
  }
  __device__ void write_part(int partial, const TileSums<Tile>& sums, const float (&by)[2],
                             int before) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (lane_.head(i) >= lane_.heads) continue;
      float* part = partial_of(p_, lane_, lane_.head(i), partial) + 4 + before + lane_.slow;
#pragma unroll
      for (int j = 0; j < Tile::kPerHead; ++j) part[8 * j] = by[i] * sums.own(lane_, i, j);
    }
  }

  const GraphLaunch& p_;
  const TileLane<Tile>& lane_;
  const GraphResult& to_;
  char* start_ = nullptr;
};

}  // namespace gnnsparse::cuda
