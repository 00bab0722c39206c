// The backward passes of graph_attention.inl. That over rows of A computes the weights anew, and
// leaves for each edge its weight and the gradient of its score; that over columns needs no more of
// an edge than these two.

namespace gnnsparse::cpu::GNNSPARSE_ISA {
namespace {

struct GradBlock : ScoreBlock {
  float weight[kBlock];       // before dropout, then after it
  float weight_grad[kBlock];  // after dropout, then before it
  float score_grad[kBlock];   // of the finished score
  float dot_grad[kBlock];     // at first the derivative of the finished score by it
};

// What the rows of a pass add up in each head; the parts have whole vectors.
struct RowSums {
  explicit RowSums(const GraphAttentionArgs& args)
      : d(padded(args.problem.base.d)),
        de(padded(args.problem.terms.de)),
        buffers(args.heads(), 2 * d + de + kWidth) {}
  float* q(int64_t head) const { return buffers[head]; }
  float* mapped_q(int64_t head) const { return buffers[head] + d; }
  float* att(int64_t head) const { return buffers[head] + d + de; }  // over many rows
  // Of weight times its gradient, before dropout.
  float& inner(int64_t head) const { return buffers[head][2 * d + de]; }

  int64_t d;
  int64_t de;
  Scratch buffers;
};

void write_masked(const GraphAttentionArgs& args, int64_t b, int64_t h, int64_t id) {
  const GraphAttentionGrads& grads = args.grads;
  store_zeros(grads.edges, b, h, id, 2);
  store_zeros(grads.bias, b, h, id, 1);
  store_zeros(grads.features, b, h, id, args.problem.base.d);
  store_zeros(grads.gate, b, h, id, args.problem.base.d);
}

// Multiplies `slopes` by the derivative of the clamp, which is 1 at its bounds as well.
void clamp_grad(const GraphAttentionProblem& problem, const ScoreBlock& block, float* slopes) {
  if (problem.clamp <= 0.0f) return;
  for (int64_t j = 0; j < block.edges.count; j += kWidth) {
    const Vec score = load(block.score + j);
    const IntVec inside = (score >= -problem.clamp) & (score <= problem.clamp);
    store(slopes + j, (Vec)((IntVec)load(slopes + j) & inside));
  }
}

void fill_slopes(const GraphAttentionProblem& problem, GradBlock& block) {
  const float factor = problem.score == Score::kDot ? problem.base.scale : 1.0f;
  std::fill_n(block.dot_grad, kBlock, factor);
}

// The scores, and what the score's dot product changes of them, in `score` and `dot_grad`.
template <class X>
void recompute_scores(const GraphAttentionArgs& args, GradBlock& block) {
  const GraphAttentionProblem& problem = args.problem;
  if (problem.score != Score::kAdditive) fill_slopes(problem, block);
  raw_scores<X>(args, block, block.dot_grad);
  clamp_grad(problem, block, block.dot_grad);
  finish_scores(problem, block);
}

// Gradients of the weights after dropout.
template <class X>
void weight_grads(const GraphAttentionArgs& args, GradBlock& block) {
  const AttentionProblem& base = args.problem.base;
  const EdgeTerms& terms = args.problem.terms;
  const int64_t b = block.b, h = block.h;
  const Rows<X> features = rows_of<X>(terms.to_values ? terms.features : HeadsView(), b, h);
  with_terms(rows_of<X>(base.v, b, h), Rows<X>(), features, [&](auto values) {
    const Times<X> product{rows_of<X>(args.grads.out, b, h)[block.row]};
    sum_features(values, product, block.edges, base.dv, block.weight_grad, [](int64_t) {});
  });
  if (args.grads.mapped.data != nullptr) {
    add_mapped<X>(terms, block, args.grads.mapped, block.weight_grad);
  }
  if (args.grads.weights.data == nullptr) return;
  const Rows<float> given = rows_of<float>(args.grads.weights, b, h);
  for (int64_t j = 0; j < block.edges.count; ++j) {
    block.weight_grad[j] += *given[block.edges.ids[j]];
  }
}

// What dropout multiplies a vector of weights by.
inline Vec dropout_factors(const GraphAttentionProblem& problem, const ScoreBlock& block,
                           int64_t j) {
  const Vec scale = broadcast(problem.base.kept_scale);
  return problem.base.seed == nullptr ? scale : scale * load(block.kept + j);
}

// Weights and their gradients before dropout, and slopes. Adds to the row's sum of weight times
// gradient, which the gradient of a score is lowered by. Where one edge has nearly all the weight,
// a sum of the same numbers cancels with that edge's gradient, as dot(gradient of out, out) can't.
template <class X>
void weigh_block(const GraphAttentionArgs& args, GradBlock& block, const RowSums& sums) {
  const GraphAttentionProblem& problem = args.problem;
  const int64_t n = block.edges.count;
  recompute_scores<X>(args, block);
  weight_grads<X>(args, block);
  for (int64_t j = n; j < padded(n); ++j) block.weight_grad[j] = 0.0f;
  SoftmaxStats stats;
  memcpy(&stats, &number_of(args.result.stats, block.b, block.h, block.row), sizeof stats);
  Vec inner = {};
  for (int64_t j = 0; j < n; j += kWidth) {
    const Vec score = load(block.score + j);
    const Vec weight =
        problem.normalize ? exp_nonpositive(score - stats.shift) * stats.scale : exp_any(score);
    const Vec grad = dropout_factors(problem, block, j) * load(block.weight_grad + j);
    store(block.weight + j, weight);
    store(block.weight_grad + j, grad);
    inner += weight * grad;
  }
  if (problem.normalize) sums.inner(block.head) += sum(inner);
}

// What weigh_block has found of a block is kept until the sum over its row is known, in the array
// that is for the results.
void keep_weights(const GraphAttentionArgs& args, const GradBlock& block) {
  const Rows<float> edges = rows_of<float>(args.grads.edges, block.b, block.h);
  for (int64_t j = 0; j < block.edges.count; ++j) {
    float* pair = const_cast<float*>(edges[block.edges.ids[j]]);
    pair[0] = block.weight[j];
    pair[1] = block.weight_grad[j];
  }
}
template <class X>
void restore_weights(const GraphAttentionArgs& args, GradBlock& block) {
  const GraphAttentionProblem& problem = args.problem;
  const bool has_slopes = problem.score == Score::kAdditive || problem.clamp > 0.0f;
  has_slopes ? recompute_scores<X>(args, block) : fill_slopes(problem, block);
  const Rows<float> edges = rows_of<float>(args.grads.edges, block.b, block.h);
  for (int64_t j = 0; j < block.edges.count; ++j) {
    const float* pair = edges[block.edges.ids[j]];
    block.weight[j] = pair[0];
    block.weight_grad[j] = pair[1];
  }
}

// Weights after dropout, and the gradients of finished scores and of their dot products.
void score_grads(const GraphAttentionProblem& problem, GradBlock& block, float inner) {
  for (int64_t j = 0; j < block.edges.count; j += kWidth) {
    const Vec weight = load(block.weight + j);
    const Vec grad = weight * (load(block.weight_grad + j) - inner);
    store(block.weight + j, weight * dropout_factors(problem, block, j));
    store(block.score_grad + j, grad);
    store(block.dot_grad + j, grad * load(block.dot_grad + j));
  }
}

void write_edges(const GraphAttentionArgs& args, const GradBlock& block) {
  const Rows<float> edges = rows_of<float>(args.grads.edges, block.b, block.h);
  const Rows<float> bias = rows_of<float>(args.grads.bias, block.b, block.h);
  for (int64_t j = 0; j < block.edges.count; ++j) {
    float* pair = const_cast<float*>(edges[block.edges.ids[j]]);
    pair[0] = block.weight[j];
    pair[1] = block.dot_grad[j];
    if (bias.data != nullptr) *const_cast<float*>(bias[block.edges.ids[j]]) = block.score_grad[j];
  }
}

// Adds to the gradients of what belongs to the row, and to that of `att`.
template <class X>
void add_row_grads(const GraphAttentionArgs& args, const GradBlock& block, const RowSums& sums) {
  const GraphAttentionProblem& problem = args.problem;
  const EdgeTerms& terms = problem.terms;
  const int64_t b = block.b, h = block.h, d = problem.base.d;
  const GraphAttentionGrads& grads = args.grads;
  const Edges& edges = block.edges;
  float* q = sums.q(block.head);
  if (problem.score == Score::kAdditive) {
    for (int64_t j = 0; j < edges.count; ++j) q[0] += block.dot_grad[j];
    return;
  }
  const Rows<X> features = rows_of<X>(terms.to_keys ? terms.features : HeadsView(), b, h);
  with_terms(
      rows_of<X>(problem.base.k, b, h), rows_of<X>(terms.gate, b, h), features, [&](auto keys) {
        if (problem.score == Score::kDot) {
          if (grads.q.data != nullptr) {
            add_edges(keys, Itself(), edges, block.dot_grad, d, q);
          }
          return;
        }
        const X* own = rows_of<X>(problem.base.q, b, h)[block.row];
        const float slope = problem.negative_slope;
        if (grads.q.data != nullptr) {
          add_edges(keys, LeakyGrad<X>{own, slope}, edges, block.dot_grad, d, q);
        }
        if (grads.att.data != nullptr) {
          add_edges(keys, Leaky<X>{own, slope}, edges, block.dot_grad, d, sums.att(block.head));
        }
      });
  if (grads.mapped_q.data != nullptr && terms.mapped.data != nullptr) {
    const EdgeRows<X> mapped{rows_of<X>(terms.mapped, b, h)};
    add_edges(mapped, Itself(), edges, block.dot_grad, terms.de, sums.mapped_q(block.head));
  }
}

// to[0 .. width) = function(f) for every vector of features from f on, padded at the end.
template <class Function>
void fill_row(float* to, int64_t width, Function function) {
  int64_t f = 0;
  for (; f + kWidth <= width; f += kWidth) store(to + f, function(f));
  if (f < width) store(to + f, function(f, width - f));
}

// The gradients of the features, which are added to keys and values, one edge after another.
template <class X>
void write_features(const GraphAttentionArgs& args, const GradBlock& block, float* buffer) {
  const GraphAttentionProblem& problem = args.problem;
  const EdgeTerms& terms = problem.terms;
  const int64_t b = block.b, h = block.h, d = problem.base.d;
  const X* q = rows_of<X>(problem.base.q, b, h)[block.row];
  const X* out = rows_of<X>(args.grads.out, b, h)[block.row];
  const float* att = rows_of<float>(problem.att, b, h)[0];
  const LeakyGrad<X> leaky{q, problem.negative_slope};
  const Operand<X, true> keys{
      rows_of<X>(problem.base.k, b, h), {}, rows_of<X>(terms.features, b, h)};
  for (int64_t j = 0; j < block.edges.count; ++j) {
    const int64_t id = block.edges.ids[j];
    const auto key = keys.row(block.edges.columns[j], id);
    fill_row(buffer, d, [&](int64_t f, auto... n) {
      Vec sum = {};
      if (terms.to_values) sum = block.weight[j] * load(out + f, n...);
      if (!terms.to_keys) return sum;
      if (problem.score == Score::kDot) return sum + block.dot_grad[j] * load(q + f, n...);
      return sum + block.dot_grad[j] * load(att + f, n...) * leaky(key.at(f, n...), f, n...);
    });
    store_row(args.grads.features, b, h, id, buffer, d, 1.0f);
  }
}

template <class X>
void write_gates(const GraphAttentionArgs& args, const GradBlock& block, float* buffer) {
  const AttentionProblem& base = args.problem.base;
  const X* q = rows_of<X>(base.q, block.b, block.h)[block.row];
  const Rows<X> keys = rows_of<X>(base.k, block.b, block.h);
  for (int64_t j = 0; j < block.edges.count; ++j) {
    const X* key = keys[block.edges.columns[j]];
    fill_row(buffer, base.d, [&](int64_t f, auto... n) {
      return block.dot_grad[j] * load(q + f, n...) * load(key + f, n...);
    });
    store_row(args.grads.gate, block.b, block.h, block.edges.ids[j], buffer, base.d, 1.0f);
  }
}

// The first round over a row of several blocks.
template <class X>
void sum_block(const GraphAttentionArgs& args, GradBlock& block, const RowSums& sums) {
  list_edges(args, block, [](int64_t) {});
  if (block.edges.count == 0) return;
  if (args.problem.base.seed != nullptr) draw_kept(args.problem, block);
  weigh_block<X>(args, block, sums);
  keep_weights(args, block);
}

// `is_summed`: sum_block has been called for all blocks of the row.
template <class X>
void grad_block(const GraphAttentionArgs& args, GradBlock& block, const RowSums& sums,
                bool is_summed, float* buffer) {
  const GraphAttentionGrads& grads = args.grads;
  list_edges(args, block, [&](int64_t id) { write_masked(args, block.b, block.h, id); });
  if (block.edges.count == 0) return;
  if (args.problem.base.seed != nullptr) draw_kept(args.problem, block);
  is_summed ? restore_weights<X>(args, block) : weigh_block<X>(args, block, sums);
  score_grads(args.problem, block, sums.inner(block.head));
  write_edges(args, block);
  add_row_grads<X>(args, block, sums);
  if (grads.features.data != nullptr && args.problem.score == Score::kAdditive) {
    for (int64_t j = 0; j < block.edges.count; ++j) {
      store_row(grads.features, block.b, block.h, block.edges.ids[j], block.dot_grad + j, 1, 1.0f);
    }
  } else if (grads.features.data != nullptr) {
    write_features<X>(args, block, buffer);
  }
  if (grads.gate.data != nullptr) write_gates<X>(args, block, buffer);
}

// x *= att, of a row of gatv2's queries or keys.
void times_att(const GraphAttentionProblem& problem, int64_t b, int64_t h, float* x) {
  if (problem.score != Score::kGatv2) return;
  const float* att = rows_of<float>(problem.att, b, h)[0];
  for (int64_t f = 0; f < problem.base.d; ++f) x[f] *= att[f];
}

void finish_row_grads(const GraphAttentionArgs& args, int64_t row, const RowSums& sums) {
  const GraphAttentionGrads& grads = args.grads;
  for_each_head(args.problem, [&](int64_t b, int64_t h, int64_t head) {
    if (grads.q.data != nullptr) {
      times_att(args.problem, b, h, sums.q(head));
      store_row(grads.q, b, h, row, sums.q(head), args.problem.base.d, 1.0f);
    }
    if (grads.mapped_q.data != nullptr) {
      store_row(grads.mapped_q, b, h, row, sums.mapped_q(head), args.problem.terms.de, 1.0f);
    }
    std::fill_n(sums.q(head), sums.d + sums.de, 0.0f);
    sums.inner(head) = 0.0f;
  });
}

// Writes the sums of `att` over the group of rows that row i of `a` ends.
void finish_att(const GraphAttentionArgs& args, int64_t i, const RowSums& sums) {
  if (args.grads.att.data == nullptr) return;
  for_each_head(args.problem, [&](int64_t b, int64_t h, int64_t head) {
    store_row(args.grads.att, b, h, i / kAttGroupRows, sums.att(head), args.problem.base.d, 1.0f);
    std::fill_n(sums.att(head), sums.d, 0.0f);
  });
}

template <class X>
void grad_rows(const GraphAttentionArgs& args, int64_t begin, int64_t end) {
  const RowSums sums(args);
  const Scratch buffer(1, sums.d);
  GradBlock block = {};
  for_each_head(args.problem, [&](int64_t, int64_t, int64_t head) {
    std::fill_n(sums.q(head), 2 * sums.d + sums.de, 0.0f);
    sums.inner(head) = 0.0f;
  });
  for (int64_t i = begin; i < end; ++i) {
    block.row = args.row_ids != nullptr ? args.row_ids[i] : i;
    const int64_t row_first = args.a.indptr[i];
    const int64_t row_last = row_end(args, i, block.row);
    const bool is_long = args.problem.normalize && row_last - row_first > kBlock;
    if (is_long) {
      for_each_block(args.problem, block, row_first, row_last,
                     [&](GradBlock& one) { sum_block<X>(args, one, sums); });
    }
    for_each_block(args.problem, block, row_first, row_last,
                   [&](GradBlock& one) { grad_block<X>(args, one, sums, is_long, buffer[0]); });
    for (int64_t id = row_last; id < args.a.indptr[i + 1]; ++id) {
      for_each_head(args.problem,
                    [&](int64_t b, int64_t h, int64_t) { write_masked(args, b, h, id); });
    }
    finish_row_grads(args, block.row, sums);
    if ((i + 1) % kAttGroupRows == 0 || i + 1 == end) finish_att(args, i, sums);
  }
}

struct ColumnBlock : Block {
  int64_t ids[kBlock];  // indices in A of all nonzeros of the block
  float weight[kBlock];
  float dot_grad[kBlock];
};

// Lists the edges of the block that have a weight or a gradient, with these.
template <class X>
void list_column_edges(const GraphAttentionArgs& args, ColumnBlock& block) {
  const GraphAttentionProblem& problem = args.problem;
  const Rows<float> given = rows_of<float>(args.grads.edges, block.b, block.h);
  const Rows<X> out = rows_of<X>(args.grads.out, block.b, block.h);
  const Rows<X> q =
      problem.score == Score::kAdditive ? Rows<X>() : rows_of<X>(problem.base.q, block.b, block.h);
  Edges& edges = block.edges;
  edges.start(args.a, block.begin);
  if (block.head == 0) {
    for (int64_t e = 0; e < block.count; ++e) {
      block.ids[e] = args.nnz_index_map[block.begin + e];
      __builtin_prefetch(given[block.ids[e]]);
    }
  }
  for (int64_t e = 0; e < block.count; ++e) {
    if (q.data != nullptr) prefetch(q[edges.ahead(e)], problem.base.d);
    prefetch(out[edges.ahead(e)], problem.base.dv);
    const float* pair = given[block.ids[e]];
    if (pair[0] == 0.0f && pair[1] == 0.0f) continue;  // masked, or as good as that
    block.weight[edges.count] = pair[0];
    block.dot_grad[edges.count] = pair[1];
    edges.add(edges.upcoming[e], block.ids[e]);
  }
}

template <class X>
void add_key_grads(const GraphAttentionArgs& args, const ColumnBlock& block, float* k) {
  const GraphAttentionProblem& problem = args.problem;
  const EdgeTerms& terms = problem.terms;
  const int64_t b = block.b, h = block.h, d = problem.base.d;
  const Edges& edges = block.edges;
  if (problem.score == Score::kAdditive) {
    for (int64_t j = 0; j < edges.count; ++j) k[0] += block.dot_grad[j];
    return;
  }
  const Rows<X> q = rows_of<X>(problem.base.q, b, h);
  if (problem.score == Score::kDot) {
    with_terms(q, rows_of<X>(terms.gate, b, h), Rows<X>(),
               [&](auto queries) { add_edges(queries, Itself(), edges, block.dot_grad, d, k); });
    return;
  }
  const Rows<X> features = rows_of<X>(terms.to_keys ? terms.features : HeadsView(), b, h);
  const X* own = rows_of<X>(problem.base.k, b, h)[block.row];
  const LeakyGrad<X> function{own, problem.negative_slope};
  with_terms(q, Rows<X>(), features,
             [&](auto queries) { add_edges(queries, function, edges, block.dot_grad, d, k); });
}

template <class X>
void grad_columns(const GraphAttentionArgs& args, int64_t begin, int64_t end) {
  const AttentionProblem& base = args.problem.base;
  const GraphAttentionGrads& grads = args.grads;
  const int64_t length = padded(base.d) + padded(base.dv);
  const Scratch sums(args.heads(), length);
  ColumnBlock block = {};
  for (int64_t i = begin; i < end; ++i) {
    block.row = args.row_ids != nullptr ? args.row_ids[i] : i;
    std::fill_n(sums[0], args.heads() * length, 0.0f);
    for_each_block(
        args.problem, block, args.a.indptr[i], args.a.indptr[i + 1], [&](ColumnBlock& one) {
          list_column_edges<X>(args, one);
          if (grads.k.data != nullptr) add_key_grads<X>(args, one, sums[one.head]);
          if (grads.v.data == nullptr) return;
          const Operand<X, false> out{rows_of<X>(grads.out, one.b, one.h), {}, {}};
          add_edges(out, Itself(), one.edges, one.weight, base.dv, sums[one.head] + padded(base.d));
        });
    for_each_head(args.problem, [&](int64_t b, int64_t h, int64_t head) {
      if (grads.k.data != nullptr) {
        times_att(args.problem, b, h, sums[head]);
        store_row(grads.k, b, h, block.row, sums[head], base.d, 1.0f);
      }
      if (grads.v.data == nullptr) return;
      store_row(grads.v, b, h, block.row, sums[head] + padded(base.d), base.dv, 1.0f);
    });
  }
}

void graph_attention_row_grads(const GraphAttentionArgs& args, int64_t begin, int64_t end) {
  with_type(args.problem.base.v.dtype,
            [&](auto type) { grad_rows<Element<decltype(type)>>(args, begin, end); });
}

void graph_attention_column_grads(const GraphAttentionArgs& args, int64_t begin, int64_t end) {
  with_type(args.problem.base.v.dtype,
            [&](auto type) { grad_columns<Element<decltype(type)>>(args, begin, end); });
}

}  // namespace
}  // namespace gnnsparse::cpu::GNNSPARSE_ISA
