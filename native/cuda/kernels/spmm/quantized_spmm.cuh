// SpMM of an X of 8 bits on Tensor Cores over panels of 16 or 32 rows. As in panel_spmm.cuh a warp
// is a block, and takes an item of the work list and a slice of X: 128 bytes of every row, which
// are 128 features here. A pipeline stage has two K tiles: rows of half the bytes would otherwise
// leave half as many on their way. byte_tile.h has the maps of addresses and registers.
//
// Integers times bits are multiplied as bytes, and their sums are exact. e4m3, and integers times
// stored values, become float16 in registers; their sums are float32. The column weights of rank-1
// matrices are in X already (common/quantize.cu).
#pragma once

#include <type_traits>

#include "device/async.cuh"
#include "device/eight_bit.cuh"
#include "device/launch.cuh"
#include "device/mma.cuh"
#include "gnnsparse/byte_tile.h"
#include "gnnsparse/quantized_problem.h"
#include "kernels/common/panel_item.cuh"
#include "kernels/spmm/panel_store.cuh"

namespace gnnsparse::cuda {

inline constexpr int kByteStages = 2;
inline constexpr int kStageTiles = 2;
inline constexpr uint32_t kByteStageBytes = kStageTiles * kTileSliceBytes;

// Bits that become bytes of 0 and 1.
template <int kHeight>
struct UnitBytes : UnitPanel<Precision::kFp16, kHeight> {
  static constexpr float kScale = 1.0f;
};

// Blocks that must fit on a multiprocessor, in whole warps of its four parts; 128 sums a lane leave
// room for fewer.
template <class Source>
constexpr int quantized_blocks() {
  return resident_blocks(Source::kRows == 32 ? 8 : 12);
}

// K tile `i` of an item in the order in which they are taken: from the item's rotation on, then
// those before it, so that panels which run at a time read the same rows of X.
__device__ __forceinline__ int rotated(const PanelItem& item, int i) {
  const int at = i + item.rotation();
  return at < item.k_tiles ? at : at - item.k_tiles;
}

// Asks L2 for what a later block reads first: the columns of its first stage, and the bits or
// values of its first K tile.
template <class Source>
__device__ __forceinline__ void prefetch_later(const QuantizedSpmm& p, int lane) {
  const uint32_t later = p.work.prefetched(blockIdx.x);
  if (!p.work.has(later) || lane > kStageTiles) return;
  const PanelItem item = load_item(p.work.items + later);
  const int64_t slot = int64_t{item.first_k_tile + rotated(item, 0)} * kPanelKTile;
  const char* at = reinterpret_cast<const char*>(p.a.columns + slot + lane * kPanelKTile);
  if (lane == kStageTiles) {
    at = Source::kBitBytes > 0
             ? reinterpret_cast<const char*>(p.a.bitmap) + slot * Source::kRows / 8
             : static_cast<const char*>(p.a.values) + slot * Source::kRows * sizeof(uint16_t);
  }
  prefetch(at);
}

// Copies of the rows of X, stage by stage, for each slice anew.
class ByteRing {
 public:
  __device__ ByteRing(const QuantizedSpmm& p, const PanelItem& item, int lane, int slice,
                      uint32_t shared)
      : item_(item),
        columns_(p.a.columns + int64_t{item.first_k_tile} * kPanelKTile + copy_slot(lane, 0)),
        x_(static_cast<const char*>(p.x.data) + slice * kByteFeatures +
           copy_chunk(lane) * kChunkBytes),
        stride_(static_cast<uint32_t>(p.x.stride)),
        left_(static_cast<int>(p.n) - slice * kByteFeatures - copy_chunk(lane) * kChunkBytes),
        copy_to_(shared + copy_address(lane)) {}

  // Loads the columns of the next stage, which copy() takes.
  __device__ void look_up() {
#pragma unroll
    for (int u = 0; u < kStageTiles; ++u) {
      if (tile_ + u < item_.k_tiles) {
        load_words(columns_ + int64_t{rotated(item_, tile_ + u)} * kPanelKTile, ids_[u]);
      }
    }
  }

  // Starts the copies of the next stage to the one at `offset`.
  __device__ void copy(uint32_t offset) {
#pragma unroll
    for (int u = 0; u < kStageTiles; ++u) {
      if (tile_ + u >= item_.k_tiles) break;
      const uint32_t to = copy_to_ + offset + u * kTileSliceBytes;
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) {
        const char* row = x_ + uint64_t{ids_[u][j]} * stride_;
        const bool real = left_ > 0 && static_cast<int32_t>(ids_[u][j]) >= 0;
        copy_async_or_zero(copy_address(to, j), row, real);
      }
    }
    tile_ += kStageTiles;
    if (tile_ >= item_.k_tiles) {
      tile_ = 0;
      x_ += kRowSliceBytes;
      left_ -= kByteFeatures;
    }
  }

