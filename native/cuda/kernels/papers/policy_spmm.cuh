// SpMM over windows of dense formats, by the mechanisms of the papers (window_policy.h):
// FlashSparse (sections 3.2 and 3.3), SSpMM (algorithm 2) and Tiled-CSR (section IV). policy_tile.h
// has the register maps. The window kernel (window_spmm.cuh) is the default policy; it is faster
// and takes every encoding.
#pragma once

#include <algorithm>
#include <type_traits>

#include "device/launch.cuh"
#include "device/mma.cuh"
#include "kernels/papers/policy_rows.cuh"
#include "kernels/papers/policy_store.cuh"
#include "kernels/papers/policy_values.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

// What is compiled apart: the rest of a policy is looked up while the kernel runs.
template <Precision kPrecision, bool kIsDeep, bool kIsSwapped, int kTiles, RowLoad kRowLoad>
struct PolicyKind {
  static constexpr Precision P = kPrecision;
  static constexpr bool kDeep = kIsDeep;
  static constexpr bool kSwapped = kIsSwapped;
  static constexpr int kRowTiles = kTiles;
  static constexpr RowLoad kLoad = kRowLoad;
  using Tile = PolicyTile<P>;
  using Rows = PolicyRows<P, kLoad>;
  using Result = PolicyResult<P, kSwapped, kRowTiles, Rows::kOrder>;
};

// Which blocks of threads there are, and in which order they start. As Tiled-CSR's 3D grid (figure
// 5) is: features of a slab, windows, slabs; in one dimension, because the others end at 65535.
struct PolicyGrid {
  uint32_t rows;         // blocks of items
  uint32_t features;     // groups of feature tiles
  uint32_t slab;         // groups that one slab has; the flat grid has slabs of one
  int warps;             // of a block
  uint32_t stage_bytes;  // of one buffer in shared memory

  struct Place {
    uint32_t rows;
    uint32_t features;
  };
  __device__ Place place(uint32_t block) const {
    const uint32_t of_slab = slab * rows;
    const uint32_t in_slab = block % of_slab;
    return {in_slab / slab, block / of_slab * slab + in_slab % slab};
  }
};

template <class Kind>
class PolicySums {
 public:
  using Tile = typename Kind::Tile;
  using Result = typename Kind::Result;
  using Values = uint32_t[Kind::kRowTiles][Tile::kRegisters];
  using Rows = typename Kind::Rows::Registers;

  // Adds the product of a K tile of which `slots` slots exist.
  __device__ void multiply(const Values& a, const Rows& x, int slots) {
    constexpr int kWide = Kind::kDeep ? 2 : 1;  // registers of an mma's operand, for each 8 rows
    constexpr int kProducts = Tile::kRegisters / kWide;
#pragma unroll
    for (int s = 0; s < kProducts; ++s) {
      if (s > 0 && slots <= kWindowKTile / kProducts * s) break;
      if constexpr (Kind::kSwapped) {
#pragma unroll
        for (int j = 0; j < Tile::kLaneFeatures / 2; ++j) {
          uint32_t left[2 * kWide];
#pragma unroll
          for (int w = 0; w < kWide; ++w) {
            left[2 * w] = x[kWide * s + w][2 * j];
            left[2 * w + 1] = x[kWide * s + w][2 * j + 1];
          }
#pragma unroll
          for (int tile = 0; tile < Kind::kRowTiles; ++tile) {
            uint32_t right[kWide];
#pragma unroll
            for (int w = 0; w < kWide; ++w) right[w] = a[tile][kWide * s + w];
            mma<kArithmetic<Kind::P>>(sum[tile * (Tile::kLaneFeatures / 2) + j], left, right);
          }
        }
      } else {
        uint32_t left[2 * kWide];
#pragma unroll
        for (int w = 0; w < kWide; ++w) {
          left[2 * w] = a[0][kWide * s + w];
          left[2 * w + 1] = a[1][kWide * s + w];
        }
#pragma unroll
        for (int i = 0; i < Tile::kLaneFeatures; ++i) {
          uint32_t right[kWide];
#pragma unroll
          for (int w = 0; w < kWide; ++w) right[w] = x[kWide * s + w][i];
          mma<kArithmetic<Kind::P>>(sum[i], left, right);
        }
      }
    }
  }

  float sum[Result::kSums][4] = {};
};

