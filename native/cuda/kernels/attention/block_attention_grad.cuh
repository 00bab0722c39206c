// Attention over patterns made of dense tiles, backward: a pass over rows for dQ, and one over
// columns for dK and dV, each of which makes the weights again (FlashAttention-2, Dao 2023,
// algorithm 2, whose sums of dQ by atomics would differ from run to run). Products are Hopper's, of
// four warps, and go on while their warps do the softmax of the slice before (FlashAttention-3,
// Shah et al. 2024, section 3.2).
//
// Both passes are one loop: a warpgroup owns 64 rows of two operands, X1 and X2, and slices of 64
// rows of two others, Y1 and Y2, stream by.
//
//              X1  X2  Y1  Y2   sums
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

inline constexpr int kGroupRows = 64;  // of a warpgroup, and of a slice
inline constexpr int kGroupThreads = 4 * kWarp;
inline constexpr int kPanelBytes = 128 * kGroupRows;  // 64 features of 64 rows

// How blocks share out a head. Small blocks hide one another's beginnings and ends, but those of
// wide heads would not fit a multiprocessor's registers more than once (measured on an H100).
template <Precision kPrecision, int kHeadFeatures, bool kColumns>
struct BlockGradTile {
  static constexpr Precision P = kPrecision;
  static constexpr int kFeatures = kHeadFeatures;
  static constexpr bool kOfColumns = kColumns;
  static constexpr bool kNarrow = kFeatures <= 64;
  static constexpr int kGroups = kNarrow ? 1 : 2;
  static constexpr int kBlocks = !kNarrow ? 1 : kOfColumns ? 2 : 3;  // of a multiprocessor
  static constexpr int kSlots = !kNarrow ? 4 : kOfColumns ? 5 : 3;   // of the ring of slices
  // Whether a slice's last product is left to the next one, whose first products it is behind.
  static constexpr bool kLag = kOfColumns || !kNarrow;
  static constexpr bool kOwnHeld = kNarrow && kOfColumns;  // whether X1 and X2 are in registers
};

// Sizes in shared memory.
template <class Tile>
struct BlockGradMemory {
  static constexpr int kOwn = kGroupRows * Tile::kGroups;
  static constexpr int kThreads = kGroupThreads * Tile::kGroups;
  static constexpr int kPanels = Tile::kFeatures / 64;
  static constexpr int kChunks = Tile::kFeatures / 8;
  static constexpr int kOperandBytes = kPanels * kPanelBytes;  // 64 rows
  static constexpr int kSliceBytes = 2 * kOperandBytes;
  static constexpr int kStatBytes = 2 * 4 * kGroupRows;
  static constexpr int kStatsAt = 2 * Tile::kGroups * kOperandBytes + Tile::kSlots * kSliceBytes;
  static constexpr int kSharedBytes = kStatsAt + (Tile::kOfColumns ? Tile::kSlots * kStatBytes : 0);
};

template <class Tile>
class BlockGradWarp {
  using Memory = BlockGradMemory<Tile>;

 public:
  __device__ BlockGradWarp(const BlockAttentionGrad& p, uint32_t shared)
      : p_(p),
        own_(shared),
        ring_(shared + 2 * Tile::kGroups * Memory::kOperandBytes),
        stats_(shared + Memory::kStatsAt),
        group_(threadIdx.x / kGroupThreads),
        lane_(threadIdx.x % kWarp),
        first_own_(static_cast<int>(blockIdx.x) * Memory::kOwn) {
    warp_row_ = kGroupRows * group_ + threadIdx.x % kGroupThreads / kWarp * 16;
    const int heads = static_cast<int>(p.problem.heads);
    b_ = blockIdx.y / heads;
    h_ = blockIdx.y - b_ * heads;
    const BlockTileList& list = Tile::kOfColumns ? p.columns : p.rows;
    const int panel = first_own_ / kBlockTile;
    const int first = __ldg(list.starts + panel);
    tiles_ = reinterpret_cast<const int2*>(list.tiles) + first;
    count_ = __ldg(list.starts + panel + 1) - first;
    chunk_ = threadIdx.x % Memory::kChunks;
    copy_row_ = threadIdx.x / Memory::kChunks;
    const Source q(p.problem.q, p.problem.d, *this);
    const Source k(p.problem.k, p.problem.d, *this);
    const Source v(p.problem.v, p.problem.dv, *this);
    const Source grad(p.grad, p.problem.dv, *this);
    streams_[0] = Tile::kOfColumns ? q : k;
    streams_[1] = Tile::kOfColumns ? grad : v;
    copy_own(Tile::kOfColumns ? k : q, 0);
    copy_own(Tile::kOfColumns ? v : grad, 1);
    commit_copies();
    scale_ = p.problem.scale * kLog2E;
    own_ += group_ * Memory::kOperandBytes;
  }

