// SDDMM on Tensor Cores over panels of 16 rows: the rows of K that a panel needs go once through
// shared memory, as those of X in panel_spmm.cuh; the panel's rows of Q stay in registers, or in
// shared memory where they are wide. One warp is a block. panel_tile.h has the maps.
#pragma once

#include "device/launch.cuh"
#include "device/vector.cuh"
#include "gnnsparse/panel_problem.h"
#include "kernels/common/panel_multiply.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

// Slices of K tiles in shared memory. Two are on their way while one is multiplied: the writing of
// scores takes as long as a copy, which would leave memory idle.
inline constexpr int kScorePipelineStages = 3;

// A score on its way to `at`, counted from the panel's first nonzero.
struct Score {
  uint32_t at;
  float value;
};
static_assert(kQueryRows * kPanelKTile * sizeof(Score) <= kTileSliceBytes,
              "a full k_tile fits its slice");

// Where the scores of a lane go: rows g and g + 8 of the panel, in row order. Most K tiles have
// few: they are put side by side in shared memory first, so that a store writes 32 of them.
class ScoreOutput {
 public:
  // Of one K tile: the first place of each of the lane's rows, and the lane's part of the list.
  struct Places {
    uint32_t bits;
    int64_t at[2];
    int begin;
    int total;
  };

  __device__ ScoreOutput(const PanelSddmm& p, const PanelItem& item, int64_t index, int lane)
      : p_(p), lane_(lane), base_(p.stored.indptr[item.row]) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int in_panel = 8 * upper + (lane >> 2);
      const int row = item.row + in_panel;
      next_[upper] = row < p.a.rows
                         ? p.stored.indptr[row] + p.work.row_offsets[index * kQueryRows + in_panel]
                         : base_;
    }
  }

  // Needs the bits alone, so that its shuffles can run while the K tile's rows are on their way.
  __device__ Places places(uint32_t bits) {
    Places found;
    found.bits = bits;
    // Nonzeros of both rows in the lane's slots, and in those of the lanes before it.
    const int mine = __popc(bits & 0x000f000fu) | __popc(bits & 0x00f000f0u) << 16;
    int sum = mine;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, sum, step, 4);
      if ((lane_ & 3) >= step) sum += before;
    }
    const int row_total = __shfl_sync(0xffffffffu, sum, 3, 4);
    const int before = sum - mine;
    found.at[0] = next_[0] + (before & 0xffff);
    found.at[1] = next_[1] + (before >> 16);
    next_[0] += row_total & 0xffff;
    next_[1] += row_total >> 16;

    const int count = (mine & 0xffff) + (mine >> 16);
    int end = count;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int others = __shfl_up_sync(0xffffffffu, end, step);
      if (lane_ >= step) end += others;
    }
    found.begin = end - count;
    found.total = __shfl_sync(0xffffffffu, end, kWarp - 1);
    return found;
  }

  // Writes the scores of a K tile. `list` is free for all lanes, and is free again for the caller
  // after the next __syncwarp.
  __device__ void store(const Places& places, const float (&scores)[4][4], Score* list) const {
    if (p_.a.cols >= kWide) return write_each(places, scores);
    Score* to = list + places.begin;
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      auto place = static_cast<uint32_t>(places.at[upper] - base_);
#pragma unroll
      for (int slot = 0; slot < kLaneColumns; ++slot) {
        if (places.bits >> result_bit(upper, slot >> 1, slot & 1) & 1u) {
          *to++ = {place++, scores[slot >> 1][2 * upper + (slot & 1)]};
        }
      }
    }
    __syncwarp();
    for (int i = lane_; i < places.total; i += kWarp) {
      const Score score = list[i];
      store_scalar(p_.out, p_.out_dtype, base_ + score.at, score.value);
    }
  }

 private:
  // 16 rows of more columns might have more nonzeros than 32 bits count.
  static constexpr int64_t kWide = int64_t{1} << 28;

  __device__ void write_each(const Places& places, const float (&scores)[4][4]) const {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      int64_t at = places.at[upper];
#pragma unroll
      for (int slot = 0; slot < kLaneColumns; ++slot) {
        if (places.bits >> result_bit(upper, slot >> 1, slot & 1) & 1u) {
          store_scalar(p_.out, p_.out_dtype, at++, scores[slot >> 1][2 * upper + (slot & 1)]);
        }
      }
    }
  }

  const PanelSddmm& p_;
  int lane_;
  int64_t base_;
  int64_t next_[2];
};

// kHeld: slices of Q in registers, all there are; 0: they stay in shared memory, any number.
template <Precision P, int kHeld>
class ScoreWarp {
 public:
  using Tile = PanelTile<P>;
  static constexpr int kSize = sizeof(typename Tile::Storage);

