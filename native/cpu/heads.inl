// The CPU kernels over rows with heads, and the largest product of each feature: included after
// kernels.inl, once for each instruction set. Features of all heads are one row, and a vector of
// them is multiplied by a vector of values.
namespace gnnsparse::cpu::GNNSPARSE_ISA {
namespace {

// The values of a nonzero for the vectors of a tile, which begins at feature `f`.
template <int kVectors>
struct NoHeads {
  NoHeads(const HeadShape&, const float*, int64_t) {}
  Vec operator()(int64_t, int) const { return broadcast(1.0f); }
};
template <int kVectors>
struct OneHead {
  OneHead(const HeadShape&, const float* values, int64_t) : values(values) {}
  Vec operator()(int64_t e, int) const { return broadcast(values[e]); }
  const float* values;
};
// Heads of whole vectors.
template <int kVectors>
struct WholeHeads {
  WholeHeads(const HeadShape& shape, const float* values, int64_t f)
      : values(values), heads(shape.heads) {
    for (int v = 0; v < kVectors; ++v) head[v] = (f + v * kWidth) / shape.width;
  }
  Vec operator()(int64_t e, int v) const { return broadcast(values[e * heads + head[v]]); }
  const float* values;
  int64_t heads;
  int64_t head[kVectors];
};
// Heads that begin anywhere in a vector.
template <int kVectors>
struct MixedHeads {
  MixedHeads(const HeadShape& shape, const float* values, int64_t f)
      : values(values), heads(shape.heads) {
    for (int v = 0; v < kVectors; ++v) {
      for (int i = 0; i < kWidth; ++i) {
        const int64_t of = (f + v * kWidth + i) / shape.width;
        head[v][i] = static_cast<int32_t>(of < heads ? of : heads - 1);
      }
    }
  }
  Vec operator()(int64_t e, int v) const { return gather(values + e * heads, head[v]); }
  const float* values;
  int64_t heads;
  IntVec head[kVectors];
};

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

template <class Y>
inline Y* result_row(const MutableDenseView& y, int64_t row) {
  return static_cast<Y*>(y.data) + row * y.stride;
}

// Sums of features [f, f + kVectors * kWidth), or of the `rest` that there are.
template <bool kMasked>
struct SumOfRow {
  using Args = HeadsSpmmArgs;

  template <bool kWhole, int kVectors, class X, class Values>
  static void tile(const Args& args, const RowRange& row, int64_t f) {
    const int64_t features = args.shape.features(), rest = features - f;
    const Values values(args.shape, args.values, f);
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
    with_type(args.y.dtype, [&](auto type) {
      using Y = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
      Y* y = result_row<Y>(args.y, row.out) + f;
      for (int v = 0; v < kVectors; ++v) store_part<kWhole>(y + v * kWidth, sums[v] * scale, rest);
    });
  }
};

struct ExtremeOfRow {
  using Args = ExtremeSpmmArgs;

  template <bool kWhole, int kVectors, class X, class Values>
  static void tile(const Args& args, const RowRange& row, int64_t f) {
    const int64_t features = args.shape.features(), rest = features - f;
    const Values values(args.shape, args.values, f);
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
    with_type(args.y.dtype, [&](auto type) {
      using Y = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
      Y* y = result_row<Y>(args.y, row.out) + f;
      for (int v = 0; v < kVectors; ++v) {
        store_part<kWhole>(y + v * kWidth, empty ? Vec{} : args.sign * best[v], rest);
      }
    });
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
    for (; f + 4 * kWidth <= n; f += 4 * kWidth) {
      Kernel::template tile<true, 4, X, Values<4>>(args, row, f);
    }
    for (; f + kWidth <= n; f += kWidth) {
      Kernel::template tile<true, 1, X, Values<1>>(args, row, f);
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

template <class T, class Out>
void heads_sddmm_typed(const HeadsSddmmArgs& args, int64_t begin, int64_t end) {
  const CsrView& a = args.a;
  const int64_t heads = args.shape.heads, width = args.shape.width, n = args.shape.features();
  auto* out = static_cast<Out*>(args.out);
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
      const T* k = row_of<T>(args.k, column);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t f = h * width;
        const float score = won == nullptr ? dot(q + f, k + f, width)
                                           : won_dot(q + f, k + f, won + f, column, width);
        from_float(score, out + e * heads + h);
      }
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
