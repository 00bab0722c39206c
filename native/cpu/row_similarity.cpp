#include "row_similarity.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "gnnsparse/csr.h"
#include "graph_levels.h"
#include "parallel.h"

namespace gnnsparse::cpu {
namespace {

constexpr int64_t kRowChunk = 256;

struct Candidate {
  int32_t row;
  double similarity;
};

bool more_similar(const Candidate& a, const Candidate& b) {
  return a.similarity != b.similarity ? a.similarity > b.similarity : a.row < b.row;
}

// Keeps the `count` best candidates, the best first.
void keep_best(std::vector<Candidate>& candidates, int64_t count) {
  const auto kept = std::min<int64_t>(count, static_cast<int64_t>(candidates.size()));
  std::partial_sort(candidates.begin(), candidates.begin() + kept, candidates.end(), more_similar);
  candidates.resize(kept);
}

// Finds the neighbours of one row after another, with scratch that is made once.
class NeighborSearch {
 public:
  NeighborSearch(const RowSimilarity& similarity, const InvertedLists& lists,
                 const NeighborOptions& options)
      : similarity_(similarity),
        a_(similarity.matrix()),
        lists_(lists),
        options_(options),
        marked_(a_.cols, -1) {}

  const std::vector<Candidate>& neighbors_of(int32_t row) {
    choose_features(row);
    find_candidates(row);
    for (int64_t e = a_.indptr[row]; e < a_.indptr[row + 1]; ++e) marked_[a_.indices[e]] = row;
    for (Candidate& candidate : found_) {
      double common = 0;
      for (int64_t e = a_.indptr[candidate.row]; e < a_.indptr[candidate.row + 1]; ++e) {
        if (marked_[a_.indices[e]] == row) common += similarity_.weight(a_.indices[e]);
      }
      candidate.similarity = similarity_.from_common(row, candidate.row, common);
    }
    keep_best(found_, options_.k);
    return found_;
  }

 private:
  // The rarest columns that other rows have, too.
  void choose_features(int32_t row) {
    features_.clear();
    for (int64_t e = a_.indptr[row]; e < a_.indptr[row + 1]; ++e) {
      if (lists_.count(a_.indices[e]) > 1) features_.push_back(a_.indices[e]);
    }
    const auto rarer = [&](int32_t c, int32_t d) {
      return lists_.count(c) != lists_.count(d) ? lists_.count(c) < lists_.count(d) : c < d;
    };
    const auto kept = std::min<int64_t>(options_.features, static_cast<int64_t>(features_.size()));
    std::partial_sort(features_.begin(), features_.begin() + kept, features_.end(), rarer);
    features_.resize(kept);
  }

  // The rows that share most of the features' weight.
  void find_candidates(int32_t row) {
    shared_.clear();
    for (const int32_t column : features_) {
      const int32_t* list = lists_.rows.data() + lists_.ptr[column];
      const int64_t count = lists_.count(column);
      const int64_t taken = std::min(count, options_.list);
      const int64_t at = std::lower_bound(list, list + count, row) - list;
      const int64_t first = std::clamp<int64_t>(at - taken / 2, 0, count - taken);
      for (int64_t i = first; i < first + taken; ++i) {
        if (list[i] != row) shared_.add(list[i], similarity_.weight(column));
      }
    }
    found_.clear();
    for (int64_t i = 0; i < shared_.size(); ++i) {
      found_.push_back({shared_.label(i), shared_.weight(i)});
    }
    keep_best(found_, options_.candidates);
  }

  const RowSimilarity& similarity_;
  const CsrView& a_;
  const InvertedLists& lists_;
  const NeighborOptions& options_;
  std::vector<int32_t> marked_;  // for each column the last row that had it
  std::vector<int32_t> features_;
  LabelWeights shared_;
  std::vector<Candidate> found_;
};

}  // namespace

InvertedLists::InvertedLists(const CsrView& a, int threads) : ptr(a.cols + 1), rows(a.nnz) {
  transpose(a, ptr.data(), rows.data(), MutableIndexView{}, threads);
}

RowSimilarity::RowSimilarity(const CsrView& a, const InvertedLists& lists, double alpha,
                             int threads)
    : a_(a), weight_(a.cols), total_(a.rows) {
  parallel_ranges(a.cols, threads, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const auto count = static_cast<double>(lists.count(static_cast<int32_t>(c)));
      weight_[c] = count > 0 ? std::pow(count, -alpha) : 0;
    }
  });
  parallel_dynamic(a.rows, kRowChunk, threads, [&](int64_t r) {
    double sum = 0;
    for (int64_t e = a.indptr[r]; e < a.indptr[r + 1]; ++e) sum += weight_[a.indices[e]];
    total_[r] = sum;
  });
}

