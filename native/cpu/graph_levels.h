// Graphs of nodes, and of communities of nodes, for `community_order`.
#pragma once

#include <cstdint>
#include <vector>

#include "gnnsparse/types.h"

namespace gnnsparse::cpu {

// Sums of weights by label. The table is as large as the most labels it ever held ask for, so that
// it stays in the nearest cache, which an array over all labels would not.
class LabelWeights {
 public:
  LabelWeights() { resize(64); }

  void clear() {
    for (const int64_t slot : used_) labels_[slot] = kFree;
    used_.clear();
  }
  void add(int32_t label, double weight) {
    const int64_t slot = find(label);
    if (labels_[slot] == label) {
      weights_[slot] += weight;
      return;
    }
    labels_[slot] = label;
    weights_[slot] = weight;
    used_.push_back(slot);
    if (2 * size() > mask_) grow();
  }
  double weight_of(int32_t label) const {
    const int64_t slot = find(label);
    return labels_[slot] == label ? weights_[slot] : 0;
  }
  int64_t size() const { return static_cast<int64_t>(used_.size()); }
  int32_t label(int64_t i) const { return labels_[used_[i]]; }
  double weight(int64_t i) const { return weights_[used_[i]]; }

 private:
  static constexpr int32_t kFree = -1;

  int64_t find(int32_t label) const {
    int64_t slot = (static_cast<uint32_t>(label) * 2654435769u >> 7) & mask_;
    while (labels_[slot] != label && labels_[slot] != kFree) slot = (slot + 1) & mask_;
    return slot;
  }
  void resize(int64_t slots) {
    mask_ = slots - 1;
    labels_.assign(slots, kFree);
    weights_.resize(slots);
    used_.clear();
  }
  void grow();

  int64_t mask_ = 0;
  std::vector<int32_t> labels_;
  std::vector<double> weights_;
  std::vector<int64_t> used_;
};

// Rows of a CSR structure as lists of neighbours.
struct Links {
  const int64_t* ptr = nullptr;  // null: none
  const int32_t* to = nullptr;
  const float* weight = nullptr;  // null: 1 each
};

// An undirected graph. Neighbours in both lists count twice; self-loops are left out.
struct Graph {
  Graph() = default;
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;  // no copies: `links` may point into the lists below

  int64_t nodes = 0;
  Links links[2];
  std::vector<int64_t> degree;  // sum of the nodes' links at the lowest level, inner ones included
  // Where the graph owns its lists:
  std::vector<int64_t> ptr;
  std::vector<int32_t> to;
  std::vector<float> weight;

  int64_t link_count() const {
    int64_t sum = 0;
    for (const Links& list : links) sum += list.ptr != nullptr ? list.ptr[nodes] : 0;
    return sum;
  }
  template <class Visit>
  void for_each_neighbor(int64_t node, Visit visit) const {
    for (const Links& list : links) {
      if (list.ptr == nullptr) continue;
      for (int64_t e = list.ptr[node]; e < list.ptr[node + 1]; ++e) {
        if (list.to[e] != node) visit(list.to[e], list.weight != nullptr ? list.weight[e] : 1.0f);
      }
    }
  }
};

// Positions of equal labels: items[starts[c]..starts[c + 1]) are those of label c, in the order in
// which `items` had them.
std::vector<int64_t> group_by_label(const std::vector<int32_t>& labels, int64_t label_count,
                                    std::vector<int32_t>& items);

// The graph of A + A^T. It refers to `a`, and to its own transpose where the structure is not
// symmetric.
Graph graph_of(const CsrView& a, int threads);

// The graph whose nodes are the `count` communities of `label`.
Graph coarsen(const Graph& graph, const std::vector<int32_t>& label, int64_t count, int threads);

}  // namespace gnnsparse::cpu