  __device__ void run() {
#pragma unroll
    for (int n = 0; n < Tile::kSlots - 2; ++n) copy_slice(n);
    if constexpr (!Tile::kOfColumns) load_own_stats();
    if constexpr (Tile::kOwnHeld) {
      wait_slices<Tile::kSlots - 2>();
      __syncthreads();
      hold_own();
    }
#pragma unroll 1
    for (int i = 0; i < count_; ++i) {
      const int bits = __ldg(tiles_ + i).y;
      add_slice(2 * i, bits);
      add_slice(2 * i + 1, bits);
    }
    if constexpr (Tile::kLag) {
      if (count_ > 0) {
        begin_products();
        add_product(pending_, 0, last_, of_scores_);
        commit_products();
      }
    }
#pragma unroll
    for (int panel = 0; panel < Memory::kPanels; ++panel) {
      wait_products_but<0>(of_scores_[panel]);
      if constexpr (Tile::kOfColumns) wait_products_but<0>(of_weights_[panel]);
    }
    if constexpr (Tile::kOfColumns) {
      store(p_.dk, p_.problem.d, p_.problem.scale, of_scores_);
      store(p_.dv, p_.problem.dv, 1.0f, of_weights_);
    } else {
      store(p_.dq, p_.problem.d, p_.problem.scale, of_scores_);
    }
    wait_copies();
  }

 private:
  static constexpr Precision P = Tile::P;
  static constexpr DType kStorage = PrecisionTraits<P>::kStorage;
  static constexpr Arithmetic kMath = kArithmetic<P>;
  static constexpr int kSteps = kGroupRows / 16;

  // A thread's chunk of the rows of a head.
  struct Source {
    const char* data = nullptr;
    int64_t row = 0;  // bytes
    bool real = false;

    Source() = default;
    __device__ Source(const HeadsView& view, int64_t width, const BlockGradWarp& warp)
        : data(static_cast<const char*>(view.of(warp.b_, warp.h_).data) +
               kChunkBytes * warp.chunk_),
          row(2 * view.row),
          real(8 * warp.chunk_ < width) {}
  };

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

  static constexpr int kCopyRows =
      Memory::kThreads / Memory::kChunks;  // that threads copy at a time

  template <bool kKeys>
  __device__ __forceinline__ void copy_rows(const Source& source, uint32_t to, int first) const {
    const uint32_t at = to + chunk_address(copy_row_, chunk_);
#pragma unroll
    for (int j = 0; j < kGroupRows; j += kCopyRows) {
      const int id = row_id<kKeys>(first + copy_row_ + j);
      copy_async_or_zero(at + 128 * j, source.data + max(id, 0) * source.row,
                         id >= 0 && source.real);
    }
  }
  __device__ void copy_own(const Source& source, int which) const {
#pragma unroll
    for (int g = 0; g < Tile::kGroups; ++g) {
      copy_rows<Tile::kOfColumns>(source,
                                  own_ + (which * Tile::kGroups + g) * Memory::kOperandBytes,
                                  first_own_ + kGroupRows * g);
    }
  }

  // Half of a tile; past the end nothing but a group.
  __device__ __forceinline__ void copy_slice(int n) {
    if (n < 2 * count_) {
      const int first = __ldg(tiles_ + n / 2).x * kBlockTile + n % 2 * kGroupRows;
      const uint32_t to = ring_ + to_ * Memory::kSliceBytes;
      copy_rows<!Tile::kOfColumns>(streams_[0], to, first);
      copy_rows<!Tile::kOfColumns>(streams_[1], to + Memory::kOperandBytes, first);
      if (Tile::kOfColumns && threadIdx.x < Memory::kStatBytes / kChunkBytes) {
        const int half = threadIdx.x / (kGroupRows / 4);
        const float* from = stats_of(half) + first + 4 * (threadIdx.x % (kGroupRows / 4));
        copy_async(stats_ + to_ * Memory::kStatBytes + kChunkBytes * threadIdx.x, from);
      }
      to_ = to_ + 1 < Tile::kSlots ? to_ + 1 : 0;
    }
    commit_copies();
  }

  // The logarithms of the softmax's sums, or delta, of all stored rows of the head.
  __device__ const float* stats_of(int which) const {
    const int64_t rows = (p_.queries + kBlockTile - 1) / kBlockTile * kBlockTile;
    return p_.row_stats + (2 * int64_t{blockIdx.y} + which) * rows;
  }

  template <int kBut>
  __device__ __forceinline__ void wait_slices() const {
    wait_copies_but<kBut>();
    show_copies_to_products();
  }

