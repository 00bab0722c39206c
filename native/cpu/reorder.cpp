// Communities by local moving in several levels (Blondel et al., "Fast unfolding of communities in
// large networks", 2008), and a row order that follows their hierarchy, as Rabbit Order does (Arai
// et al., IPDPS 2016). What is ours: the synchronous batches, the levels below the first, and that
// counted columns decide about the order inside each community.
#include "gnnsparse/reorder.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "graph_levels.h"
#include "parallel.h"

namespace gnnsparse::cpu {
namespace {

using Labels = std::vector<int32_t>;  // the community of each node
using Order = std::vector<int32_t>;

constexpr int64_t kHeight = 32;  // rows of the groups whose distinct columns the order minimises
constexpr int kBatches = 32;
constexpr int kCoarserLevels = 12;
constexpr int kFinerLevels = 2;
constexpr double kFiner = 16;               // factor of the resolution from level to level
constexpr int64_t kFewMoves = 50;           // a round that moves one node in so many is the last
constexpr int64_t kWorthAThread = 1 << 16;  // links to look at

// Nodes move in batches. Those of one batch see the communities as the batches before have left
// them and not each other's moves, so that neither threads nor their timing change a result. With
// few batches neighbours would swap communities, or flock to one, for want of news.
struct Batches {
  std::vector<int32_t> nodes;
  std::vector<int64_t> starts;

  explicit Batches(int64_t count) : nodes(count) {
    std::iota(nodes.begin(), nodes.end(), 0);
    Labels batch(count);
    for (int64_t u = 0; u < count; ++u) {
      batch[u] = static_cast<int32_t>((static_cast<uint32_t>(u) * 2654435769u >> 16) % kBatches);
    }
    starts = group_by_label(batch, kBatches, nodes);
  }
};

class Communities {
 public:
  // `within`, if not null: nodes join those of their own group alone.
  Communities(const Graph& graph, double resolution, const Labels* within)
      : label(graph.nodes), graph_(graph), within_(within), degree_(graph.degree) {
    std::iota(label.begin(), label.end(), 0);
    const auto links = std::accumulate(degree_.begin(), degree_.end(), int64_t{0});
    scale_ = resolution / static_cast<double>(std::max<int64_t>(links, 1));
  }

  // The community that raises modularity most, of equally good ones the one with the smallest
  // label; the present one where none is better.
  int32_t best_for(int64_t u, LabelWeights& weights) const {
    weights.clear();
    graph_.for_each_neighbor(u, [&](int32_t v, float weight) {
      if (within_ == nullptr || (*within_)[v] == (*within_)[u]) weights.add(label[v], weight);
    });
    const int32_t mine = label[u];
    const double expected = scale_ * static_cast<double>(graph_.degree[u]);
    const auto gain = [&](double weight, int64_t degree) {
      return weight - expected * static_cast<double>(degree);
    };
    int32_t best = mine;
    double best_gain = gain(weights.weight_of(mine), degree_[mine] - graph_.degree[u]);
    for (int64_t i = 0; i < weights.size(); ++i) {
      const int32_t other = weights.label(i);
      if (other == mine) continue;
      const double other_gain = gain(weights.weight(i), degree_[other]);
      if (other_gain > best_gain || (other_gain == best_gain && best != mine && other < best)) {
        best = other;
        best_gain = other_gain;
      }
    }
    return best;
  }

  // May run for several nodes at a time: the sums are of integers, so their order does not matter.
  void move(int64_t u, int32_t to) {
    __atomic_fetch_sub(&degree_[label[u]], graph_.degree[u], __ATOMIC_RELAXED);
    __atomic_fetch_add(&degree_[to], graph_.degree[u], __ATOMIC_RELAXED);
    label[u] = to;
  }

  Labels label;