  // Q on its way to registers shares the ring's last slice, which is copied to after that.
  __host__ __device__ static constexpr uint32_t shared_bytes(int slices) {
    const uint32_t queries = slices * kQueryBytes;
    if (kHeld == 0) return kScorePipelineStages * kTileSliceBytes + queries;
    return (kScorePipelineStages - 1) * kTileSliceBytes +
           (queries > kTileSliceBytes ? queries : kTileSliceBytes);
  }

  __device__ ScoreWarp(const PanelSddmm& p, const PanelItem& item, int lane, char* shared)
      : p_(p), item_(item), lane_(lane), shared_(shared) {
    ring_ = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    queries_ =
        ring_ + (kHeld == 0 ? kScorePipelineStages : kScorePipelineStages - 1) * kTileSliceBytes;
    slices_ = kHeld > 0 ? kHeld : static_cast<int>(ceil_div<int64_t>(p.d, Tile::kFeatures));
    k_ = static_cast<const char*>(p.k.data) + 16 * copy_chunk(lane);
    stride_ = static_cast<uint32_t>(p.k.stride * kSize);
  }

  __device__ void run(int64_t index) {
    copy_queries();
    commit_copies();
    ScoreOutput out(p_, item_, index, lane_);
    load_ids(0, ids_);
    load_ids(1, following_ids_);
#pragma unroll
    for (int i = 0; i < kScorePipelineStages - 1; ++i) copy();
    QuerySlice held[kHeld > 0 ? kHeld : 1];
    if constexpr (kHeld > 0) {
      wait_copies_but<kScorePipelineStages - 1>();
      __syncwarp();
#pragma unroll
      for (int slice = 0; slice < kHeld; ++slice) held[slice] = load_queries(slice);
    }
    uint32_t bits = load_bits<kQueryRows>(p_.a, item_.first_k_tile, lane_);
    for (int i = 0; i < item_.k_tiles; ++i) {
      const auto places = out.places(lane_bits(bits, kQueryRows));
      if (i + 1 < item_.k_tiles) {
        bits = load_bits<kQueryRows>(p_.a, int64_t{item_.first_k_tile} + i + 1, lane_);
      }
      float scores[4][4] = {};
      if constexpr (kHeld > 0) {
#pragma unroll
        for (int slice = 0; slice < kHeld; ++slice) {
          const uint32_t keys = next_slice();
          multiply_keys<P>(keys, lane_, held[slice], scores);
        }
      } else {
        for (int slice = 0; slice < slices_; ++slice) {
          const uint32_t keys = next_slice();
          multiply_keys<P>(keys, lane_, load_queries(slice), scores);
        }
      }
      __syncwarp();  // all have read the slice that holds the list now
      out.store(places, scores, reinterpret_cast<Score*>(shared_ + (keys_ - ring_)));
    }
  }

 private:
  // Bytes of a row in chunk `chunk` of slice `slice`.
  __device__ int chunk_bytes(int slice, int chunk) const {
    const int left = (static_cast<int>(p_.d) - slice * Tile::kFeatures) * kSize - 16 * chunk;
    return max(0, min(16, left));
  }

  __device__ void copy_queries() const {
    const int chunk = copy_chunk(lane_);
    for (int i = 0; i < kQueryRows / 4; ++i) {
      const int in_panel = 4 * i + lane_ / kRowChunks;
      const int64_t row = int64_t{item_.row} + in_panel;
      const bool inside = row < p_.a.rows;
      const int64_t id = !inside ? 0 : p_.stored.row_ids != nullptr ? p_.stored.row_ids[row] : row;
      const char* from =
          static_cast<const char*>(p_.q.data) + id * p_.q.stride * kSize + 16 * chunk;
      for (int slice = 0; slice < slices_; ++slice) {
        const int bytes = inside ? chunk_bytes(slice, chunk) : 0;
        const uint32_t to = queries_ + slice * kQueryBytes + 16 * query_chunk(in_panel, chunk);
        copy_async(to, bytes > 0 ? from + 128 * slice : p_.q.data, bytes);
      }
    }
  }

  __device__ QuerySlice load_queries(int slice) const {
    return load_query_slice<P>(queries_ + slice * kQueryBytes, lane_);
  }

  __device__ void load_ids(int i, int (&ids)[kLaneColumns]) const {
    if (i >= item_.k_tiles) return;
    load_words(p_.a.columns + (int64_t{item_.first_k_tile} + i) * kPanelKTile + copy_slot(lane_, 0),
               reinterpret_cast<uint32_t (&)[kLaneColumns]>(ids));
  }

