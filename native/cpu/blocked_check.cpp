// Whether a blocked matrix has the structure of a CSR matrix. The work is that of a merge: in each
// row, the columns of the set bits are compared with the row's columns, one by one. Where there are
// no bits, each column of a panel has to be the next one of a row.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "gnnsparse/blocked.h"
#include "parallel.h"

namespace gnnsparse::cpu {
namespace {

// Walks through the rows of one panel: takes nonzeros in the order of columns in each row.
class PanelRows {
 public:
  explicit PanelRows(const CsrView& a) : a_(a) {}

  void start(int64_t begin, int64_t end) {
    cursor_.assign(a_.indptr + begin, a_.indptr + end);
    end_.assign(a_.indptr + begin + 1, a_.indptr + end + 1);
  }
  bool take(int64_t row, int32_t column) {
    if (row >= static_cast<int64_t>(cursor_.size()) || cursor_[row] == end_[row]) return false;
    return a_.indices[cursor_[row]++] == column;
  }
  // Takes the next nonzero of every row that has it in this column. Returns whether one has.
  bool take_column(int32_t column) {
    bool any = false;
    for (size_t row = 0; row < cursor_.size(); ++row) {
      const bool next = cursor_[row] < end_[row] && a_.indices[cursor_[row]] == column;
      cursor_[row] += next;
      any |= next;
    }
    return any;
  }
  bool all_taken() const { return cursor_ == end_; }

