// Attention over the edges of a graph with the terms of graph_attention.h, forward, and what its
// backward passes share with it (graph_attention_grads.inl). The nonzeros of a row are taken in
// blocks, each by all heads one after another, so that the rows of its columns are in the cache for
// every head but the first. The softmax goes over the blocks as they come, with sums that are
// scaled down where a block has a larger score than those before it (Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018): no array is as long as a row.

namespace gnnsparse::cpu::GNNSPARSE_ISA {
namespace {

constexpr int64_t kBlock = 128;  // nonzeros: whole vectors

// Calls body(b, h, index of the head) for every head.
template <class Body>
void for_each_head(const GraphAttentionProblem& problem, Body body) {
  int64_t head = 0;
  for (int64_t b = 0; b < problem.base.batches; ++b) {
    for (int64_t h = 0; h < problem.base.heads; ++h) body(b, h, head++);
  }
}

// The rows of a head, of a type; without data: not there.
template <class X>
struct Rows {
  const X* data = nullptr;
  int64_t stride = 0;

  const X* operator[](int64_t i) const { return data == nullptr ? nullptr : data + i * stride; }
};

template <class X>
Rows<X> rows_of(const HeadsView& x, int64_t b, int64_t h) {
  if (x.data == nullptr) return {};
  return {static_cast<const X*>(x.data) + b * x.batch + h * x.head, x.row};
}

// The number of row i in an array [.., rows, 1] of float32.
inline float& number_of(const HeadsView& x, int64_t b, int64_t h, int64_t i) {
  return const_cast<float*>(rows_of<float>(x, b, h)[i])[0];
}

// Row i of an array of any type = factor * x.
void store_row(const HeadsView& to, int64_t b, int64_t h, int64_t i, const float* x, int64_t width,
               float factor) {
  with_type(to.dtype, [&](auto type) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    T* out = const_cast<T*>(rows_of<T>(to, b, h)[i]);
    int64_t f = 0;
    for (; f + kWidth <= width; f += kWidth) store(out + f, load(x + f) * factor);
    if (f < width) store(out + f, load(x + f, width - f) * factor, width - f);
  });
}

void store_zeros(const HeadsView& to, int64_t b, int64_t h, int64_t i, int64_t width) {
  if (to.data == nullptr) return;
  // Zeros of every type are zero bytes.
  const DenseView rows = to.of(b, h);
  char* row =
      static_cast<char*>(const_cast<void*>(rows.data)) + i * rows.stride * size_of(to.dtype);
  memset(row, 0, width * size_of(to.dtype));
}

// Keys or values as an edge sees them: gate * x + features. Without kTerms they are x alone.
template <class X, bool kTerms>
struct Operand {
  struct Row {
    const X* x;
    const X* gate;
    const X* features;

    // Elements from f on: a vector of them, or the first n of one.
    template <class... Count>
    Vec at(int64_t f, Count... n) const {
      Vec value = load(x + f, n...);
      if constexpr (kTerms) {
        if (gate != nullptr) value *= load(gate + f, n...);
        if (features != nullptr) value += load(features + f, n...);
      }
      return value;
    }
  };

  Row row(int32_t column, int64_t id) const {
    if constexpr (kTerms) return {x[column], gate[id], features[id]};
    return {x[column], nullptr, nullptr};
  }

  Rows<X> x;
  Rows<X> gate;
  Rows<X> features;
};

// Calls body with the operand x, which has the terms that are given.
template <class X, class Body>
void with_terms(const Rows<X>& x, const Rows<X>& gate, const Rows<X>& features, Body body) {
  if (gate.data == nullptr && features.data == nullptr) {
    body(Operand<X, false>{x, {}, {}});
  } else {
    body(Operand<X, true>{x, gate, features});
  }
}

// Edges of one row, or of one column, that are taken together.
struct Edges {
  int64_t count = 0;
  const int32_t* columns = nullptr;
  int64_t ids[kBlock];                // their indices in A
  int32_t listed[kBlock];             // the columns, where not all nonzeros of a block are edges
  const int32_t* upcoming = nullptr;  // columns of the block's first nonzero and of those after it
  int64_t last = 0;                   // index of the last of these

