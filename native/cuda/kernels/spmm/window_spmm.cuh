// SpMM on Tensor Cores over windows of 8 or 16 rows (FlashSparse, section 3.3; SSpMM, algorithm 2),
// for every way the blocked format stores values. One warp takes a item of a window and a tile
// of features; nothing passes through shared memory. window_tile.h has the register maps.
#pragma once

#include "device/launch.cuh"
#include "device/mma.cuh"
#include "device/vector.cuh"
#include "gnnsparse/window_problem.h"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

inline constexpr int kWindowWarps = 2;  // of a block; they share nothing

// Blocks that must fit on a multiprocessor. Many resident warps hide the latency of the gather
// better than rows fetched ahead do (notes/log.md), as long as nothing spills.
template <class Source>
inline constexpr int kWindowBlocks = 8;
template <class Tile, uint32_t kUnit>
inline constexpr int kWindowBlocks<BitSource<Tile, kUnit>> = 16;
template <class Tile>
inline constexpr int kWindowBlocks<RowValueSource<Tile>> = 12;
template <class Tile>
inline constexpr int kWindowBlocks<DenseSource<Tile, 1>> = 12;

template <Precision P, class Source>
class WindowWarp {
 public:
  using Tile = WindowTile<P>;
  static_assert(operands_are_stored<P>(), "registers hold what is loaded");
  static constexpr int kRowTiles = Source::kRowTiles;

  __device__ WindowWarp(const WindowSpmm& p, const WindowRange& range, int lane, int64_t feature)
      : p_(p),
        range_(range),
        source_(p.a, p.row_values(), range, lane),
        x_(static_cast<const typename Tile::Storage*>(p.x.data) + feature),
        position_(kWindowKTile * range.first_k_tile + lane_slot(lane)),
        active_(feature < p.n) {}

  __device__ void run() {
    SlotColumns columns = {};
    if (range_.k_tiles > 0) columns = slot_columns(p_.a, range_, position_);
    for (int k_tile = 0; k_tile < range_.k_tiles; ++k_tile) {
      Vec16 rows[kLaneSlots];
#pragma unroll
      for (int i = 0; i < kLaneSlots; ++i) {
        rows[i] = active_ ? load_vec16(x_ + columns.id[i] * p_.x.stride) : Vec16{};
      }
      typename Tile::Values values[kRowTiles];
      source_.next(values);
      position_ += kWindowKTile;
      if (k_tile + 1 < range_.k_tiles) columns = slot_columns(p_.a, range_, position_);
      __syncwarp();  // sources branch by lane, an mma takes the whole warp
      multiply(rows, values);
    }
  }

  // The lane's features of result row r (0 to 2 kRowTiles - 1).
  __device__ void result(int r, float (&out)[Tile::kLaneFeatures]) const {
#pragma unroll
    for (int i = 0; i < Tile::kLaneFeatures; ++i) {
      out[i] = sums_[r / 2][result_accumulator(i)][result_register(i, r % 2)];
    }
  }

 private:
  __device__ void multiply(const Vec16 (&rows)[kLaneSlots],
                           const typename Tile::Values (&values)[kRowTiles]) {
#pragma unroll
    for (int m = 0; m < Tile::kMmas; ++m) {
      uint32_t a[4];
      Tile::a_registers(rows, m, a);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        uint32_t b[2];
        Tile::b_registers(values[tile], m, b);
        mma<kArithmetic<P>>(sums_[tile][Tile::accumulator(m)], a, b);
      }
    }
  }

  const WindowSpmm& p_;
  const WindowRange& range_;
  Source source_;
  const typename Tile::Storage* x_;
  int position_;
  bool active_;
  float sums_[kRowTiles][Tile::kAccumulators][4] = {};
};

template <Precision P, class Source>
__global__ void __launch_bounds__(kWindowWarps* kWarp, kWindowBlocks<Source>)
    window_spmm_kernel(const __grid_constant__ WindowSpmm p) {
  using Tile = WindowTile<P>;
  const int lane = threadIdx.x % kWarp;
  const int64_t item = int64_t{blockIdx.x} * kWindowWarps + threadIdx.x / kWarp;
  if (item >= p.work.item_count) return;
  const WindowRange range = window_range(p.a, p.work.items, item);
  const int64_t feature = int64_t{blockIdx.y} * Tile::kFeatures + Tile::lane_feature(lane);
  WindowWarp<P, Source> warp(p, range, lane, feature);
  warp.run();
  if (feature >= p.n) return;

  const int partial = p.work.items[item].partial;
#pragma unroll
  for (int r = 0; r < 2 * Source::kRowTiles; ++r) {
    const int in_window = kTileRows * (r / 2) + result_row(lane, r % 2);
    float out[Tile::kLaneFeatures];
    warp.result(r, out);
    if (partial >= 0) {
      const int64_t row = int64_t{partial} * p.a.shape.window + in_window;
      float* to = p.partial + row * partial_stride(p.n) + feature;
#pragma unroll
      for (int i = 0; i < Tile::kLaneFeatures; i += 4) {
        *reinterpret_cast<float4*>(to + i) =
            make_float4(out[i], out[i + 1], out[i + 2], out[i + 3]);
      }
      continue;
    }
    const int64_t row = range.row + in_window;
    if (row >= p.a.rows) continue;
    const float scale = p.stored.row_scale != nullptr ? p.stored.row_scale[row] : 1.0f;
#pragma unroll
    for (int i = 0; i < Tile::kLaneFeatures; ++i) out[i] *= scale;
    store_row(p.y, p.stored.row_ids != nullptr ? p.stored.row_ids[row] : row, feature, p.n, out);
  }
}

template <Precision P, class Source>
void launch_window_spmm(const WindowSpmm& p, Stream stream) {
  using Tile = WindowTile<P>;
  const dim3 grid = grid_of(p.work.item_count, kWindowWarps,
                            ceil_div<int64_t>(p.n, Tile::kFeatures), "spmm_window");
  launch("spmm_window", window_spmm_kernel<P, Source>, grid, kWindowWarps * kWarp, stream, p);
}

template <Precision P>
void WindowSpmmUnit<P>::run(const WindowSpmm& p, Stream stream) {
  using Tile = WindowTile<P>;
  const bool wide = p.a.shape.window == 16;
  if (p.a.encoding == Encoding::kDense) {
    return wide ? launch_window_spmm<P, DenseSource<Tile, 2>>(p, stream)
                : launch_window_spmm<P, DenseSource<Tile, 1>>(p, stream);
  }
  if (p.a.value_ptr != nullptr) {
    return wide ? launch_window_spmm<P, PackedSource<Tile, 2>>(p, stream)
                : launch_window_spmm<P, PackedSource<Tile, 1>>(p, stream);
  }
  return p.stored.values != nullptr
             ? launch_window_spmm<P, RowValueSource<Tile>>(p, stream)
             : launch_window_spmm<P, BitSource<Tile, PrecisionTraits<P>::kOne>>(p, stream);
}

}  // namespace gnnsparse::cuda
