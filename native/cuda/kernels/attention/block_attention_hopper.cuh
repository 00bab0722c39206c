// Attention over patterns made of dense tiles on Hopper: a pass forward, and backward one over rows
// for dQ and one over columns for dK and dV, each of which makes the weights again
// (FlashAttention-2, Dao 2023, algorithms 1 and 2, whose sums of dQ by atomics would differ from
// run to run). Products are Hopper's, of four warps, and go on while their warps make weights
// (FlashAttention-3, Shah et al. 2024).
//
// All passes are one loop: a warpgroup owns 64 rows of operands X1 and X2, and slices of 64 rows of
// two others, Y1 and Y2, stream by.
//
//              X1  X2  Y1  Y2   sums
//   forward    Q       K   V    out += P V
//   rows       Q   dO  K   V    dQ += dS K
//   columns    K   V   Q   dO   dK += dS^T Q, dV += P^T dO
#pragma once

#include "device/approximate.cuh"
#include "device/async.cuh"
#include "device/launch.cuh"
#include "device/vector.cuh"
#include "device/warpgroup.cuh"
#include "gnnsparse/block_attention.h"

namespace gnnsparse::cuda {

inline constexpr int kGroupRows = 64;                 // of a warpgroup, and of a slice
inline constexpr int kPanelBytes = 128 * kGroupRows;  // 64 features of 64 rows

enum class BlockPass { kForward, kRows, kColumns };

// How blocks share out a head. Blocks of one warpgroup hide one another's beginnings and ends, but
// backward those of wide heads would fit a multiprocessor once: there two warpgroups share the
// slices. With fewer registers than these the compiler has each product end before the next
// instruction.
template <Precision kPrecision, int kHeadFeatures, BlockPass kWhich>
struct BlockGroupTile {
  static constexpr Precision P = kPrecision;
  static constexpr int kFeatures = kHeadFeatures;
  static constexpr bool kForward = kWhich == BlockPass::kForward;
  static constexpr bool kOfColumns = kWhich == BlockPass::kColumns;
  static constexpr bool kNarrow = kFeatures <= 64;
  static constexpr int kGroups = kNarrow || kForward ? 1 : 2;
  // Of a multiprocessor, and of the ring of slices.
  static constexpr int kBlocks = kForward ? (kNarrow ? 4 : 2) : !kNarrow ? 1 : kOfColumns ? 2 : 3;
  static constexpr int kSlots = kForward ? 3 : !kNarrow ? 4 : kOfColumns ? 5 : 3;
  using Problem = std::conditional_t<kForward, BlockAttention, BlockAttentionGrad>;
};

// Sizes in shared memory.
template <class Tile>
struct BlockGroupMemory {
  static constexpr int kOwnRows = kGroupRows * Tile::kGroups;
  static constexpr int kThreads = kGroupThreads * Tile::kGroups;
  static constexpr int kPanels = Tile::kFeatures / 64;
  static constexpr int kChunks = Tile::kFeatures / 8;
  static constexpr int kOperandBytes = kPanels * kPanelBytes;  // 64 rows
  static constexpr int kSliceBytes = 2 * kOperandBytes;
  static constexpr int kStatBytes = 2 * 4 * kGroupRows;
  static constexpr int kOwnBytes = (Tile::kForward ? 1 : 2) * Tile::kGroups * kOperandBytes;
  static constexpr int kStatsAt = kOwnBytes + Tile::kSlots * kSliceBytes;
  static constexpr int kSharedBytes = kStatsAt + (Tile::kOfColumns ? Tile::kSlots * kStatBytes : 0);
};

template <class Tile>
class BlockGroupWarp {
  using Memory = BlockGroupMemory<Tile>;
  using Problem = typename Tile::Problem;

