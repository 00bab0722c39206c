#include "gnnsparse/sampling.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "parallel.h"

namespace gnnsparse::cpu {
namespace {

constexpr int64_t kRows = 256;  // of a chunk

int64_t count_row(const SampleGraph& graph, const SampleDraw& shared, const SampleRows& rows,
                  int64_t row) {
  const SampleWindow window = window_of(graph, rows, row);
  if (shared.rule == SampleRule::kAll || window.degree <= shared.fanout) return window.degree;
  const SampleDraw draw = draw_of(shared, rows, row);
  const int32_t* sources = graph.a.indices + window.begin;
  return std::count_if(sources, sources + window.degree,
                       [&](int32_t source) { return labor_takes(draw, source, window.degree); });
}

// Lowers *place to i, where another thread may lower it too.
void lower(int32_t* place, int32_t i) {
  int32_t seen = __atomic_load_n(place, __ATOMIC_RELAXED);
  while (i < seen &&
         !__atomic_compare_exchange_n(place, &seen, i, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// Nodes that are numbered: targets, and behind them the sources of the edges.
struct Sequence {
  const int32_t* targets;
  int64_t rows;
  const int32_t* nodes;
  int64_t edges;

  int64_t size() const { return rows + edges; }
  int32_t operator[](int64_t i) const { return i < rows ? targets[i] : nodes[i - rows]; }
};

int64_t number_in_order(const Sequence& all, int32_t* place, int32_t* sources, int32_t* numbers) {
  int64_t count = 0;
  for (int64_t i = 0; i < all.rows; ++i) {
    if (place[all.targets[i]] != kNoPlace) return -1 - i;
    place[all.targets[i]] = static_cast<int32_t>(count);
    sources[count++] = all.targets[i];
  }
  for (int64_t e = 0; e < all.edges; ++e) {
    int32_t& number = place[all.nodes[e]];
    if (number == kNoPlace) {
      number = static_cast<int32_t>(count);
      sources[count++] = all.nodes[e];
    }
    numbers[e] = number;
  }
  return count;
}

// The same by several threads: each node's first place in the sequence, and how many first places
// come before it. What a GPU does, too.
int64_t number_in_parallel(const Sequence& all, int32_t* place, int32_t* sources, int32_t* numbers,
                           int threads) {
  const int64_t parts = threads;
  const auto bound = [&](int64_t part) { return all.size() * part / parts; };
  parallel_ranges(all.size(), threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) lower(place + all[i], static_cast<int32_t>(i));
  });
  std::vector<int64_t> first_number(parts + 1, 0);
  std::atomic<int64_t> repeat{std::numeric_limits<int64_t>::max()};
  parallel_dynamic(parts, 1, threads, [&](int64_t part) {
    for (int64_t i = bound(part); i < bound(part + 1); ++i) {
      const bool first = place[all[i]] == i;
      first_number[part + 1] += first;
      if (!first && i < all.rows) {
        int64_t seen = repeat.load();
        while (i < seen && !repeat.compare_exchange_weak(seen, i)) {
        }
      }
    }
  });
  std::partial_sum(first_number.begin(), first_number.end(), first_number.begin());
  const int64_t count = first_number[parts];
  // Numbers behind the sequence's places tell a node that has its number from one that waits.
  std::vector<int32_t> number_of_place(all.size());
  parallel_dynamic(parts, 1, threads, [&](int64_t part) {
    int64_t number = first_number[part];
    for (int64_t i = bound(part); i < bound(part + 1); ++i) {
      if (place[all[i]] != i) continue;
      number_of_place[i] = static_cast<int32_t>(number);
      sources[number++] = all[i];
    }
  });
  parallel_ranges(all.edges, threads, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) numbers[e] = number_of_place[place[all.nodes[e]]];
  });
  return repeat < all.rows ? -1 - repeat.load() : count;
}

}  // namespace

