// Where the sums of a panel go. A panel that was not cut is finished here: its rows are scaled and
// written to y, in whole chunks: as they are where y's rows consist of them, otherwise shifted to
// those of memory. The sums of a cut panel go to the workspace as they are.
#pragma once

#include <type_traits>

#include "device/vector.cuh"
#include "device/vector_add.cuh"
#include "gnnsparse/panel_problem.h"
#include "kernels/common/chunk_rows.cuh"
#include "kernels/common/panel_multiply.cuh"

namespace gnnsparse::cuda {

// A product as its kernel is launched.
struct SpmmLaunch : PanelSpmm {
  ChunkRows chunks;     // y, where its rows are whole chunks of the storage type of the precision
  ShiftedRows shifted;  // y, where its rows begin anywhere, in the storage type or float32
  // Otherwise float32 of operands of 16 bits in whole chunks, or a type that is neither: four
  // elements at a time.

  SpmmLaunch(const PanelSpmm& p, DType storage, int slice)
      : PanelSpmm(p), chunks(whole_chunks(p.y, p.n, storage)) {
    // Half a sector stays in L2 until the next slice completes it, which chunks do not wait for.
    if (p.n > slice && !whole_sectors(p.y)) chunks = {};
    const bool in_storage = p.y.dtype == storage;
    if (chunks.data != nullptr || !(in_storage || p.y.dtype == DType::kFloat32)) return;
    if (in_storage || !starts_chunks(p.y)) shifted = ShiftedRows(p.y, p.n);
  }
};

// For each row of the panel, which row of y it is and what its sums are multiplied with. Lane i
// holds those of rows i, i + 32, ... of the panel, so all lanes have to ask together.
template <class Source>
class PanelRows {
 public:
  __device__ PanelRows(const PanelSpmm& p, const PanelItem& item, int lane) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      int row = item.row + lane % Source::kRows + kWarp * i;
      float scale = Source::kScale;
      if (row >= static_cast<int>(p.a.rows)) {
        row = -1;
      } else {
        if (p.stored.row_scale != nullptr && item.partial < 0) {
          scale *= __ldg(p.stored.row_scale + row);
        }
        if (p.stored.row_ids != nullptr) row = __ldg(p.stored.row_ids + row);
      }
      row_[i] = row;
      scale_[i] = scale;
    }
  }
  // The rows of y that this lane holds.
  __device__ const auto& of_lane() const { return row_; }
  // The row of y; -1 behind the last row of the matrix.
  __device__ int id(int in_panel) const { return of_row(row_, in_panel); }
  __device__ float scale(int in_panel) const { return of_row(scale_, in_panel); }

 private:
  static constexpr int kOfLane = (Source::kRows + kWarp - 1) / kWarp;

  template <class T>
  static __device__ T of_row(const T (&own)[kOfLane], int in_panel) {
    T found = __shfl_sync(0xffffffffu, own[0], in_panel);
#pragma unroll
    for (int i = 1; i < kOfLane; ++i) {
      const T other = __shfl_sync(0xffffffffu, own[i], in_panel);
      if (in_panel / kWarp == i) found = other;
    }
    return found;
  }

  int row_[kOfLane];
  float scale_[kOfLane];
};

