// RSH-SpMM's locality-aware reordering (section 3.4, algorithm 3). The paper leaves open how many
// neighbours and candidates there are, what a window is and which rows are isolated; what is ours
// beside these numbers: a stage whose order is worse than the one it got is undone.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "gnnsparse/reorder.h"
#include "parallel.h"
#include "row_similarity.h"

namespace gnnsparse::cpu {
namespace {

using Order = std::vector<int32_t>;

constexpr double kLess =
    1e-12;  // a change by less than this is none: sums of distances are rounded

// Links of each row in a list of pairs, in the order of the pairs.
struct Adjacency {
  Adjacency(int64_t rows, const std::vector<SimilarPair>& pairs) : ptr(rows + 1, 0) {
    for (const SimilarPair& pair : pairs) {
      ++ptr[pair.first + 1];
      ++ptr[pair.second + 1];
    }
    std::partial_sum(ptr.begin(), ptr.end(), ptr.begin());
    to.resize(ptr[rows]);
    std::vector<int64_t> cursor(ptr.begin(), ptr.end() - 1);
    for (const SimilarPair& pair : pairs) {
      to[cursor[pair.first]++] = pair.second;
      to[cursor[pair.second]++] = pair.first;
    }
  }

  std::vector<int64_t> ptr;
  std::vector<int32_t> to;
};

// The pairs of a spanning forest of least distance: Kruskal's algorithm on sorted pairs.
std::vector<SimilarPair> spanning_forest(int64_t rows, const std::vector<SimilarPair>& pairs) {
  DisjointSets sets(rows);
  std::vector<SimilarPair> forest;
  for (const SimilarPair& pair : pairs) {
    const int32_t first = sets.find(pair.first), second = sets.find(pair.second);
    if (first == second) continue;
    sets.join(first, second);
    forest.push_back(pair);
  }
  return forest;
}

// The rows in the order in which a depth-first search first meets them: from each tree's first row,
// to the most similar rows first.
Order depth_first(int64_t rows, const std::vector<SimilarPair>& forest) {
  const Adjacency tree(rows, forest);
  Order order, stack;
  order.reserve(rows);
  std::vector<bool> met(rows, false);
  for (int64_t root = 0; root < rows; ++root) {
    if (met[root]) continue;
    stack.assign(1, static_cast<int32_t>(root));
    while (!stack.empty()) {
      const int32_t row = stack.back();
      stack.pop_back();
      met[row] = true;
      order.push_back(row);
      for (int64_t e = tree.ptr[row + 1] - 1; e >= tree.ptr[row]; --e) {
        if (!met[tree.to[e]]) stack.push_back(tree.to[e]);
      }
    }
  }
  return order;
}

// Reverses parts of one window between its first and its last row while that shortens the path.
class TwoOpt {
 public:
  explicit TwoOpt(const RowSimilarity& similarity) : similarity_(similarity) {}

  void improve(int32_t* rows, int64_t count) {
    place_.resize(count);
    std::iota(place_.begin(), place_.end(), 0);
    measure(rows, count);
    for (int64_t sweep = 0; sweep < count && sweep_once(count); ++sweep) {
    }
    given_.assign(rows, rows + count);
    for (int64_t i = 0; i < count; ++i) rows[i] = given_[place_[i]];
  }

 private:
  void measure(const int32_t* rows, int64_t count) {
    distance_.assign(count * count, 0);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = i + 1; j < count; ++j) {
        distance_[i * count + j] = distance_[j * count + i] =
            similarity_.distance(rows[i], rows[j]);
      }
    }
  }
  bool sweep_once(int64_t count) {
    const auto between = [&](int64_t i, int64_t j) {
      return distance_[place_[i] * count + place_[j]];
    };
    bool improved = false;
    for (int64_t i = 1; i + 1 < count; ++i) {
      for (int64_t j = i + 1; j + 1 < count; ++j) {
        const double now = between(i - 1, i) + between(j, j + 1);
        if (between(i - 1, j) + between(i, j + 1) >= now - kLess) continue;
        std::reverse(place_.begin() + i, place_.begin() + j + 1);
        improved = true;
      }
    }
    return improved;
  }

  const RowSimilarity& similarity_;
  std::vector<double> distance_;
  std::vector<int64_t> place_;
  Order given_;
};

// Windows do not overlap, so that they can be improved at the same time; a second pass is shifted
// by half a window, for the borders of the first.
void improve_windows(const RowSimilarity& similarity, Order& order, int64_t window, int threads) {
  const auto rows = static_cast<int64_t>(order.size());
  for (const int64_t shift : {int64_t{0}, window / 2}) {
    if (rows <= shift) continue;
    const int64_t windows = ceil_div(rows - shift, window);
    parallel_chunks(windows, 8, threads, [&](int64_t begin, int64_t end) {
      TwoOpt two_opt(similarity);
      for (int64_t w = begin; w < end; ++w) {
        const int64_t first = shift + w * window;
        two_opt.improve(order.data() + first, std::min(window, rows - first));
      }
    });
  }
}