 public:
  __device__ BlockGroupWarp(const Problem& p, const BlockTileList& list, uint32_t shared)
      : p_(p),
        own_(shared),
        ring_(shared + Memory::kOwnBytes),
        stats_(shared + Memory::kStatsAt),
        group_(__shfl_sync(0xffffffffu, threadIdx.x / kGroupThreads, 0)),  // the same in a warp
        lane_(threadIdx.x % kWarp),
        first_own_(static_cast<int>(blockIdx.x) * Memory::kOwnRows) {
    warp_row_ = kGroupRows * group_ + threadIdx.x % kGroupThreads / kWarp * 16;
    const int heads = static_cast<int>(p.problem.heads);
    b_ = blockIdx.y / heads;
    h_ = blockIdx.y - b_ * heads;
    const int panel = first_own_ / kBlockTile;
    const int first = __ldg(list.starts + panel);
    tiles_ = reinterpret_cast<const int2*>(list.tiles) + first;
    count_ = __ldg(list.starts + panel + 1) - first;
    chunk_ = threadIdx.x % Memory::kChunks;
    copy_row_ = threadIdx.x / Memory::kChunks;
    copy_own(Tile::kOfColumns ? p.problem.k : p.problem.q, p.problem.d, 0);
    scale_ = p.problem.scale * kLog2E;
    if constexpr (Tile::kForward) {
      for (float& most : max_) most = kLow;
    } else {
      if (!Tile::kOfColumns && p.dq.data == nullptr) count_ = 0;  // the statistics alone
      copy_own(Tile::kOfColumns ? p.problem.v : p.grad, p.problem.dv, 1);
    }
    commit_copies();
    own_ += group_ * Memory::kOperandBytes;
    slices_[0] = chunks_of(Tile::kOfColumns ? p.problem.q : p.problem.k, p.problem.d);
    slices_[1] = chunks_of(second_slice(), p.problem.dv);
    if (count_ > 0) next_tile_ = __ldg(tiles_).x;
  }

  __device__ void run() {
#pragma unroll
    for (int n = 0; n < Tile::kSlots - 2; ++n) copy_slice(n);
    if constexpr (!Tile::kOfColumns && !Tile::kForward) make_stats();
#pragma unroll 1
    for (int n = 0; n < 2 * count_; ++n) add_slice(n, __ldg(tiles_ + n / 2).y);
#pragma unroll
    for (int panel = 0; panel < Memory::kPanels; ++panel) {
      wait_products_but<0>(of_scores_[panel]);
      if constexpr (Tile::kOfColumns) wait_products_but<0>(of_weights_[panel]);
    }
    const float scale = p_.problem.scale;
    if constexpr (Tile::kForward) {
      finish();
    } else if constexpr (Tile::kOfColumns) {
      store(p_.dk, p_.problem.d, {scale, scale}, of_scores_);
      store(p_.dv, p_.problem.dv, {1.0f, 1.0f}, of_weights_);
    } else {
      store(p_.dq, p_.problem.d, {scale, scale}, of_scores_);
    }
    wait_copies();
  }

 private:
  static constexpr Precision P = Tile::P;
  static constexpr DType kStorage = PrecisionTraits<P>::kStorage;
  static constexpr Arithmetic kMath = kArithmetic<P>;
  static constexpr int kSteps = kGroupRows / 16;
  static constexpr float kLow = -std::numeric_limits<float>::infinity();

  // The caller's row of a stored one, -1 past the end. kKeys: a row of K and V.
  template <bool kKeys>
  __device__ int row_id(int row) const {
    if (row >= (kKeys ? p_.keys : p_.queries)) return -1;
    return kKeys || p_.row_ids == nullptr ? row : __ldg(p_.row_ids + row);
  }

  // Where a chunk of a row of 64 is, of features in panels.
  static __device__ uint32_t chunk_address(int row, int chunk) {
    return chunk / 8 * kPanelBytes + 128 * row + kChunkBytes * (chunk % 8 ^ row % 8);
  }

  // That threads copy at a time.
  static constexpr int kCopyRows = Memory::kThreads / Memory::kChunks;
  static constexpr int kCopies = kGroupRows / kCopyRows;

  // The chunk of every row of an array's head that a thread copies.
  struct Chunks {
    const char* data;
    uint32_t stride;
    bool exist;
  };
  __device__ Chunks chunks_of(const HeadsView& of, int64_t width) const {
    const char* data = static_cast<const char*>(of.of(b_, h_).data) + kChunkBytes * chunk_;
    return {pin_register(data), pin_register(static_cast<uint32_t>(2 * of.row)),
            8 * chunk_ < width};
  }