// The column slots of an item: [first, end), counted in its panel.
struct ItemSlots {
  __device__ explicit ItemSlots(const WindowRange& range)
      : first(kWindowKTile * range.first_k_tile),
        end(min(range.slots, first + kWindowKTile * range.k_tiles)) {}
  int first;
  int end;
};

// Elements of a row of X of which the bytes fit into 32 bits.
inline constexpr int64_t kMostWholeStride = int64_t{1} << 30;

// A in registers: each warp has an item of its own, and loads what it multiplies.
template <class Kind>
__device__ void multiply_direct(const PolicySpmm& p, const WindowRange& range, int lane,
                                int64_t tile, PolicySums<Kind>& sums) {
  using Tile = typename Kind::Tile;
  using Storage = typename Tile::Storage;
  const ItemSlots item(range);
  const int first = Tile::slot(lane, 0);
  const int32_t* columns = p.a.columns + range.first + first;
  const auto gathered = [&](int position) {
    Gathered slots;
#pragma unroll
    for (int q = 0; q < kLaneSlots; ++q) {
      const int at = position + Tile::slot(0, q);  // by how much the lane's slots lie apart
      slots.column[q] = at < item.end - first ? load_const(columns + at) : -1;
    }
    return slots;
  };
  const auto* values = static_cast<const Storage*>(p.a.values) + range.first * p.a.shape.window;
  const WindowBlocks<Kind::P, GlobalValues<Storage>> blocks({values}, p.log_block, range.slots,
                                                            p.a.shape.window, lane);
  const Storage* x = static_cast<const Storage*>(p.x.data) + tile;
  const int left = static_cast<int>(min(p.n - tile, int64_t{Tile::kFeatures}));
  int position = item.first;
  if (left == Tile::kFeatures && p.x.stride < kMostWholeStride) {
    // Whole K tiles need no test and no product of 64 bits, which are two thirds of what the
    // general loop executes.
    const Storage* from = x + Tile::feature(Kind::Rows::kOrder, lane_row(lane), 0);
    int32_t next[kLaneSlots] = {};
    const auto read = [&] {
      if (position + kWindowKTile > item.end) return;
#pragma unroll
      for (int q = 0; q < kLaneSlots; ++q) {
        next[q] = load_const(columns + position + Tile::slot(0, q));
      }
    };
    read();
    while (position + kWindowKTile <= item.end) {
      Vec16 rows[kLaneSlots];
      Kind::Rows::gather_whole(from, static_cast<uint32_t>(p.x.stride), next, rows);
      typename PolicySums<Kind>::Values a;
#pragma unroll
      for (int i = 0; i < Kind::kRowTiles; ++i) blocks.load_whole(i, position, a[i]);
      position += kWindowKTile;
      read();
      typename Kind::Rows::Registers registers;
      operand_registers<Kind::P>(rows, registers);
      sums.multiply(a, registers, kWindowKTile);
    }
  }
  Gathered slots = gathered(position);
  while (position < item.end) {
    Vec16 rows[kLaneSlots];
    Kind::Rows::gather(x, p.x.stride, left, slots, lane, rows);
    typename PolicySums<Kind>::Values a;
#pragma unroll
    for (int i = 0; i < Kind::kRowTiles; ++i) blocks.load(i, position, 0, a[i]);
    const int left_slots = item.end - position;
    position += kWindowKTile;
    slots = gathered(position);
    __syncwarp();  // loads branch by lane, an mma takes the whole warp
    typename Kind::Rows::Registers registers;
    operand_registers<Kind::P>(rows, registers);
    sums.multiply(a, registers, left_slots);
  }
}

inline constexpr int kStageSlots = 32;  // column slots that are copied at a time
inline constexpr int kStageTiles = kStageSlots / kWindowKTile;
inline constexpr int kMostPolicyWarps = 4;

constexpr uint32_t stage_values_bytes(int window, int value_bytes) {
  return static_cast<uint32_t>(kStageSlots * window * value_bytes);
}
// One buffer: values, columns, and each warp's rows of X.
constexpr uint32_t stage_buffer_bytes(int window, int value_bytes, int staged_warps) {
  return stage_values_bytes(window, value_bytes) + 4 * kStageSlots +
         static_cast<uint32_t>(staged_warps * kStageSlots * kStagedRowBytes);
}

// A in shared memory: the warps of a block share an item and copy it part by part; each has a
// feature tile of its own. With two buffers a part is copied while the one before is multiplied.
template <class Kind>
class StagedWindow {
 public:
  using Tile = typename Kind::Tile;
  using Storage = typename Tile::Storage;