void running_sums(const CsrView& a, const float* weights, double* running, int threads) {
  parallel_dynamic(a.rows, kRows, threads, [&](int64_t row) {
    double sum = 0;
    for (int64_t e = a.indptr[row]; e < a.indptr[row + 1]; ++e) running[e] = sum += weights[e];
  });
}

void draw_neighbors(const SampleGraph& graph, const SampleDraw& draw, const SampleRows& rows,
                    const SampleDrawn& drawn, int64_t* indptr, int threads) {
  indptr[0] = 0;
  parallel_dynamic(rows.most, kRows, threads, [&](int64_t row) {
    const int64_t count = draw.draws_first() ? draw_row(graph, draw, rows, row, drawn)
                                             : count_row(graph, draw, rows, row);
    indptr[row + 1] = count + draw.loops;
  });
  std::partial_sum(indptr, indptr + rows.most + 1, indptr);
}

void gather_neighbors(const SampleGraph& graph, const SampleDraw& shared, const SampleRows& rows,
                      const SampleDrawn& drawn, const SampleEdges& out, int threads) {
  parallel_dynamic(rows.most, kRows, threads, [&](int64_t row) {
    const SampleDraw draw = draw_of(shared, rows, row);
    const auto [begin, degree] = window_of(graph, rows, row);
    const int64_t end = out.indptr[row + 1];
    int64_t at = out.indptr[row];
    // Draws and offsets come from outside.
    const auto require = [](bool fits) {
      if (!fits) throw std::invalid_argument("indptr: was not written with these draws");
    };
    const auto write = [&](int32_t source, int64_t edge, float copies) {
      out.nodes[at] = source;
      out.edges[at] = edge;
      if (out.copies != nullptr) out.copies[at] = copies;
      ++at;
    };
    require(end - at >= draw.loops);
    if (draw.loops) write(rows.targets[row], -1, 1.0f);
    if (draw.draws_first()) {
      require(end - at <= draw.fanout);
      const int64_t first = row * draw.fanout - at;
      while (at < end) {
        const int64_t i = first + at;
        require(drawn.places[i] >= 0 && drawn.places[i] < degree);
        const int64_t edge = begin + drawn.places[i];
        write(graph.a.indices[edge], edge,
              draw.replaces() ? static_cast<float>(drawn.copies[i]) : 1.0f);
      }
      return;
    }
    for (int64_t edge = begin; edge < begin + degree; ++edge) {
      const int32_t source = graph.a.indices[edge];
      if (draw.rule == SampleRule::kAll || labor_takes(draw, source, degree)) {
        require(at < end);
        write(source, edge, 1.0f);
      }
    }
    require(at == end);
  });
}

int64_t number_nodes(const int32_t* targets, int64_t rows, const int32_t* nodes, int64_t edges,
                     int32_t* place, int32_t* sources, int32_t* numbers, int threads) {
  const Sequence all{targets, rows, nodes, edges};
  const int64_t count = threads <= 2 ? number_in_order(all, place, sources, numbers)
                                     : number_in_parallel(all, place, sources, numbers, threads);
  parallel_ranges(all.size(), threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      __atomic_store_n(place + all[i], kNoPlace, __ATOMIC_RELAXED);
    }
  });
  return count;
}

int64_t draw_negatives(const CsrView& a, const SampleDraw& draw, const SampleNegatives& of,
                       int64_t count, int64_t* pairs, int threads) {
  std::atomic<int64_t> missing{std::numeric_limits<int64_t>::max()};
  parallel_dynamic(count, kRows, threads, [&](int64_t i) {
    const auto number = static_cast<uint32_t>(i);
    if (draw_negative(a, draw, of, number, pairs + 2 * i, pairs + 2 * i + 1)) return;
    int64_t seen = missing.load();
    while (i < seen && !missing.compare_exchange_weak(seen, i)) {
    }
  });
  return missing < count ? missing.load() : -1;
}

}  // namespace gnnsparse::cpu
