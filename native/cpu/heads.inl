// The CPU kernels over rows with heads, and the largest product of each feature: included after
// kernels.inl, once for each instruction set. Features of all heads are one row, and a vector of
// them is multiplied by a vector of values.
namespace gnnsparse::cpu::GNNSPARSE_ISA {
namespace {

inline IntVec load_ints(const int32_t* p, int64_t n) {
  IntVec v = {};
  memcpy(&v, p, n * sizeof(int32_t));
  return v;
}
inline IntVec load_ints(const int32_t* p) {
  IntVec v;
  memcpy(&v, p, sizeof v);
  return v;
}

// The values of a nonzero for the vectors of a tile, which begins at feature `f`.
template <int kVectors>
struct NoHeads {
  template <class Args>
  NoHeads(const Args&, int64_t) {}
  Vec operator()(int64_t, int) const { return broadcast(1.0f); }
};
template <int kVectors>
struct OneHead {
  template <class Args>
  OneHead(const Args& args, int64_t) : values(args.values) {}
  Vec operator()(int64_t e, int) const { return broadcast(values[e]); }
  const float* values;
};
// Heads of whole vectors.
template <int kVectors>
struct WholeHeads {
  template <class Args>
  WholeHeads(const Args& args, int64_t f) : values(args.values), heads(args.shape.heads) {
    for (int v = 0; v < kVectors; ++v) head[v] = args.head_of[f + v * kWidth];
  }
  Vec operator()(int64_t e, int v) const { return broadcast(values[e * heads + head[v]]); }
  const float* values;
  int64_t heads;
  int32_t head[kVectors];
};
// Heads that begin anywhere in a vector. Those of a vector are neighbours: their values are loaded
// together, and each lane takes that of its head.
template <int kVectors>
struct MixedHeads {
  template <class Args>
  MixedHeads(const Args& args, int64_t f) : values(args.values), heads(args.shape.heads) {
    for (int v = 0; v < kVectors; ++v) {
      const int32_t* head_of = args.head_of + f + v * kWidth;
      first[v] = head_of[0];
      lane[v] = load_ints(head_of) - first[v];
    }
  }
  Vec operator()(int64_t e, int v) const {
    const int64_t rest = heads - first[v];
    const float* from = values + e * heads + first[v];
    return permute(rest < kWidth ? load(from, rest) : load(from), lane[v]);
  }
  const float* values;
  int64_t heads;
  int32_t first[kVectors];
  IntVec lane[kVectors];
};

// A vector of features, whole or the last one of a row.
template <bool kWhole, class X>
inline Vec load_part(const X* p, int64_t rest) {
  if constexpr (kWhole) return load(p);
  return load(p, rest);
}
template <bool kWhole>
inline IntVec load_part_ints(const int32_t* p, int64_t rest) {
  if constexpr (kWhole) return load_ints(p);
  return load_ints(p, rest);
}
template <bool kWhole, class Y>
inline void store_part(Y* p, Vec v, int64_t rest) {
  if constexpr (kWhole) return store(p, v);
  store(p, v, rest);
}

// The nonzeros [begin, end) of a row; `prefetch_end` is the end of what may be asked for.
struct RowRange {
  int64_t begin;
  int64_t end;
  int64_t prefetch_end;
  int64_t stored;  // the row among those stored
  int64_t out;     // and the caller's
};

template <class X, int kVectors>
inline void prefetch_row(const CsrView& a, const DenseView& x, int64_t e, int64_t end, int64_t f) {
  constexpr size_t kBytes = kVectors * kWidth * sizeof(X);
  constexpr int64_t kAhead = prefetch_ahead(kBytes);
  if (e + kAhead >= end) return;
  const auto* next = reinterpret_cast<const char*>(row_of<X>(x, a.indices[e + kAhead]) + f);
  for (size_t b = 0; b < kBytes; b += 64) __builtin_prefetch(next + b);
}

// Writes features [f, f + kVectors * kWidth) of a row, or the `rest` that there are. A function of
// its own, since what values and X it was computed of makes no difference.
template <bool kWhole, int kVectors>
__attribute__((noinline)) void store_tile(const MutableDenseView& to, int64_t row, int64_t f,
                                          int64_t rest, float scale, const Vec (&v)[kVectors]) {
  with_type(to.dtype, [&](auto type) {
    using Y = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    Y* y = static_cast<Y*>(to.data) + row * to.stride + f;
    for (int i = 0; i < kVectors; ++i) store_part<kWhole>(y + i * kWidth, v[i] * scale, rest);
  });
}

// Sums of features [f, f + kVectors * kWidth), or of the `rest` that there are.
template <bool kMasked>
struct SumOfRow {
  using Args = HeadsSpmmArgs;
  static constexpr int kMost = kMasked ? 4 : 8;  // vectors of a tile, which are in registers