  // Waits for the next slice and starts the copy that is two ahead of it.
  __device__ uint32_t next_slice() {
    wait_copies_but<kScorePipelineStages - 2>();
    // Now every lane's copies of this slice are there, and all are done with the one before it.
    __syncwarp();
    copy();
    keys_ = ring_ + here_;
    here_ = here_ + kTileSliceBytes < kScorePipelineStages * kTileSliceBytes
                ? here_ + kTileSliceBytes
                : 0;
    return keys_;
  }

  // Copies the next slice of the K tile's rows, or the first one of the next K tile's. Counts as
  // one copy where nothing is left as well.
  __device__ void copy() {
    if (copied_ < item_.k_tiles) {
      copy_slice();
      if (++copied_slice_ == slices_) {
        copied_slice_ = 0;
        ++copied_;
#pragma unroll
        for (int j = 0; j < kLaneColumns; ++j) ids_[j] = following_ids_[j];
        load_ids(copied_ + 1, following_ids_);
      }
    }
    commit_copies();
  }

  __device__ void copy_slice() {
    const int bytes = chunk_bytes(copied_slice_, copy_chunk(lane_));
#pragma unroll
    for (int j = 0; j < kLaneColumns; ++j) {
      const bool real = bytes > 0 && ids_[j] >= 0;
      const char* from = k_ + uint64_t{static_cast<uint32_t>(real ? ids_[j] : 0)} * stride_;
      const uint32_t to = ring_ + to_ + 16 * k_tile_chunk(copy_slot(lane_, j), copy_chunk(lane_));
      copy_async(to, real ? from + 128 * copied_slice_ : p_.k.data, real ? bytes : 0);
    }
    to_ =
        to_ + kTileSliceBytes < kScorePipelineStages * kTileSliceBytes ? to_ + kTileSliceBytes : 0;
  }

  const PanelSddmm& p_;
  const PanelItem& item_;
  int lane_;
  char* shared_;
  uint32_t ring_;
  uint32_t queries_;
  uint32_t keys_ = 0;  // the slice in hand
  uint32_t here_ = 0;  // offset of the next one
  uint32_t to_ = 0;    // offset of the next copy
  int slices_;
  const char* k_;
  uint32_t stride_;
  int ids_[kLaneColumns];
  int following_ids_[kLaneColumns];
  int copied_ = 0;
  int copied_slice_ = 0;
};

// Blocks that must fit on a multiprocessor: words take more registers.
template <Precision P>
inline constexpr int kScoreBlocks = kWords<P> ? 12 : 16;

template <Precision P, int kHeld>
__global__ void __launch_bounds__(kWarp, kScoreBlocks<P>)
    panel_sddmm_kernel(const __grid_constant__ PanelSddmm p) {
  const int4 words = __ldg(reinterpret_cast<const int4*>(p.work.items) + blockIdx.x);
  const PanelItem item = {words.x, words.y, words.z, words.w};
  if (item.k_tiles == 0) return;
  ScoreWarp<P, kHeld> warp(p, item, threadIdx.x, dynamic_shared());
  warp.run(blockIdx.x);
}

template <Precision P, int kHeld>
void launch_panel_sddmm(const PanelSddmm& p, int slices, Stream stream) {
  const uint32_t bytes = ScoreWarp<P, kHeld>::shared_bytes(slices);
  if (bytes > kCopyingSharedBytes) throw std::invalid_argument("d: too wide for the panel kernel");
  const auto kernel = panel_sddmm_kernel<P, kHeld>;
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(kernel, kCopyingSharedBytes, prepared);
  const dim3 grid = grid_of(p.work.item_count, 1, 1, "sddmm_panel");
  launch_shared("sddmm_panel", kernel, grid, kWarp, bytes, stream, p);
}

template <Precision P>
void PanelSddmmUnit<P>::run(const PanelSddmm& p, Stream stream) {
  const auto slices = static_cast<int>(ceil_div<int64_t>(p.d, PanelTile<P>::kFeatures));
  if (slices == 1) return launch_panel_sddmm<P, 1>(p, slices, stream);
  if constexpr (!kSplit<P>) {  // the parts of fp32 would not fit the registers
    if (slices == 2) return launch_panel_sddmm<P, 2>(p, slices, stream);
  }
  if constexpr (kArithmetic<P> == Arithmetic::kTf32) {
    if (slices == 4) return launch_panel_sddmm<P, 4>(p, slices, stream);
  }
  launch_panel_sddmm<P, 0>(p, slices, stream);
}

}  // namespace gnnsparse::cuda