  __device__ void load_own_stats() {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int row = first_own_ + warp_row_ + 8 * upper + lane_ / 4;
      log_sum_[upper] = __ldg(stats_of(0) + row);
      delta_[upper] = __ldg(stats_of(1) + row);
    }
  }

  __device__ void hold_own() {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const uint32_t from = own_ + which * Tile::kGroups * Memory::kOperandBytes;
      const int row = warp_row_ % kGroupRows + lane_ % 16;
#pragma unroll
      for (int step = 0; step < Tile::kFeatures / 16; ++step) {
        load_matrices_plain(from + chunk_address(row, 2 * step + lane_ / 16), held_[which][step]);
      }
    }
  }

  // Products of X1 with Y1, or X2 with Y2.
  __device__ __forceinline__ void multiply_own(int which, GroupSums& to) const {
    const uint32_t x = own_ + which * Tile::kGroups * Memory::kOperandBytes;
    const uint32_t y = ring_ + here_ * Memory::kSliceBytes + which * Memory::kOperandBytes;
#pragma unroll
    for (int step = 0; step < Tile::kFeatures / 16; ++step) {
      const uint32_t at = step / 4 * kPanelBytes + 32 * (step % 4);
      if constexpr (Tile::kOwnHeld) {
        multiply_held<kMath, false>(to, held_[which][step], y + at, step > 0);
      } else {
        multiply_rows<kMath>(to, x + at, y + at, step > 0);
      }
    }
  }

  using Packed = uint32_t[kSteps][4];

  __device__ __forceinline__ void add_product(const Packed& a, int which, int slot,
                                              GroupSums (&to)[Memory::kPanels]) const {
    const uint32_t y = ring_ + slot * Memory::kSliceBytes + which * Memory::kOperandBytes;
#pragma unroll
    for (int panel = 0; panel < Memory::kPanels; ++panel) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        multiply_held<kMath, true>(to[panel], a[step], y + panel * kPanelBytes + 128 * 16 * step,
                                   true);
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

  // Slice n. kLag: its last product is left to the next one.
  __device__ __forceinline__ void add_slice(int n, int bits) {
    constexpr bool kLag = Tile::kLag;
    wait_slices<Tile::kSlots - 3>();
    __syncthreads();  // and all warps are done with the slice before the last one
    copy_slice(n + Tile::kSlots - 2);
    begin_products();
    GroupSums scores;
    multiply_own(0, scores);
    commit_products();
    GroupSums grads;  // of the weights
    multiply_own(1, grads);
    commit_products();
    if constexpr (kLag) {
      add_product(pending_, 0, last_, of_scores_);
      commit_products();
    }
    wait_products_but<1 + kLag>(scores);
    weigh(scores);
    if (bits >= 0) hide(bits, n % 2, scores);
    if constexpr (Tile::kOfColumns) {
      Packed weights;
      pack(scores, weights);
      begin_products();
      add_product(weights, 1, here_, of_weights_);
      commit_products();
    }
    wait_products_but<kLag + Tile::kOfColumns>(grads);
    multiply_by_weights(scores, grads);
    if constexpr (kLag) wait_products_but<Tile::kOfColumns>(of_scores_[0]);
    pack(grads, pending_);
    if constexpr (!kLag) {
      begin_products();
      add_product(pending_, 0, here_, of_scores_);
      commit_products();
    }
    last_ = here_;
    here_ = here_ + 1 < Tile::kSlots ? here_ + 1 : 0;
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

  // Makes weights without an edge 0, by the tile's bits.
  __device__ __forceinline__ void hide(int bits, int half, GroupSums& weights) const {
    const uint32_t* of_tile = p_.bits + int64_t{bits} * (kBlockTile * kBlockTileWords);
    const int own = (first_own_ + warp_row_) % kBlockTile + lane_ / 4;
    const int other = kGroupRows * half + 2 * (lane_ % 4);
    // kBlockTileWords * row + column / 32 is the word, column % 32 the bit
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int mine = own + i / 2 * 8;
        const int its = other + 8 * j + i % 2;
        const int row = Tile::kOfColumns ? its : mine;
        const int column = Tile::kOfColumns ? mine : its;
        const uint32_t word = __ldg(of_tile + kBlockTileWords * row + column / 32);
        weights[j][i] = word >> column % 32 & 1u ? weights[j][i] : 0.0f;
      }
    }
  }

  __device__ void store(const HeadsView& view, int64_t width, float scale,
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
        pairs[4 * j] = pack_pair<kStorage>(scale * v[2 * upper], scale * v[2 * upper + 1]);
      }
    }
  }

  const BlockAttentionGrad& p_;
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
  Source streams_[2];
  int to_ = 0;    // slot that the next slice is copied to
  int here_ = 0;  // slot of the slice that is added
  int last_ = 0;  // slot of the one before
  float scale_;
  float log_sum_[2];
  float delta_[2];
  uint32_t held_[2][Tile::kOwnHeld ? Tile::kFeatures / 16 : 1][4];
  Packed pending_ = {};
  GroupSums of_scores_[Memory::kPanels] = {};
  GroupSums of_weights_[Tile::kOfColumns ? Memory::kPanels : 1] = {};
};

