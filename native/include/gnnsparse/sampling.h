// Sampling of neighbours: which edges of a row are drawn. The same functions run on the CPU and on
// a GPU. Random words are those of Philox at a counter that says what they are for, so that a draw
// depends on nothing but the seed, the step, the layer and the node: not on the order in which rows
// are worked on, nor on who works on them. gnnsparse/sampling says what each rule is.
#pragma once

#include <cstdint>
#include <cstring>

#include "gnnsparse/philox.h"
#include "gnnsparse/types.h"

namespace gnnsparse {

// kAll takes every edge. kUniform and kWeighted draw without replacement, the others with it;
// kLabor draws each edge by the number of its source (LABOR-0).
enum class SampleRule : int {
  kAll = 0,
  kUniform = 1,
  kUniformReplaced = 2,
  kWeighted = 3,
  kWeightedReplaced = 4,
  kLabor = 5
};
constexpr int kSampleRules = 6;

// The edges that are drawn from: those of row i come from its columns.
struct SampleGraph {
  CsrView a;
  const float* weights = nullptr;   // [nnz] 0 or more, for kWeighted
  const double* running = nullptr;  // [nnz] sums of weights from the row's first edge on, for
                                    // kWeightedReplaced
};

struct SampleDraw {
  SampleRule rule = SampleRule::kAll;
  int64_t fanout = 0;  // 1 or more, unless the rule is kAll
  PhiloxKey key;
  uint32_t step = 0;   // of training
  uint32_t layer = 0;  // 0: that of the seeds
  bool loops = false;  // each row begins with an edge from its own node

  // Whether a row's draws are written down before their number is known.
  GNNSPARSE_HD constexpr bool draws_first() const {
    return rule != SampleRule::kAll && rule != SampleRule::kLabor;
  }
  GNNSPARSE_HD constexpr bool replaces() const {
    return rule == SampleRule::kUniformReplaced || rule == SampleRule::kWeightedReplaced;
  }
};

// What is drawn of the edges of some rows before all counts are known.
struct SampleDrawn {
  int32_t* places = nullptr;  // [rows][fanout] positions in the row
  int32_t* copies = nullptr;  // [rows][fanout] how often each was drawn, for draws with replacement
  double* keys = nullptr;     // [rows][fanout] for kWeighted
};

// The edges that were drawn, row by row.
struct SampleEdges {
  const int64_t* indptr = nullptr;  // [rows + 1]
  int32_t* nodes = nullptr;         // [edges] the source of each edge
  int64_t* edges = nullptr;         // [edges] its index in the graph; -1: the row's own node
  float* copies = nullptr;          // [edges] how often it was drawn, or null
};

// Of some arrays a GPU alone knows how much of them is used: a pointer to the number in its memory.
// Rows that are drawn from.
struct SampleRows {
  const int32_t* targets = nullptr;  // [most]
  int64_t most = 0;
  const int32_t* used = nullptr;     // null: all
  const int64_t* windows = nullptr;  // [most][2] the first edge that may be drawn, and how many may
                                     // be; null: those of the whole row
  const int32_t* trees = nullptr;    // [most] each tree has random words of its own; null: one tree
  const int64_t* step = nullptr;     // that of the draw, below 2^32; null: SampleDraw has it

  GNNSPARSE_HD int64_t count() const { return used == nullptr ? most : *used; }
};

// Edges of a row that may be drawn.
struct SampleWindow {
  int64_t begin;
  int64_t degree;
};

static GNNSPARSE_HD inline SampleWindow window_of(const SampleGraph& graph, const SampleRows& rows,
                                                  int64_t row) {
  if (rows.windows != nullptr) return {rows.windows[2 * row], rows.windows[2 * row + 1]};
  const int64_t* bounds = graph.a.indptr + rows.targets[row];
  return {bounds[0], bounds[1] - bounds[0]};
}

// Bits of a layer's number, above which is that of the tree.
constexpr int kLayerBits = 8;

// The draw with the random words of its step and of a row's tree.
static GNNSPARSE_HD inline SampleDraw draw_of(const SampleDraw& draw, const SampleRows& rows,
                                              int64_t row) {
  SampleDraw own = draw;
  if (rows.step != nullptr) own.step = static_cast<uint32_t>(*rows.step);
  if (rows.trees != nullptr) own.layer |= static_cast<uint32_t>(rows.trees[row]) << kLayerBits;
  return own;
}

// The sources of the edges that were drawn.
struct SampleSources {
  const int32_t* nodes = nullptr;  // [most]
  int64_t most = 0;
  const int64_t* used = nullptr;  // null: all

