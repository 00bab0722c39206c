// Whether the bits of a blocked matrix are the nonzeros of a CSR matrix. The work is that of a
// merge: in each row, the columns of the set bits are compared with the row's columns, one by one.
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
  bool all_taken() const { return cursor_ == end_; }

 private:
  const CsrView& a_;
  std::vector<int64_t> cursor_;
  std::vector<int64_t> end_;
};

// Whether the columns of a panel ascend. In lane order -1 fills the panel up.
bool columns_ascend(const BlockedView& format, int64_t first, int64_t last) {
  const int32_t* end = format.columns + last;
  const int32_t* padded = format.columns + last;
  if (format.shape.lane_order) padded = std::find(format.columns + first, end, -1);
  return std::is_sorted(format.columns + first, padded) &&
         std::all_of(padded, end, [](int32_t column) { return column == -1; });
}

// Takes the set bits of one stored brick, row by row. Returns their number, or -1.
int64_t take_brick(const BlockedView& format, int64_t brick, int64_t window, int64_t first_slot,
                   PanelRows& rows) {
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
      const int64_t slot = first_slot + bit - row * width;
      if (!rows.take(window * format.shape.window + row, format.columns[slot])) return -1;
      ++taken;
    }
  }
  return taken;
}

bool bricks_match(const BlockedView& format, int64_t first, int64_t last, PanelRows& rows) {
  const BlockedShape& shape = format.shape;
  const int64_t windows = shape.panel / shape.window;
  int64_t in_block = 0;
  for (int64_t slot = first; slot < last; slot += shape.brick) {
    const int64_t column = slot / shape.brick;
    const bool listed = format.brick_ptr != nullptr;
    const int64_t begin = listed ? format.brick_ptr[column] : column * windows;
    const int64_t end = listed ? format.brick_ptr[column + 1] : begin + windows;
    for (int64_t brick = begin; brick < end; ++brick) {
      const int64_t window = listed ? format.brick_rows[brick] : brick - begin;
      const int64_t taken = take_brick(format, brick, window, slot, rows);
      if (taken < 0) return false;
      in_block += taken;
    }
    if (format.value_ptr == nullptr || (slot + shape.brick) % shape.block != 0) continue;
    const int64_t block = slot / shape.block;
    if (format.value_ptr[block + 1] - format.value_ptr[block] != in_block) return false;
    in_block = 0;
  }
  return rows.all_taken();
}

bool lanes_match(const BlockedView& format, int64_t first, int64_t last, PanelRows& rows) {
  for (int64_t slot = first; slot < last; ++slot) {
    for (int64_t row = 0; row < format.shape.panel; ++row) {
      const int64_t bit = bit_offset(format.shape, first, row, slot - first);
      const bool set = (format.bitmap[bit / 8] >> (bit % 8) & 1) != 0;
      if (set && !rows.take(row, format.columns[slot])) return false;
    }
  }
  return rows.all_taken();
}

}  // namespace

int64_t first_unlike(const CsrView& a, const BlockedView& format, int threads) {
  std::atomic<int64_t> found{format.panels};
  constexpr int64_t kPanels = 256;
  parallel_chunks(format.panels, kPanels, threads, [&](int64_t begin, int64_t end) {
    PanelRows rows(a);
    for (int64_t p = begin; p < end; ++p) {
      const int64_t row = format.panel_row(p);
      const int64_t first_slot = format.panel_ptr[p];
      const int64_t last_slot = format.panel_ptr[p + 1];
      rows.start(row, std::min(a.rows, row + format.shape.panel));
      const auto matches = format.shape.lane_order ? lanes_match : bricks_match;
      if (columns_ascend(format, first_slot, last_slot) &&
          matches(format, first_slot, last_slot, rows)) {
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