template <class Tile>
__global__ void __launch_bounds__(BlockGradMemory<Tile>::kThreads, Tile::kBlocks)
    block_grad_kernel(const __grid_constant__ BlockAttentionGrad p) {
  char* memory = dynamic_shared();
  BlockGradWarp<Tile> warp(p, static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
  warp.run();
}

// What both passes know of each stored row: the logarithm of its softmax's sum, of base 2, and
// delta, the sum of gradient times output (FlashAttention-2, section 3.2). The log's rounding, 5e-5
// of a weight where scores are about 900, is below that of weights of 16 bits.
template <Precision P>
__global__ void __launch_bounds__(256)
    block_stats_kernel(const __grid_constant__ BlockAttentionGrad p) {
  constexpr DType kStorage = PrecisionTraits<P>::kStorage;
  constexpr int kLanes = 8;  // of a row
  const int row = (blockIdx.x * 256 + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int64_t rows = (p.queries + kBlockTile - 1) / kBlockTile * kBlockTile;
  const int heads = static_cast<int>(p.problem.heads);
  const int b = blockIdx.y / heads;
  const int h = blockIdx.y - b * heads;
  const bool real = row < p.queries;
  const int id = !real || p.row_ids == nullptr ? row : __ldg(p.row_ids + row);
  float delta = 0.0f;
  if (real) {
    const DenseView out = p.out.of(b, h);
    const DenseView grad = p.grad.of(b, h);
    const auto* x = static_cast<const char*>(out.data) + 2 * id * out.stride;
    const auto* y = static_cast<const char*>(grad.data) + 2 * id * grad.stride;
    for (int chunk = lane; 8 * chunk < p.problem.dv; chunk += kLanes) {
      float of_x[8];
      float of_y[8];
      decode<kStorage>(load_vec16(x + kChunkBytes * chunk), of_x);
      decode<kStorage>(load_vec16(y + kChunkBytes * chunk), of_y);
#pragma unroll
      for (int i = 0; i < 8; ++i) delta += of_x[i] * of_y[i];
    }
  }
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) delta += __shfl_xor_sync(0xffffffffu, delta, step);
  if (lane != 0 || row >= rows) return;
  float log_sum = std::numeric_limits<float>::infinity();
  if (real) {
    const SoftmaxStats stats = p.stats[blockIdx.y * p.queries + id];
    if (stats.scale > 0.0f) log_sum = stats.shift - log2f(stats.scale);
  }
  float* to = p.row_stats + 2 * int64_t{blockIdx.y} * rows + row;
  to[0] = log_sum;
  to[rows] = delta;
}

template <class Tile>
void launch_block_grad(const BlockAttentionGrad& p, Stream stream) {
  using Memory = BlockGradMemory<Tile>;
  const auto kernel = block_grad_kernel<Tile>;
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(kernel, Memory::kSharedBytes, prepared);
  const int64_t heads = p.problem.batches * p.problem.heads;
  const dim3 grid =
      grid_of(Tile::kOfColumns ? p.keys : p.queries, Memory::kOwn, heads, "attention_blocks_grad");
  launch_shared("attention_blocks_grad", kernel, grid, Memory::kThreads, Memory::kSharedBytes,
                stream, p);
}

template <Precision P>
void launch_block_stats(const BlockAttentionGrad& p, Stream stream) {
  const int64_t heads = p.problem.batches * p.problem.heads;
  const dim3 grid = grid_of(ceil_div<int64_t>(p.queries, kBlockTile) * kBlockTile, 32, heads,
                            "attention_blocks_grad");
  launch("attention_blocks_grad", block_stats_kernel<P>, grid, 256, stream, p);
}

template <Precision P, int kFeatures>
void run_block_grad(const BlockAttentionGrad& p, Stream stream) {
  launch_block_stats<P>(p, stream);
  if (p.dq.data != nullptr) launch_block_grad<BlockGradTile<P, kFeatures, false>>(p, stream);
  if (p.dk.data != nullptr || p.dv.data != nullptr) {
    launch_block_grad<BlockGradTile<P, kFeatures, true>>(p, stream);
  }
}

}  // namespace gnnsparse::cuda
