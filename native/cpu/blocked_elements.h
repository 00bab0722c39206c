// Reading a panel of the blocked format on the CPU: its nonzeros, as the format's arrays have them.
// What is not stored as a nonzero takes no part in a product, whatever X holds.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "gnnsparse/blocked.h"
#include "gnnsparse/cpu_kernels.h"
#include "gnnsparse/packed_entries.h"
#include "gnnsparse/rounding.h"

namespace gnnsparse::cpu {

// A nonzero of a panel.
struct Element {
  int64_t row;    // in its panel
  int64_t slot;   // of the whole matrix
  int64_t place;  // its value's index in `values`; -1 in a format of bits alone
};

inline void require_format(bool holds, const char* problem) {
  if (!holds) throw std::invalid_argument(std::string("format: ") + problem);
}

inline float stored_value(const BlockedArrays& a, int64_t place) {
  switch (a.values_dtype) {
    case DType::kFloat16:
      return half_to_float(static_cast<const uint16_t*>(a.view.values)[place]);
    case DType::kBFloat16:
      return bf16_to_float(static_cast<const uint16_t*>(a.view.values)[place]);
    default:
      return static_cast<const float*>(a.view.values)[place];
  }
}

// Column slots of panel p.
struct SlotRange {
  int64_t begin;
  int64_t end;

  SlotRange(const BlockedArrays& a, int64_t p)
      : begin(a.view.panel_ptr[p]), end(a.view.panel_ptr[p + 1]) {
    require_format(0 <= begin && begin <= end && end <= a.slots, "panel_ptr is out of range");
  }
  int64_t count() const { return end - begin; }
};

// Whether the Zero Index of a row (Tiled-CSR, section III-A) lists a column.
inline bool is_listed_zero(const BlockedArrays& a, int64_t row, int32_t column) {
  const int64_t begin = a.view.zero_ptr[row], end = a.view.zero_ptr[row + 1];
  require_format(0 <= begin && begin <= end && end <= a.zeros, "zero_ptr is out of range");
  return std::binary_search(a.view.zero_cols + begin, a.view.zero_cols + end, column);
}

// Dense formats: elements that are no nonzeros are +0.0, or are in the Zero Index if there is one.
template <class Body>
void for_each_dense(const BlockedArrays& a, int64_t p, int64_t rows, Body body) {
  const BlockedView& view = a.view;
  const SlotRange slots(a, p);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t position = 0; position < slots.count(); ++position) {
      const int64_t slot = slots.begin + position;
      const int64_t place = dense_offset(view.shape, slots.begin, slots.count(), row, position);
      if (view.zero_ptr == nullptr) {
        const float value = stored_value(a, place);
        if (float_bits(value) != 0) body(Element{row, slot, place});
        continue;
      }
      // A padded slot repeats the column before it.
      const int32_t column = view.columns[slot];
      const bool padded = position > 0 && view.columns[slot - 1] == column;
      if (!padded && !is_listed_zero(a, view.panel_row(p) + row, column)) {
        body(Element{row, slot, place});
      }
    }
  }
}

// Calls body(row in the brick, column in the brick) for the set bits of a stored brick.
template <class Body>
void for_each_bit(const BlockedArrays& a, int64_t brick, Body body) {
  const BlockedShape& shape = a.view.shape;
  const int64_t nbytes = int64_t{shape.window} * shape.brick / 8;
  const uint8_t* bytes = a.view.bitmap + brick * nbytes;
  for (int64_t bit = 0; bit < 8 * nbytes; ++bit) {
    if (bytes[bit / 8] >> (bit % 8) & 1) body(bit / shape.brick, bit % shape.brick);
  }
}

