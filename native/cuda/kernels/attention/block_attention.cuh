// Attention over patterns made of dense tiles, forward, on GPUs other than Hopper (there
// block_attention_hopper.cuh runs): FlashAttention-2's loop (Dao 2023, section 3) over the 128 x
// 128 tiles that have edges. A block takes 128 rows of a head, whose warps share each half tile of
// K and V; tiles without gaps need no bits.
#pragma once

#include "device/approximate.cuh"
#include "device/async.cuh"
#include "device/launch.cuh"
#include "device/mma.cuh"
#include "device/vector.cuh"
#include "gnnsparse/block_attention.h"
#include "kernels/common/chunk_rows.cuh"

namespace gnnsparse::cuda {

// How a block shares out its rows. A slice is the rows of K or V of half a tile's columns.
template <Precision kPrecision, int kHeadFeatures>
struct BlockTile {
  static constexpr Precision P = kPrecision;
  static constexpr int kFeatures = kHeadFeatures;
  // A read of K or V serves all stripes of 16 rows of a warp; of wide heads one fits the registers.
  static constexpr int kStripes = kFeatures <= 64 ? 2 : 1;
  static constexpr int kRows = 16 * kStripes;  // of a warp
  static constexpr int kWarps = kBlockTile / kRows;
  static constexpr int kThreads = kWarp * kWarps;
  static constexpr int kColumns = kBlockTile / 2;  // of a slice
  static constexpr int kRowBytes = 2 * kFeatures;
  static constexpr int kChunks = kRowBytes / kChunkBytes;
  static constexpr int kSliceBytes = kColumns * kRowBytes;
  static constexpr int kSlots = kFeatures <= 64 ? 6 : 3;   // of the ring of slices
  static constexpr int kBlocks = kFeatures <= 64 ? 2 : 1;  // of a multiprocessor, by registers
  static_assert(kBlockTile * kRowBytes == 2 * kSliceBytes, "rows of Q take two slots");
};

template <class Tile>
class BlockAttentionWarp {
 public:
  static constexpr uint32_t kSharedBytes = Tile::kSlots * Tile::kSliceBytes;

  __device__ BlockAttentionWarp(const BlockAttention& p, uint32_t shared)
      : p_(p),
        ring_(shared),
        lane_(threadIdx.x % kWarp),
        warp_(threadIdx.x / kWarp),
        first_row_(static_cast<int>(blockIdx.x) * kBlockTile) {
    const int heads = static_cast<int>(p.problem.heads);
    b_ = blockIdx.y / heads;
    h_ = blockIdx.y - b_ * heads;
    const int first = __ldg(p.tiles.starts + blockIdx.x);
    tiles_ = reinterpret_cast<const int2*>(p.tiles.tiles) + first;
    halves_ = 2 * (__ldg(p.tiles.starts + blockIdx.x + 1) - first);
    const int row = threadIdx.x / Tile::kChunks;
    const int chunk = threadIdx.x % Tile::kChunks;
    keys_ = SliceSource(p.problem.k, p.problem.d, b_, h_, chunk);
    values_ = SliceSource(p.problem.v, p.problem.dv, b_, h_, chunk);
    copy_row_ = row;
    copy_to_ = matrix_address(row, chunk);
#pragma unroll
    for (auto& of_stripe : max_) of_stripe[0] = of_stripe[1] = kLow;
  }

  __device__ void run() {
    copy_queries();
    commit_copies();
#pragma unroll
    for (int n = 0; n < Tile::kSlots - 2; ++n) n % 2 ? copy_slice<true>(n) : copy_slice<false>(n);
    wait_copies_but<Tile::kSlots - 2>();
    __syncthreads();
    load_queries();
    __syncthreads();  // before the slots of Q take slices
    copy_slice<Tile::kSlots % 2 != 0>(Tile::kSlots - 2);
    for (int i = 0; i < halves_; ++i) {
      float scores[Tile::kStripes][kColumnTiles][4] = {};
      const int bits = __ldg(tiles_ + i / 2).y;
      multiply_keys(next_slice<Tile::kSlots % 2 == 0>(2 * i), scores);
      if (bits >= 0) hide(bits, i % 2, scores);
      weigh(scores);
      add_values(next_slice<Tile::kSlots % 2 != 0>(2 * i + 1), scores);
    }
    wait_copies();
    finish();
  }