 private:
  const Graph& graph_;
  const Labels* within_;
  std::vector<int64_t> degree_;  // of each community
  double scale_;
};

// Moves one batch of nodes to where they fit best; returns how many went.
int64_t move_batch(Communities& communities, const int32_t* nodes, int64_t count, int threads) {
  std::vector<int32_t> best(count);
  parallel_chunks(count, 128, threads, [&](int64_t begin, int64_t end) {
    LabelWeights weights;
    for (int64_t i = begin; i < end; ++i) best[i] = communities.best_for(nodes[i], weights);
  });
  int64_t moved = 0;
  parallel_ranges(count, threads, [&](int64_t begin, int64_t end) {
    int64_t mine = 0;
    for (int64_t i = begin; i < end; ++i) {
      if (best[i] == communities.label[nodes[i]]) continue;
      communities.move(nodes[i], best[i]);
      ++mine;
    }
    __atomic_fetch_add(&moved, mine, __ATOMIC_RELAXED);
  });
  return moved;
}

// Replaces labels by 0, 1, ... in the order of their first nodes; returns how many there are.
int64_t number_labels(Labels& label) {
  std::vector<int32_t> number(label.size(), -1);
  int32_t count = 0;
  for (int32_t& l : label) {
    if (number[l] < 0) number[l] = count++;
    l = number[l];
  }
  return count;
}

struct Partition {
  Labels label;
  int64_t count = 0;
};

Partition find_communities(const Graph& graph, const CommunityOptions& options, int threads,
                           const Labels* within = nullptr) {
  Communities communities(graph, options.resolution, within);
  const Batches batches(graph.nodes);
  // Threads that wait for each other after little work take longer than one alone.
  const int64_t work = graph.link_count() / kBatches / kWorthAThread;
  threads = static_cast<int>(std::min<int64_t>(threads, 1 + work));
  for (int round = 0; round < options.rounds; ++round) {
    int64_t moved = 0;
    for (int b = 0; b < kBatches; ++b) {
      moved += move_batch(communities, batches.nodes.data() + batches.starts[b],
                          batches.starts[b + 1] - batches.starts[b], threads);
    }
    // The last few would take as long as the first ones, and hardly change the order.
    if (moved <= graph.nodes / kFewMoves) break;
  }
  Partition found{std::move(communities.label), 0};
  found.count = number_labels(found.label);
  return found;
}

// Communities inside those of `coarse`, found at higher resolutions: the smallest first.
std::vector<Partition> refine(const Graph& graph, const Partition& coarse, CommunityOptions options,
                              int threads) {
  std::vector<Partition> finer;
  const Partition* within = &coarse;
  finer.reserve(kFinerLevels);
  for (int i = 0; i < kFinerLevels; ++i) {
    options.resolution *= kFiner;
    finer.push_back(find_communities(graph, options, threads, &within->label));
    within = &finer.back();
  }
  std::reverse(finer.begin(), finer.end());
  return finer;
}

// Communities of rows, each inside one of the next partition.
std::vector<Partition> find_hierarchy(const CsrView& a, const CommunityOptions& options,
                                      int threads) {
  std::vector<Partition> levels;
  Graph graph = graph_of(a, threads);
  for (int level = 0; level < kCoarserLevels; ++level) {
    Partition found = find_communities(graph, options, threads);
    if (found.count == graph.nodes) break;
    if (level == 0) levels = refine(graph, found, options, threads);
    graph = coarsen(graph, found.label, found.count, threads);
    if (level > 0) {
      Labels of_row(levels.back().label);
      for (int32_t& label : of_row) label = found.label[label];
      found.label.swap(of_row);
    }
    levels.push_back(std::move(found));
  }
  return levels;
}

// Distinct columns of the parts of an order, in groups of kHeight rows that begin anew with each; 0
// for a part of one group, whose order does not matter.
std::vector<int64_t> count_part_columns(const CsrView& a, const Order& order,
                                        const std::vector<int64_t>& starts, int threads) {
  const auto parts = static_cast<int64_t>(starts.size()) - 1;
  std::vector<int64_t> group_ptr(parts + 1, 0);
  for (int64_t p = 0; p < parts; ++p) {
    group_ptr[p + 1] = group_ptr[p] + ceil_div(starts[p + 1] - starts[p], kHeight);
  }
  const int64_t groups = group_ptr[parts];
  std::vector<int64_t> counts(parts, 0);
  // Few large chunks: each has scratch of the matrix's width.
  const int64_t chunk = std::max<int64_t>(1, ceil_div(groups, int64_t{8} * threads));
  parallel_chunks(groups, chunk, threads, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> seen(a.cols, -1);
    int64_t p = std::upper_bound(group_ptr.begin(), group_ptr.end(), begin) - group_ptr.begin() - 1;
    for (int64_t g = begin; g < end; ++g) {
      while (g >= group_ptr[p + 1]) ++p;
      if (group_ptr[p + 1] - group_ptr[p] == 1) continue;
      const auto id = static_cast<int32_t>(g - begin);
      const int64_t first = starts[p] + (g - group_ptr[p]) * kHeight;
      int64_t count = 0;
      for (int64_t i = first; i < std::min(first + kHeight, starts[p + 1]); ++i) {
        for (int64_t e = a.indptr[order[i]]; e < a.indptr[order[i] + 1]; ++e) {
          count += std::exchange(seen[a.indices[e]], id) != id;
        }
      }
      __atomic_fetch_add(&counts[p], count, __ATOMIC_RELAXED);
    }
  });
  return counts;
}

// Brings communities together, the rows of each in the better of the two orders that they have
// among themselves in `order` and in `other`.
void choose_orders(const CsrView& a, const Partition& communities, Order& order, Order other,
                   int threads) {
  const auto starts = group_by_label(communities.label, communities.count, order);
  group_by_label(communities.label, communities.count, other);
  const auto columns = count_part_columns(a, order, starts, threads);
  const auto other_columns = count_part_columns(a, other, starts, threads);
  for (int64_t c = 0; c < communities.count; ++c) {
    if (other_columns[c] >= columns[c]) continue;
    std::copy(other.begin() + starts[c], other.begin() + starts[c + 1], order.begin() + starts[c]);
  }
}

// Longest rows first: rows of one community share the more columns, the longer both are.
Order by_degree(const CsrView& a, const Order& given) {
  Order order(given);
  const auto degree = [&](int32_t r) { return a.indptr[r + 1] - a.indptr[r]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t r, int32_t s) { return degree(r) > degree(s); });
  return order;
}

}  // namespace

void community_order(const CsrView& a, const CommunityOptions& options, int32_t* out, int threads) {
  Order given(a.rows);
  std::iota(given.begin(), given.end(), 0);
  const Order sorted = by_degree(a, given);
  Order order = given;
  for (const Partition& communities : find_hierarchy(a, options, threads)) {
    choose_orders(a, communities, order, sorted, threads);
  }
  // Empty rows would take up room in the groups of others.
  std::stable_partition(order.begin(), order.end(),
                        [&](int32_t r) { return a.indptr[r + 1] > a.indptr[r]; });
  const Partition everything{Labels(a.rows, 0), 1};
  choose_orders(a, everything, given, std::move(order), threads);
  std::copy(given.begin(), given.end(), out);
}

}  // namespace gnnsparse::cpu
