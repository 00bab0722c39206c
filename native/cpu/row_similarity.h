// Similarity of the rows of a matrix by the columns that they have in common, and each row's most
// similar rows.
#pragma once

#include <cstdint>
#include <vector>

#include "gnnsparse/types.h"

namespace gnnsparse::cpu {

// The transposed structure: the rows of each column, ascending.
struct InvertedLists {
  InvertedLists(const CsrView& a, int threads);

  int64_t count(int32_t column) const { return ptr[column + 1] - ptr[column]; }

  std::vector<int64_t> ptr;
  std::vector<int32_t> rows;
};

// Weighted Jaccard similarity (RSH-SpMM, section 3.4): columns weigh count^-alpha, count being
// their number of nonzeros, and two rows are as similar as the weight of their common columns is to
// that of all their columns. Two empty rows are equal, so that their similarity is 1.
class RowSimilarity {
 public:
  RowSimilarity(const CsrView& a, const InvertedLists& lists, double alpha, int threads);

  double between(int32_t r, int32_t u) const;
  double distance(int32_t r, int32_t u) const { return 1 - between(r, u); }
  // The similarity of rows r and u whose common columns weigh `common`.
  double from_common(int32_t r, int32_t u, double common) const;
  double weight(int32_t column) const { return weight_[column]; }
  const CsrView& matrix() const { return a_; }

  // Sum of the distances of neighbours in an order, added up in one order for any number of
  // threads.
  double path_length(const std::vector<int32_t>& order, int threads) const;

 private:
  const CsrView& a_;
  std::vector<double> weight_;  // of each column
  std::vector<double> total_;   // of each row's columns
};

struct NeighborOptions {
  int64_t k = 8;            // most neighbours of a row
  int64_t candidates = 64;  // rows whose similarity is computed for a row, at most
  int64_t features = 16;    // a row's rarest columns, by whose lists candidates are found
  int64_t list = 64;        // rows taken of one list, at most: those nearest to the row
};

// An edge between similar rows, first < second.
struct SimilarPair {
  int32_t first;
  int32_t second;
  double similarity;
};

// Each row's most similar rows among those that share one of its rarest columns with it, as
// undirected edges, the most similar first. Rows without a common column are no neighbours.
std::vector<SimilarPair> similar_pairs(const RowSimilarity& similarity, const InvertedLists& lists,
                                       const NeighborOptions& options, int threads);

// Disjoint sets of rows, whose sizes are known.
class DisjointSets {
 public:
  explicit DisjointSets(int64_t count);

  int32_t find(int32_t item);
  int32_t size(int32_t root) const { return size_[root]; }
  void join(int32_t first_root, int32_t second_root);

 private:
  std::vector<int32_t> parent_;
  std::vector<int32_t> size_;
};

}  // namespace gnnsparse::cpu