  __device__ StagedWindow(const PolicySpmm& p, const PolicyGrid& grid, const WindowRange& range,
                          uint32_t shared)
      : p_(p),
        grid_(grid),
        range_(range),
        item_(range),
        shared_(shared),
        lane_(threadIdx.x % kWarp),
        warp_(threadIdx.x / kWarp) {}

  __device__ void multiply(int64_t tile, PolicySums<Kind>& sums) {
    ZeroIndex zeros[Kind::kRowTiles];
#pragma unroll
    for (int i = 0; i < Kind::kRowTiles; ++i) zeros[i] = zero_index(i);
    const int stages = ceil_div(item_.end - item_.first, kStageSlots);
    const bool ahead = p_.policy.stage_a == Staging::kDouble;
    if (ahead && stages > 0) copy(0, tile);
    for (int stage = 0; stage < stages; ++stage) {
      if (!ahead) {
        copy(stage, tile);
        wait_copies_but<0>();
      } else if (stage + 1 < stages) {
        copy(stage + 1, tile);
        wait_copies_but<1>();
      } else {
        wait_copies_but<0>();
      }
      __syncthreads();
      multiply_stage(stage, tile, zeros, sums);
      __syncthreads();  // all have read the buffer that is filled next
    }
  }

 private:
  __device__ ZeroIndex zero_index(int row_tile) const {
    const int64_t row = range_.row + lane_row(lane_) + kTileRows * row_tile;
    return ZeroIndex(p_, row, range_.first + item_.first, range_.first_k_tile == 0);
  }
  __device__ uint32_t buffer(int stage) const {
    const bool second = p_.policy.stage_a == Staging::kDouble && stage % 2 == 1;
    return shared_ + (second ? grid_.stage_bytes : 0);
  }
  __device__ uint32_t columns_at(uint32_t buffer) const {
    return buffer + stage_values_bytes(p_.a.shape.window, sizeof(Storage));
  }
  __device__ uint32_t rows_at(uint32_t buffer) const {
    return columns_at(buffer) + 4 * kStageSlots + warp_ * (kStageSlots * kStagedRowBytes);
  }

  // A part is whole blocks, so that its values lie in a row, whole 16 bytes.
  __device__ void copy(int stage, int64_t tile) const {
    const int begin = item_.first + stage * kStageSlots;
    const int count = min(kStageSlots, item_.end - begin);
    const uint32_t to = buffer(stage);
    const int64_t first = range_.first + begin;
    const int window = p_.a.shape.window;
    const char* values =
        static_cast<const char*>(p_.a.values) + first * window * int64_t{sizeof(Storage)};
    const int threads = grid_.warps * kWarp;
    const int bytes = count * window * static_cast<int>(sizeof(Storage));
    for (int at = 16 * static_cast<int>(threadIdx.x); at < bytes; at += 16 * threads) {
      copy_async_or_zero(to + at, values + at, true);
    }
    if (static_cast<int>(threadIdx.x) < count) {
      copy_number_async<4>(columns_at(to) + 4 * threadIdx.x, p_.a.columns + first + threadIdx.x,
                           true);
    }
    if constexpr (is_staged(Kind::kLoad)) copy_rows(rows_at(to), first, count, tile);
    commit_copies();
  }
  __device__ void copy_rows(uint32_t to, int64_t first, int count, int64_t tile) const {
    const auto* x = static_cast<const Storage*>(p_.x.data);
    const int chunk = lane_ % 8;
    const int64_t feature = tile + chunk * Tile::kLaneFeatures;
    const int whole = ceil_div(count, kWindowKTile) * kWindowKTile;
    for (int slot = lane_ / 8; slot < whole; slot += kWarp / 8) {
      const bool real = slot < count && feature < p_.n;
      const int64_t column = real ? load_const(p_.a.columns + first + slot) : 0;
      copy_async_or_zero(to + slot * kStagedRowBytes + 16 * chunk,
                         real ? x + column * p_.x.stride + feature : x, real);
    }
  }

