// The ring in shared memory that the rows of X pass through, one K tile a pipeline stage, and what
// comes with a K tile's rows: its metadata, which are its bits and column weights and the columns
// of the K tile that is copied when it is multiplied. With the columns in shared memory no register
// has to hold them until then.
#pragma once

#include <type_traits>

#include "device/async.cuh"
#include "gnnsparse/panel_problem.h"
#include "kernels/common/panel_item.cuh"

namespace gnnsparse::cuda {

inline constexpr uint32_t kColumnBytes = sizeof(int32_t) * kPanelKTile;

// Tile: the elements of X, as PanelTile has them. kCopyBytes: what a lane copies of a row of X at
// once. Rows that begin at multiples of 8 bytes are copied by halves of chunks, which takes twice
// as many copies, but no pass over X before. kStages: of the pipeline; all but one are on their way
// while that one is multiplied. kWarps: of the block, which share the ring. Each copies as many
// slots of each eight; the first one also copies the metadata.
template <class Tile, class Source, int kCopyBytes = kChunkBytes, int kStages = 2, int kWarps = 1>
class PanelRing {
 public:
  // A lane copies 16 bytes of the metadata: columns first, then bits, then column weights.
  static constexpr uint32_t kMetadataBytes = kColumnBytes + Source::kBitBytes + Source::kScaleBytes;
  static constexpr int kColumnLanes = kColumnBytes / kChunkBytes;
  static constexpr int kBitLanes = Source::kBitBytes / kChunkBytes;
  static constexpr int kMetadataLanes = kMetadataBytes / kChunkBytes;
  static_assert(kMetadataLanes <= kWarp, "a warp copies the metadata of a K tile at once");
  // From one stage to the next. Addresses inside a stage are made by exclusive ors of their last
  // seven bits (panel_tile.h), so stages begin at multiples of 128.
  static constexpr uint32_t kPitch = (kTileSliceBytes + kMetadataBytes + 127) / 128 * 128;
  static constexpr uint32_t kBytes = kStages * kPitch;
  static constexpr int kAhead = kStages - 1;                // K tiles on their way
  static constexpr int kLaneSlots = kLaneColumns / kWarps;  // of a K tile, that a lane copies

  // The stages behind and before the one at `offset`.
  static __device__ uint32_t behind(uint32_t offset) {
    if constexpr (kStages == 2) return kPitch - offset;
    return offset + kPitch < kBytes ? offset + kPitch : 0;
  }
  static __device__ uint32_t before(uint32_t offset) {
    if constexpr (kStages == 2) return kPitch - offset;
    return offset > 0 ? offset - kPitch : kBytes - kPitch;
  }

  __device__ PanelRing(const PanelSpmm& p, const PanelItem& item, int lane, int warp, uint32_t ring)
      : a_(p.a),
        k_tiles_(item.k_tiles),
        end_(item.first_k_tile + item.k_tiles),
        next_(item.first_k_tile + item.rotation()),
        lane_(lane),
        warp_(warp),
        ring_(ring) {
    if constexpr (kAhead > 1) {
      columns_next_ = next_;
      for (int i = 0; i < kAhead; ++i) step(columns_next_);
    }
  }

  // Has to be called before the first copy: copies begin with slice `slice` of X.
  __device__ void start_at(const PanelSpmm& p, int slice) {
    const int part = kHalves ? copy_half(lane_) : copy_chunk(lane_);
    const int at =
        slice * Tile::kFeatures + part * (kHalves ? Tile::kPerChunk / 2 : Tile::kPerChunk);
    left_ = static_cast<int>(p.n) - at;
    x_ = static_cast<const char*>(p.x.data) + at * int64_t{sizeof(typename Tile::Storage)};
    stride_ = static_cast<uint32_t>(p.x.stride * sizeof(typename Tile::Storage));
    copy_to_ = ring_ + (kHalves ? half_copy_address(lane_) : copy_address(lane_));
    copy_to_ += kRowSliceBytes * kLaneSlots * warp_;
    if constexpr (kBitLanes > 0) find_metadata();
  }

  // The K tile that is copied next.
  __device__ uint32_t next() const { return next_; }

  // The columns of the first kAhead K tiles come from global memory, those of the others with the K
  // tile that many before, which is in the stage at `offset`.
  __device__ void load_first_columns(uint32_t (&ids)[kLaneSlots]) const {
    load_words(a_.columns + uint64_t{next_} * kPanelKTile + first_slot(), ids);
  }
  __device__ void load_columns(uint32_t offset, uint32_t (&ids)[kLaneSlots]) const {
    load_shared_words(ring_ + offset + kTileSliceBytes + first_slot() * sizeof(int32_t), ids);
  }

  // Where the stage at `offset` has its rows of X, and its bits and column weights.
  __device__ uint32_t rows(uint32_t offset) const { return ring_ + offset; }
  __device__ uint32_t metadata(uint32_t offset) const {
    return ring_ + offset + kTileSliceBytes + kColumnBytes;
  }