  // The nonzeros of `a` from `begin` on, none of which is an edge so far.
  void start(const CsrView& a, int64_t begin) {
    count = 0;
    columns = listed;
    upcoming = a.indices + begin;
    last = a.nnz - 1 - begin;
  }
  void add(int32_t column, int64_t id) {
    listed[count] = column;
    ids[count++] = id;
  }
  // All nonzeros from `begin` on, `n` of them, in A's own order.
  void take(const CsrView& a, int64_t begin, int64_t n) {
    start(a, begin);
    count = n;
    columns = upcoming;
    constexpr int kStep = 8;  // whole vectors: loops of any length end in a wrong guess
    for (int64_t j = 0; j < n; j += kStep) {
      for (int i = 0; i < kStep; ++i) ids[j + i] = begin + j + i;
    }
  }
  // A column that is read a while after the edge j.
  int32_t ahead(int64_t j) const {
    return upcoming[j + kPrefetchAhead < last ? j + kPrefetchAhead : last];
  }
};

// Functions of a key or value row that sums are made of.
struct Itself {
  template <class... Count>
  Vec operator()(Vec x, int64_t, Count...) const {
    return x;
  }
};
template <class X>
struct Times {
  const X* own;

  template <class... Count>
  Vec operator()(Vec x, int64_t f, Count... n) const {
    return x * load(own + f, n...);
  }
};

inline Vec leaky(Vec x, float slope) { return x > 0.0f ? x : x * slope; }
inline Vec leaky_grad(Vec x, float slope) { return x > 0.0f ? broadcast(1.0f) : broadcast(slope); }

// leaky_relu(own + x), its product with att, and its derivative.
template <class X>
struct Leaky {
  const X* own;
  float slope;

  template <class... Count>
  Vec operator()(Vec x, int64_t f, Count... n) const {
    return leaky(x + load(own + f, n...), slope);
  }
};
template <class X>
struct AttLeaky {
  Leaky<X> leaky_sum;
  const float* att;

  template <class... Count>
  Vec operator()(Vec x, int64_t f, Count... n) const {
    return leaky_sum(x, f, n...) * load(att + f, n...);
  }
};
template <class X>
struct LeakyGrad {
  const X* own;
  float slope;

  template <class... Count>
  Vec operator()(Vec x, int64_t f, Count... n) const {
    return leaky_grad(x + load(own + f, n...), slope);
  }
};

// Rows of an array that has one for each edge.
template <class X>
struct EdgeRows {
  using Row = typename Operand<X, false>::Row;

  Row row(int32_t, int64_t id) const { return {x[id], nullptr, nullptr}; }

