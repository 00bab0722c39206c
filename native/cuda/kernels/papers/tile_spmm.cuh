// RSH-SpMM (sections 3.2 and 3.3): SpMM over RS-Tiles. A block of threads takes a window of 8 rows,
// or a part of it, and a tile of features for each of its warps. The window's blocks of 8 x 8 are
// decoded from their bitmaps, two blocks (a K tile) at a time, and multiplied as the right operand
// of m16n8k8 (algorithm 2). Values and column numbers of A pass through two buffers of shared
// memory, rows of X through two sets of registers. CUDA cores compute the rows that are in no
// window: in blocks of the same launch, or in a launch of their own.
#pragma once

#include "device/async.cuh"
#include "device/launch.cuh"
#include "device/mma.cuh"
#include "device/vector.cuh"
#include "gnnsparse/packed_problem.h"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

inline constexpr int kTileWarps = 8;   // of a block of threads, at most
inline constexpr int kTileBlock = 8;   // rows and column slots of a block
inline constexpr int kTileBlocks = 2;  // blocks of a K tile
inline constexpr int kTileSlots = 2;   // slots of a lane in a block: 2t and 2t + 1
inline constexpr int kMmaFeatures = 16;

// A lane has features E g .. E g + E - 1 of its warp, E = 2 kTiles, where mma m has features 2m and
// 2m + 1 of each lane (figure 7: two registers of X side by side, from one load).
template <Precision P, int kTiles>
struct TileShape {
  static constexpr int kLaneFeatures = 2 * kTiles;
  static constexpr int kWarpFeatures = kMmaFeatures * kTiles;
  static constexpr int kSlotWords = kLaneFeatures * static_cast<int>(sizeof(StorageOf<P>)) / 4;
  // Values of a K tile as they lie in memory: the first 16 bytes may begin before them.
  static constexpr int kValueBytes =
      kTileBlocks * kTileBlock * kTileBlock * static_cast<int>(sizeof(StorageOf<P>)) + 16;
  static constexpr int kColumnBytes = kTileBlocks * kTileBlock * 4;
  static constexpr int kBufferBytes = kValueBytes + kColumnBytes;
};

// Rows of X at the lane's slots of a K tile.
template <int kWords>
struct TileRows {
  uint32_t word[kTileBlocks][kTileSlots][kWords];
};

// The bits of a K tile's blocks; 0 of a block that is not there.
struct TileBits {
  uint64_t map[kTileBlocks];

  __device__ int count() const { return popcount64(map[0]) + popcount64(map[1]); }
};

template <Precision P, Staging kStageA, int kTiles>
class TileWarp {
 public:
  using Shape = TileShape<P, kTiles>;
  using Storage = StorageOf<P>;
  using Rows = TileRows<Shape::kSlotWords>;
  static constexpr int kSlotWords = Shape::kSlotWords;
  static constexpr int kBuffers = kStageA == Staging::kDouble ? 2 : 1;

  __device__ TileWarp(const PackedSpmm& p, const WindowItem& item, char* shared, uint32_t address,
                      int64_t feature)
      : p_(p),
        item_(item),
        lane_(threadIdx.x % kWarp),
        block_(p.a.panel_ptr[item.window] / kTileBlock + kTileBlocks * int64_t{item.first_k_tile}),
        end_(p.a.panel_ptr[item.window + 1] / kTileBlock),
        shared_(shared),
        address_(address),
        x_(static_cast<const Storage*>(p.x.data) + feature),
        left_(p.n - feature) {}

  __device__ void run() {
    if (item_.k_tiles == 0) return;
    const int64_t value = load_const(p_.a.value_ptr + block_);
    if constexpr (kStageA == Staging::kDouble) {
      run_double(value);
    } else {
      run_in_turn(value);
    }
  }

