// Where a window kernel finds the values of A: one source for each way the blocked format stores
// them. A source belongs to one lane; next() gives the values of A at the lane's four slots of the
// following K tile, in row g (and g + 8) of the window.
#pragma once

#include <cstdint>

#include "gnnsparse/blocked.h"
#include "gnnsparse/window_tile.h"

namespace gnnsparse {

template <class T>
GNNSPARSE_HD inline T load_const(const T* p) {
#if defined(__CUDA_ARCH__)
  return __ldg(p);
#else
  T value;
  memcpy(&value, p, sizeof value);  // cached arrays need not be aligned on the host
  return value;
#endif
}

// A run of K tiles of one window. Long windows are cut into several, whose partial sums are added
// in order afterwards; `partial` is the place of this one's, or -1 where it is the only one.
struct WindowItem {
  int32_t window;
  int32_t first_k_tile;
  int32_t k_tiles;
  int32_t partial;
};

// Per-edge values in row order (CSR order), for formats that store bits only.
struct RowValues {
  const int64_t* indptr = nullptr;
  const void* values = nullptr;          // [nnz]
  const int32_t* row_offsets = nullptr;  // [items][window] nonzeros of the row before the item
};

// What the lanes of a warp need to know about their item.
struct WindowRange {
  int64_t first;  // first slot of the panel
  int64_t row;    // first row of the window
  int slots;      // slots of the panel
  int window;     // which window of the panel
  int first_k_tile;
  int k_tiles;
  int64_t item;
};

GNNSPARSE_HD inline WindowRange window_range(const BlockedView& a, const WindowItem* items,
                                             int64_t index) {
  const WindowItem s = items[index];
  const int windows = a.shape.panel / a.shape.window;
  const int64_t panel = s.window / windows;
  WindowRange range;
  range.first = a.panel_ptr[panel];
  range.slots = static_cast<int>(a.panel_ptr[panel + 1] - range.first);
  range.window = s.window % windows;
  range.row = a.panel_row(panel) + static_cast<int64_t>(range.window) * a.shape.window;
  range.first_k_tile = s.first_k_tile;
  range.k_tiles = s.k_tiles;
  range.item = index;
  return range;
}

struct SlotColumns {
  int32_t id[kLaneSlots];
};

// Columns of slots [position, position + 4) of the panel; past the end the last one is repeated.
GNNSPARSE_HD inline SlotColumns slot_columns(const BlockedView& a, const WindowRange& range,
                                             int position) {
  const int32_t* columns = a.columns + range.first;
  SlotColumns result;
#if defined(__CUDA_ARCH__)
  if (position + kLaneSlots <= range.slots && (range.first & 3) == 0) {
    const int4 four = __ldg(reinterpret_cast<const int4*>(columns + position));
    return {{four.x, four.y, four.z, four.w}};
  }
#endif
  for (int i = 0; i < kLaneSlots; ++i) {
    const int p = position + i < range.slots ? position + i : range.slots - 1;
    result.id[i] = load_const(columns + p);
  }
  return result;
}

// One 16-bit word of bits a row and K tile, for windows of 8 rows and bricks of 16 columns.
class RowBits {
 public:
  GNNSPARSE_HD RowBits(const BlockedView& a, const WindowRange& range, int row)
      : word_(reinterpret_cast<const uint16_t*>(a.bitmap) +
              (range.first / kWindowKTile + range.first_k_tile) * kTileRows + row),
        left_(range.k_tiles) {
    fetch();
  }
  // The bits of this K tile; those of the next one are already on their way.
  GNNSPARSE_HD uint32_t next() {
    const uint32_t bits = bits_;
    fetch();
    return bits;
  }

 private:
  GNNSPARSE_HD void fetch() {
    bits_ = left_ > 0 ? load_const(word_) : 0u;
    word_ += kTileRows;
    --left_;
  }

  const uint16_t* word_;
  int left_;
  uint32_t bits_;
};

// Value-free: an element is its column's weight, or 1.
template <class Tile, uint32_t kUnit>
class BitSource {
 public:
  static constexpr int kRowTiles = 1;
  using Storage = typename Tile::Storage;

  GNNSPARSE_HD BitSource(const BlockedView& a, const RowValues&, const WindowRange& range, int lane)
      : bits_(a, range, lane_row(lane)), shift_(lane_slot(lane)), scale_(nullptr) {
    if (a.slot_scale != nullptr) {
      scale_ = static_cast<const Storage*>(a.slot_scale) + range.first +
               int64_t{kWindowKTile} * range.first_k_tile + lane_slot(lane);
    }
  }
  GNNSPARSE_HD void next(typename Tile::Values (&values)[1]) {
    const uint32_t bits = bits_.next() >> shift_;
    if (scale_ == nullptr) {
      typename Tile::Values ones = {};
      for (int i = 0; i < kLaneSlots; ++i) Tile::set(ones, i, static_cast<Storage>(kUnit));
      values[0] = Tile::select(ones, bits);
      return;
    }
    typename Tile::Values weights;
    constexpr int kWords = sizeof weights / sizeof(uint32_t);
    const auto* words = reinterpret_cast<const uint32_t*>(scale_);
    for (int i = 0; i < kWords; ++i) weights.reg[i] = load_const(words + i);
    scale_ += kWindowKTile;
    values[0] = Tile::select(weights, bits);
  }

