// SpMM on Tensor Cores over panels of 16 or 32 rows. One warp takes a segment of a panel and 128
// bytes of every row of X; the rows that the panel needs go once through a ring of two K tiles in
// shared memory, and every row of the panel uses them. With a K tile's rows come its bits and
// column weights, and the columns of the K tile after it. panel_tile.h has the maps.
//
// One warp is a block: nothing ever waits for another warp. The second grid dimension runs over
// slices of X, so that the rows in use at a time are a slice that stays in L2; where panels are
// short a warp takes several slices, to start less often.
#pragma once

#include <type_traits>

#include "device/async.cuh"
#include "device/launch.cuh"
#include "device/vector.cuh"
#include "gnnsparse/panel_problem.h"
#include "kernels/chunk_rows.cuh"
#include "kernels/panel_multiply.cuh"
#include "kernels/panel_operand.cuh"

namespace gnnsparse::cuda {

inline constexpr int kPipelineStages = 2;  // K tiles in shared memory
inline constexpr uint32_t kTileSliceBytes = 16 * kKTileChunks;
inline constexpr uint32_t kColumnBytes = sizeof(int32_t) * kPanelKTile;

// Blocks that must fit on a multiprocessor; registers are the limit.
template <Precision P, class Source>
constexpr int panel_blocks() {
  const bool tall = Source::kRows == 32;
  if (PanelTile<P>::kSplit) return tall ? 8 : 16;
  if (tall) return Source::kExact || std::is_same_v<Source, PackedPanel> ? 16 : 12;
  return resident_blocks(24);
}

// A product as its kernel is launched.
struct SpmmLaunch : PanelSpmm {
  ChunkRows chunks;  // y, where its rows are whole chunks of the storage type of the precision

  SpmmLaunch(const PanelSpmm& p, DType storage)
      : PanelSpmm(p), chunks(whole_chunks(p.y, p.n, storage)) {}
};

__device__ __forceinline__ PanelItem load_item(const PanelItem* at) {
  const auto words = __ldg(reinterpret_cast<const int4*>(at));
  return {words.x, words.y, words.z, words.w};
}

// Where a panel's results go and what they are multiplied with; all lanes ask together.
template <class Source>
class PanelRows {
 public:
  __device__ PanelRows(const PanelSpmm& p, const PanelItem& item, int lane)
      : scale_(Source::kScale) {
    row_ = item.row + lane % Source::kRows;
    if (row_ >= static_cast<int>(p.a.rows)) {
      row_ = -1;
    } else {
      if (p.stored.row_scale != nullptr && item.partial < 0)
        scale_ *= __ldg(p.stored.row_scale + row_);
      if (p.stored.row_ids != nullptr) row_ = __ldg(p.stored.row_ids + row_);
    }
  }
  // In y; -1: past the end.
  __device__ int id(int in_panel) const { return __shfl_sync(0xffffffffu, row_, in_panel); }
  __device__ float scale(int in_panel) const { return __shfl_sync(0xffffffffu, scale_, in_panel); }

 private:
  int row_;  // lane % kRows of the panel
  float scale_;
};

// A lane's results four at a time, of rows g, g + 8, ... of the panel. Sums of cut panels go into
// the workspace, others into y.
template <class Source>
class PanelOutput {
 public:
  static constexpr int kGroups = Source::kRows / 8;

  __device__ PanelOutput(const PanelSpmm& p, const PanelItem& item, const PanelRows<Source>& rows,
                         int lane)
      : p_(p), in_panel_(lane >> 2), partial_(item.partial) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      row_[group] = rows.id(8 * group + in_panel_);
      scale_[group] = rows.scale(8 * group + in_panel_);
    }
  }

  // Four neighbouring features.
  __device__ void store(int group, int64_t feature, float (&v)[4]) const {
    if (feature >= p_.n || row_[group] < 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] *= scale_[group];
    if (partial_ >= 0) {
      const int64_t row = int64_t{partial_} * Source::kRows + 8 * group + in_panel_;
      float* to = p_.partial + row * partial_stride(p_.n);
      *reinterpret_cast<float4*>(to + feature) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
      store_row(p_.y, row_[group], feature, p_.n, v);
    }
  }

 private:
  const PanelSpmm& p_;
  int in_panel_;
  int partial_;
  int row_[kGroups];
  float scale_[kGroups];
};