  // The lane's features of result row 2t + r.
  __device__ void result(int r, float (&out)[Shape::kLaneFeatures]) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      out[2 * m] = sums_[m][r];
      out[2 * m + 1] = sums_[m][2 + r];
    }
  }

 private:
  __device__ void run_in_turn(int64_t value) {
    for (int k = 0; k < item_.k_tiles; ++k) {
      const TileBits bits = bits_of(k);
      if constexpr (kStageA == Staging::kSingle) {
        copy_columns(k, 0);
        copy_values(value, bits.count(), 0);
        wait_copies();
        __syncthreads();
      }
      Rows rows;
      load_rows(k, 0, rows);
      multiply(bits, value, 0, rows);
      value += bits.count();
      if constexpr (kStageA == Staging::kSingle) __syncthreads();
    }
  }

  // Algorithm 2. While K tile k is multiplied, the values of k + 1 and the columns of k + 2 are on
  // their way to shared memory, and the rows of X of k + 1 on their way to registers.
  __device__ void run_double(int64_t value) {
    TileBits bits = bits_of(0);
    TileBits ahead = bits_of(1);
    copy_columns(0, 0);
    copy_values(value, bits.count(), 0);
    wait_copies();
    __syncthreads();
    copy_columns(1, 1);
    Rows rows;
    load_rows(0, 0, rows);
    for (int k = 0; k < item_.k_tiles; ++k) {
      wait_copies();
      __syncthreads();  // what was copied is there, and what is overwritten has been read
      const int64_t next = value + bits.count();
      copy_values(next, ahead.count(), (k + 1) % 2);
      copy_columns(k + 2, k % 2);
      Rows rows_ahead;
      load_rows(k + 1, (k + 1) % 2, rows_ahead);
      multiply(bits, value, k % 2, rows);
      value = next;
      bits = ahead;
      ahead = bits_of(k + 2);
      rows = rows_ahead;
    }
  }

  // Whether the item has K tile k, and whether its block `block` is there.
  __device__ bool has(int k, int block) const {
    return k < item_.k_tiles && block_ + kTileBlocks * int64_t{k} + block < end_;
  }
  __device__ TileBits bits_of(int k) const {
    const auto* maps = reinterpret_cast<const uint64_t*>(p_.a.bitmap) + block_ + kTileBlocks * k;
    return {{has(k, 0) ? load_const(maps) : 0, has(k, 1) ? load_const(maps + 1) : 0}};
  }

  // Copies to shared memory are shared out among the block's threads.
  __device__ void copy_columns(int k, int buffer) const {
    const int vector = threadIdx.x;  // of four columns
    if (vector >= Shape::kColumnBytes / 16 || !has(k, vector / 2)) return;
    const int32_t* from = p_.a.columns + (block_ + kTileBlocks * int64_t{k}) * kTileBlock;
    copy_async(columns_at(buffer) + 16 * vector, from + 4 * vector);
  }
  __device__ void copy_values(int64_t first, int count, int buffer) const {
    if (count == 0) return;
    const auto* values = static_cast<const char*>(p_.a.values);
    const int64_t begin = first * static_cast<int64_t>(sizeof(Storage));
    const int64_t end = begin + count * static_cast<int64_t>(sizeof(Storage));
    const int64_t first_byte = begin / 16 * 16;
    for (int at = 16 * threadIdx.x; first_byte + at < end; at += 16 * blockDim.x) {
      if (first_byte + at + 16 <= p_.value_bytes) {
        copy_async(values_at(buffer) + at, values + first_byte + at);
        continue;
      }
      // The array may end inside its last vector.
      const auto* from = reinterpret_cast<const Storage*>(values + first_byte + at);
      auto* to = reinterpret_cast<Storage*>(shared_ + buffer * Shape::kBufferBytes + at);
      const int left = static_cast<int>((end - first_byte - at) / sizeof(Storage));
      for (int i = 0; i < left; ++i) to[i] = from[i];
    }
  }
  __device__ uint32_t values_at(int buffer) const {
    return address_ + buffer * Shape::kBufferBytes;
  }
  __device__ uint32_t columns_at(int buffer) const {
    return values_at(buffer) + Shape::kValueBytes;
  }

  __device__ int64_t column(int k, int slot, int buffer) const {
    if constexpr (kStageA == Staging::kNone) {
      return load_const(p_.a.columns + (block_ + kTileBlocks * int64_t{k}) * kTileBlock + slot);
    } else {
      return reinterpret_cast<const int32_t*>(shared_ + buffer * Shape::kBufferBytes +
                                              Shape::kValueBytes)[slot];
    }
  }

  __device__ void load_rows(int k, int buffer, Rows& rows) const {
#pragma unroll
    for (int block = 0; block < kTileBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kTileSlots; ++i) {
        uint32_t (&words)[kSlotWords] = rows.word[block][i];
        const int slot = kTileBlock * block + kTileSlots * (lane_ % 4) + i;
        if (has(k, block) && left_ > 0) {
          load_words(x_ + column(k, slot, buffer) * p_.x.stride, words);
        } else {
#pragma unroll
          for (int w = 0; w < kSlotWords; ++w) words[w] = 0;
        }
      }
    }
  }
  // Rows are whole 16 bytes, so that what begins inside a row may be read up to there.
  __device__ void load_words(const Storage* from, uint32_t (&words)[kSlotWords]) const {
    if constexpr (kSlotWords == 1) {
      words[0] = load_const(reinterpret_cast<const uint32_t*>(from));
    } else if constexpr (kSlotWords == 2) {
      const Vec16 half = load_vec8(from);
      words[0] = half.word[0];
      words[1] = half.word[1];
    } else {
#pragma unroll
      for (int w = 0; w < kSlotWords; w += 4) {
        const bool inside = w == 0 || left_ > w * 4 / static_cast<int>(sizeof(Storage));
        const Vec16 vector =
            inside ? load_vec16(reinterpret_cast<const uint32_t*>(from) + w) : Vec16{};
#pragma unroll
        for (int i = 0; i < 4; ++i) words[w + i] = vector.word[i];
      }
    }
  }

  // Where the values from number `value` on lie.
  __device__ const Storage* values_from(int64_t value, int buffer) const {
    if constexpr (kStageA == Staging::kNone) {
      return static_cast<const Storage*>(p_.a.values) + value;
    } else {
      constexpr int kVector = 16 / static_cast<int>(sizeof(Storage));
      return reinterpret_cast<const Storage*>(shared_ + buffer * Shape::kBufferBytes) +
             value % kVector;
    }
  }

  __device__ void multiply(const TileBits& bits, int64_t value, int buffer, const Rows& rows) {
    const Storage* values = values_from(value, buffer);
    const int bit = kTileBlock * (lane_ / 4) + kTileSlots * (lane_ % 4);
#pragma unroll
    for (int block = 0; block < kTileBlocks; ++block) {
      const uint64_t map = bits.map[block];
      if (map == 0) continue;  // no such block
      const Storage* at = values + popcount64(map & ((uint64_t{1} << bit) - 1));
      const auto two = static_cast<uint32_t>(map >> bit) & 3u;
      Storage element[kTileSlots];
      element[0] = two & 1u ? at[0] : Storage{0};
      element[1] = two & 2u ? at[two & 1u] : Storage{0};
      multiply_block(element, rows.word[block]);
      values += popcount64(map);
    }
  }

  __device__ void multiply_block(const Storage (&element)[kTileSlots],
                                 const uint32_t (&x)[kTileSlots][kSlotWords]) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if constexpr (kWords<P>) {
        const uint32_t a[4] = {to_tf32(x[0][2 * m]), to_tf32(x[0][2 * m + 1]), to_tf32(x[1][2 * m]),
                               to_tf32(x[1][2 * m + 1])};
        const uint32_t b[2] = {to_tf32(element[0]), to_tf32(element[1])};
        mma<kArithmetic<P>>(sums_[m], a, b);
      } else {
        const uint32_t a[2] = {low_halves(x[0][m], x[1][m]), high_halves(x[0][m], x[1][m])};
        const uint32_t b[1] = {element[0] | static_cast<uint32_t>(element[1]) << 16};
        mma<kArithmetic<P>>(sums_[m], a, b);
      }
    }
  }

  const PackedSpmm& p_;
  const WindowItem item_;
  const int lane_;
  const int64_t block_;  // first block of the item, counted over all windows
  const int64_t end_;    // of the window's blocks
  char* shared_;
  const uint32_t address_;
  const Storage* x_;
  const int64_t left_;  // features from the lane's first one on
  float sums_[kTiles][4] = {};
};

