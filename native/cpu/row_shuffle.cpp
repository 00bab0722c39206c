// Tiled-CSR's row shuffle (Xue et al., section III-B and C, algorithms 1 to 3). What is ours: empty
// rows are left out, full tiles come first, and a tile that the matches leave short of rows is
// filled with those that add the fewest columns to it.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "gnnsparse/reorder.h"

namespace gnnsparse::cpu {
namespace {

// Rows sorted by the sum of their squared columns, without the empty ones.
std::vector<int32_t> presorted(const CsrView& a) {
  std::vector<double> key(a.rows, 0);
  std::vector<int32_t> rows;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t e = a.indptr[r]; e < a.indptr[r + 1]; ++e) {
      key[r] += static_cast<double>(a.indices[e]) * a.indices[e];
    }
    if (a.indptr[r + 1] > a.indptr[r]) rows.push_back(static_cast<int32_t>(r));
  }
  std::stable_sort(rows.begin(), rows.end(), [&](int32_t r, int32_t s) { return key[r] < key[s]; });
  return rows;
}

// A tile that is being made, and the columns of its rows.
class Tile {
 public:
  explicit Tile(const CsrView& a) : a_(a), in_tile_(a.cols, 0), in_first_(a.cols, 0) {}

  void begin(int32_t row) {
    ++id_;
    rows.assign(1, row);
    columns_ = 0;
    first_length_ = length(row);
    mark(row);
    for_each_column(row, [&](int32_t c) { in_first_[c] = id_; });
  }
  void add(int32_t row) {
    rows.push_back(row);
    mark(row);
  }
  // How a row's columns overlap with those of the first row and of the tile.
  struct Overlap {
    int64_t length, common, added;  // its columns, the first row's among them, the tile's not
  };
  Overlap overlap(int32_t row) const {
    Overlap found{length(row), 0, 0};
    for_each_column(row, [&](int32_t c) {
      found.common += in_first_[c] == id_;
      found.added += in_tile_[c] != id_;
    });
    return found;
  }
  // Algorithm 2: the columns of both rows are hardly more than those of one of them.
  bool is_similar(const Overlap& row, double threshold) const {
    const auto both = static_cast<double>(first_length_ + row.length - row.common);
    return both < (1 + threshold) * static_cast<double>(std::max(first_length_, row.length));
  }
  // Algorithm 3: the columns of all rows together fit one tile.
  bool is_complementary(const Overlap& row, int64_t width) const {
    return columns_ < width && columns_ + row.added <= width;
  }
  int64_t columns() const { return columns_; }

  std::vector<int32_t> rows;

 private:
  template <class Visit>
  void for_each_column(int32_t row, Visit visit) const {
    for (int64_t e = a_.indptr[row]; e < a_.indptr[row + 1]; ++e) visit(a_.indices[e]);
  }
  int64_t length(int32_t row) const { return a_.indptr[row + 1] - a_.indptr[row]; }
  void mark(int32_t row) {
    for_each_column(row, [&](int32_t c) {
      columns_ += in_tile_[c] != id_;
      in_tile_[c] = id_;
    });
  }

  const CsrView& a_;
  std::vector<int32_t> in_tile_, in_first_;  // the last tile, and the last first row, with a column
  int32_t id_ = 0;
  int64_t columns_ = 0, first_length_ = 0;
};

// The rows that are in no tile yet, as a list that rows are taken out of.
class Waiting {
 public:
  explicit Waiting(std::vector<int32_t> rows)
      : rows_(std::move(rows)), next_(rows_.size() + 1), before_(rows_.size() + 2) {
    std::iota(next_.begin(), next_.end(), 1);
    std::iota(before_.begin(), before_.end(), -1);
    before_[0] = end();
    first_ = 0;
  }
  int64_t first() const { return first_; }
  int64_t next(int64_t at) const { return next_[at]; }
  int64_t end() const { return static_cast<int64_t>(rows_.size()); }
  int32_t row(int64_t at) const { return rows_[at]; }
  void take(int64_t at) {
    if (at == first_) {
      first_ = next_[at];
    } else {
      next_[before_[at]] = next_[at];
    }
    before_[next_[at]] = before_[at];
  }

 private:
  std::vector<int32_t> rows_;
  std::vector<int64_t> next_, before_;
  int64_t first_;
};

// A row that was passed over, and the columns that it would have added to a tile of so many
// columns.
struct Passed {
  int64_t at;
  int64_t added;
  int64_t tile_columns;

  // What it adds to the tile now, at the least: of its columns the tile may have got all its new
  // ones.
  int64_t adds_at_least(const Tile& tile) const { return added - (tile.columns() - tile_columns); }
};

// Adds the rows that a tile was passed over for, those first that add the fewest columns.
int64_t fill(Tile& tile, std::vector<Passed>& bin, Waiting& waiting, int64_t height) {
  int64_t filled = 0;
  while (static_cast<int64_t>(tile.rows.size()) < height && !bin.empty()) {
    auto best = bin.end();
    for (auto passed = bin.begin(); passed != bin.end(); ++passed) {
      if (best != bin.end() && passed->adds_at_least(tile) >= best->added) continue;
      passed->added = tile.overlap(waiting.row(passed->at)).added;
      passed->tile_columns = tile.columns();
      if (best == bin.end() || passed->added < best->added) best = passed;
    }
    tile.add(waiting.row(best->at));
    waiting.take(best->at);
    bin.erase(best);
    ++filled;
  }
  return filled;
}

}  // namespace

ShuffleCounts shuffle_rows(const CsrView& a, const ShuffleOptions& options, int32_t* order) {
  Waiting waiting(presorted(a));
  Tile tile(a);
  ShuffleCounts counts;
  std::vector<Passed> bin;
  std::vector<int32_t> left;  // rows of tiles that are short of rows
  int32_t* out = order;
  while (waiting.first() != waiting.end()) {
    int64_t at = waiting.first();
    tile.begin(waiting.row(at));
    waiting.take(at);
    bin.clear();
    for (at = waiting.next(at); at != waiting.end(); at = waiting.next(at)) {
      if (static_cast<int64_t>(tile.rows.size()) == options.height) break;
      if (static_cast<int64_t>(bin.size()) == options.bin) break;
      const Tile::Overlap row = tile.overlap(waiting.row(at));
      const bool similar = tile.is_similar(row, options.threshold);
      if (similar || tile.is_complementary(row, options.width)) {
        tile.add(waiting.row(at));
        waiting.take(at);
        ++(similar ? counts.similar : counts.complementary);
      } else {
        bin.push_back({at, row.added, tile.columns()});
      }
    }
    if (options.fill) counts.filled += fill(tile, bin, waiting, options.height);
    ++counts.tiles;
    if (static_cast<int64_t>(tile.rows.size()) == options.height) {
      out = std::copy(tile.rows.begin(), tile.rows.end(), out);
    } else {
      ++counts.short_tiles;
      left.insert(left.end(), tile.rows.begin(), tile.rows.end());
    }
  }
  out = std::copy(left.begin(), left.end(), out);
  for (int64_t r = 0; r < a.rows; ++r) {
    if (a.indptr[r + 1] == a.indptr[r]) *out++ = static_cast<int32_t>(r);
  }
  return counts;
}

}  // namespace gnnsparse::cpu
