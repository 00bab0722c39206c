// dK and dV by products of warpgroups, for GPUs that have them: those of attention_dkv.cuh, over
// dense tiles of 32 rows and 192 columns. A vector of eight rows of a column is 16 bytes, which is
// also what an operand of these products has of a column side by side. So the weights of a pattern
// whose tiles are nearly empty are copied to their places between zeros, and are multiplied as if
// the tile were full: Tensor Cores take as long as for dense attention, and nothing else does.
#pragma once

#include "device/warpgroup.cuh"
#include "kernels/attention/attention_dkv.cuh"

namespace gnnsparse::cuda {

// A block sums a range of columns of a head, one warpgroup those of dV and another those of dK. Of
// the other warps each has a stage, and copies the tiles that are taken there: one begins when both
// products of the one before it have ended, and stays until the copies have arrived.
template <Precision P>
class DkvTileBlock {
 public:
  static constexpr int kSumThreads = 2 * kGroupThreads;
  static constexpr int kThreads = kSumThreads + kWarp * DkvTiles::kStages;

  __device__ DkvTileBlock(const DkvLaunch& p, uint32_t shared)
      : p_(p),
        warp_(__shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0)),  // the same in a warp
        lane_(threadIdx.x % kWarp),
        shared_(pin_register(shared)),
        tiles_(static_cast<int>(ceil_div<int64_t>(p.a.rows, DkvTiles::kRows))) {
    const int64_t head = p.first_head + blockIdx.y;
    b_ = head / p.problem.heads;
    h_ = head % p.problem.heads;
  }

  __device__ void run() {
    if (threadIdx.x < DkvTiles::kStages) {
      make_barrier(copied(threadIdx.x), 1);
      make_barrier(multiplied(threadIdx.x), kSumThreads / kWarp);
    }
    __syncthreads();
    const int stage = warp_ - kSumThreads / kWarp;
    stage >= 0 ? copy_tiles(stage) : add_tiles();
    __syncthreads();
    if (stage < 0) put_sums();
    __syncthreads();
    store();
  }

 private:
  static constexpr uint32_t kWeightsAt = 2 * DkvTiles::kRowsBytes;
  // Of a lane that copies, entries before the tile may be copied.
  static constexpr int kOwnRows = DkvTiles::kRows / 4;
  static constexpr int kOwnEntries = 5;
  // Floats of a column's sums, in different banks for columns and features next to each other.
  static constexpr uint32_t kSumStride = 64 + 4;
  static constexpr uint32_t kSumBytes = 4 * kSumStride * DkvTiles::kColumns;  // of an array
  static_assert(2 * kSumBytes <= DkvTiles::kOperandBytes);

  // The barriers of a stage.
  __device__ uint32_t copied(int stage) const {
    return shared_ + DkvTiles::kOperandBytes + 16 * stage;
  }
  __device__ uint32_t multiplied(int stage) const { return copied(stage) + 8; }

  // A warp that copies. Addresses are made before it has to wait for its stage.
  class Copier {
   public:
    __device__ Copier(const DkvTileBlock& block, int stage)
        : lane_(block.lane_),
          tiles_(block.tiles_),
          entries_(reinterpret_cast<const int2*>(block.p_.dkv.tiles.entries)),
          starts_(block.p_.dkv.tiles.starts + int64_t{blockIdx.x} * block.tiles_),
          rows_(block.p_, block.b_, block.h_, block.lane_),
          upper_(stage % 2) {
      weights_ = pin_register(static_cast<const char*>(block.p_.dkv.weights) +
                              blockIdx.y * block.p_.dkv.slots * DkvWeights::kSlotBytes);
      const uint32_t pair = block.pair_of(stage);
      rows_to_ = pin_register(pair + upper_ * (DkvTiles::kRowsBytes / 2) + own_address(lane_));
      weights_to_ = pin_register(pair + kWeightsAt);
    }

    // Makes the weights of the warp's stage zeros.
    __device__ void clear() const {
      const int of_eight = lane_ / 8 + lane_ / 4 % 2 * 4;  // columns without bank conflicts
      const uint32_t to =
          weights_to_ + 128 * of_eight + kChunkBytes * ((4 * upper_ + lane_ % 4) ^ of_eight);
#pragma unroll 4
      for (uint32_t i = 0; i < 2 * DkvTiles::kWeightsBytes; i += 8 * 128) {
        store_shared(to + i, make_uint4(0, 0, 0, 0));
      }
      __syncwarp();
    }

    // What is to be copied of a tile.
    __device__ __forceinline__ void ask(int tile) {
      if (tile >= tiles_) return;
      begin_ = __ldg(starts_ + tile) + lane_;
      end_ = __ldg(starts_ + tile + 1);
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        ids_[i] = rows_.id(DkvTiles::kRows * tile + own_row(lane_, i));
      }
#pragma unroll
      for (int i = 0; i < kOwnEntries; ++i) {
        if (begin_ + kWarp * i < end_) own_[i] = __ldg(entries_ + begin_ + kWarp * i);
      }
    }

    __device__ __forceinline__ void copy() const {
#pragma unroll
      for (int i = 0; i < 2 * kOwnRows; ++i) {
        rows_.copy(i % 2, ids_[i / 2],
                   own_address(rows_to_, i / 2) + DkvTiles::kRowsBytes * (i % 2));
      }
#pragma unroll
      for (int i = 0; i < kOwnEntries; ++i) {
        if (begin_ + kWarp * i < end_) copy_vector(own_[i]);
      }
#pragma unroll 4
      for (int i = begin_ + kWarp * kOwnEntries; i < end_; i += kWarp) {
        copy_vector(__ldg(entries_ + i));
      }
    }