 private:
  const CsrView& a_;
  std::vector<int64_t> cursor_;
  std::vector<int64_t> end_;
};

// The slots of a panel: real ones, whose columns ascend, and behind them padded ones.
struct Slots {
  int64_t first;
  int64_t real_end;
  int64_t end;
};

// Finds the real slots. Returns whether those behind them repeat the last one, or in lane order -1.
bool split_slots(const BlockedView& format, int64_t p, Slots& slots) {
  const int32_t* columns = format.columns;
  slots = {format.panel_ptr[p], format.panel_ptr[p], format.panel_ptr[p + 1]};
  int32_t last = -1;
  while (slots.real_end < slots.end && columns[slots.real_end] > last) {
    last = columns[slots.real_end++];
  }
  const int32_t padding = format.shape.lane_order ? -1 : last;
  return std::all_of(columns + slots.real_end, columns + slots.end,
                     [=](int32_t column) { return column == padding; });
}

// Takes the set bits of one stored brick, row by row. Returns their number, or -1. `hit` gets a bit
// for each of the first 64 column slots of the brick that has one.
int64_t take_brick(const BlockedView& format, int64_t brick, int64_t window, int64_t first_slot,
                   PanelRows& rows, uint64_t& hit) {
  const int64_t width = format.shape.brick;
  const int64_t nbytes = format.shape.window * width / 8;
  const uint8_t* bytes = format.bitmap + brick * nbytes;
  int64_t taken = 0;
  for (int64_t at = 0; at < nbytes; at += 8) {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes + at, static_cast<size_t>(std::min<int64_t>(8, nbytes - at)));
    for (; bits != 0; bits &= bits - 1) {
      const auto bit = static_cast<uint32_t>(8 * at + __builtin_ctzll(bits));
      const uint32_t row = bit / static_cast<uint32_t>(width);
      const int64_t position = bit - row * width;
      const int32_t column = format.columns[first_slot + position];
      if (!rows.take(window * format.shape.window + row, column)) return -1;
      if (position < 64) hit |= uint64_t{1} << position;
      ++taken;
    }
  }
  return taken;
}

// The lowest `count` bits, of which there may be fewer than 1 or more than 64.
uint64_t low_bits(int64_t count) {
  if (count <= 0) return 0;
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

bool bricks_match(const BlockedView& format, const Slots& slots, PanelRows& rows) {
  const BlockedShape& shape = format.shape;
  const int64_t windows = shape.panel / shape.window;
  int64_t in_block = 0;
  for (int64_t slot = slots.first; slot < slots.end; slot += shape.brick) {
    const int64_t column = slot / shape.brick;
    const bool listed = format.brick_ptr != nullptr;
    const int64_t begin = listed ? format.brick_ptr[column] : column * windows;
    const int64_t end = listed ? format.brick_ptr[column + 1] : begin + windows;
    uint64_t hit = 0;
    for (int64_t brick = begin; brick < end; ++brick) {
      const int64_t window = listed ? format.brick_rows[brick] : brick - begin;
      const int64_t taken = take_brick(format, brick, window, slot, rows, hit);
      if (taken < 0 || (listed && taken == 0)) return false;
      in_block += taken;
    }
    if (hit != low_bits(std::min<int64_t>(slots.real_end - slot, shape.brick))) return false;
    if (format.value_ptr == nullptr || (slot + shape.brick) % shape.block != 0) continue;
    const int64_t block = slot / shape.block;
    if (format.value_ptr[block + 1] - format.value_ptr[block] != in_block) return false;
    in_block = 0;
  }
  return rows.all_taken();
}

bool lanes_match(const BlockedView& format, const Slots& slots, PanelRows& rows) {
  for (int64_t slot = slots.first; slot < slots.end; ++slot) {
    bool hit = false;
    for (int64_t row = 0; row < format.shape.panel; ++row) {
      const int64_t bit = bit_offset(format.shape, slots.first, row, slot - slots.first);
      if ((format.bitmap[bit / 8] >> (bit % 8) & 1) == 0) continue;
      if (!rows.take(row, format.columns[slot])) return false;
      hit = true;
    }
    if (hit != (slot < slots.real_end)) return false;
  }
  return rows.all_taken();
}

// Formats that store values alone: the columns of a panel are those of its nonzeros.
bool columns_match(const BlockedView& format, const Slots& slots, PanelRows& rows) {
  for (int64_t slot = slots.first; slot < slots.real_end; ++slot) {
    if (!rows.take_column(format.columns[slot])) return false;
  }
  return rows.all_taken();
}

// The nonzeros of the bricks of a record that `size` bytes have room for: ascending column offsets,
// and the rows of the bricks of a column ascend. -1: it is none.
int64_t count_record(const uint8_t* bytes, int64_t size, int64_t windows, int64_t value_bytes) {
  if (size < 4 * record_header_words(0)) return -1;
  const PackedRecord record(bytes);
  const int64_t bricks = record.bricks();
  if (record.col_ptr(0) != 0 || bricks > kRecordColumns * windows) return -1;
  if (size < record_bytes(bricks, 0, value_bytes)) return -1;
  int64_t nnz = 0;
  for (int column = 0; column < kRecordColumns; ++column) {
    const uint32_t begin = record.col_ptr(column);
    const uint32_t end = record.col_ptr(column + 1);
    if (begin > end || end > bricks) return -1;
    for (uint32_t brick = begin; brick < end; ++brick) {
      if (record.row(brick) >= windows || record.pattern(brick) == 0) return -1;
      if (brick > begin && record.row(brick) <= record.row(brick - 1)) return -1;
      nnz += popcount64(record.pattern(brick));
    }
  }
  return size == record_bytes(bricks, nnz, value_bytes) ? nnz : -1;
}

// Takes the nonzeros of a record, whose slots begin at `slot`, brick by brick.
bool record_matches(const BlockedView& format, const PackedRecord& record, const Slots& slots,
                    int64_t slot, PanelRows& rows) {
  for (int column = 0; column < kRecordColumns; ++column, slot += kRecordBrickWidth) {
    uint64_t hit = 0;
    for (uint32_t brick = record.col_ptr(column); brick < record.col_ptr(column + 1); ++brick) {
      for (uint64_t bits = record.pattern(brick); bits != 0; bits &= bits - 1) {
        const int bit = __builtin_ctzll(bits);
        const int64_t row = kRecordBrickRows * int64_t{record.row(brick)} + bit / kRecordBrickWidth;
        const int position = bit % kRecordBrickWidth;
        if (!rows.take(row, format.columns[slot + position])) return false;
        hit |= uint64_t{1} << position;
      }
    }
    if (hit != low_bits(std::min<int64_t>(slots.real_end - slot, kRecordBrickWidth))) return false;
  }
  return true;
}

bool records_match(const BlockedView& format, const RecordsView& records, int64_t value_bytes,
                   const Slots& slots, PanelRows& rows) {
  const int64_t windows = format.shape.panel / format.shape.window;
  for (int64_t slot = slots.first; slot < slots.end; slot += kRecordSlots) {
    const int64_t begin = records.size_ptr[slot / kRecordSlots];
    const int64_t size = records.size_ptr[slot / kRecordSlots + 1] - begin;
    const uint8_t* bytes = records.packed_blocks + begin;
    if (begin % kRecordAlignment != 0) return false;
    if (count_record(bytes, size, windows, value_bytes) < 0) return false;
    if (!record_matches(format, PackedRecord(bytes), slots, slot, rows)) return false;
  }
  return rows.all_taken();
}

}  // namespace

int64_t first_unlike(const CsrView& a, const BlockedView& format, const RecordsView& records,
                     int64_t value_bytes, int threads) {
  std::atomic<int64_t> found{format.panels};
  constexpr int64_t kPanels = 256;
  parallel_chunks(format.panels, kPanels, threads, [&](int64_t begin, int64_t end) {
    PanelRows rows(a);
    for (int64_t p = begin; p < end; ++p) {
      const int64_t row = format.panel_row(p);
      rows.start(row, std::min(a.rows, row + format.shape.panel));
      const auto matches = format.encoding != Encoding::kBitmap ? columns_match
                           : format.shape.lane_order            ? lanes_match
                                                                : bricks_match;
      Slots slots;
      if (split_slots(format, p, slots) &&
          (records.size_ptr != nullptr ? records_match(format, records, value_bytes, slots, rows)
                                       : matches(format, slots, rows))) {
        continue;
      }
      int64_t first = found.load();
      while (p < first && !found.compare_exchange_weak(first, p)) {
      }
      return;
    }
  });
  return found.load() == format.panels ? -1 : found.load();
}

}  // namespace gnnsparse::cpu