template <Precision P, class Source>
class PanelWarp {
 public:
  using Tile = PanelTile<P>;
  static constexpr int kRowTiles = Source::kRows / 16;
  // What comes with a K tile's rows, 16 bytes a lane: columns, bits, column weights.
  static constexpr uint32_t kMetadataBytes = kColumnBytes + Source::kBitBytes + Source::kScaleBytes;
  static constexpr int kColumnLanes = kColumnBytes / kChunkBytes;
  static constexpr int kBitLanes = Source::kBitBytes / kChunkBytes;
  static constexpr int kMetadataLanes = kMetadataBytes / kChunkBytes;
  // From K tile to K tile in the ring. Addresses in a K tile are exclusive ors of their last bits.
  static constexpr uint32_t kPitch = (kTileSliceBytes + kMetadataBytes + 127) / 128 * 128;

  __device__ PanelWarp(const SpmmLaunch& p, const PanelItem& item, int lane, int slice,
                       uint32_t ring)
      : p_(p),
        a_(p.a),
        item_(item),
        k_tiles_(item.k_tiles),
        end_(item.first_k_tile + item.k_tiles),
        next_(item.first_k_tile + item.rotation()),
        lane_(lane),
        slice_(slice),
        ring_(ring),
        rows_(p, item, lane) {
    const int at = slice * Tile::kFeatures + copy_chunk(lane) * Tile::kPerChunk;
    left_ = static_cast<int>(p.n) - at;
    x_ = static_cast<const char*>(p.x.data) + at * int64_t{sizeof(typename Tile::Storage)};
    stride_ = static_cast<uint32_t>(p.x.stride * sizeof(typename Tile::Storage));
    copy_to_ = ring + copy_address(lane);
    if constexpr (kBitLanes > 0) find_metadata();
  }

  // All K tiles for each of `slices` slices of X. The ring runs on from one slice to the next.
  __device__ void run(int slices) {
    PanelOperand<Source> operand(a_, lane_, ring_ + kPipelineStages * kPitch);
    uint32_t here = 0;                  // half of the ring that is multiplied
    int remaining = k_tiles_ * slices;  // K tiles to copy
    if (remaining > 0) {
      operand.look_up(next_);
      uint32_t ids[kLaneColumns];
      load_words(a_.columns + uint64_t{next_} * kPanelKTile + copy_slot(lane_, 0), ids);
      copy(remaining, ids, 0);
      operand.take();
    }
    prefetch_start();
    for (int slice = 0; slice < slices; ++slice) {
      for (int i = k_tiles_; i > 0; --i) {
        operand.look_up(next_);
        operand.put();
        wait_copies();
        // Now every lane's copies of this K tile are there, and all have read the one before it.
        __syncwarp();
        if (remaining > 0) {
          uint32_t ids[kLaneColumns];
          load_shared_words(ring_ + here + kTileSliceBytes + copy_slot(lane_, 0) * sizeof(int32_t),
                            ids);
          copy(remaining, ids, kPitch - here);
        }
        operand.open(ring_ + here + kTileSliceBytes + kColumnBytes);
        operand.take();
        multiply(ring_ + here, operand);
        here = kPitch - here;
      }
      store(slice_ + slice, ring_ + (kPitch - here));
    }
  }