// Bitmaps: all bricks of a brick column, window after window, or those that brick_rows lists.
template <class Body>
void for_each_bitmap(const BlockedArrays& a, int64_t p, Body body) {
  const BlockedView& view = a.view;
  const BlockedShape& shape = view.shape;
  const int64_t windows = shape.panel / shape.window;
  const SlotRange slots(a, p);
  require_format(slots.begin % shape.block == 0, "has panels that do not begin with a block");
  int64_t place = -1;
  for (int64_t slot = slots.begin; slot < slots.end; slot += shape.brick) {
    if (view.value_ptr != nullptr && slot % shape.block == 0) {
      place = view.value_ptr[slot / shape.block];
    }
    const int64_t column = slot / shape.brick;
    const bool listed = view.brick_ptr != nullptr;
    const int64_t begin = listed ? view.brick_ptr[column] : column * windows;
    const int64_t end = listed ? view.brick_ptr[column + 1] : begin + windows;
    require_format(0 <= begin && begin <= end && end <= a.bricks, "brick_ptr is out of range");
    for (int64_t brick = begin; brick < end; ++brick) {
      const int64_t window = listed ? view.brick_rows[brick] : brick - begin;
      for_each_bit(a, brick, [&](int64_t row, int64_t col) {
        body(Element{window * shape.window + row, slot + col, place});
        place += place >= 0;
      });
    }
  }
}

// Records, whose values are numbered by their place among all bytes.
template <class Body>
void for_each_recorded(const BlockedArrays& a, int64_t p, Body body) {
  const int64_t value_bytes = size_of(a.values_dtype);
  const SlotRange slots(a, p);
  require_format(slots.begin % kRecordSlots == 0 && slots.end % kRecordSlots == 0,
                 "has panels that are no whole blocks");
  for (int64_t slot = slots.begin; slot < slots.end; slot += kRecordSlots) {
    const int64_t begin = a.records.size_ptr[slot / kRecordSlots];
    const int64_t size = a.values * value_bytes - begin;  // to the end of all records
    require_format(
        begin >= 0 && size >= 4 * record_header_words(0) && begin % kRecordAlignment == 0,
        "size_ptr is out of range");
    const PackedRecord record(a.records.packed_blocks + begin);
    require_format(record.bricks() <= kRecordColumns * kRecordPanelBricks &&
                       record_bytes(record.bricks(), 0, value_bytes) <= size,
                   "has records with more bricks than there is room for");
    int64_t place = (record.values() - a.records.packed_blocks) / value_bytes;
    for (int column = 0; column < kRecordColumns; ++column) {
      require_format(record.col_ptr(column + 1) <= record.bricks(), "has bricks of no record");
      for (uint32_t brick = record.col_ptr(column); brick < record.col_ptr(column + 1); ++brick) {
        for (uint64_t bits = record.pattern(brick); bits != 0; bits &= bits - 1) {
          const int bit = __builtin_ctzll(bits);
          body(Element{kRecordBrickRows * int64_t{record.row(brick)} + bit / kRecordBrickWidth,
                       slot + kRecordBrickWidth * column + bit % kRecordBrickWidth, place++});
        }
      }
    }
  }
}

// Bitmaps in the order of the lanes that use them.
template <class Body>
void for_each_lane_bit(const BlockedArrays& a, int64_t p, int64_t rows, Body body) {
  const SlotRange slots(a, p);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t position = 0; position < slots.count(); ++position) {
      const int64_t bit = bit_offset(a.view.shape, slots.begin, row, position);
      if (a.view.bitmap[bit / 8] >> (bit % 8) & 1) body(Element{row, slots.begin + position, -1});
    }
  }
}

