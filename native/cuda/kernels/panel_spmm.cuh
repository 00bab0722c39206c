// SpMM on Tensor Cores over panels of 16 or 32 rows. One warp takes a segment of a panel and 128
// bytes of every row of X; the rows that the panel needs go once through a ring of two stages in
// shared memory, and every row of the panel uses them. panel_tile.h has the maps.
//
// One warp is a block: nothing ever waits for another warp. The second grid dimension runs over
// slices of X, so that the rows in use at a time are a slice that stays in L2.
#pragma once

#include "device/async.cuh"
#include "device/launch.cuh"
#include "device/mma.cuh"
#include "device/vector.cuh"
#include "gnnsparse/panel_problem.h"

namespace gnnsparse::cuda {

inline constexpr int kRing = 2;  // stages in shared memory
inline constexpr uint32_t kStageBytes = 16 * kStageChunks;
inline constexpr int kPrefetchStages = 8;  // columns and bits come into L2 this much ahead

// Blocks that must fit on a multiprocessor: registers are the limit (64 sums a lane at 32 rows).
template <class Source>
inline constexpr int kPanelBlocks = Source::kRows == 32 ? 16 : 20;

template <Precision P, class Source>
class PanelWarp {
 public:
  using Tile = PanelTile<P>;
  static constexpr int kRowTiles = Source::kRows / 16;

  __device__ PanelWarp(const PanelSpmm& p, const PanelItem& item, int lane, int64_t feature,
                       uint32_t ring)
      : a_(p.a), stage_(item.stage), stages_(item.stages), lane_(lane), ring_(ring) {
    const int64_t at = feature + copy_chunk(lane) * Tile::kPerChunk;
    // Past the width of X there is nothing to read; zeros are copied instead.
    inside_ = at < p.n;
    whole_ = feature + (kRowChunks - 1) * Tile::kPerChunk < p.n;
    x_ = reinterpret_cast<const char*>(static_cast<const typename Tile::Storage*>(p.x.data) +
                                       (inside_ ? at : 0));
    stride_ = static_cast<uint32_t>(p.x.stride * sizeof(typename Tile::Storage));
  }

  __device__ void run() {
    if (stages_ == 0) return;
    int ids[kLaneColumns];
    int second[kLaneColumns];
    load_ids(0, ids);
    load_ids(1, second);
    typename Source::Stage operand = Source::load(a_, stage_, lane_);
    copy(0, ids);
    copy(1, second);
    load_ids(2, ids);
    for (int i = 0; i < stages_; ++i) {
      const int64_t next = stage_ + (i + 1 < stages_ ? i + 1 : i);
      const typename Source::Stage following = Source::load(a_, next, lane_);
      prefetch(i + kPrefetchStages);
      wait_copies<kRing - 1>();
      __syncwarp();  // the other lanes' copies
      multiply(ring_ + (i % kRing) * kStageBytes, operand);
      __syncwarp();  // everybody has read the stage that is overwritten now
      copy(i + kRing, ids);
      load_ids(i + kRing + 1, ids);
      operand = following;
    }
    wait_copies<0>();
  }

  float sums_[kRowTiles][Tile::kTiles][4] = {};

 private:
  __device__ void load_ids(int i, int (&ids)[kLaneColumns]) const {
    if (i >= stages_) return;
    const int32_t* columns = a_.columns + (stage_ + i) * kStage + copy_slot(lane_, 0);
    load_words(columns, reinterpret_cast<uint32_t (&)[kLaneColumns]>(ids));
  }

  __device__ void copy(int i, const int (&ids)[kLaneColumns]) const {
    const uint32_t to = ring_ + (i % kRing) * kStageBytes;
    // The last stage alone has slots without a column.
    if (whole_ && i + 1 < stages_) {
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) copy_async(to + place(j), row(ids[j]));
    } else if (i < stages_) {
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) {
        const bool real = inside_ && ids[j] >= 0;
        copy_async(to + place(j), real ? row(ids[j]) : x_, real ? 16 : 0);
      }
    }
    commit_copies();  // an empty group keeps the count of groups right
  }

  __device__ uint32_t place(int j) const {
    return 16 * stage_chunk(copy_slot(lane_, j), copy_chunk(lane_));
  }
  __device__ const char* row(int id) const {
    return x_ + uint64_t{static_cast<uint32_t>(id)} * stride_;
  }

  __device__ void prefetch(int i) const {
    if (i >= stages_ || lane_ > 2) return;
    const int64_t stage = stage_ + i;
    if (lane_ == 0) prefetch_l2(a_.columns + stage * kStage);
    if (lane_ == 1 && a_.bitmap != nullptr) prefetch_l2(a_.bitmap + stage * Source::kRows * 4);
    if (lane_ == 2 && a_.slot_scale != nullptr) {
      prefetch_l2(static_cast<const typename Tile::Storage*>(a_.slot_scale) + stage * kStage);
    }
  }

  __device__ void multiply(uint32_t stage, const typename Source::Stage& operand) {
#pragma unroll
    for (int q = 0; q < Tile::kMmas; ++q) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) Source::registers(operand, m, q, a[m]);
      if constexpr (Tile::kTf32) {
        multiply_words(stage, q, a);
      } else {
        multiply_matrices(stage, q, a);
      }
    }
  }

  __device__ void multiply_matrices(uint32_t stage, int q, const uint32_t (&a)[kRowTiles][4]) {
#pragma unroll
    for (int pair = 0; pair < Tile::kTiles / 2; ++pair) {
      uint32_t x[4];
      const int chunk = stage_chunk(matrix_slot(lane_, q), matrix_chunk(lane_, pair));
      load_matrices(stage + 16 * chunk, x);
      const uint32_t low[2] = {x[0], x[1]};
      const uint32_t high[2] = {x[2], x[3]};
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma<P>(sums_[m][2 * pair], a[m], low);
        mma<P>(sums_[m][2 * pair + 1], a[m], high);
      }
    }
  }

  __device__ void multiply_words(uint32_t stage, int q, const uint32_t (&a)[kRowTiles][4]) {
    uint32_t x[2][4];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int chunk = stage_chunk(word_slot(lane_, q, upper), word_chunk(lane_));
      load_shared(stage + 16 * chunk, x[upper]);
    }