 private:
  // Asks for what a later block reads first, so that it starts with hits in L2.
  __device__ void prefetch_start() const {
    const uint32_t later = p_.work.prefetched(blockIdx.x);
    if (!p_.work.has(later) || lane_ > 3) return;
    const PanelItem item = load_item(p_.work.items + later);
    const int64_t slot = int64_t{item.first_k_tile + item.rotation()} * kPanelKTile;
    const char* at = reinterpret_cast<const char*>(a_.columns + slot + (lane_ & 1) * kPanelKTile);
    if (lane_ == 2 && a_.bitmap != nullptr) {
      at = reinterpret_cast<const char*>(a_.bitmap) + slot * Source::kRows / 8;
    } else if (lane_ == 3 && a_.slot_scale != nullptr) {
      at = static_cast<const char*>(a_.slot_scale) + slot * sizeof(typename Tile::Storage);
    }
    if constexpr (std::is_same_v<Source, PackedPanel>) {
      if (lane_ == 2) at = reinterpret_cast<const char*>(a_.value_ptr + slot / kPanelKTile);
    }
    prefetch(at);
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
    // Otherwise they are chosen anew, in 64 bits, for every K tile.
    from_ = pin_register(from_);
    from_pitch_ = pin_register(from_pitch_);
  }

  // What this lane brings of a K tile, or of its columns.
  __device__ const char* metadata(uint32_t k_tile) const {
    if constexpr (kBitLanes > 0) return from_ + uint64_t{k_tile} * from_pitch_;
    return reinterpret_cast<const char*>(a_.columns) + uint64_t{k_tile} * kColumnBytes +
           kChunkBytes * lane_;
  }

  // Copies the next K tile to `offset` in the ring, its bits and weights, and the columns of the
  // one after it, which would otherwise take registers until then.
  __device__ void copy(int& remaining, const uint32_t (&ids)[kLaneColumns], uint32_t offset) {
    // One way for all K tiles, though the last alone has slots without a column: the condition is
    // part of the copy.
#pragma unroll
    for (int j = 0; j < kLaneColumns; ++j) {
      const char* row = x_ + uint64_t{ids[j]} * stride_;
      const bool real = left_ > 0 && static_cast<int32_t>(ids[j]) >= 0;
      copy_async_or_zero(copy_address(copy_to_ + offset, j), row, real);
    }
    const uint32_t k_tile = next_;
    if (++next_ == end_) next_ -= k_tiles_;
    --remaining;
    const bool columns = lane_ < kColumnLanes;
    if (lane_ < kMetadataLanes && (!columns || remaining > 0)) {
      copy_async_or_zero(ring_ + offset + kTileSliceBytes + kChunkBytes * lane_,
                         metadata(columns ? next_ : k_tile), true);
    }
    if (++copied_ == k_tiles_) {
      copied_ = 0;
      x_ += kRowChunks * kChunkBytes;
      left_ -= Tile::kFeatures;
    }
  }

  // The sums of a slice, which start again from zero. `own` is memory that nothing is copied to.
  __device__ void store(int slice, uint32_t own) {
    if (p_.chunks.data != nullptr && item_.partial < 0) {
      store_whole(slice, own);
    } else {
      const PanelOutput<Source> out(p_, item_, rows_, lane_);
      const int64_t feature = int64_t{slice} * Tile::kFeatures;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        if constexpr (kWords<P>) {
          store_words(out, sums_[m], 2 * m, lane_, feature);
        } else {
          store_pairs(out, sums_[m], 2 * m, lane_, feature);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4 * Tile::kTiles * kRowTiles; ++i) {
      sums_[i / (4 * Tile::kTiles)][i / 4 % Tile::kTiles][i % 4] = 0.0f;
    }
  }

  __device__ void store_whole(int slice, uint32_t own) const {
    constexpr int kSliceBytes = kRowChunks * kChunkBytes;
    const ChunkRows& y = p_.chunks;
    const ChunkRows to(y.data + int64_t{slice} * kSliceBytes, y.stride,
                       y.bytes - slice * kSliceBytes);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const int g = kQueryRows * m + (lane_ >> 2);
      const float scale[2] = {rows_.scale(g), rows_.scale(g + 8)};
      const auto row_id = [&](int in_tile) { return rows_.id(kQueryRows * m + in_tile); };
      store_chunks<P>(sums_[m], scale, row_id, to, lane_, own + m * kQueryBytes);
    }
  }