 private:
  static constexpr Precision P = Tile::P;
  static constexpr DType kStorage = PrecisionTraits<P>::kStorage;
  static constexpr int kColumnTiles = Tile::kColumns / 8;
  static constexpr int kFeatureTiles = Tile::kFeatures / 8;
  static constexpr int kKeySteps = Tile::kFeatures / 16;
  static constexpr float kLow = -std::numeric_limits<float>::infinity();

  // A thread's chunk of the rows of a head.
  struct SliceSource {
    const char* data = nullptr;
    int64_t row = 0;  // bytes
    bool real = false;

    SliceSource() = default;
    __device__ SliceSource(const HeadsView& view, int64_t width, int b, int h, int chunk)
        : data(static_cast<const char*>(view.of(b, h).data) + kChunkBytes * chunk),
          row(2 * view.row),
          real(8 * chunk < width) {}
  };

  __device__ int row_id(int row) const {
    if (row >= p_.queries) return -1;
    return p_.row_ids == nullptr ? row : __ldg(p_.row_ids + row);
  }

  // All rows of the block, into the last two slots.
  __device__ void copy_queries() const {
    const SliceSource queries(p_.problem.q, p_.problem.d, b_, h_, threadIdx.x % Tile::kChunks);
    const uint32_t to = ring_ + (Tile::kSlots - 2) * Tile::kSliceBytes + copy_to_;
#pragma unroll
    for (int j = 0; j < kBlockTile / kCopyRows; ++j) {
      const int id = row_id(first_row_ + copy_row_ + kCopyRows * j);
      copy_async_or_zero(to + j * kCopyRows * Tile::kRowBytes,
                         queries.data + max(id, 0) * queries.row, id >= 0 && queries.real);
    }
  }

  // Slices 2 i of keys and 2 i + 1 of values, of half tile i; past the end nothing but a group.
  template <bool kValues>
  __device__ __forceinline__ void copy_slice(int n) {
    if (n / 2 < halves_) {
      const SliceSource& source = kValues ? values_ : keys_;
      const int key = __ldg(tiles_ + n / 4).x * kBlockTile + n / 2 % 2 * Tile::kColumns + copy_row_;
      const char* from = source.data + key * source.row;
      const uint32_t to = ring_ + to_ + copy_to_;
#pragma unroll
      for (int j = 0; j < Tile::kColumns / kCopyRows; ++j) {
        const bool real = source.real && key + kCopyRows * j < p_.keys;
        copy_async_or_zero(to + j * kCopyRows * Tile::kRowBytes, from + kCopyRows * j * source.row,
                           real);
      }
      to_ = after(to_);
    }
    commit_copies();
  }

  // Slice n in shared memory, once it has arrived. kValuesNext: of the slice that is asked for now.
  template <bool kValuesNext>
  __device__ __forceinline__ uint32_t next_slice(int n) {
    wait_copies_but<Tile::kSlots - 2>();
    __syncthreads();  // and all warps are done with the slice that is overwritten now
    copy_slice<kValuesNext>(n + Tile::kSlots - 1);
    const uint32_t slice = ring_ + here_;
    here_ = after(here_);
    return slice;
  }
  static __device__ uint32_t after(uint32_t offset) {
    return offset + Tile::kSliceBytes < kSharedBytes ? offset + Tile::kSliceBytes : 0;
  }

  // Where a lane's row of an ldmatrix starts: chunks are permuted by the row's last three bits, and
  // 32 bytes further on are an exclusive or away.
  static __device__ uint32_t matrix_address(int row, int chunk) {
    return Tile::kRowBytes * row + kChunkBytes * (chunk ^ row % 8);
  }

  // Scores are raised by a factor above zero: the signs of Q take that of the scale.
  __device__ void load_queries() {
    const float scale = p_.problem.scale * kLog2E;
    scale_ = fmaxf(fabsf(scale), std::numeric_limits<float>::min());
    const uint32_t signs = scale < 0.0f ? 0x80008000u : 0u;
    const uint32_t from = ring_ + (Tile::kSlots - 2) * Tile::kSliceBytes;
#pragma unroll
    for (int s = 0; s < Tile::kStripes; ++s) {
      const int row = Tile::kRows * warp_ + 16 * s + lane_ % 16;
      const uint32_t at = matrix_address(row, lane_ / 16);
#pragma unroll
      for (int step = 0; step < kKeySteps; ++step) {
        load_matrices_plain(from + (at ^ 32 * step), queries_[s][step]);
#pragma unroll
        for (uint32_t& word : queries_[s][step]) word ^= signs;
      }
    }
  }