double RowSimilarity::from_common(int32_t r, int32_t u, double common) const {
  const double all = total_[r] + total_[u] - common;
  return all > 0 ? std::min(common / all, 1.0) : 1.0;
}

double RowSimilarity::between(int32_t r, int32_t u) const {
  int64_t e = a_.indptr[r], f = a_.indptr[u];
  const int64_t e_end = a_.indptr[r + 1], f_end = a_.indptr[u + 1];
  double common = 0;
  while (e < e_end && f < f_end) {
    const int32_t c = a_.indices[e], d = a_.indices[f];
    if (c == d) common += weight_[c];
    e += c <= d;
    f += d <= c;
  }
  return from_common(r, u, common);
}

double RowSimilarity::path_length(const std::vector<int32_t>& order, int threads) const {
  const int64_t steps = std::max<int64_t>(0, static_cast<int64_t>(order.size()) - 1);
  std::vector<double> step(steps);
  parallel_dynamic(steps, kRowChunk, threads,
                   [&](int64_t i) { step[i] = distance(order[i], order[i + 1]); });
  return std::accumulate(step.begin(), step.end(), 0.0);
}

std::vector<SimilarPair> similar_pairs(const RowSimilarity& similarity, const InvertedLists& lists,
                                       const NeighborOptions& options, int threads) {
  const int64_t rows = similarity.matrix().rows, k = options.k;
  std::vector<int32_t> neighbor(rows * k, -1);
  std::vector<double> how_similar(rows * k);
  // Few large chunks: each has scratch of the matrix's width.
  const int64_t chunk = std::max<int64_t>(kRowChunk, ceil_div(rows, int64_t{8} * threads));
  parallel_chunks(rows, chunk, threads, [&](int64_t begin, int64_t end) {
    NeighborSearch search(similarity, lists, options);
    for (int64_t r = begin; r < end; ++r) {
      int64_t at = r * k;
      for (const Candidate& found : search.neighbors_of(static_cast<int32_t>(r))) {
        neighbor[at] = found.row;
        how_similar[at++] = found.similarity;
      }
    }
  });
  std::vector<SimilarPair> pairs;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t at = r * k; at < (r + 1) * k && neighbor[at] >= 0; ++at) {
      const int64_t other = neighbor[at];
      const auto* others = neighbor.data() + other * k;
      // A pair that is in both lists is taken from the one of its smaller row.
      if (other < r && std::find(others, others + k, r) != others + k) continue;
      pairs.push_back({static_cast<int32_t>(std::min(r, other)),
                       static_cast<int32_t>(std::max(r, other)), how_similar[at]});
    }
  }
  std::sort(pairs.begin(), pairs.end(), [](const SimilarPair& p, const SimilarPair& q) {
    if (p.similarity != q.similarity) return p.similarity > q.similarity;
    return std::pair(p.first, p.second) < std::pair(q.first, q.second);
  });
  return pairs;
}

DisjointSets::DisjointSets(int64_t count) : parent_(count), size_(count, 1) {
  std::iota(parent_.begin(), parent_.end(), 0);
}

int32_t DisjointSets::find(int32_t item) {
  while (parent_[item] != item) {
    parent_[item] = parent_[parent_[item]];
    item = parent_[item];
  }
  return item;
}

void DisjointSets::join(int32_t first_root, int32_t second_root) {
  const int32_t root = std::min(first_root, second_root);
  const int32_t child = std::max(first_root, second_root);
  parent_[child] = root;
  size_[root] += size_[child];
}

}  // namespace gnnsparse::cpu