  // 64 rows of some arrays, from the stored row `first` on, which go to one operand after another.
  template <bool kKeys, int kArrays>
  __device__ __forceinline__ void copy_rows(const Chunks (&of)[kArrays], uint32_t to,
                                            int first) const {
    const uint32_t at = to + chunk_address(copy_row_, chunk_);
    const int row = first + copy_row_;
    const int end = static_cast<int>(kKeys ? p_.keys : p_.queries);
    const bool by_ids = !kKeys && p_.row_ids != nullptr;
#pragma unroll
    for (int j = 0; j < kCopies; ++j) {
      const bool exists = row + kCopyRows * j < end;
      uint32_t id = row + kCopyRows * j;
      if (by_ids && exists) id = __ldg(p_.row_ids + id);
#pragma unroll
      for (int i = 0; i < kArrays; ++i) {
        copy_async_or_zero(at + 128 * kCopyRows * j + Memory::kOperandBytes * i,
                           of[i].data + uint64_t{id} * of[i].stride, exists && of[i].exist);
      }
    }
  }
  __device__ void copy_own(const HeadsView& of, int64_t width, int which) const {
    const Chunks chunks[1] = {chunks_of(of, width)};
#pragma unroll
    for (int g = 0; g < Tile::kGroups; ++g) {
      copy_rows<Tile::kOfColumns>(chunks,
                                  own_ + (which * Tile::kGroups + g) * Memory::kOperandBytes,
                                  first_own_ + kGroupRows * g);
    }
  }

  // Half of a tile; past the end nothing but a group.
  __device__ __forceinline__ void copy_slice(int n) {
    if (n < 2 * count_) {
      const int first = next_tile_ * kBlockTile + n % 2 * kGroupRows;
      copy_rows<!Tile::kOfColumns>(slices_, ring_ + to_ * Memory::kSliceBytes, first);
      if constexpr (Tile::kOfColumns) {
        if (threadIdx.x < Memory::kStatBytes / kChunkBytes) {
          const int half = threadIdx.x / (kGroupRows / 4);
          const float* from = stats_of(half) + first + 4 * (threadIdx.x % (kGroupRows / 4));
          copy_async(stats_ + to_ * Memory::kStatBytes + kChunkBytes * threadIdx.x, from);
        }
      }
      to_ = to_ + 1 < Tile::kSlots ? to_ + 1 : 0;
      if (n % 2 == 1 && n + 1 < 2 * count_) next_tile_ = __ldg(tiles_ + n / 2 + 1).x;
    }
    commit_copies();
  }

  __device__ const HeadsView& second_slice() const {
    if constexpr (Tile::kOfColumns) {
      return p_.grad;
    } else {
      return p_.problem.v;
    }
  }

  // The logarithms of the softmax's sums, or delta, of all stored rows of the head.
  __device__ float* stats_of(int which) const {
    const int64_t rows = (p_.queries + kBlockTile - 1) / kBlockTile * kBlockTile;
    return p_.row_stats + (2 * int64_t{blockIdx.y} + which) * rows;
  }

  // Of the warp's rows, whose gradients are on their way to shared memory; two lanes take a row.
  __device__ void make_stats() {
    const int row = warp_row_ + lane_ / 2;
    const int id = row_id<false>(first_own_ + row);
    const DenseView out = p_.out.of(b_, h_);
    const char* from = static_cast<const char*>(out.data) + 2 * out.stride * max(id, 0);
    const uint32_t grads = own_ + Tile::kGroups * Memory::kOperandBytes;
    constexpr int kOwnChunks = Memory::kChunks / 2;
    Vec16 outs[kOwnChunks];
    SoftmaxStats stats = {0.0f, 0.0f};
    if (id >= 0) {
      stats = p_.stats[blockIdx.y * p_.queries + id];
#pragma unroll
      for (int i = 0; i < kOwnChunks; ++i) {
        const int chunk = lane_ % 2 * kOwnChunks + i;
        if (8 * chunk < p_.problem.dv) outs[i] = load_vec16(from + kChunkBytes * chunk);
      }
    }
    wait_copies_but<Tile::kSlots - 2>();
    __syncthreads();
    const float log_sum = stats.scale > 0.0f ? stats.shift - log2f(stats.scale)
                                             : std::numeric_limits<float>::infinity();
    float delta = 0.0f;
#pragma unroll
    for (int i = 0; i < kOwnChunks; ++i) {
      const int chunk = lane_ % 2 * kOwnChunks + i;
      if (id < 0 || 8 * chunk >= p_.problem.dv) break;
      Vec16 words;
      load_shared(grads + chunk_address(row % kGroupRows, chunk), words.word);
      float x[8];
      float y[8];
      decode<kStorage>(words, x);
      decode<kStorage>(outs[i], y);
#pragma unroll
      for (int j = 0; j < 8; ++j) delta += x[j] * y[j];
    }
    delta += __shfl_xor_sync(0xffffffffu, delta, 1);
    if (lane_ % 2 == 0) {
      stats_of(0)[first_own_ + row] = log_sum;
      stats_of(1)[first_own_ + row] = delta;
    }
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int lane = 2 * (lane_ / 4 + 8 * upper);
      log_sum_[upper] = __shfl_sync(0xffffffffu, log_sum, lane);
      delta_[upper] = __shfl_sync(0xffffffffu, delta, lane);
    }
  }