  __device__ __forceinline__ void multiply_keys(
      uint32_t slice, float (&scores)[Tile::kStripes][kColumnTiles][4]) const {
    const uint32_t at = matrix_address(lane_ % 8 + lane_ / 16 * 8, lane_ / 8 % 2);
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int j = 0; j < kColumnTiles; j += 2) {
        uint32_t keys[4];
        load_matrices_plain(slice + (at ^ 32 * step) + 8 * j * Tile::kRowBytes, keys);
        const uint32_t first[2] = {keys[0], keys[1]};
        const uint32_t second[2] = {keys[2], keys[3]};
#pragma unroll
        for (int s = 0; s < Tile::kStripes; ++s) {
          mma<kArithmetic<P>>(scores[s][j], queries_[s][step], first);
          mma<kArithmetic<P>>(scores[s][j + 1], queries_[s][step], second);
        }
      }
    }
  }

  // Scores without an edge, by the tile's bits.
  __device__ __forceinline__ void hide(int bits, int half,
                                       float (&scores)[Tile::kStripes][kColumnTiles][4]) const {
    const uint32_t* of_tile = p_.bits + int64_t{bits} * (kBlockTile * kBlockTileWords);
#pragma unroll
    for (int s = 0; s < Tile::kStripes; ++s) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int row = Tile::kRows * warp_ + 16 * s + 8 * upper + lane_ / 4;
        const auto words =
            __ldg(reinterpret_cast<const uint2*>(of_tile + kBlockTileWords * row + 2 * half));
        const uint32_t own[2] = {words.x >> 2 * (lane_ % 4), words.y >> 2 * (lane_ % 4)};
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            float& score = scores[s][j][2 * upper + odd];
            score = own[j / 4] & 1u << (8 * (j % 4) + odd) ? score : kLow;
          }
        }
      }
    }
  }

  // Scores to weights that are not divided by their sum yet.
  __device__ __forceinline__ void weigh(float (&scores)[Tile::kStripes][kColumnTiles][4]) {
    float top[Tile::kStripes][2];
    bool rises = false;
#pragma unroll
    for (int s = 0; s < Tile::kStripes; ++s) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        float most = kLow;
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          most = fmaxf(most, fmaxf(scores[s][j][2 * upper], scores[s][j][2 * upper + 1]));
        }
        top[s][upper] = most * scale_;
        rises |= top[s][upper] > max_[s][upper] + 8.0f;
      }
    }
    if (__any_sync(0xffffffffu, rises)) raise(top);