// An order as a list, in which rows can be moved.
class Sequence {
 public:
  Sequence(const RowSimilarity& similarity, const Order& order)
      : similarity_(similarity), before_(order.size()), after_(order.size()) {
    for (size_t i = 0; i < order.size(); ++i) {
      before_[order[i]] = i > 0 ? order[i - 1] : kNone;
      after_[order[i]] = i + 1 < order.size() ? order[i + 1] : kNone;
    }
    head_ = order.front();
    tail_ = order.back();
  }

  // The larger one of a row's similarities to its neighbours.
  double closest(int32_t row) const {
    double found = 0;
    for (const int32_t other : {before_[row], after_[row]}) {
      if (other != kNone) found = std::max(found, similarity_.between(row, other));
    }
    return found;
  }
  // Moves a row behind another, or before it, if that makes the path shorter.
  bool move_beside(int32_t row, int32_t other) {
    const double saved = saved_without(row);
    const int32_t left = before_[other] == row ? before_[row] : before_[other];
    const int32_t right = after_[other] == row ? after_[row] : after_[other];
    const double behind = cost_between(other, row, right), ahead = cost_between(left, row, other);
    if (std::min(behind, ahead) >= saved - kLess) return false;
    take_out(row);
    insert_after(row, behind <= ahead ? other : before_[other]);
    return true;
  }
  // Moves a row to the end, if that does not make the path longer.
  bool move_to_end(int32_t row) {
    if (row == tail_ || similarity_.distance(tail_, row) > saved_without(row)) return false;
    take_out(row);
    insert_after(row, tail_);
    return true;
  }
  Order rows() const {
    Order order;
    for (int32_t row = head_; row != kNone; row = after_[row]) order.push_back(row);
    return order;
  }

 private:
  static constexpr int32_t kNone = -1;

  double distance(int32_t r, int32_t s) const {
    return r == kNone || s == kNone ? 0 : similarity_.distance(r, s);
  }
  double cost_between(int32_t left, int32_t row, int32_t right) const {
    return distance(left, row) + distance(row, right) - distance(left, right);
  }
  double saved_without(int32_t row) const { return cost_between(before_[row], row, after_[row]); }
  void link(int32_t left, int32_t right) {
    (left == kNone ? head_ : after_[left]) = right;
    (right == kNone ? tail_ : before_[right]) = left;
  }
  void take_out(int32_t row) { link(before_[row], after_[row]); }
  void insert_after(int32_t row, int32_t left) {
    const int32_t right = left == kNone ? head_ : after_[left];
    link(left, row);
    link(row, right);
  }

  const RowSimilarity& similarity_;
  Order before_, after_;
  int32_t head_, tail_;
};

// Moves rows that are unlike both neighbours to their most similar row that is not isolated itself;
// those that are unlike all rows to the end. Returns how many were moved.
int64_t move_isolated(const RowSimilarity& similarity, const std::vector<SimilarPair>& pairs,
                      double limit, Order& order, int threads) {
  const auto rows = static_cast<int64_t>(order.size());
  Sequence sequence(similarity, order);
  std::vector<char> isolated(rows);
  parallel_dynamic(rows, 1024, threads, [&](int64_t r) {
    isolated[r] = sequence.closest(static_cast<int32_t>(r)) < limit;
  });
  const Adjacency near(rows, pairs);
  int64_t moved = 0;
  for (const int32_t row : order) {
    if (!isolated[row]) continue;
    const auto* begin = near.to.data() + near.ptr[row];
    const auto* end = near.to.data() + near.ptr[row + 1];
    const auto* best = std::find_if(begin, end, [&](int32_t other) { return !isolated[other]; });
    if (best != end) {
      moved += sequence.move_beside(row, *best);
    } else if (begin == end) {
      moved += sequence.move_to_end(row);
    }
  }
  order = sequence.rows();
  return moved;
}

}  // namespace

JaccardStages jaccard_order(const CsrView& a, const JaccardOptions& options, int32_t* out,
                            int threads) {
  Order order(a.rows);
  std::iota(order.begin(), order.end(), 0);
  JaccardStages stages;
  if (a.rows > 0) {
    const InvertedLists lists(a, threads);
    const RowSimilarity similarity(a, lists, options.alpha, threads);
    std::vector<SimilarPair> pairs;
    if (options.tree || options.isolation) {
      NeighborOptions search;
      search.k = options.k;
      pairs = similar_pairs(similarity, lists, search, threads);
    }
    stages.given = stages.tree = similarity.path_length(order, threads);
    if (options.tree) {
      Order found = depth_first(a.rows, spanning_forest(a.rows, pairs));
      const double length = similarity.path_length(found, threads);
      if (length < stages.given) {
        order.swap(found);
        stages.tree = length;
      }
    }
    if (options.two_opt) improve_windows(similarity, order, options.window, threads);
    stages.two_opt = options.two_opt ? similarity.path_length(order, threads) : stages.tree;
    if (options.isolation) {
      stages.moved = move_isolated(similarity, pairs, options.isolated, order, threads);
    }
    stages.isolation = stages.moved > 0 ? similarity.path_length(order, threads) : stages.two_opt;
  }
  std::copy(order.begin(), order.end(), out);
  return stages;
}

}  // namespace gnnsparse::cpu