// Writes a lane's results four at a time: those of rows g, g + 8, ... of the panel, g = lane / 4.
// kAdd: or adds them to what is there.
template <class Source, bool kAdd = false>
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

  // Four neighbouring features of row g + 8 group.
  __device__ void store(int group, int64_t feature, float (&v)[4]) const {
    if (feature >= p_.n || row_[group] < 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] *= scale_[group];
    if (partial_ >= 0) {
      const int64_t row = int64_t{partial_} * Source::kRows + 8 * group + in_panel_;
      float* to = p_.partial + row * partial_stride(p_.n);
      *reinterpret_cast<float4*>(to + feature) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
      if constexpr (kAdd) add_row(p_.y, row_[group], feature, p_.n, v);
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

template <Precision P, class Source, int kUnit, class Sums>
__device__ __forceinline__ void store_shifted_slice(const SpmmLaunch& p,
                                                    const PanelRows<Source>& rows, int lane,
                                                    int slice, const Sums& sums, uint32_t own) {
  const auto store = [&](auto floats) {
    constexpr bool kFloats = decltype(floats)::value;
    constexpr int kBytes = kFloats ? 2 * kRowSliceBytes : kRowSliceBytes;
    ShiftedRows to = p.shifted;
    to.data += int64_t{slice} * kBytes;
    to.bytes -= slice * kBytes;
#pragma unroll
    for (int m = 0; m < Source::kRows / 16; ++m) {
      const int g = kQueryRows * m + (lane >> 2);
      const float scale[2] = {rows.scale(g), rows.scale(g + 8)};
      const auto row_id = [&](int in_tile) { return rows.id(kQueryRows * m + in_tile); };
      store_shifted_rows<P, kFloats, kUnit>(sums[m], scale, row_id, to, lane, own);
    }
  };
  // Elements of two bytes may begin between words, float32 does not.
  if (kUnit == 4 && !kWords<P> && p.y.dtype == DType::kFloat32) {
    store(std::bool_constant<kUnit == 4 && !kWords<P>>());
  } else {
    store(std::false_type());
  }
}

// Asks for what a slice's sums are going to be added to: a line of each row, by one lane.
template <class Rows>
__device__ __forceinline__ void prefetch_slice(const SpmmLaunch& p, const PanelItem& item,
                                               const Rows& rows, int slice) {
  if (p.chunks.data == nullptr || item.partial >= 0) return;
  for (const int row : rows.of_lane()) {
    if (row < 0) continue;
    prefetch(p.chunks.data + int64_t{slice} * kRowSliceBytes +
             uint64_t{static_cast<uint32_t>(row)} * p.chunks.stride);
  }
}

// Writes the sums of slice `slice` of a panel, or adds them to what is there (kAdd). `own` is
// shared memory of this warp that no copy is on its way to.
template <Precision P, bool kAdd = false, class Source, class Sums>
__device__ __forceinline__ void store_slice(const SpmmLaunch& p, const PanelItem& item,
                                            const PanelRows<Source>& rows, int lane, int slice,
                                            const Sums& sums, uint32_t own) {
  constexpr int kRowTiles = Source::kRows / 16;
  constexpr int kTilesOfStage = kTileSliceBytes / kQueryBytes;  // that a stage has room for
  lane = pin_register(lane);  // otherwise registers hold all places while K tiles are multiplied
  if (p.chunks.data != nullptr && item.partial < 0) {
    const ChunkRows& y = p.chunks;
    const ChunkRows to(y.data + int64_t{slice} * kRowSliceBytes, y.stride,
                       y.bytes - slice * kRowSliceBytes);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const int g = kQueryRows * m + (lane >> 2);
      const float scale[2] = {rows.scale(g), rows.scale(g + 8)};
      const auto row_id = [&](int in_tile) { return rows.id(kQueryRows * m + in_tile); };
      store_chunks<P, kAdd>(sums[m], scale, row_id, to, lane,
                            own + m % kTilesOfStage * kQueryBytes);
    }
  } else if (!kAdd && p.shifted.data != nullptr && item.partial < 0) {
    if (p.shifted.unit == 4) {
      store_shifted_slice<P, Source, 4>(p, rows, lane, slice, sums, own);
    } else if constexpr (!kWords<P>) {
      store_shifted_slice<P, Source, 2>(p, rows, lane, slice, sums, own);
    }
  } else {
    const PanelOutput<Source, kAdd> out(p, item, rows, lane);
    const int64_t feature = int64_t{slice} * PanelTile<P>::kFeatures;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if constexpr (kWords<P>) {
        store_words(out, sums[m], 2 * m, lane, feature);
      } else {
        store_pairs(out, sums[m], 2 * m, lane, feature);
      }
    }
  }
}

}  // namespace gnnsparse::cuda