  __device__ void multiply(uint32_t k_tile, const PanelOperand<Source>& operand) {
    if constexpr (Tile::kSplit) {
      float fresh[kRowTiles][Tile::kTiles][4] = {};
      multiply_into(k_tile, operand, fresh);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4 * Tile::kTiles; ++i) sums_[m][i / 4][i % 4] += fresh[m][i / 4][i % 4];
      }
    } else {
      multiply_into(k_tile, operand, sums_);
    }
  }

  using Sums = float[kRowTiles][Tile::kTiles][4];

  __device__ void multiply_into(uint32_t k_tile, const PanelOperand<Source>& operand,
                                Sums& sums) const {
#pragma unroll
    for (int q = 0; q < Tile::kMmas; ++q) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) operand.registers(m, q, a[m]);
      if constexpr (Tile::kSplit) {
        multiply_split(k_tile, q, operand, a, sums);
      } else if constexpr (kWords<P>) {
        multiply_words(k_tile, q, a, sums);
      } else {
        multiply_matrices(k_tile, q, a, sums);
      }
    }
  }

  __device__ void multiply_matrices(uint32_t k_tile, int q, const uint32_t (&a)[kRowTiles][4],
                                    Sums& sums) const {
#pragma unroll
    for (int pair = 0; pair < Tile::kTiles / 2; ++pair) {
      uint32_t x[4];
      load_matrices(matrix_address(k_tile + matrix_address(lane_), q, pair), x);
      const uint32_t low[2] = {x[0], x[1]};
      const uint32_t high[2] = {x[2], x[3]};
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma<P>(sums[m][2 * pair], a[m], low);
        mma<P>(sums[m][2 * pair + 1], a[m], high);
      }
    }
  }

  __device__ void multiply_words(uint32_t k_tile, int q, const uint32_t (&a)[kRowTiles][4],
                                 Sums& sums) const {
    uint32_t x[2][4];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      load_shared(word_address(k_tile + word_address(lane_), q, upper), x[upper]);
    }
#pragma unroll
    for (int tile = 0; tile < Tile::kTiles; ++tile) {
      const uint32_t b[2] = {tf32_operand(x[0][tile]), tf32_operand(x[1][tile])};
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) mma<P>(sums[m][tile], a[m], b);
    }
  }

  // Four words are read at once, and an mma takes two from two reads, side by side. The compiler
  // rounds where they were read and moves them for each row tile; of what is rounded it leaves no
  // more to do than this addition, which puts them in their place for all row tiles.
  __device__ uint32_t tf32_operand(uint32_t bits) const {
    if constexpr (kRoundedX<Source>) return float_bits(bits_float(bits) + nothing_);
    return to_tf32(bits);
  }

  // fp32: what the small parts add comes first, so that it is not lost in the sum of the large.
  __device__ void multiply_split(uint32_t k_tile, int q, const PanelOperand<Source>& operand,
                                 const uint32_t (&a)[kRowTiles][4], Sums& sums) const {
    Split x[Tile::kTiles][2];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      uint32_t words[4];
      load_shared(word_address(k_tile + word_address(lane_), q, upper), words);
#pragma unroll
      for (int tile = 0; tile < Tile::kTiles; ++tile) {
        x[tile][upper] = split(operand.weigh(2 * q + upper, bits_float(words[tile])));
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      uint32_t high[4];
      uint32_t low[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const Split parts = Source::kExact ? Split{a[m][r], 0} : split(bits_float(a[m][r]));
        high[r] = parts.high;
        low[r] = parts.low;
      }
#pragma unroll
      for (int tile = 0; tile < Tile::kTiles; ++tile) {
        const uint32_t x_high[2] = {x[tile][0].high, x[tile][1].high};
        const uint32_t x_low[2] = {x[tile][0].low, x[tile][1].low};
        mma<P>(sums[m][tile], high, x_low);
        if constexpr (!Source::kExact) mma<P>(sums[m][tile], low, x_high);
        mma<P>(sums[m][tile], high, x_high);
      }
    }
  }

  const SpmmLaunch& p_;
  const BlockedView& a_;
  const PanelItem& item_;
  int k_tiles_;
  uint32_t end_;   // after the last K tile
  uint32_t next_;  // the K tile that is copied next
  int lane_;
  int slice_;
  uint32_t ring_;
  PanelRows<Source> rows_;
  int left_;  // features from the lane's chunk of the slice that is copied next on
  const char* x_;
  uint32_t stride_;
  uint32_t copy_to_;
  const char* from_;     // the lane's part of what comes with K tile 0
  uint32_t from_pitch_;  // bytes from K tile to K tile
  int copied_ = 0;       // K tiles of this slice
  float nothing_ = bits_float(pin_register(0x80000000u));  // -0, which the compiler does not know
  float sums_[kRowTiles][Tile::kTiles][4] = {};
};