  GNNSPARSE_HD int64_t count() const { return used == nullptr ? most : *used; }
};

// How much of a layer's arrays is used.
struct SampleSizes {
  int32_t edges;
  int32_t sources;   // different nodes, the targets included
  int32_t distinct;  // different targets
  int32_t longest;   // edges of the source that has most
};

// The numbers of nodes in the order of their first appearance.
struct SampleNumbers {
  int32_t* sources = nullptr;    // [different nodes] the node of each number
  int32_t* numbers = nullptr;    // [edges] the number of each source
  int32_t* uses = nullptr;       // [different nodes] edges of each, zeros before; null: not counted
  SampleSizes* sizes = nullptr;  // zeros before; null: they are known
};

// Layers that hold other random numbers than those of neighbours.
constexpr uint32_t kNegativeLayer = 0xFFFFFFFFu;
// Rounds after which the search for a pair without an edge is given up.
constexpr uint32_t kNegativeRounds = 256;
// Marks nodes that have no number in a block.
constexpr int32_t kNoPlace = INT32_MAX;

static GNNSPARSE_HD constexpr uint64_t sample_bits(const SampleDraw& draw, uint32_t node,
                                                   uint32_t item) {
  const PhiloxWords words = philox4x32({{node, item, draw.layer, draw.step}}, draw.key);
  return (uint64_t{words.word[0]} << 32) | words.word[1];
}

// The random bits of item after item of a node: each evaluation of Philox has those of two.
struct SampleBits {
  const SampleDraw& draw;
  uint32_t node;
  uint32_t pair = UINT32_MAX;
  PhiloxWords words = {};