  // Products of X1 with Y1, or X2 with Y2.
  __device__ __forceinline__ void multiply_own(int which, GroupSums& to) const {
    const uint32_t x = shared_operand(own_ + which * Tile::kGroups * Memory::kOperandBytes);
    const uint32_t y = slice_operand(which);
#pragma unroll
    for (int step = 0; step < Tile::kFeatures / 16; ++step) {
      const int at = (step / 4 * kPanelBytes + 32 * (step % 4)) / kChunkBytes;
      multiply_rows<kMath>(to, x + at, y + at, step > 0);
    }
  }

  // Y1 or Y2 of the slice.
  __device__ __forceinline__ uint32_t slice_operand(int which) const {
    return shared_operand(ring_) +
           (here_ * Memory::kSliceBytes + which * Memory::kOperandBytes) / kChunkBytes;
  }

  using Packed = uint32_t[kSteps][4];

  __device__ __forceinline__ void add_product(const Packed& a, int which,
                                              GroupSums (&to)[Memory::kPanels]) const {
    const uint32_t y = slice_operand(which);
#pragma unroll
    for (int panel = 0; panel < Memory::kPanels; ++panel) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int at = (panel * kPanelBytes + 128 * 16 * step) / kChunkBytes;
        add_rows<kMath>(to[panel], a[step], y + at);
      }
    }
  }

  static __device__ __forceinline__ void pack(const GroupSums& from, Packed& to) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &from[2 * step + i / 2][2 * (i % 2)];
        to[step][i] = pack_pair<kStorage>(pair[0], pair[1]);
      }
    }
  }

  __device__ __forceinline__ void add_slice(int n, int bits) {
    wait_copies_but<Tile::kSlots - 3>();
    show_copies_to_products();
    __syncthreads();  // and all warps are done with the slice before the last one
    copy_slice(n + Tile::kSlots - 2);
    begin_products();
    GroupSums scores;
    multiply_own(0, scores);
    commit_products();
    if constexpr (Tile::kForward) {
      add_values(n, bits, scores);
    } else {
      add_gradients(n, bits, scores);
    }
    here_ = here_ + 1 < Tile::kSlots ? here_ + 1 : 0;
  }

  __device__ __forceinline__ void add_values(int n, int bits, GroupSums& scores) {
    wait_products_but<0>(scores);
#pragma unroll
    for (GroupSums& sums : of_scores_) wait_products_but<0>(sums);
    if (bits >= 0) hide(bits, n % 2, kLow, scores);
    weigh_online(scores);
    Packed weights;
    pack(scores, weights);
    begin_products();
    add_product(weights, 1, of_scores_);
    commit_products();
  }

  __device__ __forceinline__ void add_gradients(int n, int bits, GroupSums& scores) {
    GroupSums grads;  // of the weights
    multiply_own(1, grads);
    commit_products();
    wait_products_but<1>(scores);
    weigh(scores);
    if (bits >= 0) hide(bits, n % 2, 0.0f, scores);
    Packed weights;
    if constexpr (Tile::kOfColumns) {
      pack(scores, weights);
      begin_products();
      add_product(weights, 1, of_weights_);
      commit_products();
    }
    wait_products_but<Tile::kOfColumns>(grads);
    multiply_by_weights(scores, grads);
    Packed of_scores;
    pack(grads, of_scores);
    begin_products();
    add_product(of_scores, 0, of_scores_);
    commit_products();
  }

  // Log sums or delta of two neighbouring columns of the sums.
  __device__ __forceinline__ void load_pair(int which, int j, float (&pair)[2]) const {
    uint32_t words[4];
    load_shared_pair(
        stats_ + here_ * Memory::kStatBytes + 4 * (which * kGroupRows + 8 * j) + 8 * (lane_ % 4),
        words);
    pair[0] = __uint_as_float(words[0]);
    pair[1] = __uint_as_float(words[1]);
  }

  __device__ __forceinline__ void weigh(GroupSums& scores) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float pair[2];
      if constexpr (Tile::kOfColumns) load_pair(0, j, pair);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float sum = Tile::kOfColumns ? pair[i % 2] : log_sum_[i / 2];
        scores[j][i] = exp2_fast(fmaf(scores[j][i], scale_, -sum));
      }
    }
  }

  __device__ __forceinline__ void multiply_by_weights(const GroupSums& weights,
                                                      GroupSums& grads) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float pair[2];
      if constexpr (Tile::kOfColumns) load_pair(1, j, pair);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float delta = Tile::kOfColumns ? pair[i % 2] : delta_[i / 2];
        grads[j][i] = weights[j][i] * (grads[j][i] - delta);
      }
    }
  }

  // Scores to weights that are not divided by their sum yet. A row's maximum lags behind by at most
  // 8, and is a whole number, as in the kernels over panels, whose backward passes read the same
  // statistics.
  __device__ __forceinline__ void weigh_online(GroupSums& scores) {
    if (scale_ < 0.0f) {
#pragma unroll
      for (auto& of_columns : scores) {
        for (float& score : of_columns) score = score == kLow ? kLow : -score;
      }
    }
    const float scale = fmaxf(fabsf(scale_), std::numeric_limits<float>::min());
    float top[2] = {kLow, kLow};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) top[i / 2] = fmaxf(top[i / 2], scores[j][i]);
    }
    const bool rises = top[0] * scale > max_[0] + 8.0f || top[1] * scale > max_[1] + 8.0f;
    if (__any_sync(0xffffffffu, rises)) raise(top, scale);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[j][i] = exp2_fast(fmaf(scores[j][i], scale, -shift_of(i / 2)));
        sum_[i / 2] += scores[j][i];
      }
    }
  }

  // Before a row's first edge, weights of nothing.
  __device__ float shift_of(int upper) const { return max_[upper] == kLow ? 0.0f : max_[upper]; }

  __device__ void raise(float (&top)[2], float scale) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      float most = top[upper] * scale;
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float raised = fmaxf(max_[upper], ceilf(most));
      const float factor = max_[upper] == raised ? 1.0f : exp2f(max_[upper] - raised);
      max_[upper] = raised;
      sum_[upper] *= factor;
