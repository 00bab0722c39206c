// Where a panel kernel finds operand A: one source for each way a panel stores its values. A source
// belongs to one lane. load() fetches what the lane needs of a K tile, registers() makes operand A
// of one mma from it, which is done by the warp together for PackedPanel. Bits and column weights,
// kBitBytes and kScaleBytes of a K tile, SpMM brings to shared memory with the rows of X. In fp32
// operand A is split too, unless it is kExact, and weigh() gives the row of X in one of the lane's
// slots its column's weight.
#pragma once

#include "gnnsparse/packed_entries.h"
#include "gnnsparse/panel_heights.h"
#include "gnnsparse/panel_tile.h"
#include "gnnsparse/window_source.h"

namespace gnnsparse {

// A run of consecutive K tiles of one panel: what one block works on. A long panel is cut into
// several items, whose partial sums are added in order afterwards; `partial` is then the index of
// this item's partial sum. A panel that is not cut has one item, whose `partial` is
// -1 - rotation(): SpMM starts with K tile `rotation()` of the run and takes the K tiles before it
// last.
struct PanelItem {
  int32_t row;           // first row of the panel
  int32_t first_k_tile;  // first K tile of the run, counted over all panels
  int32_t k_tiles;       // K tiles of the run
  int32_t partial;

  GNNSPARSE_HD int rotation() const { return partial < 0 ? -1 - partial : 0; }
};

template <int kWords>
GNNSPARSE_HD inline void load_words(const void* from, uint32_t (&to)[kWords]) {
  static_assert(kWords == 2 || kWords % 4 == 0, "loads of 8 or 16 bytes");
#if defined(__CUDA_ARCH__)
  if constexpr (kWords == 2) {
    const uint2 two = __ldg(static_cast<const uint2*>(from));
    to[0] = two.x;
    to[1] = two.y;
  } else {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint4 four = __ldg(static_cast<const uint4*>(from) + i);
      to[4 * i] = four.x;
      to[4 * i + 1] = four.y;
      to[4 * i + 2] = four.z;
      to[4 * i + 3] = four.w;
    }
  }
#else
  memcpy(to, from, sizeof to);
#endif
}

// A lane's bits of a brick of 16 or 32 rows: as many bits.
template <int kBrickRows>
GNNSPARSE_HD inline uint32_t load_bits(const BlockedView& a, int64_t brick, int lane) {
  if constexpr (kBrickRows == 32) {
    return load_const(reinterpret_cast<const uint32_t*>(a.bitmap) + brick * kWarp + lane);
  } else {
    return load_const(reinterpret_cast<const uint16_t*>(a.bitmap) + brick * kWarp + lane);
  }
}

// The bits of a K tile, which lie brick after brick.
template <int kHeight>
struct PanelBits {
  static constexpr int kRows = kHeight;
  static constexpr int kBrickRows = panel_height(kRows).brick_rows;
  static constexpr int kBricks = kRows / kBrickRows;
  static constexpr int kBrickTiles = kBrickRows / 16;
  static constexpr int kBrickBytes = kWarp * kBrickRows / 8;
  static constexpr int kBitBytes = kBricks * kBrickBytes;

  // The brick that row tile m of the panel is in, and its place there.
  GNNSPARSE_HD static constexpr int brick(int m) { return kBricks == 1 ? 0 : m / kBrickTiles; }
  GNNSPARSE_HD static constexpr int tile(int m) { return kBricks == 1 ? m : m % kBrickTiles; }

  GNNSPARSE_HD static void load(const BlockedView& a, int64_t k_tile, int lane,
                                uint32_t (&bits)[kBricks]) {
    for (int i = 0; i < kBricks; ++i) {
      bits[i] = load_bits<kBrickRows>(a, k_tile * kBricks + i, lane);
    }
  }
};