// Entries, in the order of rows and column slots.
template <class Body>
void for_each_entry(const BlockedArrays& a, int64_t p, int64_t rows, Body body) {
  const EntryLayout layout{entry_value_bytes(a.view.encoding)};
  const auto* bytes = static_cast<const uint8_t*>(a.view.values);
  const SlotRange slots(a, p);
  std::vector<int64_t> at(kTileElements);
  for (int64_t first = slots.begin; first < slots.end; first += a.view.shape.block) {
    const int64_t block = first / a.view.shape.block;
    const int64_t begin = a.view.value_ptr[block], end = a.view.value_ptr[block + 1];
    require_format(0 <= begin && begin <= end && end % layout.group() == 0 &&
                       end <= a.values * layout.value_bytes / layout.bytes(),
                   "value_ptr is out of range");
    std::fill(at.begin(), at.end(), int64_t{-1});
    for (int64_t e = begin; e < end; ++e) {
      const auto place = load_part<uint16_t>(bytes + 2 * layout.place_at(e));
      if (place < layout.no_place()) at[place / layout.value_bytes] = layout.value_at(e);
    }
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t position = 0; position < a.view.shape.block; ++position) {
        const int64_t place = at[layout.element(static_cast<int>(row), static_cast<int>(position))];
        if (place >= 0) body(Element{row, first + position, place});
      }
    }
  }
}

// Calls body(element) for every nonzero of panel p; those of a row in the order of its column
// slots.
template <class Body>
void for_each_element(const BlockedArrays& a, int64_t p, int64_t rows, Body body) {
  if (a.records.size_ptr != nullptr) return for_each_recorded(a, p, body);
  switch (a.view.encoding) {
    case Encoding::kDense:
      return for_each_dense(a, p, rows, body);
    case Encoding::kEntries:
    case Encoding::kWordEntries:
      return for_each_entry(a, p, rows, body);
    case Encoding::kBitmap:
      return a.view.shape.lane_order ? for_each_lane_bit(a, p, rows, body)
                                     : for_each_bitmap(a, p, body);
  }
}

// The nonzeros of a panel as a CSR matrix of its own.
class PanelRows {
 public:
  void read(const BlockedArrays& a, int64_t p) {
    const BlockedView& view = a.view;
    first_ = view.panel_row(p);
    require_format(0 <= first_ && first_ < view.rows, "panel_rows is out of range");
    rows_ = std::min<int64_t>(view.shape.panel, view.rows - first_);
    elements_.clear();
    offsets_.assign(static_cast<size_t>(rows_) + 1, 0);
    for_each_element(a, p, rows_, [&](const Element& element) {
      const int32_t column = view.columns[element.slot];
      require_format(0 <= element.row && element.row < rows_, "has nonzeros outside of the rows");
      require_format(0 <= column && column < view.cols, "columns are out of range");
      require_format(view.values == nullptr || (0 <= element.place && element.place < a.values),
                     "value_ptr is out of range");
      ++offsets_[static_cast<size_t>(element.row) + 1];
      elements_.push_back(element);
    });
    for (int64_t r = 0; r < rows_; ++r) offsets_[r + 1] += offsets_[r];
    sort(a);
  }

  // The first row of the panel in the matrix, and how many it has.
  int64_t first() const { return first_; }
  int64_t rows() const { return rows_; }
  CsrView csr(int64_t cols) const {
    return {offsets_.data(), columns_.data(), rows_, cols, static_cast<int64_t>(columns_.size())};
  }
  // The index in `values` of each nonzero's value, and the value itself, if the format stores them.
  const std::vector<int64_t>& places() const { return places_; }
  const std::vector<float>& values() const { return values_; }

 private:
  // Brings elements, which come in the order of their slots, in the order of their rows.
  void sort(const BlockedArrays& a) {
    const size_t count = elements_.size();
    const bool stored = a.view.values != nullptr;
    columns_.resize(count);
    places_.resize(count);
    values_.resize(stored ? count : 0);
    next_.assign(offsets_.begin(), offsets_.end() - 1);
    for (const Element& element : elements_) {
      const auto at = static_cast<size_t>(next_[static_cast<size_t>(element.row)]++);
      columns_[at] = a.view.columns[element.slot];
      places_[at] = element.place;
      if (stored) values_[at] = stored_value(a, element.place);
    }
  }

  int64_t first_ = 0;
  int64_t rows_ = 0;
  std::vector<Element> elements_;
  std::vector<int64_t> offsets_, next_;
  std::vector<int32_t> columns_;
  std::vector<int64_t> places_;
  std::vector<float> values_;
};

}  // namespace gnnsparse::cpu
