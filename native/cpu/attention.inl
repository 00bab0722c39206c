// Attention over the nonzeros of each row, forward and backward, for the instruction set that
// kernels.inl was included for. The scores of one row in one head lie in a buffer of the row's
// length, padded to whole vectors; nothing else is as long as the edges.

namespace gnnsparse::cpu::GNNSPARSE_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline int64_t padded(int64_t n) { return (n + kWidth - 1) / kWidth * kWidth; }

// Buffers of one thread. Not a std::vector: the linker could share its code among the files.
class Scratch {
 public:
  Scratch(int64_t buffers, int64_t length)
      : data_(static_cast<float*>(::operator new(bytes(buffers, length)))), length_(length) {}
  ~Scratch() { ::operator delete(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  float* operator[](int64_t buffer) const { return data_ + buffer * length_; }

 private:
  static size_t bytes(int64_t buffers, int64_t length) {
    int64_t count = 0;
    if (__builtin_mul_overflow(buffers, length, &count) ||
        __builtin_mul_overflow(count, static_cast<int64_t>(sizeof(float)), &count)) {
      throw std::bad_alloc();
    }
    return static_cast<size_t>(count);
  }

  float* data_;
  int64_t length_;
};

// One row of `a` in one head.
struct Item {
  int64_t b;
  int64_t h;
  int64_t row;  // in the caller's numbering
  int64_t begin;
  int64_t end;

  int64_t count() const { return end - begin; }
};

// First of the ascending indices [begin, end) that is at least `bound`.
inline int64_t lower_bound(const int32_t* indices, int64_t begin, int64_t end, int64_t bound) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (indices[middle] < bound) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Calls body(item) for every row and head of the items [begin, end).
template <class Body>
void for_each_item(const AttentionArgs& args, int64_t begin, int64_t end, Body body) {
  const CsrView& a = args.a;
  for (int64_t position = begin; position < end; ++position) {
    const int64_t group = position / a.rows;
    const int64_t i = position % a.rows;
    Item item{0, 0, args.row_ids != nullptr ? args.row_ids[i] : i, a.indptr[i], a.indptr[i + 1]};
    if (args.problem.is_causal && args.transposed) {
      item.begin = lower_bound(a.indices, item.begin, item.end, item.row);
    } else if (args.problem.is_causal) {
      item.end = lower_bound(a.indices, item.begin, item.end, item.row + 1);
    }
    const int64_t batches = args.problem.batches / args.batch_groups;
    const int64_t heads = args.problem.heads / args.head_groups;
    const int64_t first_b = args.batch_groups == 1 ? 0 : group / args.head_groups;
    const int64_t first_h = args.head_groups == 1 ? 0 : group % args.head_groups;
    for (item.b = first_b; item.b < first_b + batches; ++item.b) {
      for (item.h = first_h; item.h < first_h + heads; ++item.h) body(item);
    }
  }
}

// First of a head's queries among those of all heads [batches, heads, L].
inline int64_t head_start(const AttentionArgs& args, const Item& item) {
  return (item.b * args.problem.heads + item.h) * (args.transposed ? args.a.cols : args.a.rows);
}

// out[j] = dot(own, row columns[j] of `other`) for four columns side by side.
template <class X>
inline void four_dots(const X* own, const DenseView& other, const int32_t* columns, int64_t width,
                      float* out) {
  const X* rows[4];
  for (int j = 0; j < 4; ++j) rows[j] = row_of<X>(other, columns[j]);
  Vec sums[4] = {};
  int64_t f = 0;
  for (; f + kWidth <= width; f += kWidth) {
    const Vec x = load(own + f);
    for (int j = 0; j < 4; ++j) sums[j] += x * load(rows[j] + f);
  }
  if (f < width) {
    const Vec x = load(own + f, width - f);
    for (int j = 0; j < 4; ++j) sums[j] += x * load(rows[j] + f, width - f);
  }
  sum_four(sums, out);
}

// out[e - begin] = dot(own, the row of `other` that edge e leads to). An edge's products are added
// up in one order, wherever the edge is in its row or column: passes over rows and over columns
// have the same scores bit for bit, and with them the same weights.
template <class X>
void dots(const AttentionArgs& args, const Item& item, const HeadsView& own_heads,
          const HeadsView& other_heads, int64_t width, float* out) {
  const X* own = row_of<X>(own_heads.of(item.b, item.h), item.row);
  const DenseView other = other_heads.of(item.b, item.h);
  const int32_t* indices = args.a.indices;
  const int64_t last = args.a.nnz - 1;
  const auto fetch_ahead = [&](int64_t e) {
    prefetch(row_of<X>(other, indices[e + kPrefetchAhead < last ? e + kPrefetchAhead : last]),
             width);
  };
  int64_t e = item.begin;
  for (; e + 4 <= item.end; e += 4) {
    for (int j = 0; j < 4; ++j) fetch_ahead(e + j);
    four_dots(own, other, indices + e, width, out + (e - item.begin));
  }
  if (e == item.end) return;
  int32_t columns[4];
  float rest[4];
  for (int j = 0; j < 4; ++j) columns[j] = indices[e + j < item.end ? e + j : item.end - 1];
  four_dots(own, other, columns, width, rest);
  for (int j = 0; e + j < item.end; ++j) {
    fetch_ahead(e + j);
    out[e + j - item.begin] = rest[j];
  }
}

inline int64_t nnz_index_of(const AttentionArgs& args, int64_t e) {
  return args.nnz_index_map.data == nullptr ? e : args.nnz_index_map[e];
}

// Dot products to scores; what pads the last vector is -inf.
void finish_scores(const AttentionArgs& args, const Item& item, float* s) {
  const int64_t n = item.count();
  for (int64_t e = 0; e < n; ++e) s[e] *= args.problem.scale;
  for (int64_t e = n; e < padded(n); ++e) s[e] = -kInfinity;
  const EdgeValuesView& bias = args.problem.bias;
  if (bias.data == nullptr) return;
  with_type(bias.dtype, [&](auto type) {
    const auto* values = static_cast<decltype(type)>(bias.data) + bias.offset(item.b, item.h);
    if (args.nnz_index_map.data == nullptr) {
      for (int64_t e = 0; e < n; ++e) s[e] += to_float(values[item.begin + e]);
    } else {
      for (int64_t e = 0; e < n; ++e) s[e] += to_float(values[nnz_index_of(args, item.begin + e)]);
    }
  });
}

// The first words of philox4x32 for kWidth counters (row, column, head, 0) side by side.
inline UIntVec philox_words(PhiloxKey key, UIntVec row, UIntVec column, uint32_t head) {
  UIntVec c[4] = {row, column, head - UIntVec{}, UIntVec{}};
  for (int round = 0; round < kPhiloxRounds; ++round) {
    UIntVec high[2];
    UIntVec low[2];
    multiply(c[0], kPhiloxFirst, &high[0], &low[0]);
    multiply(c[2], kPhiloxSecond, &high[1], &low[1]);
    c[0] = high[1] ^ c[1] ^ key.low;
    c[1] = low[1];
    c[2] = high[0] ^ c[3] ^ key.high;
    c[3] = low[0];
    key = next_key(key);
  }
  return c[0];
}

// What dropout multiplies the weights of edges with, but for the scale of those it keeps: 0 or 1.
inline Vec kept_edges(const AttentionProblem& problem, UIntVec row, UIntVec column, uint32_t head) {
  const UIntVec word = philox_words(philox_key(*problem.seed), row, column, head);
  const IntVec keep = word >= problem.threshold;
  return (Vec)(keep & (IntVec)broadcast(1.0f));
}

void draw_kept(const AttentionArgs& args, const Item& item, float* kept) {
  const auto head = static_cast<uint32_t>(item.b * args.problem.heads + item.h);
  const UIntVec own = static_cast<uint32_t>(item.row) - UIntVec{};
  const int32_t* indices = args.a.indices + item.begin;
  const int64_t n = item.count();
  for (int64_t e = 0; e < n; e += kWidth) {
    UIntVec other = {};
    memcpy(&other, indices + e, sizeof(int32_t) * (n - e < kWidth ? n - e : kWidth));
    store(kept + e, args.transposed ? kept_edges(args.problem, other, own, head)
                                    : kept_edges(args.problem, own, other, head));
  }
}

template <class X>
inline Vec rounded(Vec v, const X*, Precision) {
  X narrow[kWidth];
  store(narrow, v);
  return load(narrow);
}
inline Vec rounded(Vec v, const float*, Precision precision) {
  if (precision != Precision::kTf32) return v;
  const IntVec bits = (IntVec)v;
  const IntVec special = (bits & 0x7f800000) == 0x7f800000;
  return (Vec)((special & bits) | (~special & ((bits + 0x1000) & -0x2000)));
}

// Weights as operands of a product, in place.
template <class X>
void round_weights(float* w, int64_t n, Precision precision) {
  for (int64_t e = 0; e < n; e += kWidth) {
    store(w + e, rounded(load(w + e), static_cast<const X*>(nullptr), precision));
  }
}

// The weight of edge e is buffer[e - begin].
struct FromBuffer {
  float operator()(int64_t e, int32_t) const { return buffer[e - begin]; }
  const float* buffer;
  int64_t begin;
};

// The item's row of `to` = factor * sum over its edges of weight * row of `from`.
template <class X>
void weighted_sum(const AttentionArgs& args, const Item& item, const float* weights,
                  const HeadsView& from, const HeadsView& to, int64_t width, float factor) {
  SpmmArgs product;
  product.a = args.a;
  product.x = from.of(item.b, item.h);
  product.y = to.mutable_of(item.b, item.h);
  product.n = width;
  spmm_row<X>(SpmmRow<FromBuffer>{product, FromBuffer{weights, item.begin}, item.begin, item.end,
                                  args.a.nnz, factor, item.row});
}

template <class X>
void attend(const AttentionArgs& args, const Item& item, const Scratch& scratch) {
  const AttentionProblem& problem = args.problem;
  const int64_t n = item.count();
  float* p = scratch[0];
  dots<X>(args, item, problem.q, problem.k, problem.d, p);
  finish_scores(args, item, p);
  float top = row_maximum(p, padded(n));
  if (top == -kInfinity) top = 0.0f;  // as in softmax_rows
  Vec totals = {};
  for (int64_t e = 0; e < n; e += kWidth) {
    const Vec v = exp_nonpositive(load(p + e) - top);
    store(p + e, v);
    totals += v;
  }
  const float total = sum(totals);
  const float scale = total == 0.0f ? 0.0f : 1.0f / total;
  if (problem.seed != nullptr) {
    float* kept = scratch[1];
    draw_kept(args, item, kept);
    for (int64_t e = 0; e < n; e += kWidth) store(p + e, load(p + e) * load(kept + e));
  }
  round_weights<X>(p, n, problem.precision);
  weighted_sum<X>(args, item, p, problem.v, args.out, problem.dv, problem.kept_scale * scale);
  args.stats[head_start(args, item) + item.row] = {top, scale};
}

// The scores, the gradients of the weights but for kept_scale, and what dropout keeps (null: all),
// in buffers 0, 1 and 2.
template <class X>
const float* recompute(const AttentionArgs& args, const Item& item, const HeadsView (&own)[2],
                       const HeadsView (&other)[2], const Scratch& scratch) {
  const int64_t n = item.count();
  dots<X>(args, item, own[0], other[0], args.problem.d, scratch[0]);
  finish_scores(args, item, scratch[0]);
  dots<X>(args, item, own[1], other[1], args.problem.dv, scratch[1]);
  for (int64_t e = n; e < padded(n); ++e) scratch[1][e] = 0.0f;
  if (args.problem.seed == nullptr) return nullptr;
  draw_kept(args, item, scratch[2]);
  return scratch[2];
}

// Weights before dropout in place of the scores, and their gradients g. Gives the sum of p g. It
// equals dot(gradient of out, out), but where one edge has nearly all the weight only this sum
// cancels with that edge's g: it is made of the same numbers.
float row_weights(const AttentionProblem& problem, int64_t n, SoftmaxStats stats, const float* kept,
                  float* p, float* g) {
  Vec delta = {};
  for (int64_t e = 0; e < n; e += kWidth) {
    const Vec weight = exp_nonpositive(load(p + e) - stats.shift) * stats.scale;
    Vec gradient = load(g + e) * problem.kept_scale;
    if (kept != nullptr) gradient *= load(kept + e);
    store(p + e, weight);
    store(g + e, gradient);
    delta += weight * gradient;
  }
  return sum(delta);
}

template <class X>
void row_grad(const AttentionArgs& args, const Item& item, const Scratch& scratch) {
  const AttentionProblem& problem = args.problem;
  const int64_t n = item.count();
  const int64_t at = head_start(args, item) + item.row;
  const float* kept =
      recompute<X>(args, item, {problem.q, args.grad}, {problem.k, problem.v}, scratch);
  const float* p = scratch[0];
  float* ds = scratch[1];
  const float delta = row_weights(problem, n, args.stats[at], kept, scratch[0], scratch[1]);
  args.delta[at] = delta;
  for (int64_t e = 0; e < n; e += kWidth) {
    store(ds + e, load(p + e) * (load(ds + e) - delta));
  }
  if (args.dbias.data != nullptr) {
    float* dbias = static_cast<float*>(const_cast<void*>(args.dbias.data)) +
                   args.dbias.offset(item.b, item.h) + item.begin;
    for (int64_t e = 0; e < n; ++e) dbias[e] += ds[e];
  }
  if (args.dq.data == nullptr) return;
  round_weights<X>(ds, n, problem.precision);
  weighted_sum<X>(args, item, ds, problem.k, args.dq, problem.d, problem.scale);
}

// Weights after dropout, but for kept_scale, in place of the scores; their gradients g become those
// of the scores.
void column_weights(const AttentionProblem& problem, int64_t n, const float* shift,
                    const float* scale, const float* delta, const float* kept, float* p, float* g) {
  for (int64_t e = 0; e < n; e += kWidth) {
    const Vec weight = exp_nonpositive(load(p + e) - load(shift + e)) * load(scale + e);
    Vec gradient = load(g + e) * problem.kept_scale;
    Vec dropped = weight;
    if (kept != nullptr) {
      gradient *= load(kept + e);
      dropped *= load(kept + e);
    }
    store(p + e, dropped);
    store(g + e, weight * (gradient - load(delta + e)));
  }
}

template <class X>
void column_grad(const AttentionArgs& args, const Item& item, const Scratch& scratch) {
  const AttentionProblem& problem = args.problem;
  const int64_t n = item.count();
  const float* kept =
      recompute<X>(args, item, {problem.k, problem.v}, {problem.q, args.grad}, scratch);
  const int32_t* rows = args.a.indices + item.begin;
  const int64_t start = head_start(args, item);
  float* shift = scratch[3];
  float* scale = scratch[4];
  float* delta = scratch[5];
  for (int64_t e = 0; e < n; ++e) {
    const SoftmaxStats stats = args.stats[start + rows[e]];
    shift[e] = stats.shift;
    scale[e] = stats.scale;
    delta[e] = args.delta[start + rows[e]];
  }
  for (int64_t e = n; e < padded(n); ++e) shift[e] = scale[e] = delta[e] = 0.0f;
  column_weights(problem, n, shift, scale, delta, kept, scratch[0], scratch[1]);
  if (args.dv.data != nullptr) {
    round_weights<X>(scratch[0], n, problem.precision);
    weighted_sum<X>(args, item, scratch[0], args.grad, args.dv, problem.dv, problem.kept_scale);
  }
  if (args.dk.data != nullptr) {
    round_weights<X>(scratch[1], n, problem.precision);
    weighted_sum<X>(args, item, scratch[1], problem.q, args.dk, problem.d, problem.scale);
  }
}

// Runs step(type, item, scratch) on the items [begin, end).
template <class Step>
void run_items(const AttentionArgs& args, int64_t begin, int64_t end, int64_t buffers, Step step) {
  with_type(args.problem.q.dtype, [&](auto type) {
    const Scratch scratch(buffers, padded(args.longest_row));
    for_each_item(args, begin, end, [&](const Item& item) { step(type, item, scratch); });
  });
}

template <class Pointer>
using Element = std::remove_const_t<std::remove_pointer_t<Pointer>>;

void attention_items(const AttentionArgs& args, int64_t begin, int64_t end) {
  run_items(args, begin, end, 2, [&](auto type, const Item& item, const Scratch& scratch) {
    attend<Element<decltype(type)>>(args, item, scratch);
  });
}

void attention_row_grads(const AttentionArgs& args, int64_t begin, int64_t end) {
  run_items(args, begin, end, 3, [&](auto type, const Item& item, const Scratch& scratch) {
    row_grad<Element<decltype(type)>>(args, item, scratch);
  });
}

void attention_column_grads(const AttentionArgs& args, int64_t begin, int64_t end) {
  run_items(args, begin, end, 6, [&](auto type, const Item& item, const Scratch& scratch) {
    column_grad<Element<decltype(type)>>(args, item, scratch);
  });
}

}  // namespace
}  // namespace gnnsparse::cpu::GNNSPARSE_ISA