template <Precision P, class Source>
__global__ void __launch_bounds__(kWarp, panel_blocks<P, Source>())
    panel_spmm_kernel(const __grid_constant__ SpmmLaunch p) {
  using Tile = PanelTile<P>;
  constexpr int kChunks = kPipelineStages * PanelWarp<P, Source>::kPitch / sizeof(uint4) +
                          PanelOperand<Source>::kSharedChunks;
  __shared__ __align__(1024) uint4 ring[kChunks];
  const int lane = threadIdx.x;
  const PanelItem item = load_item(p.work.items + blockIdx.x);
  const int first = blockIdx.y * p.slices;
  const int slices =
      min(p.slices, static_cast<int>(ceil_div<int64_t>(p.n, Tile::kFeatures)) - first);
  PanelWarp<P, Source> warp(p, item, lane, first,
                            static_cast<uint32_t>(__cvta_generic_to_shared(ring)));
  warp.run(slices);
}

template <Precision P, class Source>
void launch_panel_spmm(const PanelSpmm& p, Stream stream) {
  const int64_t slices = ceil_div<int64_t>(p.n, PanelTile<P>::kFeatures);
  const dim3 grid =
      grid_of(p.work.item_count, 1, ceil_div<int64_t>(slices, p.slices), "spmm_panel");
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(panel_spmm_kernel<P, Source>, 0, prepared);
  launch("spmm_panel", panel_spmm_kernel<P, Source>, grid, kWarp, stream,
         SpmmLaunch(p, storage_of(P)));
}

template <Precision P, int kRows>
void run_panels_of(const PanelSpmm& p, Stream stream) {
  constexpr bool kPacked = kRows == kPackedRows && !kWords<P>;
  using Values = std::conditional_t<kPacked, PackedPanel, ValuePanel<P, kRows>>;
  if (p.a.encoding != Encoding::kBitmap) {
    launch_panel_spmm<P, Values>(p, stream);
  } else if (p.a.slot_scale != nullptr) {
    launch_panel_spmm<P, ScaledPanel<P, kRows>>(p, stream);
  } else {
    // In other precisions nothing is.
    using Rounded =
        std::conditional_t<P == Precision::kTf32, RoundedPanel<kRows>, UnitPanel<P, kRows>>;
    if (p.x.rounded) return launch_panel_spmm<P, Rounded>(p, stream);
    launch_panel_spmm<P, UnitPanel<P, kRows>>(p, stream);
  }
}

// Every source for one precision; instantiated once in panel_spmm_<precision>.cu.
template <Precision P>
void run_panel_spmm(const PanelSpmm& p, Stream stream) {
  if (p.a.shape.window == 16) {
    run_panels_of<P, 16>(p, stream);
  } else {
    run_panels_of<P, 32>(p, stream);
  }
}

extern template void run_panel_spmm<Precision::kFp16>(const PanelSpmm&, Stream);
extern template void run_panel_spmm<Precision::kBf16>(const PanelSpmm&, Stream);
extern template void run_panel_spmm<Precision::kTf32>(const PanelSpmm&, Stream);
extern template void run_panel_spmm<Precision::kFp32>(const PanelSpmm&, Stream);

}  // namespace gnnsparse::cuda