 private:
  const PanelItem& item_;
  const int32_t* columns_;  // of the lane's slots in the item's first K tile
  const char* x_;           // row 0 of X, from the lane's chunk on
  uint32_t stride_;
  int left_;  // features from the lane's chunk on
  uint32_t copy_to_;
  int tile_ = 0;  // the first of the next stage, in the order in which they are taken
  uint32_t ids_[kStageTiles][kLaneColumns] = {};
};

// The sums of a slice of a panel, and one K tile's part in them.
template <EightBit kType, class Source>
class ByteProduct {
 public:
  static constexpr bool kExactSums = kType == EightBit::kInt8 && Source::kExact;
  static constexpr int kRowTiles = Source::kRows / 16;
  static constexpr int kMmas = kPanelKTile / FragmentM16N8K16::kK;  // of float16
  using Sum = std::conditional_t<kExactSums, int32_t, float>;

  __device__ explicit ByteProduct(int lane) : first_(byte_matrix_address(lane)) {}

  // Feature i of the lane's four in a chunk, in its row `upper` of row tile m.
  __device__ Sum sum(int m, int chunk, int upper, int i) const {
    return sums_[m][chunk][i & 1][2 * upper + (i >> 1)];
  }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kRowTiles * kByteChunks * 8; ++i) {
      sums_[i / 8 / kByteChunks][i / 8 % kByteChunks][i / 4 % 2][i % 4] = 0;
    }
  }

  __device__ void add(uint32_t rows, const typename Source::LaneKTile& k_tile) {
    if constexpr (kExactSums) {
      add_integers(rows, k_tile);
    } else {
      add_halves(rows, k_tile);
    }
  }

 private:
  __device__ void add_integers(uint32_t rows, const typename Source::LaneKTile& k_tile) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const uint32_t spread =
          spread_pairs<Source::kBrickRows>(k_tile.bits[Source::brick(m)], Source::tile(m));
#pragma unroll
      for (int r = 0; r < 4; ++r) a[m][r] = byte_units(spread, r);
    }
#pragma unroll
    for (int chunk = 0; chunk < kByteChunks; ++chunk) {
      uint32_t x[4];
      load_matrices(byte_matrix_address(rows + first_, chunk), x);
      const uint32_t even[2] = {select_bytes<0x6420>(x[0], x[1]), select_bytes<0x6420>(x[2], x[3])};
      const uint32_t odd[2] = {select_bytes<0x7531>(x[0], x[1]), select_bytes<0x7531>(x[2], x[3])};
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma(sums_[m][chunk][0], a[m], even);
        mma(sums_[m][chunk][1], a[m], odd);
      }
    }
  }

  __device__ void add_halves(uint32_t rows, const typename Source::LaneKTile& k_tile) {
    uint32_t a[kMmas][kRowTiles][4];
#pragma unroll
    for (int q = 0; q < kMmas; ++q) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) Source::registers(k_tile, m, q, a[q][m]);
    }
#pragma unroll
    for (int chunk = 0; chunk < kByteChunks; ++chunk) {
      uint32_t x[4];
      load_matrices(byte_matrix_address(rows + first_, chunk), x);
#pragma unroll
      for (int q = 0; q < kMmas; ++q) {
        uint32_t b[2][2];  // even features, odd ones
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          const uint32_t turned = select_bytes<0x3120>(x[2 * q + upper], 0);
          b[0][upper] = halves(turned);
          b[1][upper] = halves(turned >> 16);
        }
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma<Arithmetic::kFp16>(sums_[m][chunk][0], a[q][m], b[0]);
          mma<Arithmetic::kFp16>(sums_[m][chunk][1], a[q][m], b[1]);
        }
      }
    }
  }

  static __device__ uint32_t halves(uint32_t bytes) {
    return kType == EightBit::kInt8 ? int8_pair(bytes) : e4m3_pair(bytes);
  }

  uint32_t first_;
  Sum sums_[kRowTiles][kByteChunks][2][4] = {};
};