  Rows<X> x;
};

// out[j] = the sum over the features of function(row of edge j), for kEdges edges from `first` on.
template <int kEdges, class Source, class Function>
inline void sum_features(const Source& source, Function function, const Edges& edges, int64_t first,
                         int64_t width, float* out) {
  typename Source::Row rows[kEdges];
  for (int j = 0; j < kEdges; ++j) {
    rows[j] = source.row(edges.columns[first + j], edges.ids[first + j]);
  }
  Vec sums[kEdges] = {};
  int64_t f = 0;
  for (; f + kWidth <= width; f += kWidth) {
    for (int j = 0; j < kEdges; ++j) sums[j] += function(rows[j].at(f), f);
  }
  if (f < width) {
    for (int j = 0; j < kEdges; ++j) sums[j] += function(rows[j].at(f, width - f), f, width - f);
  }
  if constexpr (kEdges == 4) {
    sum_four(sums, out + first);
  } else {
    out[first] = sum(sums[0]);
  }
}

// The same for all edges; calls prefetch_for(j) for each of them before.
template <class Source, class Function, class Prefetching>
void sum_features(const Source& source, Function function, const Edges& edges, int64_t width,
                  float* out, Prefetching prefetch_for) {
  int64_t j = 0;
  for (; j + 4 <= edges.count; j += 4) {
    for (int i = 0; i < 4; ++i) prefetch_for(j + i);
    sum_features<4>(source, function, edges, j, width, out);
  }
  for (; j < edges.count; ++j) {
    prefetch_for(j);
    sum_features<1>(source, function, edges, j, width, out);
  }
}

// Features [f, f + kVectors * kWidth), or `n` of them: to += the sum over edges of w[j] *
// function(row of edge j). Short rows have several sums side by side, since each would have to wait
// for the edge before.
template <int kVectors, class Source, class Function, class... Count>
inline void add_edges(const Source& source, Function function, const Edges& edges, const float* w,
                      int64_t f, float* to, Count... n) {
  constexpr int kSums = kVectors >= 4 ? 1 : 4 / kVectors;
  Vec sums[kSums][kVectors] = {};
  for (int v = 0; v < kVectors; ++v) sums[0][v] = load(to + f + v * kWidth);
  const auto add = [&](int64_t j, Vec(&sum)[kVectors]) {
    const auto row = source.row(edges.columns[j], edges.ids[j]);
    for (int v = 0; v < kVectors; ++v) {
      sum[v] += w[j] * function(row.at(f + v * kWidth, n...), f + v * kWidth, n...);
    }
  };
  int64_t j = 0;
  for (; j + kSums <= edges.count; j += kSums) {
    for (int s = 0; s < kSums; ++s) add(j + s, sums[s]);
  }
  for (; j < edges.count; ++j) add(j, sums[0]);
  for (int v = 0; v < kVectors; ++v) {
    for (int s = 1; s < kSums; ++s) sums[0][v] += sums[s][v];
    store(to + f + v * kWidth, sums[0][v]);
  }
}

// to[0 .. width) += the sum over edges of w[j] * function(row of edge j). `to` has whole vectors.
template <class Source, class Function>
void add_edges(const Source& source, Function function, const Edges& edges, const float* w,
               int64_t width, float* to) {
  int64_t f = 0;
  for (; f + 8 * kWidth <= width; f += 8 * kWidth) add_edges<8>(source, function, edges, w, f, to);
  if (f + 4 * kWidth <= width) add_edges<4>(source, function, edges, w, f, to), f += 4 * kWidth;
  if (f + 2 * kWidth <= width) add_edges<2>(source, function, edges, w, f, to), f += 2 * kWidth;
  if (f + kWidth <= width) add_edges<1>(source, function, edges, w, f, to), f += kWidth;
  if (f < width) add_edges<1>(source, function, edges, w, f, to, width - f);
}

// One block of a row's nonzeros, [begin, begin + count), in one head.
struct Block {
  int64_t b, h, head;
  int64_t row;  // in the caller's numbering
  int64_t begin;
  int64_t count;
  Edges edges;  // those that count
};
// With arrays by edge, padded to whole vectors.
struct ScoreBlock : Block {
  float bias[kBlock];
  float score[kBlock];
  float kept[kBlock];  // 0 or 1: what dropout keeps
};

// Lists the nonzeros of the block whose bias does not mask them, and calls masked(id) of the
// others. Without a bias it is the same list for every head.
template <class Masked>
void list_edges(const GraphAttentionArgs& args, ScoreBlock& block, Masked masked) {
  const HeadsView& bias = args.problem.terms.bias;
  Edges& edges = block.edges;
  if (bias.data == nullptr) {
    if (block.head == 0) edges.take(args.a, block.begin, block.count);
    return;
  }
  edges.start(args.a, block.begin);
  const Rows<float> values = rows_of<float>(bias, block.b, block.h);
  for (int64_t e = block.begin; e < block.begin + block.count; ++e) {
    const float value = *values[e];
    if (value == -kInfinity) {
      masked(e);
      continue;
    }
    block.bias[edges.count] = value;
    edges.add(args.a.indices[e], e);
  }
}

// The arguments of leaky_relu of additive scores.
template <class X>
void additive_sums(const GraphAttentionArgs& args, const Block& block, float* out) {
  const AttentionProblem& base = args.problem.base;
  const Edges& edges = block.edges;
  const float own = number_of(base.q, block.b, block.h, block.row);
  const Rows<float> k = rows_of<float>(base.k, block.b, block.h);
  const Rows<X> values = rows_of<X>(base.v, block.b, block.h);
  const Rows<float> features = rows_of<float>(args.problem.terms.features, block.b, block.h);
  for (int64_t j = 0; j < edges.count; ++j) {
    prefetch(values[edges.ahead(j)], base.dv);
    out[j] = own + *k[edges.columns[j]];
    if (features.data != nullptr) out[j] += *features[edges.ids[j]];
  }
}

// Asks for the key and the value of an edge that comes a while after the edge j.
template <class X>
auto prefetching(const GraphAttentionArgs& args, const Block& block) {
  const AttentionProblem& base = args.problem.base;
  const Rows<X> keys = rows_of<X>(base.k, block.b, block.h);
  const Rows<X> values = rows_of<X>(base.v, block.b, block.h);
  return [&edges = block.edges, &base, keys, values](int64_t j) {
    const int32_t column = edges.ahead(j);
    prefetch(keys[column], base.d);
    prefetch(values[column], base.dv);
  };
}

// out[j] += the product of the row of `own` with the mapped features of edge j.
template <class X>
void add_mapped(const EdgeTerms& terms, const Block& block, const HeadsView& own, float* out) {
  const EdgeRows<X> mapped{rows_of<X>(terms.mapped, block.b, block.h)};
  const Times<X> product{rows_of<X>(own, block.b, block.h)[block.row]};
  float products[kBlock];
  sum_features(mapped, product, block.edges, terms.de, products, [](int64_t) {});
  for (int64_t j = 0; j < block.edges.count; j += kWidth) {
    store(out + j, load(out + j) + load(products + j));
  }
}

template <class X>
void dot_scores(const GraphAttentionArgs& args, ScoreBlock& block) {
  const AttentionProblem& base = args.problem.base;
  const EdgeTerms& terms = args.problem.terms;
  const int64_t b = block.b, h = block.h;
  const Rows<X> features = rows_of<X>(terms.to_keys ? terms.features : HeadsView(), b, h);
  with_terms(rows_of<X>(base.k, b, h), rows_of<X>(terms.gate, b, h), features, [&](auto keys) {
    const Times<X> product{rows_of<X>(base.q, b, h)[block.row]};
    sum_features(keys, product, block.edges, base.d, block.score, prefetching<X>(args, block));
  });
  if (terms.mapped_q.data != nullptr) {
    add_mapped<X>(terms, block, terms.mapped_q, block.score);
  }
  for (int64_t j = 0; j < block.edges.count; j += kWidth) {
    store(block.score + j, load(block.score + j) * base.scale);
  }
}

// Scores before they are clamped; of additive ones, the derivatives of leaky_relu into `slopes`
// unless it is null.
template <class X>
void raw_scores(const GraphAttentionArgs& args, ScoreBlock& block, float* slopes) {
  const GraphAttentionProblem& problem = args.problem;
  const AttentionProblem& base = problem.base;
  const int64_t b = block.b, h = block.h;
  const float slope = problem.negative_slope;
  switch (problem.score) {
    case Score::kDot:
      return dot_scores<X>(args, block);
    case Score::kAdditive:
      additive_sums<X>(args, block, block.score);
      for (int64_t j = 0; j < block.edges.count; j += kWidth) {
        const Vec x = load(block.score + j);
        if (slopes != nullptr) store(slopes + j, leaky_grad(x, slope));
        store(block.score + j, leaky(x, slope));
      }
      return;
    case Score::kGatv2: {
      const EdgeTerms& terms = problem.terms;
      const Rows<X> features = rows_of<X>(terms.to_keys ? terms.features : HeadsView(), b, h);
      const Leaky<X> sum{rows_of<X>(base.q, b, h)[block.row], slope};
      const AttLeaky<X> function{sum, rows_of<float>(problem.att, b, h)[0]};
      with_terms(rows_of<X>(base.k, b, h), Rows<X>(), features, [&](auto keys) {
        sum_features(keys, function, block.edges, base.d, block.score, prefetching<X>(args, block));
      });
    }
  }
}

inline Vec clamped(Vec x, float limit) {
  const Vec low = x < -limit ? broadcast(-limit) : x;  // NaN stays
  return low > limit ? broadcast(limit) : low;
}

// Clamps the scores and adds the bias; what pads the last vector is -inf.
void finish_scores(const GraphAttentionProblem& problem, ScoreBlock& block) {
  const int64_t n = block.edges.count;
  const bool has_bias = problem.terms.bias.data != nullptr;
  for (int64_t j = 0; j < n; j += kWidth) {
    Vec score = load(block.score + j);
    if (problem.clamp > 0.0f) score = clamped(score, problem.clamp);
    if (has_bias) score += load(block.bias + j);
    store(block.score + j, score);
  }
  for (int64_t j = n; j < padded(n); ++j) block.score[j] = -kInfinity;
}

// What dropout keeps of the block's edges, into `kept`.
void draw_kept(const GraphAttentionProblem& problem, ScoreBlock& block) {
  const UIntVec row = static_cast<uint32_t>(block.row) - UIntVec{};
  for (int64_t j = 0; j < block.edges.count; j += kWidth) {
    UIntVec column = {};
    const int64_t rest = block.edges.count - j;
    memcpy(&column, block.edges.columns + j, sizeof(int32_t) * (rest < kWidth ? rest : kWidth));
    store(block.kept + j, kept_edges(problem.base, row, column, static_cast<uint32_t>(block.head)));
  }
}

// The softmax of a row in one head, as far as its blocks have been read.
struct HeadSums {
  float top = -kInfinity;  // the largest score so far
  float total = 0.0f;      // of exp(score - top)
};

// Weights, relative to the largest score so far, in place of the scores; sums of earlier blocks are
// brought to that score.
void online_softmax(ScoreBlock& block, HeadSums& head, float* sums, int64_t sums_length) {
  const int64_t n = block.edges.count;
  const float top = std::max(head.top, row_maximum(block.score, padded(n)));
  if (top > head.top && head.total > 0.0f) {
    const float factor = exp_nonpositive(broadcast(head.top - top))[0];
    head.total *= factor;
    for (int64_t f = 0; f < sums_length; f += kWidth) store(sums + f, load(sums + f) * factor);
  }
  head.top = top;
  const float shift = top == -kInfinity ? 0.0f : top;  // as in softmax_rows
  Vec totals = {};
  for (int64_t j = 0; j < n; j += kWidth) {
    const Vec weight = exp_nonpositive(load(block.score + j) - shift);
    store(block.score + j, weight);
    totals += weight;
  }
  head.total += sum(totals);
}

// Adds the values of a block, times their weights, to `sums`, and the mapped features behind them.
template <class X>
void add_values(const GraphAttentionArgs& args, const ScoreBlock& block, float* sums) {
  const AttentionProblem& base = args.problem.base;
  const EdgeTerms& terms = args.problem.terms;
  const int64_t b = block.b, h = block.h;
  const Rows<X> features = rows_of<X>(terms.to_values ? terms.features : HeadsView(), b, h);
  const Rows<X> values = rows_of<X>(base.v, b, h);
  with_terms(values, Rows<X>(), features, [&](auto rows) {
    add_edges(rows, Itself(), block.edges, block.score, base.dv, sums);
  });
  if (args.result.mapped.data == nullptr) return;
  const EdgeRows<X> mapped{rows_of<X>(terms.mapped, b, h)};
  add_edges(mapped, Itself(), block.edges, block.score, terms.de, sums + padded(base.dv));
}

template <class X>
void attend_block(const GraphAttentionArgs& args, ScoreBlock& block, HeadSums& head, float* sums,
                  int64_t sums_length) {
  const GraphAttentionProblem& problem = args.problem;
  list_edges(args, block, [](int64_t) {});
  const int64_t n = block.edges.count;
  if (n == 0) return;
  raw_scores<X>(args, block, nullptr);
  finish_scores(problem, block);
  if (problem.normalize) {
    online_softmax(block, head, sums, sums_length);
  } else {
    for (int64_t j = 0; j < n; j += kWidth) {
      store(block.score + j, exp_any(load(block.score + j)));
    }
  }
  if (problem.base.seed != nullptr) {
    draw_kept(problem, block);
    for (int64_t j = 0; j < n; j += kWidth) {
      store(block.score + j, load(block.score + j) * load(block.kept + j));
    }
  }
  add_values<X>(args, block, sums);
}

void finish_row(const GraphAttentionArgs& args, int64_t b, int64_t h, int64_t row,
                const HeadSums& head, const float* sums) {
  const GraphAttentionProblem& problem = args.problem;
  float factor = problem.base.kept_scale;
  float lse = 0.0f;
  if (problem.normalize) {
    factor = head.total == 0.0f ? 0.0f : factor / head.total;
    lse = head.total == 0.0f ? -kInfinity : head.top + std::log(head.total);
  }
  number_of(args.result.lse, b, h, row) = lse;
  store_row(args.result.out, b, h, row, sums, problem.base.dv, factor);
  if (args.result.mapped.data == nullptr) return;
  store_row(args.result.mapped, b, h, row, sums + padded(problem.base.dv), problem.terms.de,
            factor);
}

// Nonzeros of row i that is_causal leaves.
inline int64_t row_end(const GraphAttentionArgs& args, int64_t i, int64_t row) {
  const CsrView& a = args.a;
  if (!args.problem.base.is_causal) return a.indptr[i + 1];
  return lower_bound(a.indices, a.indptr[i], a.indptr[i + 1], row + 1);
}

// Calls body(block) for every block of the nonzeros [begin, end) of a row and every head, which is
// set there.
template <class OfPass, class Body>
void for_each_block(const GraphAttentionProblem& problem, OfPass& block, int64_t begin, int64_t end,
                    Body body) {
  for (block.begin = begin; block.begin < end; block.begin += kBlock) {
    block.count = std::min(kBlock, end - block.begin);
    for_each_head(problem, [&](int64_t b, int64_t h, int64_t head) {
      block.b = b;
      block.h = h;
      block.head = head;
      body(block);
    });
  }
}

template <class X>
void attend_rows(const GraphAttentionArgs& args, int64_t begin, int64_t end) {
  const int64_t length = padded(args.problem.base.dv) + padded(args.problem.terms.de);
  const Scratch sums(args.heads(), length);
  const Scratch totals(args.heads(), sizeof(HeadSums) / sizeof(float));
  auto* heads = reinterpret_cast<HeadSums*>(totals[0]);
  ScoreBlock block = {};
  for (int64_t i = begin; i < end; ++i) {
    block.row = args.row_ids != nullptr ? args.row_ids[i] : i;
    for (int64_t h = 0; h < args.heads(); ++h) heads[h] = HeadSums();
    std::fill_n(sums[0], args.heads() * length, 0.0f);
    for_each_block(args.problem, block, args.a.indptr[i], row_end(args, i, block.row),
                   [&](ScoreBlock& one) {
                     attend_block<X>(args, one, heads[one.head], sums[one.head], length);
                   });
    for_each_head(args.problem, [&](int64_t b, int64_t h, int64_t head) {
      finish_row(args, b, h, block.row, heads[head], sums[head]);
    });
  }
}

void graph_attention_rows(const GraphAttentionArgs& args, int64_t begin, int64_t end) {
  with_type(args.problem.base.v.dtype,
            [&](auto type) { attend_rows<Element<decltype(type)>>(args, begin, end); });
}

}  // namespace
}  // namespace gnnsparse::cpu::GNNSPARSE_ISA