  GNNSPARSE_HD uint64_t operator()(int64_t item) {
    const auto wanted = static_cast<uint32_t>(item / 2);
    if (wanted != pair) {
      pair = wanted;
      words = philox4x32({{node, pair, draw.layer, draw.step}}, draw.key);
    }
    const int first = item % 2 == 0 ? 0 : 2;
    return (uint64_t{words.word[first]} << 32) | words.word[first + 1];
  }
};

// floor(bits * n / 2^64) for n up to 2^32: uniform below n but for n / 2^64.
static GNNSPARSE_HD constexpr int64_t bits_below(uint64_t bits, int64_t n) {
  const auto count = static_cast<uint64_t>(n);
  const uint64_t low = (bits & 0xFFFFFFFFu) * count;
  return static_cast<int64_t>(((bits >> 32) * count + (low >> 32)) >> 32);
}

// A compiler may round a product that is added only once, which one does and another does not.
static GNNSPARSE_HD inline double exact_product(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

// -ln(u) for u in (0, 1], by sums, products and quotients that are rounded alike everywhere:
// ln m = 2 (s + s^3 / 3 + s^5 / 5 + ...), where s = (m - 1) / (m + 1) is below .172.
static GNNSPARSE_HD inline double portable_minus_log(double u) {
  int64_t bits = 0;
  memcpy(&bits, &u, sizeof bits);
  int64_t exponent = (bits >> 52) - 1023;
  bits = (bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000;
  double m = 0;
  memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double square = exact_product(s, s);
  double sum = 0;
  for (int odd = 19; odd >= 1; odd -= 2) sum = exact_product(sum, square) + 1.0 / odd;
  const double of_m = exact_product(2.0 * s, sum);
  return -(exact_product(static_cast<double>(exponent), 0.6931471805599453) + of_m);
}

// A number in (0, 1] of 53 random bits.
static GNNSPARSE_HD constexpr double unit_above_zero(uint64_t bits) {
  return static_cast<double>((bits >> 11) + 1) * (1.0 / 9007199254740992.0);
}

// Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", CACM 30(9), 1987): every set of
// `fanout` of the `degree` positions is equally likely. degree > fanout.
static GNNSPARSE_HD inline int64_t draw_uniform(const SampleDraw& draw, uint32_t node,
                                                int64_t degree, int32_t* places) {
  SampleBits bits{draw, node};
  for (int64_t i = 0; i < draw.fanout; ++i) {
    const int64_t last = degree - draw.fanout + i;
    const auto drawn = static_cast<int32_t>(bits_below(bits(i), last + 1));
    bool known = false;
    for (int64_t j = 0; j < i; ++j) known |= places[j] == drawn;
    places[i] = known ? static_cast<int32_t>(last) : drawn;
  }
  return draw.fanout;
}

// The position whose share of the running sums [degree], which begin above `base`, a number in
// [0, 1) falls into; -1: the weights are all 0.
static GNNSPARSE_HD inline int64_t place_of_share(const double* running, double base,
                                                  int64_t degree, uint64_t bits) {
  const double total = running[degree - 1];
  if (!(total > base)) return -1;
  const double share = static_cast<double>(bits >> 11) * (1.0 / 9007199254740992.0);
  const double wanted = base + exact_product(share, total - base);
  int64_t low = 0;
  int64_t high = degree - 1;
  // Rounded up to the total it would be behind all: the last edge with a weight has it then.
  const bool behind = wanted >= total;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    const bool enough = behind ? running[middle] >= total : running[middle] > wanted;
    if (enough) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Draws with replacement; repeats are merged in the order of their first draw.
static GNNSPARSE_HD inline int64_t draw_replaced(const SampleGraph& graph, const SampleDraw& draw,
                                                 uint32_t node, int64_t begin, int64_t degree,
                                                 int32_t* places, int32_t* copies) {
  const bool weighted = draw.rule == SampleRule::kWeightedReplaced;
  const double base = weighted && begin > graph.a.indptr[node] ? graph.running[begin - 1] : 0.0;
  SampleBits bits{draw, node};
  int64_t found = 0;
  for (int64_t i = 0; i < draw.fanout; ++i) {
    const int64_t place = weighted ? place_of_share(graph.running + begin, base, degree, bits(i))
                                   : bits_below(bits(i), degree);
    if (place < 0) return 0;
    int64_t j = 0;
    while (j < found && places[j] != place) ++j;
    if (j < found) {
      ++copies[j];
    } else {
      places[found] = static_cast<int32_t>(place);
      copies[found++] = 1;
    }
  }
  return found;
}

static GNNSPARSE_HD inline bool comes_later(double key, int32_t place, double other,
                                            int32_t other_place) {
  return key > other || (key == other && place > other_place);
}

// Puts a pair into a heap [count] whose first pair is the latest, from place i downwards.
static GNNSPARSE_HD inline void sift_down(double* keys, int32_t* places, int64_t count, int64_t i,
                                          double key, int32_t place) {
  for (int64_t child = 2 * i + 1; child < count; child = 2 * i + 1) {
    if (child + 1 < count &&
        comes_later(keys[child + 1], places[child + 1], keys[child], places[child])) {
      ++child;
    }
    if (!comes_later(keys[child], places[child], key, place)) break;
    keys[i] = keys[child];
    places[i] = places[child];
    i = child;
  }
  keys[i] = key;
  places[i] = place;
}

// Puts a pair into a heap whose places 0 to i - 1 are taken.
static GNNSPARSE_HD inline void sift_up(double* keys, int32_t* places, int64_t i, double key,
                                        int32_t place) {
  while (i > 0) {
    const int64_t parent = (i - 1) / 2;
    if (!comes_later(key, place, keys[parent], places[parent])) break;
    keys[i] = keys[parent];
    places[i] = places[parent];
    i = parent;
  }
  keys[i] = key;
  places[i] = place;
}

// Draws one after another by weight, each from those that are left, as a race of exponential
// arrival times -ln(u) / weight, of which the earliest `fanout` are taken (Efraimidis and Spirakis,
// "Weighted random sampling with a reservoir", IPL 97(5), 2006).
static GNNSPARSE_HD inline int64_t draw_weighted(const SampleGraph& graph, const SampleDraw& draw,
                                                 uint32_t node, int64_t begin, int64_t degree,
                                                 int32_t* places, double* keys) {
  SampleBits bits{draw, node};
  int64_t found = 0;
  for (int64_t e = 0; e < degree; ++e) {
    const double weight = graph.weights[begin + e];
    if (!(weight > 0)) continue;
    const double key = portable_minus_log(unit_above_zero(bits(e))) / weight;
    const auto place = static_cast<int32_t>(e);
    if (found < draw.fanout) {
      sift_up(keys, places, found++, key, place);
    } else if (comes_later(keys[0], places[0], key, place)) {
      sift_down(keys, places, found, 0, key, place);
    }
  }
  return found;
}

// Whether an edge is drawn by LABOR-0 (Balin and Catalyurek, "Layer-neighbor sampling", NeurIPS
// 2023, section 3.1): if the number of its source in this layer is below fanout / degree.
static GNNSPARSE_HD constexpr bool labor_takes(const SampleDraw& draw, int32_t source,
                                               int64_t degree) {
  if (degree <= draw.fanout) return true;
  return bits_below(sample_bits(draw, static_cast<uint32_t>(source), 0), degree) < draw.fanout;
}

// Draws the edges of a row by a rule that writes them down; returns how many.
static GNNSPARSE_HD inline int64_t draw_row(const SampleGraph& graph, const SampleDraw& shared,
                                            const SampleRows& rows, int64_t row,
                                            const SampleDrawn& drawn) {
  const auto [begin, degree] = window_of(graph, rows, row);
  if (degree == 0) return 0;
  const SampleDraw draw = draw_of(shared, rows, row);
  const auto id = static_cast<uint32_t>(rows.targets[row]);
  int32_t* places = drawn.places + row * draw.fanout;
  if (draw.replaces()) {
    return draw_replaced(graph, draw, id, begin, degree, places, drawn.copies + row * draw.fanout);
  }
  if (draw.rule == SampleRule::kWeighted) {
    return draw_weighted(graph, draw, id, begin, degree, places, drawn.keys + row * draw.fanout);
  }
  if (degree > draw.fanout) return draw_uniform(draw, id, degree, places);
  for (int64_t e = 0; e < degree; ++e) places[e] = static_cast<int32_t>(e);
  return degree;
}

// Whether there is an edge in row `row` from `column`.
static GNNSPARSE_HD inline bool has_edge(const CsrView& a, int64_t row, int64_t column) {
  int64_t low = a.indptr[row];
  int64_t high = a.indptr[row + 1];
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (a.indices[middle] < column) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < a.indptr[row + 1] && a.indices[low] == column;
}

// Which pairs without an edge are drawn.
struct SampleNegatives {
  bool distinct = false;      // of two different nodes: rows and columns are nodes of one type
  bool keeps_source = false;  // only the target is drawn; the source is there
};

// Draws pair i, a source and a target without an edge. False: none was found.
static GNNSPARSE_HD inline bool draw_negative(const CsrView& a, const SampleDraw& draw,
                                              const SampleNegatives& of, uint32_t i,
                                              int64_t* source, int64_t* target) {
  SampleDraw own = draw;
  own.layer = kNegativeLayer;
  for (uint32_t round = 0; round < kNegativeRounds; ++round) {
    if (!of.keeps_source) *source = bits_below(sample_bits(own, i, 2 * round), a.cols);
    *target = bits_below(sample_bits(own, i, 2 * round + 1), a.rows);
    const bool loop = of.distinct && *source == *target;
    if (!loop && !has_edge(a, *target, *source)) return true;
  }
  return false;
}

namespace cpu {

// Writes the sums of weights [nnz] from each row's first edge on.
void running_sums(const CsrView& a, const float* weights, double* running, int threads);

// Counts the edges of rows, and writes down those that are drawn first. indptr [rows + 1] becomes
// where the edges of each begin.
void draw_neighbors(const SampleGraph& graph, const SampleDraw& draw, const SampleRows& rows,
                    const SampleDrawn& drawn, int64_t* indptr, int threads);

// Writes the edges, whose offsets and draws draw_neighbors has written.
void gather_neighbors(const SampleGraph& graph, const SampleDraw& draw, const SampleRows& rows,
                      const SampleDrawn& drawn, const SampleEdges& out, int threads);

// Numbers nodes in the order in which they first appear, targets [rows] before nodes [edges].
// `place` [all nodes] is kNoPlace everywhere, before and after. Writes the numbers of `nodes` to
// `numbers`, and the node of each number to `sources` [rows + edges]. Returns how many there are;
// -1 - i: target i is a repeat.
int64_t number_nodes(const int32_t* targets, int64_t rows, const int32_t* nodes, int64_t edges,
                     int32_t* place, int32_t* sources, int32_t* numbers, int threads);

// Draws `count` pairs (source, target). Returns the first for which none was found, or -1.
int64_t draw_negatives(const CsrView& a, const SampleDraw& draw, const SampleNegatives& of,
                       int64_t count, int64_t* pairs, int threads);

}  // namespace cpu
}  // namespace gnnsparse
