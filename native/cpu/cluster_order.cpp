// An order like the TCU-cache-aware reordering of DTC-SpMM (Fan et al., ASPLOS 2024): clusters of
// similar rows that fill a window, and groups of similar clusters that share a cache. DTC-SpMM
// finds similar rows by MinHash; here they are found by the lists of their rarest columns.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "gnnsparse/reorder.h"
#include "graph_levels.h"
#include "row_similarity.h"

namespace gnnsparse::cpu {
namespace {

// Joins the most similar rows first, to sets of at most `limit` rows, which are numbered in the
// order of their first rows. Returns the set of each row, and how many there are.
std::pair<std::vector<int32_t>, int64_t> cluster(const CsrView& a, int64_t limit, int64_t k,
                                                 int threads) {
  const InvertedLists lists(a, threads);
  const RowSimilarity similarity(a, lists, 0.0, threads);
  NeighborOptions search;
  search.k = k;
  DisjointSets sets(a.rows);
  for (const SimilarPair& pair : similar_pairs(similarity, lists, search, threads)) {
    const int32_t first = sets.find(pair.first), second = sets.find(pair.second);
    if (first != second && sets.size(first) + sets.size(second) <= limit) sets.join(first, second);
  }
  std::vector<int32_t> label(a.rows), number(a.rows, -1);
  int32_t count = 0;
  for (int64_t r = 0; r < a.rows; ++r) {
    int32_t& of_root = number[sets.find(static_cast<int32_t>(r))];
    if (of_root < 0) of_root = count++;
    label[r] = of_root;
  }
  return {std::move(label), count};
}

// A matrix whose rows have the columns of all rows of a cluster.
struct Merged {
  Merged(const CsrView& a, const std::vector<int32_t>& rows, const std::vector<int64_t>& starts)
      : indptr(1, 0) {
    std::vector<int32_t> seen(a.cols, -1);
    for (size_t c = 0; c + 1 < starts.size(); ++c) {
      const size_t begin = indices.size();
      for (int64_t i = starts[c]; i < starts[c + 1]; ++i) {
        for (int64_t e = a.indptr[rows[i]]; e < a.indptr[rows[i] + 1]; ++e) {
          int32_t& last = seen[a.indices[e]];
          if (last == static_cast<int32_t>(c)) continue;
          last = static_cast<int32_t>(c);
          indices.push_back(a.indices[e]);
        }
      }
      std::sort(indices.begin() + static_cast<int64_t>(begin), indices.end());
      indptr.push_back(static_cast<int64_t>(indices.size()));
    }
  }

  CsrView view(int64_t cols) const {
    CsrView view{};
    view.rows = static_cast<int64_t>(indptr.size()) - 1;
    view.cols = cols;
    view.nnz = static_cast<int64_t>(indices.size());
    view.indptr = indptr.data();
    view.indices = indices.data();
    return view;
  }

  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;
};

}  // namespace

void cluster_order(const CsrView& a, const ClusterOptions& options, int32_t* out, int threads) {
  const auto [label, count] = cluster(a, options.height, options.k, threads);
  std::vector<int32_t> rows(a.rows);
  std::iota(rows.begin(), rows.end(), 0);
  const std::vector<int64_t> starts = group_by_label(label, count, rows);
  const Merged merged(a, rows, starts);
  const auto [group, groups] = cluster(merged.view(a.cols), options.group, options.k, threads);
  std::vector<int32_t> clusters(count);
  std::iota(clusters.begin(), clusters.end(), 0);
  group_by_label(group, groups, clusters);
  // A cluster that is short of rows would move the borders of those behind it.
  std::stable_partition(clusters.begin(), clusters.end(),
                        [&](int32_t c) { return starts[c + 1] - starts[c] == options.height; });
  std::stable_partition(clusters.begin(), clusters.end(),
                        [&](int32_t c) { return merged.indptr[c + 1] > merged.indptr[c]; });
  for (const int32_t c : clusters) {
    out = std::copy(rows.begin() + starts[c], rows.begin() + starts[c + 1], out);
  }
}

}  // namespace gnnsparse::cpu