// Writes the sums of a slice: those of a panel that was not cut times their factors to y, others as
// they are, integers or floats, to the workspace.
template <EightBit kType, class Source>
__device__ __forceinline__ void store_bytes_slice(const QuantizedSpmm& p, const PanelItem& item,
                                                  const PanelRows<Source>& rows, int lane,
                                                  int slice,
                                                  const ByteProduct<kType, Source>& product) {
  using Product = ByteProduct<kType, Source>;
#pragma unroll
  for (int group = 0; group < Source::kRows / 8; ++group) {
    const int in_panel = 8 * group + (lane >> 2);
    const int row = rows.id(in_panel);
    const float factor = rows.scale(in_panel);
    if (row < 0) continue;
#pragma unroll
    for (int chunk = 0; chunk < kByteChunks; ++chunk) {
      const int64_t feature = int64_t{slice} * kByteFeatures + byte_feature(lane, chunk);
      if (feature >= p.n) continue;
      typename Product::Sum sums[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = product.sum(group / 2, chunk, group & 1, i);
      if (item.partial >= 0) {
        const int64_t at = (int64_t{item.partial} * Source::kRows + in_panel) * partial_stride(p.n);
        uint32_t words[4];
        memcpy(words, sums, sizeof words);
        *reinterpret_cast<uint4*>(p.partial + at + feature) =
            make_uint4(words[0], words[1], words[2], words[3]);
      } else {
        const float4 scale = __ldg(reinterpret_cast<const float4*>(p.scale + feature));
        const float v[4] = {static_cast<float>(sums[0]) * scale.x * factor,
                            static_cast<float>(sums[1]) * scale.y * factor,
                            static_cast<float>(sums[2]) * scale.z * factor,
                            static_cast<float>(sums[3]) * scale.w * factor};
        store_row(p.y, row, feature, p.n, v);
      }
    }
  }
}

// What a lane loads of a stage for operand A.
template <class Source>
struct StageOperand {
  typename Source::LaneKTile k_tile[kStageTiles];

  __device__ void load(const BlockedView& a, const PanelItem& item, int tile, int lane) {
#pragma unroll
    for (int u = 0; u < kStageTiles; ++u) {
      if (tile + u < item.k_tiles) {
        k_tile[u] = Source::load(a, int64_t{item.first_k_tile} + rotated(item, tile + u), lane);
      }
    }
  }
};

template <EightBit kType, class Source>
__global__ void __launch_bounds__(kWarp, quantized_blocks<Source>())
    quantized_spmm_kernel(const __grid_constant__ QuantizedSpmm p) {
  __shared__ __align__(1024) uint4 ring_memory[kByteStages * kByteStageBytes / sizeof(uint4)];
  const int lane = threadIdx.x;
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(ring_memory));
  const PanelItem item = load_item(p.work.items + blockIdx.x);
  const int first = blockIdx.y * p.slices;
  const int slices = min(p.slices, static_cast<int>(ceil_div<int64_t>(p.n, kByteFeatures)) - first);
  const PanelRows<Source> rows(p, item, lane);
  ByteProduct<kType, Source> product(lane);
  ByteRing ring(p, item, lane, first, shared);
  StageOperand<Source> operand = {};
  StageOperand<Source> following = {};
  const int stages = ceil_div(item.k_tiles, kStageTiles);
  int remaining = stages * slices;  // stages to copy
  uint32_t here = 0;                // the stage that is multiplied
  if (remaining > 0) {
    ring.look_up();
    ring.copy(0);
    --remaining;
    ring.look_up();
    following.load(p.a, item, 0, lane);
  }
  prefetch_later<Source>(p, lane);
  for (int slice = first; slice < first + slices; ++slice) {
    for (int tile = 0; tile < item.k_tiles; tile += kStageTiles) {
      operand = following;
      wait_copies();
      // Now the copies of all lanes to this stage are there, and all lanes have read the other.
      __syncwarp();
      if (remaining > 0) {
        ring.copy(kByteStageBytes - here);
        --remaining;
        ring.look_up();
        const int next = tile + kStageTiles;
        following.load(p.a, item, next < item.k_tiles ? next : 0, lane);
      }
#pragma unroll
      for (int u = 0; u < kStageTiles; ++u) {
        if (tile + u < item.k_tiles) {
          product.add(shared + here + u * kTileSliceBytes, operand.k_tile[u]);
        }
      }
      here = kByteStageBytes - here;
    }
    store_bytes_slice(p, item, rows, lane, slice, product);
    product.clear();
  }
}

template <EightBit kType, class Source>
void launch_quantized_spmm(const QuantizedSpmm& p, Stream stream) {
  const int64_t slices = ceil_div<int64_t>(p.n, kByteFeatures);
  const dim3 grid =
      grid_of(p.work.item_count, 1, ceil_div<int64_t>(slices, p.slices), "spmm_quantized");
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(quantized_spmm_kernel<kType, Source>, 0, prepared);
  launch("spmm_quantized", quantized_spmm_kernel<kType, Source>, grid, kWarp, stream, p);
}

}  // namespace gnnsparse::cuda