   private:
    // Eight rows of a column: their weights and the gradients of their scores, or zeros where the
    // stage's last tile had some.
    __device__ __forceinline__ void copy_vector(int2 entry) const {
      const char* from = weights_ + int64_t{entry.x} * (DkvWeights::kSlotBytes / 2);
      const uint32_t to = weights_to_ + entry.y;
      copy_async_or_zero(to, from, entry.x >= 0);
      copy_async_or_zero(to + DkvTiles::kWeightsBytes, from + kChunkBytes, entry.x >= 0);
    }

    int lane_;
    int tiles_;
    const int2* entries_;
    const int32_t* starts_;
    DkvRows rows_;
    int upper_;  // of two stages
    const char* weights_;
    uint32_t rows_to_;
    uint32_t weights_to_;
    // Of the tile.
    int ids_[kOwnRows];
    int begin_ = 0;
    int end_ = 0;
    int2 own_[kOwnEntries];
  };

  __device__ void copy_tiles(int stage) const {
    Copier copier(*this, stage);
    copier.ask(stage);
    copier.clear();
    uint32_t parity = 1;  // nothing has to end before the first tile
#pragma unroll 1
    for (int tile = stage; tile < tiles_; tile += DkvTiles::kStages) {
      wait_at(multiplied(stage), parity);
      parity ^= 1;
      copier.copy();
      commit_copies();
      copier.ask(tile + DkvTiles::kStages);
      wait_copies_but<0>();
      show_copies_to_products();
      __syncwarp();
      if (lane_ == 0) arrive_at(copied(stage));
    }
  }

  // Of two stages.
  __device__ uint32_t pair_of(int stage) const {
    return shared_ + stage / 2 * DkvTiles::kPairBytes;
  }

  // A tile's products go on while the next one is waited for.
  __device__ void add_tiles() {
    const int group = warp_ / 4;
    const uint32_t rows = shared_operand(shared_ + DkvTiles::kRowsBytes * group);
    const uint32_t weights = shared_operand(shared_ + kWeightsAt + DkvTiles::kWeightsBytes * group);
    uint32_t parity = 0;
#pragma unroll 1
    for (int first = 0; first < tiles_; first += DkvTiles::kStages) {
#pragma unroll
      for (int stage = 0; stage < DkvTiles::kStages; ++stage) {
        if (first + stage >= tiles_) break;
        const int pair = DkvTiles::kPairBytes / kChunkBytes * (stage / 2);
        wait_at(copied(stage), parity);
        __syncwarp();
        begin_products();
#pragma unroll
        for (int i = stage % 2 * 2; i < stage % 2 * 2 + 2; ++i) {
          add_turned<kArithmetic<P>>(sums_, rows + pair + 16 * 128 / kChunkBytes * i,
                                     weights + pair + 2 * i);
        }
        commit_products();
        wait_products_but<1>();
        const int before = stage > 0 ? stage - 1 : DkvTiles::kStages - 1;
        if (first + stage > 0 && lane_ == 0) arrive_at(multiplied(before));
      }
      parity ^= 1;
    }
    wait_products(sums_);
  }

  // A lane has features g and g + 8 of the warp's 16, and two columns of each eight.
  __device__ void put_sums() const {
    const int feature = warp_ % 4 * 16 + lane_ / 4;
    const uint32_t to = shared_ + kSumBytes * (warp_ / 4) + 4 * feature;
#pragma unroll
    for (int j = 0; j < DkvTiles::kColumns / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t column = 8 * j + 2 * (lane_ % 4) + i % 2;
        store_shared(to + 4 * kSumStride * column + 32 * (i / 2), __float_as_uint(sums_[j][i]));
      }
    }
  }

  // A warp takes a column, and a lane four features of dV or of dK.
  __device__ void store() const {
    const bool keys = lane_ >= kWarp / 2;
    const HeadsView& view = keys ? p_.dk : p_.dv;
    const int64_t width = keys ? p_.problem.d : p_.problem.dv;
    const int feature = lane_ % (kWarp / 2) * 4;
    if (view.data == nullptr || feature >= width) return;
    const MutableDenseView to = view.mutable_of(b_, h_);
    const float scale = keys ? p_.problem.scale : 1.0f;
    const int64_t first = int64_t{blockIdx.x} * DkvTiles::kColumns;
    const uint32_t from = shared_ + kSumBytes * keys + 4 * feature;
    for (int i = warp_; i < DkvTiles::kColumns && first + i < p_.a.cols; i += kThreads / kWarp) {
      uint32_t words[4];
      load_shared(from + 4 * kSumStride * i, words);
      float v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = scale * __uint_as_float(words[j]);
      store_row(to, first + i, feature, width, v);
    }
  }

  const DkvLaunch& p_;
  int warp_;
  int lane_;
  uint32_t shared_;
  int tiles_;  // of a range
  int64_t b_;
  int64_t h_;
  WideGroupSums sums_ = {};  // of a warp that multiplies
};

template <Precision P>
void launch_dkv_tiles(const PanelAttention& p, Stream stream) {
  launch_dkv_blocks<DkvTileBlock<P>>("attention_dkv_tiles", p, DkvTiles::kColumns,
                                     DkvTiles::kSharedBytes, DkvTiles::kSharedBytes, stream);
}

}  // namespace gnnsparse::cuda