// Ones.
template <Precision P, int kHeight>
struct UnitPanel : PanelBits<kHeight> {
  using Bits = PanelBits<kHeight>;
  static constexpr float kScale = kUnitScale<P>;
  static constexpr bool kExact = true;
  static constexpr int kScaleBytes = 0;
  struct LaneKTile {
    uint32_t bits[Bits::kBricks];
  };

  GNNSPARSE_HD static LaneKTile load(const BlockedView& a, int64_t k_tile, int lane) {
    LaneKTile loaded;
    Bits::load(a, k_tile, lane, loaded.bits);
    return loaded;
  }
  GNNSPARSE_HD static void registers(const LaneKTile& k_tile, int m, int q, uint32_t (&a)[4]) {
    const uint32_t bits = lane_bits(k_tile.bits[Bits::brick(m)], Bits::kBrickRows);
    for (int r = 0; r < 4; ++r) a[r] = units<P>(bits, operand_bit<P>(Bits::tile(m), q, r));
  }
  GNNSPARSE_HD static float weigh(const LaneKTile&, int, float x) { return x; }
};

// Ones, where X is rounded to tf32 already.
template <int kHeight>
struct RoundedPanel : UnitPanel<Precision::kTf32, kHeight> {};
template <class Source>
inline constexpr bool kRoundedX = false;
template <int kHeight>
inline constexpr bool kRoundedX<RoundedPanel<kHeight>> = true;

// A weight for each column: rank-1 values.
template <Precision P, int kHeight>
struct ScaledPanel : PanelBits<kHeight> {
  using Tile = PanelTile<P>;
  using Bits = PanelBits<kHeight>;
  static constexpr float kScale = 1.0f;
  static constexpr bool kExact = true;
  static constexpr int kScaleBytes = kPanelKTile * sizeof(typename Tile::Storage);
  struct LaneKTile {
    uint32_t bits[Bits::kBricks];
    uint32_t scale[Tile::kOperandWords];
  };

  GNNSPARSE_HD static LaneKTile load(const BlockedView& a, int64_t k_tile, int lane) {
    LaneKTile loaded;
    Bits::load(a, k_tile, lane, loaded.bits);
    load_words(static_cast<const typename Tile::Storage*>(a.slot_scale) + k_tile * kPanelKTile +
                   kLaneColumns * (lane & 3),
               loaded.scale);
    return loaded;
  }
  GNNSPARSE_HD static void registers(const LaneKTile& k_tile, int m, int q, uint32_t (&a)[4]) {
    const uint32_t stored = k_tile.bits[Bits::brick(m)];
    const uint32_t bits =
        kWords<P> ? lane_bits(stored, Bits::kBrickRows) : pair_bits(stored, Bits::kBrickRows);
    for (int r = 0; r < 4; ++r) {
      const int bit = operand_bit<P>(Bits::tile(m), q, r);
      if constexpr (Tile::kSplit) {
        a[r] = units<P>(bits, bit);
      } else {
        const uint32_t mask =
            kWords<P> ? word_mask(bits, bit) : pair_mask<Bits::kBrickRows>(bits, bit);
        a[r] = k_tile.scale[operand_pair(q, r)] & mask;
      }
    }
  }
  GNNSPARSE_HD static float weigh(const LaneKTile& k_tile, int i, float x) {
    return bits_float(k_tile.scale[i]) * x;
  }
};

// A value for each element, zeros included. Panels of 32 rows are packed instead.
template <Precision P, int kHeight>
struct ValuePanel {
  static_assert(panel_height(kHeight).brick_rows == kHeight, "a panel with values is one brick");
  static_assert(kHeight != kPackedRows, "their values are entries");
  using Tile = PanelTile<P>;
  static constexpr int kRows = kHeight;
  static constexpr float kScale = 1.0f;
  static constexpr bool kExact = false;
  static constexpr int kBitBytes = 0;
  static constexpr int kScaleBytes = 0;
  struct LaneKTile {
    uint32_t value[kRows / 8][Tile::kOperandWords];
  };