 private:
  RowBits bits_;
  int shift_;
  const Storage* scale_;
};

// Bits, with the values of each row contiguous in row order: a running pointer a row, and the
// number of bits below an element is its distance from there.
template <class Tile>
class RowValueSource {
 public:
  static constexpr int kRowTiles = 1;
  using Storage = typename Tile::Storage;

  GNNSPARSE_HD RowValueSource(const BlockedView& a, const RowValues& edges,
                              const WindowRange& range, int lane)
      : bits_(a, range, lane_row(lane)), shift_(lane_slot(lane)), value_(nullptr) {
    const int64_t row = range.row + lane_row(lane);
    if (row < a.rows) {
      value_ = static_cast<const Storage*>(edges.values) + edges.indptr[row] +
               edges.row_offsets[range.item * kTileRows + lane_row(lane)];
    }
  }
  GNNSPARSE_HD void next(typename Tile::Values (&values)[1]) {
    const uint32_t word = bits_.next();
    const Storage* value = value_ + popcount(word & ((1u << shift_) - 1u));
    values[0] = {};
    for (int i = 0; i < kLaneSlots; ++i) {
      if (word >> (shift_ + i) & 1u) Tile::set(values[0], i, load_const(value++));
    }
    value_ += popcount(word);
  }

 private:
  RowBits bits_;
  int shift_;
  const Storage* value_;
};

// 64-bit bricks with the values packed brick after brick (HRPB of cuTeSpMM, section 3.2; RS-Tile of
// RSH-SpMM, section 3.2). A lane's four slots lie in one brick.
template <class Tile, int kTiles>
class PackedSource {
 public:
  static constexpr int kRowTiles = kTiles;
  using Storage = typename Tile::Storage;

  GNNSPARSE_HD PackedSource(const BlockedView& a, const RowValues&, const WindowRange& range,
                            int lane)
      : a_(a),
        range_(range),
        row_(lane_row(lane)),
        position_(kWindowKTile * range.first_k_tile + lane_slot(lane)) {}

  GNNSPARSE_HD void next(typename Tile::Values (&values)[kTiles]) {
    for (int i = 0; i < kTiles; ++i) values[i] = {};
    const int position = position_;
    position_ += kWindowKTile;
    if (position >= range_.slots) return;
    int64_t value = 0;
    const uint64_t map = find_brick(range_.first + position, value);
    const auto* packed = static_cast<const Storage*>(a_.values);
    for (int i = 0; i < kTiles; ++i) {
      const int bit =
          (row_ + kTileRows * i) * a_.shape.brick + static_cast<int>(position % a_.shape.brick);
      int64_t at = value + popcount64(map & ((uint64_t{1} << bit) - 1));
      for (int j = 0; j < kLaneSlots; ++j) {
        if (map >> (bit + j) & 1u) Tile::set(values[i], j, load_const(packed + at++));
      }
    }
  }

 private:
  // The map of this window's brick at the slot, and the place of its first value.
  GNNSPARSE_HD uint64_t find_brick(int64_t slot, int64_t& value) const {
    const auto* maps = reinterpret_cast<const uint64_t*>(a_.bitmap);
    const int64_t block = slot / a_.shape.block;
    const int64_t column = slot / a_.shape.brick;
    const int64_t first = block * (a_.shape.block / a_.shape.brick);
    value = load_const(a_.value_ptr + block);
    if (a_.brick_ptr == nullptr) {
      for (int64_t c = first; c < column; ++c) value += popcount64(load_const(maps + c));
      return load_const(maps + column);
    }
    const int64_t begin = load_const(a_.brick_ptr + column);
    const int64_t end = load_const(a_.brick_ptr + column + 1);
    for (int64_t b = load_const(a_.brick_ptr + first); b < end; ++b) {
      const uint64_t map = load_const(maps + b);
      if (b >= begin && load_const(a_.brick_rows + b) == range_.window) return map;
      value += popcount64(map);
    }
    return 0;
  }

  BlockedView a_;
  WindowRange range_;
  int row_;
  int position_;
};

// Every value of a block stored, zeros too (ME-BCRS of FlashSparse, CVSE of SSpMM, Tiled-CSR).
template <class Tile, int kTiles>
class DenseSource {
 public:
  static constexpr int kRowTiles = kTiles;
  using Storage = typename Tile::Storage;

  GNNSPARSE_HD DenseSource(const BlockedView& a, const RowValues&, const WindowRange& range,
                           int lane)
      : shape_(a.shape),
        values_(static_cast<const Storage*>(a.values)),
        first_(range.first),
        slots_(range.slots),
        row_(lane_row(lane)),
        position_(kWindowKTile * range.first_k_tile + lane_slot(lane)) {}

  GNNSPARSE_HD void next(typename Tile::Values (&values)[kTiles]) {
    for (int i = 0; i < kTiles; ++i) {
      values[i] = {};
      for (int j = 0; j < kLaneSlots; ++j) {
        if (position_ + j >= slots_) break;
        const int64_t at =
            dense_offset(shape_, first_, slots_, row_ + kTileRows * i, position_ + j);
        Tile::set(values[i], j, load_const(values_ + at));
      }
    }
    position_ += kWindowKTile;
  }

 private:
  BlockedShape shape_;
  const Storage* values_;
  int64_t first_;
  int slots_;
  int row_;
  int position_;
};

}  // namespace gnnsparse