  // Starts the copies of the next K tile, whose columns are `ids`, to the stage at `offset`.
  // `remaining` K tiles have not been copied yet.
  __device__ void copy(int& remaining, const uint32_t (&ids)[kLaneSlots], uint32_t offset) {
    // One way for all K tiles, though the last alone has slots without a column: the condition is
    // part of the copy.
    if constexpr (kHalves) {
      copy_halves(ids, offset);
    } else {
#pragma unroll
      for (int j = 0; j < kLaneSlots; ++j) {
        const char* row = x_ + uint64_t{ids[j]} * stride_;
        const bool real = left_ > 0 && static_cast<int32_t>(ids[j]) >= 0;
        copy_async_or_zero(copy_address(copy_to_ + offset, j), row, real);
      }
    }
    const uint32_t k_tile = next_;
    step(next_);
    --remaining;
    const bool columns = lane_ < kColumnLanes;
    if (warp_ == 0 && lane_ < kMetadataLanes && (!columns || remaining >= kAhead)) {
      const uint32_t later = kAhead > 1 ? columns_next_ : next_;
      copy_async_or_zero(ring_ + offset + kTileSliceBytes + kChunkBytes * lane_,
                         metadata_of(columns ? later : k_tile), true);
    }
    if constexpr (kAhead > 1) step(columns_next_);
    if (++copied_ == k_tiles_) {
      copied_ = 0;
      x_ += kRowSliceBytes;
      left_ -= Tile::kFeatures;
    }
  }

  // Ends the copies of a K tile, also where there was none to copy, and waits for the K tile that
  // is multiplied next.
  __device__ void commit() const {
    if constexpr (kAhead > 1) commit_copies();
  }
  __device__ void wait() const {
    if constexpr (kAhead > 1) {
      wait_copies_but<kAhead - 1>();
    } else {
      wait_copies();
    }
  }

  // Asks L2 for what a later block reads first: its columns, and the metadata of its first K tile.
  __device__ void prefetch_later(const WorkList<PanelItem>& work) const {
    const uint32_t later = work.prefetched(blockIdx.x);
    if (!work.has(later) || lane_ > 3 || warp_ > 0) return;
    const PanelItem item = load_item(work.items + later);
    const int64_t slot = int64_t{item.first_k_tile + item.rotation()} * kPanelKTile;
    const char* at = reinterpret_cast<const char*>(a_.columns + slot + (lane_ & 1) * kPanelKTile);
    if (lane_ == 2 && a_.bitmap != nullptr) {
      at = reinterpret_cast<const char*>(a_.bitmap) + slot * Source::kRows / 8;
    } else if (lane_ == 3 && a_.slot_scale != nullptr) {
      at = static_cast<const char*>(a_.slot_scale) + slot * sizeof(typename Tile::Storage);
    }
    if constexpr (kPackedSource<Source>) {
      if (lane_ == 2) at = reinterpret_cast<const char*>(a_.value_ptr + slot / kPanelKTile);
    }
    prefetch(at);
  }

 private:
  static constexpr bool kHalves = kCopyBytes == kHalfChunkBytes;
  static_assert(kHalves || kCopyBytes == kChunkBytes, "chunks of X, or halves of them");
  static_assert(kWarps == 1 || !kHalves, "a warp copies two groups of eight slots by halves");

  __device__ int first_slot() const { return copy_slot(lane_, kLaneSlots * warp_); }

  __device__ void copy_halves(const uint32_t (&ids)[kLaneColumns], uint32_t offset) {
#pragma unroll
    for (int i = 0; i < 2 * kLaneColumns; ++i) {
      const int pair = i / kLaneColumns;
      const int j = i % kLaneColumns;
      // The eight lanes of a group have the columns of its slots.
      const uint32_t id =
          __shfl_sync(0xffffffffu, ids[j], kRowChunks * half_copy_group(lane_, pair));
      const char* row = x_ + uint64_t{id} * stride_;
      const bool real = left_ > 0 && static_cast<int32_t>(id) >= 0;
      copy_number_async<kHalfChunkBytes>(half_copy_address(copy_to_ + offset, pair, j), row, real);
    }
  }

  // To the K tile after `k_tile` in the order in which they are taken.
  __device__ void step(uint32_t& k_tile) const {
    if (++k_tile == end_) k_tile -= k_tiles_;
  }

  __device__ void find_metadata() {
    if (lane_ < kColumnLanes) {
      from_ = reinterpret_cast<const char*>(a_.columns) + kChunkBytes * lane_;
      from_pitch_ = kColumnBytes;
    } else if (lane_ < kColumnLanes + kBitLanes) {
      from_ = reinterpret_cast<const char*>(a_.bitmap) + kChunkBytes * (lane_ - kColumnLanes);
      from_pitch_ = Source::kBitBytes;
    } else {
      const int chunk = lane_ - kColumnLanes - kBitLanes;
      from_ = static_cast<const char*>(a_.slot_scale) + kChunkBytes * chunk;
      from_pitch_ = Source::kScaleBytes;
    }
    // Otherwise the compiler chooses among the three anew, in 64 bits, for every K tile.
    from_ = pin_register(from_);
    from_pitch_ = pin_register(from_pitch_);
  }

  // The 16 bytes that this lane copies of a K tile's metadata.
  __device__ const char* metadata_of(uint32_t k_tile) const {
    if constexpr (kBitLanes > 0) return from_ + uint64_t{k_tile} * from_pitch_;
    return reinterpret_cast<const char*>(a_.columns) + uint64_t{k_tile} * kColumnBytes +
           kChunkBytes * lane_;
  }

  const BlockedView& a_;
  int k_tiles_;
  uint32_t end_;  // the K tile behind the item's last
  uint32_t next_;
  uint32_t columns_next_;  // whose columns are copied next, if they are not those of next_
  int lane_;
  int warp_;
  uint32_t ring_;
  int left_;             // features from the lane's part on, in the slice that is copied next
  const char* x_;        // row 0 of X, from the lane's chunk, or half of one, on
  uint32_t stride_;      // bytes of a row of X
  uint32_t copy_to_;     // where the lane's first chunk goes in the stage at offset 0
  const char* from_;     // the lane's part of the metadata of K tile 0
  uint32_t from_pitch_;  // bytes of that from one K tile to the next
  int copied_ = 0;       // K tiles of this slice
};

}  // namespace gnnsparse::cuda