  __device__ void multiply_stage(int stage, int64_t tile, ZeroIndex (&zeros)[Kind::kRowTiles],
                                 PolicySums<Kind>& sums) const {
    const int begin = item_.first + stage * kStageSlots;
    const uint32_t from = buffer(stage);
    // Blocks are as wide as what is left of the panel, which goes on after a part of a cut window.
    const WindowBlocks<Kind::P, SharedValues<Storage>> blocks(
        {from}, p_.log_block, range_.slots - begin, p_.a.shape.window, lane_);
    const int left = static_cast<int>(min(p_.n - tile, int64_t{Tile::kFeatures}));
#pragma unroll 1
    for (int k_tile = 0; k_tile < kStageTiles; ++k_tile) {
      const int position = kWindowKTile * k_tile;
      const int slots = item_.end - begin - position;
      if (slots <= 0) break;
      const uint32_t columns = columns_at(from) + 4 * position;
      Vec16 rows[kLaneSlots];
      if constexpr (!is_staged(Kind::kLoad)) {
        Gathered gathered;
#pragma unroll
        for (int q = 0; q < kLaneSlots; ++q) {
          const int slot = Tile::slot(lane_, q);
          gathered.column[q] =
              slot < slots ? static_cast<int32_t>(load_shared_word(columns + 4 * slot)) : -1;
        }
        const Storage* x = static_cast<const Storage*>(p_.x.data) + tile;
        Kind::Rows::gather(x, p_.x.stride, left, gathered, lane_, rows);
      }
      typename PolicySums<Kind>::Values a;
#pragma unroll
      for (int i = 0; i < Kind::kRowTiles; ++i) {
        uint32_t skip = 0;
        if (p_.zero_ptr != nullptr) skip = zeros[i].next(columns, min(slots, kWindowKTile), lane_);
        blocks.load(i, position, skip, a[i]);
      }
      __syncwarp();  // loads branch by lane, an mma takes the whole warp
      typename Kind::Rows::Registers registers;
      if constexpr (is_staged(Kind::kLoad)) {
        Kind::Rows::take(rows_at(from) + position * kStagedRowBytes, lane_, registers);
      } else {
        operand_registers<Kind::P>(rows, registers);
      }
      sums.multiply(a, registers, slots);
    }
  }

  const PolicySpmm& p_;
  const PolicyGrid& grid_;
  const WindowRange& range_;
  ItemSlots item_;
  uint32_t shared_;
  int lane_;
  int warp_;
};

inline constexpr int kDirectWarps = 2;  // of a block; they share nothing

// Blocks that must fit on a multiprocessor: as many as leave registers enough.
template <class Kind>
constexpr int direct_blocks() {
  if (Kind::kRowTiles > 1) return 8;
  if (kWords<Kind::P> && !Kind::kDeep && Kind::kLoad == RowLoad::kCoalesced) return 16;
  return Kind::kLoad == RowLoad::kVector ? 10 : 12;
}

template <class Kind>
__global__ void __launch_bounds__(kDirectWarps* kWarp, direct_blocks<Kind>())
    policy_direct_kernel(const __grid_constant__ PolicySpmm p,
                         const __grid_constant__ PolicyGrid grid) {
  using Tile = typename Kind::Tile;
  const int lane = threadIdx.x % kWarp;
  const PolicyGrid::Place place = grid.place(blockIdx.x);
  const int64_t item = int64_t{place.rows} * kDirectWarps + threadIdx.x / kWarp;
  if (item >= p.work.item_count) return;
  const WindowRange range = window_range(p.a, p.work.items, item);
  for (int c = 0; c < p.policy.coarsening; ++c) {
    const int64_t tile = (int64_t{place.features} * p.policy.coarsening + c) * Tile::kFeatures;
    if (tile >= p.n) break;
    PolicySums<Kind> sums;
    multiply_direct<Kind>(p, range, lane, tile, sums);
    store_tile<typename Kind::Result>(p, range, p.work.items[item].partial, tile, lane, sums.sum);
  }
}

template <class Kind>
__global__ void __launch_bounds__(kMostPolicyWarps* kWarp, Kind::kRowTiles > 1 ? 4 : 5)
    policy_staged_kernel(const __grid_constant__ PolicySpmm p,
                         const __grid_constant__ PolicyGrid grid) {
  using Tile = typename Kind::Tile;
  char* memory = dynamic_shared();
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const PolicyGrid::Place place = grid.place(blockIdx.x);
  if (place.rows >= p.work.item_count) return;
  const WindowRange range = window_range(p.a, p.work.items, place.rows);
  StagedWindow<Kind> window(p, grid, range, shared);
  for (int c = 0; c < p.policy.coarsening; ++c) {
    const int64_t first = (int64_t{place.features} * p.policy.coarsening + c) * grid.warps;
    if (first * Tile::kFeatures >= p.n) break;  // of no warp: the others copy along
    const int64_t tile = (first + threadIdx.x / kWarp) * Tile::kFeatures;
    PolicySums<Kind> sums;
    window.multiply(tile, sums);
    if (tile >= p.n) continue;
    store_tile<typename Kind::Result>(p, range, p.work.items[place.rows].partial, tile,
                                      threadIdx.x % kWarp, sums.sum);
  }
}