// Residual rows on CUDA cores: a thread has 16 bytes of a row of X, and as many neighbouring
// threads as a block's features need have a row.
template <Precision P>
__device__ void multiply_residual(const PackedSpmm& p, int64_t part, int block_features) {
  const int row_threads = block_features / kPerVector<P>;
  const int64_t rows = blockDim.x / row_threads;
  const int64_t index = part * rows + threadIdx.x / row_threads;
  const int64_t feature =
      int64_t{blockIdx.y} * block_features + threadIdx.x % row_threads * kPerVector<P>;
  if (index >= p.residual.count || feature >= p.n) return;
  const int32_t* columns = p.residual.columns + index * p.residual.width;
  const auto* values = static_cast<const StorageOf<P>*>(p.residual.values);
  const auto* x = static_cast<const StorageOf<P>*>(p.x.data) + feature;
  float sums[kPerVector<P>] = {};
  for (int64_t i = 0; i < p.residual.width; ++i) {
    const int32_t column = load_const(columns + i);
    if (column < 0) break;
    const float value = scalar_to_float<P>(load_const(values + index * p.residual.width + i));
    float elements[kPerVector<P>];
    to_floats<P>(load_vec16(x + column * p.x.stride), elements);
#pragma unroll
    for (int j = 0; j < kPerVector<P>; ++j) sums[j] += value * elements[j];
  }
  const int64_t row = load_const(p.residual.rows + index);
  const float scale = p.stored.row_scale != nullptr ? p.stored.row_scale[row] : 1.0f;
#pragma unroll
  for (int j = 0; j < kPerVector<P>; ++j) sums[j] *= scale;
  store_row(p.y, p.stored.row_ids != nullptr ? p.stored.row_ids[row] : row, feature, p.n, sums);
}