  template <bool kWhole, int kVectors, class X, class Values>
  static void tile(const Args& args, const RowRange& row, int64_t f) {
    const int64_t features = args.shape.features(), rest = features - f;
    const Values values(args, f);
    const IntVec winner = IntVec{} + static_cast<int32_t>(row.out);
    Vec sums[kVectors] = {};
    for (int64_t e = row.begin; e < row.end; ++e) {
      prefetch_row<X, kVectors>(args.a, args.x, e, row.prefetch_end, f);
      const int32_t column = args.a.indices[e];
      const X* x = row_of<X>(args.x, column) + f;
      for (int v = 0; v < kVectors; ++v) {
        const Vec term = values(e, v) * load_part<kWhole>(x + v * kWidth, rest);
        if constexpr (kMasked) {
          const int32_t* won = args.winners + column * features + f + v * kWidth;
          const IntVec taken = load_part_ints<kWhole>(won, rest) == winner;
          sums[v] += taken ? term : Vec{};
        } else {
          sums[v] += term;
        }
      }
    }
    const float scale = args.row_scale != nullptr ? args.row_scale[row.stored] : 1.0f;
    store_tile<kWhole>(args.y, row.out, f, rest, scale, sums);
  }
};

struct ExtremeOfRow {
  using Args = ExtremeSpmmArgs;
  static constexpr int kMost = 4;