template <class Kind>
void launch_policy(const PolicySpmm& p, Stream stream) {
  using Tile = typename Kind::Tile;
  const bool staged = p.policy.stage_a != Staging::kNone;
  const int64_t tiles = ceil_div<int64_t>(p.n, Tile::kFeatures);
  PolicyGrid grid = {};
  grid.warps = staged ? static_cast<int>(std::min(tiles, int64_t{kMostPolicyWarps})) : kDirectWarps;
  const int64_t of_block = p.policy.coarsening * (staged ? grid.warps : 1);  // feature tiles
  const int64_t groups = ceil_div(tiles, of_block);
  const int64_t rows =
      staged ? p.work.item_count : ceil_div<int64_t>(p.work.item_count, kDirectWarps);
  // As many slabs as a block's result has times more columns than rows (Tiled-CSR, figure 5).
  const int64_t aspect = std::max(of_block * Tile::kFeatures / p.a.shape.window, int64_t{1});
  const int64_t slabs = p.policy.grid_3d ? std::min(groups, aspect) : groups;
  if (rows == 0 || groups == 0) return;
  grid.slab = static_cast<uint32_t>(ceil_div(groups, slabs));
  grid.rows = static_cast<uint32_t>(rows);
  grid.features = static_cast<uint32_t>(groups);
  const int64_t blocks = rows * grid.slab * ceil_div<int64_t>(groups, grid.slab);
  const dim3 size = grid_of(blocks, 1, 1, "spmm_policy");
  if constexpr (!is_staged(Kind::kLoad)) {
    if (!staged) {
      return launch("spmm_policy", policy_direct_kernel<Kind>, size, kDirectWarps * kWarp, stream,
                    p, grid);
    }
  }
  const int copied_warps = is_staged(Kind::kLoad) ? grid.warps : 0;
  grid.stage_bytes =
      stage_buffer_bytes(p.a.shape.window, sizeof(typename Tile::Storage), copied_warps);
  const uint32_t buffers = p.policy.stage_a == Staging::kDouble ? 2 : 1;
  static_assert(2 * stage_buffer_bytes(16, 4, kMostPolicyWarps) <= 48 << 10,
                "what a block has without asking");
  launch_shared("spmm_policy", policy_staged_kernel<Kind>, size, grid.warps * kWarp,
                buffers * grid.stage_bytes, stream, p, grid);
}

template <Precision P, bool kDeep, bool kSwapped, int kRowTiles>
void launch_policy_of(const PolicySpmm& p, Stream stream) {
  const auto run = [&](auto load) {
    launch_policy<PolicyKind<P, kDeep, kSwapped, kRowTiles, decltype(load)::value>>(p, stream);
  };
  if (p.policy.stage_x) {
    return p.policy.shuffle ? run(std::integral_constant<RowLoad, RowLoad::kStagedVector>{})
                            : run(std::integral_constant<RowLoad, RowLoad::kStagedPlain>{});
  }
  switch (p.policy.x_load) {
    case XLoad::kVector:
      return run(std::integral_constant<RowLoad, RowLoad::kVector>{});
    case XLoad::kCoalesced:
      return run(std::integral_constant<RowLoad, RowLoad::kCoalesced>{});
    case XLoad::kPlain:
      return run(std::integral_constant<RowLoad, RowLoad::kPlain>{});
  }
}

template <Precision P, bool kDeep>
void launch_policy_of(const PolicySpmm& p, Stream stream) {
  if (!p.policy.swapped) return launch_policy_of<P, kDeep, false, 2>(p, stream);
  return p.a.shape.window == 16 ? launch_policy_of<P, kDeep, true, 2>(p, stream)
                                : launch_policy_of<P, kDeep, true, 1>(p, stream);
}

template <Precision P>
void PolicySpmmUnit<P>::run(const PolicySpmm& p, Stream stream) {
  p.policy.deep ? launch_policy_of<P, true>(p, stream) : launch_policy_of<P, false>(p, stream);
}

}  // namespace gnnsparse::cuda