template <int kCount>
__device__ __forceinline__ void store_partial(float* to, const float (&v)[kCount]) {
  if constexpr (kCount == 2) {
    *reinterpret_cast<float2*>(to) = make_float2(v[0], v[1]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      *reinterpret_cast<float4*>(to + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
    }
  }
}

template <Precision P, Staging kStageA, int kTiles>
__global__ void __launch_bounds__(kTileWarps* kWarp)
    tile_spmm_kernel(const __grid_constant__ PackedSpmm p) {
  using Warp = TileWarp<P, kStageA, kTiles>;
  using Shape = TileShape<P, kTiles>;
  const int block_features = static_cast<int>(blockDim.x / kWarp) * Shape::kWarpFeatures;
  if (blockIdx.x >= p.work.item_count) {
    return multiply_residual<P>(p, blockIdx.x - p.work.item_count, block_features);
  }
  const WindowItem item = p.work.items[blockIdx.x];
  const int lane = threadIdx.x % kWarp;
  const int64_t feature = int64_t{blockIdx.y} * block_features +
                          threadIdx.x / kWarp * Shape::kWarpFeatures +
                          lane / 4 * Shape::kLaneFeatures;
  char* shared = dynamic_shared();
  Warp warp(p, item, shared, static_cast<uint32_t>(__cvta_generic_to_shared(shared)), feature);
  warp.run();
  if (feature >= p.n) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int in_window = 2 * (lane % 4) + r;
    float out[Shape::kLaneFeatures];
    warp.result(r, out);
    if (item.partial >= 0) {
      const int64_t place = int64_t{item.partial} * kTileBlock + in_window;
      store_partial(p.partial + place * partial_stride(p.n) + feature, out);
      continue;
    }
    const int64_t row = p.a.panel_row(item.window) + in_window;
    if (row >= p.a.rows) continue;
    const float scale = p.stored.row_scale != nullptr ? p.stored.row_scale[row] : 1.0f;
#pragma unroll
    for (int i = 0; i < Shape::kLaneFeatures; ++i) out[i] *= scale;
    const int64_t to = p.stored.row_ids != nullptr ? p.stored.row_ids[row] : row;
    if constexpr (Shape::kLaneFeatures == 2) {
      store_pair(p.y, to, feature, p.n, out[0], out[1]);
    } else {
      store_row(p.y, to, feature, p.n, out);
    }
  }
}

template <Precision P, Staging kStageA, int kTiles>
void launch_tile_spmm(const PackedSpmm& p, Stream stream) {
  using Shape = TileShape<P, kTiles>;
  const int64_t wanted = ceil_div<int64_t>(p.n, Shape::kWarpFeatures);
  // A power of two, so that a residual row has a part of the block's threads.
  int warps = 1;
  while (warps < wanted && warps < kTileWarps) warps *= 2;
  const int64_t features = ceil_div<int64_t>(wanted, warps);
  const int rows = warps * kWarp / (warps * Shape::kWarpFeatures / kPerVector<P>);
  const int64_t residual = ceil_div<int64_t>(p.residual.count, rows);
  const int buffers = kStageA == Staging::kNone ? 0 : TileWarp<P, kStageA, kTiles>::kBuffers;
  const auto run = [&](int64_t items, const PackedSpmm& part) {
    const dim3 grid = grid_of(items, 1, features, "spmm_tiles");
    launch_shared("spmm_tiles", tile_spmm_kernel<P, kStageA, kTiles>, grid, warps * kWarp,
                  buffers * Shape::kBufferBytes, stream, part);
  };
  if (p.residual_with_windows) return run(p.work.item_count + residual, p);
  run(p.work.item_count, p);
  PackedSpmm rest = p;
  rest.work.item_count = 0;
  run(residual, rest);
}

template <Precision P, Staging kStageA>
void run_tile_spmm(const PackedSpmm& p, Stream stream) {
  if (p.policy.coarsening == 1) return launch_tile_spmm<P, kStageA, 1>(p, stream);
  if (p.policy.coarsening == 2) return launch_tile_spmm<P, kStageA, 2>(p, stream);
  return launch_tile_spmm<P, kStageA, 4>(p, stream);
}

template <Precision P>
void TileSpmmUnit<P>::run(const PackedSpmm& p, Stream stream) {
  switch (p.policy.stage_a) {
    case Staging::kNone:
      return run_tile_spmm<P, Staging::kNone>(p, stream);
    case Staging::kSingle:
      return run_tile_spmm<P, Staging::kSingle>(p, stream);
    default:
      return run_tile_spmm<P, Staging::kDouble>(p, stream);
  }
}

}  // namespace gnnsparse::cuda
