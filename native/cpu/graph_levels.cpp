#include "graph_levels.h"

#include <atomic>
#include <numeric>

#include "gnnsparse/csr.h"
#include "parallel.h"

namespace gnnsparse::cpu {
namespace {

// A hash of the edge from u to v (the finaliser of SplitMix64, Steele et al., OOPSLA 2014).
uint64_t edge_hash(int64_t u, int64_t v) {
  uint64_t z = (static_cast<uint64_t>(u) << 32 | static_cast<uint64_t>(v)) + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Compares the sum of all edges' hashes with that of the turned edges: needs no memory, where
// building the transpose would. To be wrong, a sum of 64 bits would have to be 0 by chance, and
// then the order is still an order, found from the rows alone.
bool has_symmetric_structure(const CsrView& a, int threads) {
  std::atomic<uint64_t> difference{0};
  parallel_chunks(a.rows, 1024, threads, [&](int64_t begin, int64_t end) {
    uint64_t sum = 0;
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t e = a.indptr[r]; e < a.indptr[r + 1]; ++e) {
        sum += edge_hash(r, a.indices[e]) - edge_hash(a.indices[e], r);
      }
    }
    difference.fetch_add(sum, std::memory_order_relaxed);
  });
  return difference.load() == 0;
}

// The links of community c to others, summed up.
void sum_links(const Graph& graph, const std::vector<int32_t>& label, int32_t c,
               const int32_t* members, int64_t count, LabelWeights& sums) {
  sums.clear();
  for (int64_t i = 0; i < count; ++i) {
    graph.for_each_neighbor(members[i], [&](int32_t v, float w) {
      if (label[v] != c) sums.add(label[v], w);
    });
  }
}

}  // namespace

void LabelWeights::grow() {
  std::vector<std::pair<int32_t, double>> held;
  held.reserve(used_.size());
  for (const int64_t slot : used_) held.emplace_back(labels_[slot], weights_[slot]);
  resize(4 * (mask_ + 1));
  for (const auto& [label, weight] : held) add(label, weight);
}

std::vector<int64_t> group_by_label(const std::vector<int32_t>& labels, int64_t label_count,
                                    std::vector<int32_t>& items) {
  std::vector<int64_t> starts(label_count + 1, 0);
  for (const int32_t item : items) ++starts[labels[item] + 1];
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  std::vector<int64_t> cursor(starts.begin(), starts.end() - 1);
  std::vector<int32_t> grouped(items.size());
  for (const int32_t item : items) grouped[cursor[labels[item]]++] = item;
  items.swap(grouped);
  return starts;
}

Graph graph_of(const CsrView& a, int threads) {
  Graph graph;
  graph.nodes = a.rows;
  graph.links[0] = {a.indptr, a.indices, nullptr};
  if (!has_symmetric_structure(a, threads)) {
    graph.ptr.resize(a.rows + 1);
    graph.to.resize(a.nnz);
    transpose(a, graph.ptr.data(), graph.to.data(), MutableIndexView{}, threads);
    graph.links[1] = {graph.ptr.data(), graph.to.data(), nullptr};
  }
  graph.degree.resize(a.rows);
  parallel_dynamic(a.rows, 1024, threads, [&](int64_t u) {
    int64_t degree = 0;
    graph.for_each_neighbor(u, [&](int32_t, float) { ++degree; });
    graph.degree[u] = degree;
  });
  return graph;
}

Graph coarsen(const Graph& graph, const std::vector<int32_t>& label, int64_t count, int threads) {
  std::vector<int32_t> members(graph.nodes);
  std::iota(members.begin(), members.end(), 0);
  const std::vector<int64_t> starts = group_by_label(label, count, members);
  Graph coarse;
  coarse.nodes = count;
  coarse.degree.assign(count, 0);
  for (int64_t u = 0; u < graph.nodes; ++u) coarse.degree[label[u]] += graph.degree[u];
  // Counted first and then written: lists that grow would take twice the memory for a while.
  coarse.ptr.assign(count + 1, 0);
  const auto for_each_sum = [&](auto visit) {
    parallel_chunks(count, 16, threads, [&](int64_t begin, int64_t end) {
      LabelWeights sums;
      for (int64_t c = begin; c < end; ++c) {
        sum_links(graph, label, static_cast<int32_t>(c), members.data() + starts[c],
                  starts[c + 1] - starts[c], sums);
        visit(c, sums);
      }
    });
  };
  for_each_sum([&](int64_t c, const LabelWeights& sums) { coarse.ptr[c + 1] = sums.size(); });
  std::partial_sum(coarse.ptr.begin(), coarse.ptr.end(), coarse.ptr.begin());
  coarse.to.resize(coarse.ptr[count]);
  coarse.weight.resize(coarse.ptr[count]);
  for_each_sum([&](int64_t c, const LabelWeights& sums) {
    for (int64_t i = 0; i < sums.size(); ++i) {
      coarse.to[coarse.ptr[c] + i] = sums.label(i);
      coarse.weight[coarse.ptr[c] + i] = static_cast<float>(sums.weight(i));
    }
  });
  coarse.links[0] = {coarse.ptr.data(), coarse.to.data(), coarse.weight.data()};
  return coarse;
}

}  // namespace gnnsparse::cpu