  template <bool kWhole, int kVectors, class X, class Values>
  static void tile(const Args& args, const RowRange& row, int64_t f) {
    const int64_t features = args.shape.features(), rest = features - f;
    const Values values(args, f);
    const bool empty = row.begin == row.end;
    Vec best[kVectors];
    IntVec won[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      best[v] = broadcast(-std::numeric_limits<float>::infinity());
      // Products that are all -infinity are larger than none: the first one has won.
      won[v] = IntVec{} + (empty ? -1 : args.a.indices[row.begin]);
    }
    for (int64_t e = row.begin; e < row.end; ++e) {
      prefetch_row<X, kVectors>(args.a, args.x, e, row.prefetch_end, f);
      const int32_t column = args.a.indices[e];
      const X* x = row_of<X>(args.x, column) + f;
      for (int v = 0; v < kVectors; ++v) {
        const Vec term = args.sign * values(e, v) * load_part<kWhole>(x + v * kWidth, rest);
        // NaN is larger than every number, and stays.
        const IntVec taken = ~(term <= best[v]) & (best[v] == best[v]);
        best[v] = taken ? term : best[v];
        won[v] = taken ? IntVec{} + column : won[v];
      }
    }
    int32_t* winners = args.winners + row.out * features + f;
    for (int v = 0; v < kVectors; ++v) {
      const size_t count = kWhole ? kWidth : static_cast<size_t>(rest);
      memcpy(winners + v * kWidth, &won[v], count * sizeof(int32_t));
    }
    for (int v = 0; empty && v < kVectors; ++v) best[v] = Vec{};
    store_tile<kWhole>(args.y, row.out, f, rest, args.sign, best);
  }
};

template <class Kernel, class X, template <int> class Values>
void heads_rows(const typename Kernel::Args& args, int64_t begin, int64_t end) {
  const CsrView& a = args.a;
  const int64_t n = args.shape.features();
  for (int64_t i = begin; i < end; ++i) {
    const RowRange row = {a.indptr[i], a.indptr[i + 1], a.indptr[end], i,
                          args.row_ids != nullptr ? args.row_ids[i] : i};
    int64_t f = 0;
    constexpr int kMost = Kernel::kMost;
    for (; f + kMost * kWidth <= n; f += kMost * kWidth) {
      Kernel::template tile<true, kMost, X, Values<kMost>>(args, row, f);
    }
    for (; f + 2 * kWidth <= n; f += 2 * kWidth) {
      Kernel::template tile<true, 2, X, Values<2>>(args, row, f);
    }
    if (f + kWidth <= n) {
      Kernel::template tile<true, 1, X, Values<1>>(args, row, f), f += kWidth;
    }
    if (f < n) Kernel::template tile<false, 1, X, Values<1>>(args, row, f);
  }
}

template <class Kernel>
void heads_rows(const typename Kernel::Args& args, int64_t begin, int64_t end) {
  with_type(args.x.dtype, [&](auto type) {
    using X = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    if (args.values == nullptr) return heads_rows<Kernel, X, NoHeads>(args, begin, end);
    if (args.shape.heads == 1) return heads_rows<Kernel, X, OneHead>(args, begin, end);
    if (args.shape.width % kWidth == 0) return heads_rows<Kernel, X, WholeHeads>(args, begin, end);
    return heads_rows<Kernel, X, MixedHeads>(args, begin, end);
  });
}

void heads_spmm_rows(const HeadsSpmmArgs& args, int64_t begin, int64_t end) {
  if (args.winners != nullptr) return heads_rows<SumOfRow<true>>(args, begin, end);
  heads_rows<SumOfRow<false>>(args, begin, end);
}

void extreme_spmm_rows(const ExtremeSpmmArgs& args, int64_t begin, int64_t end) {
  heads_rows<ExtremeOfRow>(args, begin, end);
}

// Of the features that the nonzero of `column` has won.
template <class T>
inline float won_dot(const T* q, const T* k, const int32_t* winners, int32_t column, int64_t d) {
  const IntVec winner = IntVec{} + column;
  Vec sums = {};
  int64_t f = 0;
  for (; f + kWidth <= d; f += kWidth) {
    sums += load_ints(winners + f) == winner ? load(q + f) * load(k + f) : Vec{};
  }
  if (f < d) {
    // Elements past the end are zero in both.
    const IntVec taken = load_ints(winners + f, d - f) == winner;
    sums += taken ? load(q + f, d - f) * load(k + f, d - f) : Vec{};
  }
  return sum(sums);
}

// The scores of one nonzero in every head. `won`: null, or the winners of the row.
template <class T, class Out>
inline void scores_of_heads(const HeadShape& shape, const T* q, const T* k, const int32_t* won,
                            int32_t column, Out* out) {
  for (int64_t h = 0; h < shape.heads; ++h) {
    const int64_t f = h * shape.width;
    const float score = won == nullptr ? dot(q + f, k + f, shape.width)
                                       : won_dot(q + f, k + f, won + f, column, shape.width);
    from_float(score, out + h);
  }
}

// The same, of heads of which several fill a vector: kGroup features each.
template <int kGroup, class T, class Out>
inline void scores_of_groups(const HeadShape& shape, const T* q, const T* k, const int32_t* won,
                             int32_t column, Out* out) {
  const int64_t n = shape.features();
  for (int64_t f = 0; f < n; f += kWidth) {
    const int64_t rest = n - f;
    const bool whole = rest >= kWidth;
    Vec terms = whole ? load(q + f) * load(k + f) : load(q + f, rest) * load(k + f, rest);
    if (won != nullptr) {
      const IntVec winners = whole ? load_ints(won + f) : load_ints(won + f, rest);
      terms = winners == IntVec{} + column ? terms : Vec{};
    }
    const Vec sums = sum_of_groups<kGroup>(terms);
    const int64_t lanes = whole ? kWidth : rest;
    for (int64_t i = 0; i < lanes; i += kGroup) from_float(sums[i], out + (f + i) / kGroup);
  }
}

template <class T, class Out>
using ScoresOfNonzero = void (*)(const HeadShape& shape, const T* q, const T* k, const int32_t* won,
                                 int32_t column, Out* out);

template <class T, class Out>
ScoresOfNonzero<T, Out> scores_kernel(int width) {
  if (width == 1) return scores_of_groups<1, T, Out>;
  if (width == 2) return scores_of_groups<2, T, Out>;
  if (width == 4) return scores_of_groups<4, T, Out>;
  if constexpr (kWidth >= 8) {
    if (width == 8) return scores_of_groups<8, T, Out>;
  }
  if constexpr (kWidth >= 16) {
    if (width == 16) return scores_of_groups<16, T, Out>;
  }
  return scores_of_heads<T, Out>;
}

template <class T, class Out>
void heads_sddmm_typed(const HeadsSddmmArgs& args, int64_t begin, int64_t end) {
  const CsrView& a = args.a;
  const int64_t n = args.shape.features();
  auto* out = static_cast<Out*>(args.out);
  const auto scores = scores_kernel<T, Out>(args.shape.width);
  const int64_t prefetch_end = a.indptr[end];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = args.row_ids != nullptr ? args.row_ids[i] : i;
    const T* q = row_of<T>(args.q, row);
    const int32_t* won = args.winners == nullptr ? nullptr : args.winners + row * n;
    for (int64_t e = a.indptr[i]; e < a.indptr[i + 1]; ++e) {
      if (e + kPrefetchAhead < prefetch_end) {
        const auto* next =
            reinterpret_cast<const char*>(row_of<T>(args.k, a.indices[e + kPrefetchAhead]));
        for (int64_t b = 0; b < n * static_cast<int64_t>(sizeof(T)); b += 64) {
          __builtin_prefetch(next + b);
        }
      }
      const int32_t column = a.indices[e];
      scores(args.shape, q, row_of<T>(args.k, column), won, column, out + e * args.shape.heads);
    }
  }
}

void heads_sddmm_rows(const HeadsSddmmArgs& args, int64_t begin, int64_t end) {
  with_type(args.q.dtype, [&](auto type) {
    with_type(args.out_dtype, [&](auto out_type) {
      using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
      using Out = std::remove_const_t<std::remove_pointer_t<decltype(out_type)>>;
      heads_sddmm_typed<T, Out>(args, begin, end);
    });
  });
}

// The softmax of heads [h, h + rest), side by side in a vector, over the nonzeros of a row.
template <bool kWhole>
void softmax_heads_of_row(const HeadsSoftmaxArgs& args, int64_t first, int64_t last, int64_t h) {
  const int64_t heads = args.heads, rest = heads - h;
  const float infinity = std::numeric_limits<float>::infinity();
  const float* s = args.scores + h;
  float* out = args.out + h;
  Vec top = broadcast(-infinity);
  for (int64_t e = first; e < last; ++e) {
    const Vec v = load_part<kWhole>(s + e * heads, rest);
    top = v > top ? v : top;
  }
  // A row of only -inf would be NaN: its weights are defined as 0, like those of no edges.
  top = top == -infinity ? Vec{} : top;
  Vec total = {};
  for (int64_t e = first; e < last; ++e) {
    const Vec p = exp_nonpositive(load_part<kWhole>(s + e * heads, rest) - top);
    store_part<kWhole>(out + e * heads, p, rest);
    total += p;
  }
  const Vec scale = total == 0.0f ? Vec{} : 1.0f / total;
  for (int64_t e = first; e < last; ++e) {
    const Vec p = load_part<kWhole>(static_cast<const float*>(out + e * heads), rest);
    store_part<kWhole>(out + e * heads, p * scale, rest);
  }
}

template <bool kWhole>
void softmax_heads_grad_of_row(const HeadsSoftmaxArgs& args, int64_t first, int64_t last,
                               int64_t h) {
  const int64_t heads = args.heads, rest = heads - h;
  const float* p = args.scores + h;
  const float* g = args.grad + h;
  Vec inner = {};
  for (int64_t e = first; e < last; ++e) {
    inner += load_part<kWhole>(p + e * heads, rest) * load_part<kWhole>(g + e * heads, rest);
  }
  for (int64_t e = first; e < last; ++e) {
    const Vec difference = load_part<kWhole>(g + e * heads, rest) - inner;
    const Vec result = load_part<kWhole>(p + e * heads, rest) * difference;
    store_part<kWhole>(args.out + h + e * heads, result, rest);
  }
}

void softmax_heads_rows(const HeadsSoftmaxArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t first = args.a.indptr[r], last = args.a.indptr[r + 1];
    int64_t h = 0;
    for (; h + kWidth <= args.heads; h += kWidth) softmax_heads_of_row<true>(args, first, last, h);
    if (h < args.heads) softmax_heads_of_row<false>(args, first, last, h);
  }
}

void softmax_heads_grad_rows(const HeadsSoftmaxArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t first = args.a.indptr[r], last = args.a.indptr[r + 1];
    int64_t h = 0;
    for (; h + kWidth <= args.heads; h += kWidth) {
      softmax_heads_grad_of_row<true>(args, first, last, h);
    }
    if (h < args.heads) softmax_heads_grad_of_row<false>(args, first, last, h);
  }
}

}  // namespace
}  // namespace gnnsparse::cpu::GNNSPARSE_ISA