#pragma unroll
    for (int s = 0; s < Tile::kStripes; ++s) {
      const float shift[2] = {shift_of(s, 0), shift_of(s, 1)};
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[s][j][i] = exp2_fast(fmaf(scores[s][j][i], scale_, -shift[i / 2]));
        }
      }
    }
  }

  // Before a row's first edge, weights of nothing.
  __device__ float shift_of(int s, int upper) const {
    return max_[s][upper] == kLow ? 0.0f : max_[s][upper];
  }

  // The maximum lags behind by at most 8, and is a whole number, as in the kernels over panels,
  // whose backward passes read the same statistics.
  __device__ void raise(float (&top)[Tile::kStripes][2]) {
#pragma unroll
    for (int s = 0; s < Tile::kStripes; ++s) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        float most = top[s][upper];
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const float raised = fmaxf(max_[s][upper], ceilf(most));
        const float factor = max_[s][upper] == raised ? 1.0f : exp2f(max_[s][upper] - raised);
        max_[s][upper] = raised;
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          sum_[s][2 * upper + odd] *= factor;
#pragma unroll
          for (int j = 0; j < kFeatureTiles; ++j) out_[s][j][2 * upper + odd] *= factor;
        }
      }
    }
  }

  // Results and, by a product with ones, the sums of the weights as they enter it.
  __device__ __forceinline__ void add_values(
      uint32_t slice, const float (&weights)[Tile::kStripes][kColumnTiles][4]) {
    const uint32_t at = matrix_address(lane_ % 16, lane_ / 16);
    const uint32_t one = pack_pair<kStorage>(1.0f, 1.0f);
    const uint32_t ones[2] = {one, one};
#pragma unroll
    for (int step = 0; step < Tile::kColumns / 16; ++step) {
      uint32_t a[Tile::kStripes][4];
#pragma unroll
      for (int s = 0; s < Tile::kStripes; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = &weights[s][2 * step + i / 2][2 * (i % 2)];
          a[s][i] = pack_pair<kStorage>(pair[0], pair[1]);
        }
        mma<kArithmetic<P>>(sum_[s], a[s], ones);
      }
#pragma unroll
      for (int j = 0; j < kFeatureTiles; j += 2) {
        uint32_t values[4];
        load_matrices(slice + (at ^ 16 * j) + 16 * step * Tile::kRowBytes, values);
        const uint32_t first[2] = {values[0], values[1]};
        const uint32_t second[2] = {values[2], values[3]};
#pragma unroll
        for (int s = 0; s < Tile::kStripes; ++s) {
          mma<kArithmetic<P>>(out_[s][j], a[s], first);
          mma<kArithmetic<P>>(out_[s][j + 1], a[s], second);
        }
      }
    }
  }

  __device__ void finish() const {
    const MutableDenseView to = p_.out.mutable_of(b_, h_);
#pragma unroll
    for (int s = 0; s < Tile::kStripes; ++s) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int row = Tile::kRows * warp_ + 16 * s + 8 * upper + lane_ / 4;
        const int id = row_id(first_row_ + row);
        if (id < 0) continue;
        const float sum = sum_[s][2 * upper];
        const float scale = sum > 0.0f ? reciprocal_fast(sum) : 0.0f;
        if (lane_ % 4 == 0) p_.stats[blockIdx.y * p_.queries + id] = {shift_of(s, upper), scale};
        auto* pairs = static_cast<uint32_t*>(to.data) + id * (to.stride / 2) + lane_ % 4;
#pragma unroll
        for (int j = 0; j < kFeatureTiles; ++j) {
          if (8 * j >= p_.problem.dv) break;
          const float (&v)[4] = out_[s][j];
          pairs[4 * j] = pack_pair<kStorage>(scale * v[2 * upper], scale * v[2 * upper + 1]);
        }
      }
    }
  }

  static constexpr int kCopyRows = Tile::kThreads / Tile::kChunks;  // that threads copy at a time
  const BlockAttention& p_;
  uint32_t ring_;
  int lane_;
  int warp_;
  int first_row_;
  int b_;
  int h_;
  const int2* tiles_;
  int halves_;
  SliceSource keys_;
  SliceSource values_;
  int copy_row_;
  uint32_t copy_to_;
  uint32_t here_ = 0;
  uint32_t to_ = 0;
  float scale_;
  uint32_t queries_[Tile::kStripes][kKeySteps][4];
  float max_[Tile::kStripes][2];
  float sum_[Tile::kStripes][4] = {};
  float out_[Tile::kStripes][kFeatureTiles][4] = {};
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    block_attention_kernel(const __grid_constant__ BlockAttention p) {
  __shared__ __align__(1024) char memory[BlockAttentionWarp<Tile>::kSharedBytes];
  BlockAttentionWarp<Tile> warp(p, static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
  warp.run();
}

template <class Tile>
void launch_block_attention(const BlockAttention& p, Stream stream) {
  const auto kernel = block_attention_kernel<Tile>;
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(kernel, 0, prepared);
  const int64_t heads = p.problem.batches * p.problem.heads;
  const dim3 grid = grid_of(p.queries, kBlockTile, heads, "attention_blocks");
  launch("attention_blocks", kernel, grid, Tile::kThreads, stream, p);
}

template <Precision P>
void run_block_attention(const BlockAttention& p, Stream stream) {
  if (p.problem.d > 64 || p.problem.dv > 64) {
    launch_block_attention<BlockTile<P, 128>>(p, stream);
  } else {
    launch_block_attention<BlockTile<P, 64>>(p, stream);
  }
}

}  // namespace gnnsparse::cuda