#pragma unroll
      for (GroupSums& sums : of_scores_) {
        for (int j = 0; j < 8; ++j) {
          for (int odd = 0; odd < 2; ++odd) sums[j][2 * upper + odd] *= factor;
        }
      }
    }
  }

  // The results, divided by the sums of their weights.
  __device__ void finish() {
    float scale[2];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      float sum = sum_[upper];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      scale[upper] = sum > 0.0f ? reciprocal_fast(sum) : 0.0f;
      const int id = row_id<false>(first_own_ + warp_row_ + 8 * upper + lane_ / 4);
      if (id < 0 || lane_ % 4 != 0) continue;
      p_.stats[blockIdx.y * p_.queries + id] = {shift_of(upper), scale[upper]};
    }
    store(p_.out, p_.problem.dv, scale, of_scores_);
  }

  // Numbers without an edge are `none`, by the tile's bits.
  __device__ __forceinline__ void hide(int bits, int half, float none, GroupSums& numbers) const {
    const int own = (first_own_ + warp_row_) % kBlockTile + lane_ / 4;
    const int other = kGroupRows * half + 2 * (lane_ % 4);
    const uint32_t* words = p_.bits + int64_t{bits} * (kBlockTile * kBlockTileWords);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // A warp's 16 columns are in one word, and so are a lane's of four eights.
        const uint32_t word =
            Tile::kOfColumns
                ? __ldg(words + kBlockTileWords * (other + 8 * j + i % 2) + own / 32)
                : __ldg(words + kBlockTileWords * (own + i / 2 * 8) + 2 * half + j / 4);
        const int bit = Tile::kOfColumns ? own % 32 + i / 2 * 8 : other % 8 + 8 * (j % 4) + i % 2;
        numbers[j][i] = word >> bit & 1u ? numbers[j][i] : none;
      }
    }
  }

  // Sums times the scales of the lane's two rows.
  __device__ void store(const HeadsView& view, int64_t width, const float (&scale)[2],
                        const GroupSums (&sums)[Memory::kPanels]) const {
    if (view.data == nullptr) return;
    const MutableDenseView to = view.mutable_of(b_, h_);
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int id = row_id<Tile::kOfColumns>(first_own_ + warp_row_ + 8 * upper + lane_ / 4);
      if (id < 0) continue;
      auto* pairs = static_cast<uint32_t*>(to.data) + id * (to.stride / 2) + lane_ % 4;
#pragma unroll
      for (int j = 0; j < 8 * Memory::kPanels; ++j) {
        if (8 * j >= width) break;
        const float (&v)[4] = sums[j / 8][j % 8];
        pairs[4 * j] =
            pack_pair<kStorage>(scale[upper] * v[2 * upper], scale[upper] * v[2 * upper + 1]);
      }
    }
  }

  const Problem& p_;
  uint32_t own_;
  uint32_t ring_;
  uint32_t stats_;
  int group_;
  int lane_;
  int first_own_;
  int warp_row_;  // of the block's
  int b_;
  int h_;
  const int2* tiles_;
  int count_;
  int chunk_;
  int copy_row_;
  Chunks slices_[2];
  int next_tile_ = 0;  // that is copied
  int to_ = 0;         // slot that the next slice is copied to
  int here_ = 0;       // slot of the slice that is added
  float scale_;
  // Of the lane's two rows, backward and forward.
  float log_sum_[2];
  float delta_[2];
  float max_[2];
  float sum_[2] = {};
  GroupSums of_scores_[Memory::kPanels] = {};
  GroupSums of_weights_[Tile::kOfColumns ? Memory::kPanels : 1] = {};
};

