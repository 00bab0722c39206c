// The rows of dense arrays that a panel of attention needs, on their way through shared memory.
#pragma once

#include "device/async.cuh"
#include "gnnsparse/panel_attention.h"
#include "kernels/common/chunk_rows.cuh"
#include "kernels/common/panel_multiply.cuh"

namespace gnnsparse::cuda {

// How a block shares out a head. Rows of two arrays are gathered: Q or K, and V or the output's
// gradient. A slice is 128 bytes of the rows of a K tile.
//   kWarpCount: 16-row windows of a panel, one a warp, that share the gathered rows.
//   kWidth: slices of a row; 0: rows of up to 32 features, in 16 bits, of both arrays share a
//   slice.
template <Precision kPrecision, int kWarpCount, int kWidth>
struct AttentionTile {
  static constexpr Precision P = kPrecision;
  static constexpr bool kBytes = false;  // 8-bit numbers: attention_bytes.cuh
  using Own = AttentionTile;
  static constexpr int kSliceFeatures = PanelTile<P>::kFeatures;
  static constexpr int kWarps = kWarpCount;
  static constexpr int kRows = kQueryRows * kWarps;
  static constexpr bool kPaired = kWidth == 0;
  static constexpr int kSlices = kPaired ? 1 : kWidth;
  static constexpr int kTileSlices = kPaired ? 1 : 2 * kWidth;       // slices of a K tile
  static constexpr int kTiles = kPaired ? 4 : PanelTile<P>::kTiles;  // of an array in a slice
  // Of one array or the other in a slice: pairs of k-steps, and of tiles.
  static constexpr int kSecondKeys = kPaired ? 1 : 0;
  static constexpr int kFirstKeysEnd = kPaired ? 1 : 2;
  static constexpr int kSecondValues = kPaired ? 2 : 0;
  static constexpr int kFirstValuesEnd = kPaired ? 2 : 4;