#pragma unroll
    for (int tile = 0; tile < Tile::kTiles; ++tile) {
      const uint32_t b[2] = {to_tf32(x[0][tile]), to_tf32(x[1][tile])};
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) mma<P>(sums_[m][tile], a[m], b);
    }
  }

  const BlockedView& a_;
  int64_t stage_;
  int stages_;
  int lane_;
  uint32_t ring_;
  bool inside_;
  bool whole_;
  const char* x_;
  uint32_t stride_;
};

// Four neighbouring features of a row: sums of cut panels into the workspace, others into y.
struct PanelOutput {
  const PanelSpmm& p;
  int64_t first_row;
  int partial;
  float scale;

  template <int kHeight>
  __device__ void store(int in_panel, int64_t feature, float (&v)[4]) const {
    if (feature >= p.n) return;
    if (partial >= 0) {
      float* to = p.partial + (int64_t{partial} * kHeight + in_panel) * partial_stride(p.n);
      *reinterpret_cast<float4*>(to + feature) =
          make_float4(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
      return;
    }
    const int64_t row = first_row + in_panel;
    if (row >= p.a.rows) return;
    const float by = p.row_scale != nullptr ? p.row_scale[row] * scale : scale;
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] *= by;
    store_row(p.y, p.row_ids != nullptr ? p.row_ids[row] : row, feature, p.n, v);
  }
};

// Lanes of a pair exchange halves of two accumulators, so that each has four features of one.
template <class Source, int kTiles>
__device__ void store_pairs(const PanelOutput& out, const float (&sums)[kTiles][4], int first_row,
                            int lane, int64_t feature) {
  const bool odd = lane & 1;
#pragma unroll
  for (int pair = 0; pair < kTiles / 2; ++pair) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      float mine[2];
      float theirs[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float even_tile = sums[2 * pair][2 * upper + i];
        const float odd_tile = sums[2 * pair + 1][2 * upper + i];
        mine[i] = odd ? odd_tile : even_tile;
        theirs[i] = __shfl_xor_sync(0xffffffffu, odd ? even_tile : odd_tile, 1);
      }
      float v[4] = {odd ? theirs[0] : mine[0], odd ? theirs[1] : mine[1], odd ? mine[0] : theirs[0],
                    odd ? mine[1] : theirs[1]};
      const int column = 8 * (2 * pair + odd) + 2 * (lane & 2);
      out.store<Source::kRows>(first_row + (lane >> 2) + 8 * upper, feature + column, v);
    }
  }
}

template <class Source>
__device__ void store_words(const PanelOutput& out, const float (&sums)[4][4], int first_row,
                            int lane, int64_t feature) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    float v[4] = {sums[0][r], sums[1][r], sums[2][r], sums[3][r]};
    const int column = 8 * (lane & 3) + 4 * (r & 1);
    out.store<Source::kRows>(first_row + (lane >> 2) + 8 * (r >> 1), feature + column, v);
  }
}

template <Precision P, class Source>
__global__ void __launch_bounds__(kWarp, kPanelBlocks<Source>)
    panel_spmm_kernel(const __grid_constant__ PanelSpmm p) {
  using Tile = PanelTile<P>;
  __shared__ __align__(1024) uint4 ring[kRing * kStageChunks];
  const int lane = threadIdx.x;
  const auto words = __ldg(reinterpret_cast<const int4*>(p.items) + blockIdx.x);
  const PanelItem item = {words.x, words.y, words.z, words.w};
  const int64_t feature = int64_t{blockIdx.y} * Tile::kFeatures;
  PanelWarp<P, Source> warp(p, item, lane, feature,
                            static_cast<uint32_t>(__cvta_generic_to_shared(ring)));
  warp.run();
  const PanelOutput out{p, item.row, item.partial, Source::kScale};
#pragma unroll
  for (int m = 0; m < Source::kRows / 16; ++m) {
    if constexpr (Tile::kTf32) {
      store_words<Source>(out, warp.sums_[m], 16 * m, lane, feature);
    } else {
      store_pairs<Source>(out, warp.sums_[m], 16 * m, lane, feature);
    }
  }
}

template <Precision P, class Source>
void launch_panel_spmm(const PanelSpmm& p, Stream stream) {
  const int64_t slices = ceil_div<int64_t>(p.n, PanelTile<P>::kFeatures);
  const dim3 grid = grid_of(p.item_count, 1, slices, "spmm_panel");
  // Left alone the driver may give shared memory less than the blocks that fit by registers need.
  check(cudaFuncSetAttribute(panel_spmm_kernel<P, Source>,
                             cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "spmm_panel");
  launch("spmm_panel", panel_spmm_kernel<P, Source>, grid, kWarp, stream, p);
}

template <Precision P, int kRows>
void run_panels_of(const PanelSpmm& p, Stream stream) {
  if (p.a.encoding == Encoding::kDense) {
    launch_panel_spmm<P, ValuePanel<P, kRows>>(p, stream);
  } else if (p.a.slot_scale != nullptr) {
    launch_panel_spmm<P, ScaledPanel<P, kRows>>(p, stream);
  } else {
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

}  // namespace gnnsparse::cuda