template <class Tile>
__device__ const BlockTileList& block_tiles(const typename Tile::Problem& p) {
  if constexpr (Tile::kForward) {
    return p.tiles;
  } else {
    return Tile::kOfColumns ? p.columns : p.rows;
  }
}

template <class Tile>
__global__ void __launch_bounds__(BlockGroupMemory<Tile>::kThreads, Tile::kBlocks)
    block_group_kernel(const __grid_constant__ typename Tile::Problem p) {
  char* memory = dynamic_shared();
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  BlockGroupWarp<Tile> warp(p, block_tiles<Tile>(p), shared);
  warp.run();
}

template <class Tile>
void launch_block_group(const char* call, const typename Tile::Problem& p, Stream stream) {
  using Memory = BlockGroupMemory<Tile>;
  const auto kernel = block_group_kernel<Tile>;
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(kernel, Memory::kSharedBytes, prepared);
  const int64_t heads = p.problem.batches * p.problem.heads;
  const int64_t panels = ceil_div<int64_t>(Tile::kOfColumns ? p.keys : p.queries, kBlockTile);
  const dim3 grid = grid_of(panels * kBlockTile, Memory::kOwnRows, heads, call);
  launch_shared(call, kernel, grid, Memory::kThreads, Memory::kSharedBytes, stream, p);
}

template <Precision P, int kFeatures>
void run_block_group(const BlockAttention& p, Stream stream) {
  launch_block_group<BlockGroupTile<P, kFeatures, BlockPass::kForward>>("attention_blocks", p,
                                                                        stream);
}

template <Precision P, int kFeatures>
void run_block_group(const BlockAttentionGrad& p, Stream stream) {
  const char* call = "attention_blocks_backward";
  launch_block_group<BlockGroupTile<P, kFeatures, BlockPass::kRows>>(call, p, stream);
  if (p.dk.data != nullptr || p.dv.data != nullptr) {
    launch_block_group<BlockGroupTile<P, kFeatures, BlockPass::kColumns>>(call, p, stream);
  }
}

template <Precision P, class Problem>
void run_block_groups(const Problem& p, Stream stream) {
  const bool wide = p.problem.d > 64 || p.problem.dv > 64;
  wide ? run_block_group<P, 128>(p, stream) : run_block_group<P, 64>(p, stream);
}

}  // namespace gnnsparse::cuda