  GNNSPARSE_HD static LaneKTile load(const BlockedView& a, int64_t k_tile, int lane) {
    LaneKTile loaded;
    const auto* values = static_cast<const typename Tile::Storage*>(a.values);
    for (int group = 0; group < kRows / 8; ++group) {
      const int64_t at = k_tile * kPanelKTile * kRows + (group * kWarp + lane) * kLaneColumns;
      load_words(values + at, loaded.value[group]);
    }
    return loaded;
  }
  GNNSPARSE_HD static void registers(const LaneKTile& k_tile, int m, int q, uint32_t (&a)[4]) {
    for (int r = 0; r < 4; ++r) a[r] = k_tile.value[operand_group(m, r)][operand_pair(q, r)];
  }
  GNNSPARSE_HD static float weigh(const LaneKTile&, int, float x) { return x; }
};

// Four neighbouring entries of a K tile, as a lane loads them.
template <int kValueBytes>
struct EntryVector;
template <>
struct EntryVector<2> {
  uint32_t entry[kEntriesOfLane];

  GNNSPARSE_HD void load(const char* k_tile, uint32_t vector) {
    load_words(k_tile + EntryLayout{2}.vector_values(vector), entry);
  }
  GNNSPARSE_HD uint32_t place(int i) const { return entry[i] >> 16; }
  GNNSPARSE_HD uint16_t value(int i) const { return static_cast<uint16_t>(entry[i]); }
};
template <>
struct EntryVector<4> {
  uint32_t values[kEntriesOfLane];
  uint32_t places[kEntriesOfLane / 2];

  GNNSPARSE_HD void load(const char* k_tile, uint32_t vector) {
    load_words(k_tile + EntryLayout{4}.vector_values(vector), values);
    load_words(k_tile + EntryLayout{4}.vector_places(vector), places);
  }
  GNNSPARSE_HD uint32_t place(int i) const {
    return i % 2 == 0 ? places[i / 2] & 0xffffu : places[i / 2] >> 16;
  }
  GNNSPARSE_HD uint32_t value(int i) const { return values[i]; }
};

// The nonzeros alone: the warp puts operand A together in shared memory. load() is one lane's part
// of a group of entries; nothing but the entries is the same on the host.
template <Precision P>
struct PackedPanel {
  static constexpr int kValueBytes = sizeof(typename PanelTile<P>::Storage);
  static constexpr int kRows = kPackedRows;
  static constexpr float kScale = 1.0f;
  static constexpr bool kExact = false;
  static constexpr int kBitBytes = 0;
  static constexpr int kScaleBytes = 0;
  // Vectors of entries that a lane asks for a K tile ahead, as many as there are registers for.
  static constexpr int kAhead = kSplit<P> ? 1 : 2;
  using LaneKTile = EntryVector<kValueBytes>;

  // A K tile's entries: the bytes before them, and how many vectors of kEntriesOfLane they are.
  struct Range {
    int64_t before;
    int count;
  };

  GNNSPARSE_HD static Range range(const BlockedView& a, int64_t k_tile) {
    const int64_t begin = load_const(a.value_ptr + k_tile);
    const int64_t end = load_const(a.value_ptr + k_tile + 1);
    const auto count = static_cast<uint32_t>(end - begin) / kEntriesOfLane;
    return {begin * EntryLayout{kValueBytes}.bytes(), static_cast<int>(count)};
  }
  GNNSPARSE_HD static LaneKTile load(const BlockedView& a, const Range& range, int vector) {
    LaneKTile loaded;
    loaded.load(static_cast<const char*>(a.values) + range.before, static_cast<uint32_t>(vector));
    return loaded;
  }
};
template <class Source>
inline constexpr bool kPackedSource = false;
template <Precision P>
inline constexpr bool kPackedSource<PackedPanel<P>> = true;

}  // namespace gnnsparse