  static __device__ __forceinline__ void sync() {
    if constexpr (kWarps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
};

// An array whose rows in every head are whole chunks, the last one padded with zeros. A panel may
// have no more than one K tile: what is alike for all warps is worked out before the launch.
struct ChunkedHeads {
  char* data = nullptr;
  uint32_t batch = 0;  // chunks
  uint32_t head = 0;
  uint32_t row = 0;  // bytes
  int bytes = 0;     // of a row

  ChunkedHeads() = default;
  ChunkedHeads(const HeadsView& view, int64_t width)
      : data(static_cast<char*>(const_cast<void*>(view.data))),
        batch(static_cast<uint32_t>(view.batch * size_of(view.dtype) / kChunkBytes)),
        head(static_cast<uint32_t>(view.head * size_of(view.dtype) / kChunkBytes)),
        row(static_cast<uint32_t>(view.row * size_of(view.dtype))),
        bytes(static_cast<int>(width * size_of(view.dtype))) {}
  ChunkedHeads(const ByteHeads& view, int64_t width)
      : data(static_cast<char*>(const_cast<void*>(view.data))),
        batch(static_cast<uint32_t>(view.batch / kChunkBytes)),
        head(static_cast<uint32_t>(view.head / kChunkBytes)),
        row(static_cast<uint32_t>(view.row)),
        bytes(static_cast<int>(width)) {}

  __device__ ChunkRows of(uint32_t b, uint32_t h) const {
    return {data + kChunkBytes * (uint64_t{b} * batch + uint64_t{h} * head), row, bytes};
  }
};

// What a lane copies of two arrays: always the same chunk of a row.
template <class Tile>
class LaneChunk {
 public:
  __device__ LaneChunk(const ChunkRows& first, const ChunkRows& second, int lane) {
    const int chunk = copy_chunk(lane);
    if constexpr (Tile::kPaired) {
      const bool upper = chunk >= kRowChunks / 2;
      set(0, upper ? second.data : first.data, upper ? second.stride : first.stride,
          upper ? second.bytes : first.bytes, chunk % (kRowChunks / 2));
    } else {
      set(0, first.data, first.stride, first.bytes, chunk);
      set(1, second.data, second.stride, second.bytes, chunk);
    }
  }

  // Its part of slice `step` of row `id` to shared memory; zeros where there is no such row.
  template <int kSlice>
  __device__ __forceinline__ void copy(uint32_t to, int id) const {
    constexpr int kArray = kSlice / Tile::kSlices;
    constexpr int kOffset = kRowSliceBytes * (kSlice % Tile::kSlices);
    const char* from = rows_[kArray] + uint64_t{static_cast<uint32_t>(id)} * stride_[kArray];
    copy_async_or_zero(to, from + kOffset, id >= 0 && kOffset < left_[kArray]);
  }

  // Its part of the first kCount slices of row `id`, 2 KB of shared memory apart.
  template <int kCount>
  __device__ __forceinline__ void copy_row(uint32_t to, int id) const {
    if constexpr (kCount > 1) copy_row<kCount - 1>(to, id);
    copy<kCount - 1>(to + (kCount - 1) * kQueryBytes, id);
  }

 private:
  __device__ void set(int array, const char* data, uint32_t stride, int bytes, int chunk) {
    rows_[array] = pin_register(data + 16 * chunk);
    stride_[array] = stride;
    left_[array] = bytes - 16 * chunk;
  }

  static constexpr int kArrays = Tile::kPaired ? 1 : 2;
  const char* rows_[kArrays];
  uint32_t stride_[kArrays];
  int left_[kArrays];  // bytes of a row from the chunk on
};

// The rows that a panel's columns name, K tile by K tile, through a ring of kPipelineStages slices:
// kAhead are on their way while one is in hand, the kPipelineStages - kAhead - 1 before it are
// still there. `row_stats` has 16 bytes for each column, with kRowStats.
template <class Tile, int kPipelineStages, int kAhead, bool kRowStats = false>
class RowStream {
 public:
  static constexpr int kRowStatsTiles = 4;
  static constexpr uint32_t kRowStatsBytes = kRowStats ? kRowStatsTiles * kRowStatsTileBytes : 0;
  static constexpr uint32_t kBytes = kPipelineStages * kTileSliceBytes + kRowStatsBytes;
  static_assert(kAhead / Tile::kTileSlices + 1 <= kRowStatsTiles,
                "row_stats that are on their way");

  __device__ RowStream(const BlockedView& a, const PanelItem& item, const LaneChunk<Tile>& chunk,
                       uint32_t ring, const float4* row_stats = nullptr)
      : row_stats_(row_stats), chunk_(chunk), k_tiles_(item.k_tiles), ring_(ring) {
    const int32_t* columns = a.columns + int64_t{item.first_k_tile} * kPanelKTile;
    own_columns_ = pin_register(columns + copy_slot(lane(), kShare * warp()));
    if (k_tiles_ > 0) {
      load_ids(0, ids_);
      load_ids(1, following_ids_);
    }
    copy_to_ = pin_register(ring + copy_address(copy_address(lane()), kShare * warp()));
  }

  // Starts the first copies, kAhead groups of them, and in the first one those of copy_own().
  template <class CopyOwn>
  __device__ __forceinline__ void start(const CopyOwn& copy_own) {
    if (k_tiles_ == 0) return;
    copy<0>(0);
    copy_own();
    commit<0>(0);
    start_slice<1>();
  }
  static __device__ void wait_for_own() {
    wait_copies_but<kAhead - 1>();
    __syncwarp();
  }

  // Slice kSlice of K tile `K tile` in shared memory, once all its copies have arrived.
  template <int kSlice>
  __device__ __forceinline__ uint32_t next(int k_tile) {
    wait_copies_but<kAhead - 1>();
    Tile::sync();  // and all lanes are done with the slice that is overwritten now
    copy_group<(kSlice + kAhead) % Tile::kTileSlices>(k_tile +
                                                      (kSlice + kAhead) / Tile::kTileSlices);
    const uint32_t slice = ring_ + here_;
    here_ = after(here_);
    return slice;
  }

  // Both slices of kCount K tiles at once: warps that wait for one another meet less often. Those
  // past the last K tile are zeros.
  template <int kCount>
  __device__ __forceinline__ void next_k_tiles(int k_tile, uint32_t (&first)[kCount],
                                               uint32_t (&second)[kCount]) {
    static_assert(Tile::kTileSlices == 2 && kAhead % (2 * kCount) == 0 &&
                      kPipelineStages == kAhead + 2 * kCount,
                  "whole k_tiles");
    wait_copies_but<kAhead - 2 * kCount>();
    Tile::sync();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      copy_group<0>(k_tile + kAhead / 2 + i);
      copy_group<1>(k_tile + kAhead / 2 + i);
      first[i] = ring_ + here_;
      second[i] = ring_ + after(here_);
      here_ = after(after(here_));
    }
  }

  // After the last K tile.
  static __device__ void finish() {
    if constexpr (kZerosPastEnd) wait_copies_but<0>();
  }

  // The row_stats of a K tile that has arrived, at row_stats_address of each slot.
  __device__ uint32_t row_stats(int k_tile) const {
    return ring_ + kPipelineStages * kTileSliceBytes + k_tile % kRowStatsTiles * kRowStatsTileBytes;
  }

 private:
  static constexpr int kShare = kLaneColumns / Tile::kWarps;  // columns that a lane copies
  // A lane of four warps copies so little that zeros are cheaper than the question.
  static constexpr bool kZerosPastEnd = Tile::kWarps > 1 && !kRowStats;

  static __device__ int lane() { return threadIdx.x % kWarp; }
  static __device__ int warp() { return Tile::kWarps == 1 ? 0 : threadIdx.x / kWarp; }
  static __device__ uint32_t after(uint32_t offset) {
    if constexpr ((kPipelineStages & (kPipelineStages - 1)) == 0) {
      return (offset + kTileSliceBytes) % (kPipelineStages * kTileSliceBytes);
    } else {
      return offset + kTileSliceBytes < kPipelineStages * kTileSliceBytes ? offset + kTileSliceBytes
                                                                          : 0;
    }
  }

  template <int kSlice>
  __device__ void start_slice() {
    if constexpr (kSlice < kAhead) {
      copy_group<kSlice % Tile::kTileSlices>(kSlice / Tile::kTileSlices);
      start_slice<kSlice + 1>();
    }
  }

  // Past the end none, or, of one warp, those of the last K tile: it does not copy them.
  __device__ void load_ids(int k_tile, int (&ids)[kShare]) const {
    if constexpr (Tile::kWarps == 1) {
      const int32_t* from = own_columns_ + int64_t{min(k_tile, k_tiles_ - 1)} * kPanelKTile;
      load_words(from, reinterpret_cast<uint32_t (&)[kShare]>(ids));
    } else {
      static_assert(kShare == 2, "one or four warps");
      int2 two = {-1, -1};
      if (k_tile < k_tiles_) {
        two = __ldg(reinterpret_cast<const int2*>(own_columns_ + int64_t{k_tile} * kPanelKTile));
      }
      ids[0] = two.x;
      ids[1] = two.y;
    }
  }

  template <int kSlice>
  __device__ __forceinline__ void copy_group(int k_tile) {
    copy<kSlice>(k_tile);
    commit<kSlice>(k_tile);
  }

  template <int kSlice>
  __device__ __forceinline__ void copy(int k_tile) {
    if (kZerosPastEnd || k_tile < k_tiles_) {
      const uint32_t to = copy_to_ + to_;
#pragma unroll
      for (int j = 0; j < kShare; ++j) chunk_.template copy<kSlice>(copy_address(to, j), ids_[j]);
      if constexpr (kRowStats && kSlice == 0) copy_row_stats(k_tile);
      to_ = after(to_);
    }
  }

  template <int kSlice>
  __device__ __forceinline__ void commit(int k_tile) {
    commit_copies();
    if constexpr (kSlice == Tile::kTileSlices - 1) {
#pragma unroll
      for (int j = 0; j < kShare; ++j) ids_[j] = following_ids_[j];
      load_ids(k_tile + 2, following_ids_);
    }
  }

  // Eight lanes have the same ids; one of them copies each one's.
  __device__ void copy_row_stats(int k_tile) const {
    const int mine = lane() % kRowChunks;
    int id = ids_[0];
#pragma unroll
    for (int j = 1; j < kShare; ++j) id = mine == j ? ids_[j] : id;
    if (mine >= kShare) return;
    const uint32_t to =
        row_stats(k_tile) + row_stats_address(copy_slot(lane(), kShare * warp() + mine));
    copy_async_or_zero(to, row_stats_ + max(id, 0), id >= 0);
  }

  const int32_t* own_columns_;
  const float4* row_stats_;
  LaneChunk<Tile> chunk_;
  int k_tiles_;
  uint32_t ring_;
  uint32_t copy_to_;
  uint32_t here_ = 0;
  uint32_t to_ = 0;
  int ids_[kShare];
  int following_ids_[kShare];
};

}  // namespace gnnsparse::cuda
