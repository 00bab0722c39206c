// Attention over the edges of a graph with the terms of graph_attention.h, forward, and what its
// backward passes share with it (graph_attention_grads.inl). The nonzeros of a row are taken in
// blocks, each by all heads one after another, so that the rows of its columns are in the cache for
// every head but the first. The softmax goes over the blocks as they come, with sums that are
// scaled down where a block has a larger score than those before it (Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018): no array is as long as a row.

namespace gnnsparse::cpu::GNNSPARSE_ISA {
namespace {

// Calls body(b, h, index of the head) for every head.
template <class Body>
void for_each_head(const GraphAttentionProblem& problem, Body body) {
  int64_t head = 0;
  for (int64_t b = 0; b < problem.base.batches; ++b) {
    for (int64_t h = 0; h < problem.base.heads; ++h) body(b, h, head++);
  }
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
  SoftmaxStats stats = {0.0f, 1.0f};
  if (problem.normalize) {
    stats =
        head.total == 0.0f ? SoftmaxStats{0.0f, 0.0f} : SoftmaxStats{head.top, 1.0f / head.total};
  }
  const float factor = problem.base.kept_scale * stats.scale;
  memcpy(&number_of(args.result.stats, b, h, row), &stats, sizeof stats);
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
