// The CPU kernels, compiled once for each instruction set (kernels_portable.cpp, kernels_avx2.cpp,
// kernels_avx512.cpp). A row's features are summed in registers while its nonzeros stream by.
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "gnnsparse/cpu_kernels.h"
#include "simd.h"

namespace gnnsparse::cpu::GNNSPARSE_ISA {
namespace {

constexpr int kPrefetchAhead = 16;  // nonzeros

// The same where a nonzero reads `bytes`: 8 KB of rows are on their way (notes/log.md).
constexpr int64_t prefetch_ahead(size_t bytes) {
  const auto ahead = static_cast<int64_t>((8 << 10) / bytes);
  return ahead < kPrefetchAhead ? kPrefetchAhead : ahead > 128 ? 128 : ahead;
}

template <class T>
inline const T* row_of(const DenseView& m, int64_t row) {
  return static_cast<const T*>(m.data) + row * m.stride;
}

// Asks for the first `width` elements of a row. The empty statement is what keeps calls: gcc takes
// a function that does nothing but prefetch for one without effects, and leaves out its calls.
template <class X>
inline void prefetch(const X* row, int64_t width) {
  __asm__ volatile("");
  for (int64_t b = 0; b < width * static_cast<int64_t>(sizeof(X)); b += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(row) + b);
  }
}

struct Unweighted {
  explicit Unweighted(const SpmmArgs&) {}
  float operator()(int64_t, int32_t) const { return 1.0f; }
};
struct ByEdge {
  explicit ByEdge(const SpmmArgs& args) : values(args.values) {}
  float operator()(int64_t e, int32_t) const { return values[e]; }
  const float* values;
};
struct ByColumn {
  explicit ByColumn(const SpmmArgs& args) : scale(args.col_scale) {}
  float operator()(int64_t, int32_t column) const { return scale[column]; }
  const float* scale;
};

template <class Weight>
struct SpmmRow {
  const SpmmArgs& args;
  Weight weight;
  int64_t begin;
  int64_t end;
  int64_t prefetch_end;
  float scale;
  int64_t out_row;
};

// Features [f, f + kVectors * kWidth) of one row.
template <int kVectors, class X, class Weight>
inline void spmm_tile(const SpmmRow<Weight>& row, int64_t f) {
  const SpmmArgs& args = row.args;
  constexpr size_t kBytes = kVectors * kWidth * sizeof(X);
  constexpr int64_t kAhead = prefetch_ahead(kBytes);
  Vec sums[kVectors] = {};
  for (int64_t e = row.begin; e < row.end; ++e) {
    if (e + kAhead < row.prefetch_end) {
      const auto* next =
          reinterpret_cast<const char*>(row_of<X>(args.x, args.a.indices[e + kAhead]) + f);
      for (size_t b = 0; b < kBytes; b += 64) __builtin_prefetch(next + b);
    }
    const int32_t column = args.a.indices[e];
    const X* x = row_of<X>(args.x, column) + f;
    const float w = row.weight(e, column);
    for (int v = 0; v < kVectors; ++v) sums[v] += w * load(x + v * kWidth);
  }
  with_type(args.y.dtype, [&](auto type) {
    using Y = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    Y* y = static_cast<Y*>(args.y.data) + row.out_row * args.y.stride + f;
    for (int v = 0; v < kVectors; ++v) store(y + v * kWidth, sums[v] * row.scale);
  });
}

// The last, partial vector of features.
template <class X, class Weight>
inline void spmm_tail(const SpmmRow<Weight>& row, int64_t f) {
  const SpmmArgs& args = row.args;
  const int64_t rest = args.n - f;
  Vec sums = {};
  for (int64_t e = row.begin; e < row.end; ++e) {
    const int32_t column = args.a.indices[e];
    sums += row.weight(e, column) * load(row_of<X>(args.x, column) + f, rest);
  }
  with_type(args.y.dtype, [&](auto type) {
    using Y = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    Y* y = static_cast<Y*>(args.y.data) + row.out_row * args.y.stride + f;
    store(y, sums * row.scale, rest);
  });
}

template <class X, class Weight>
inline void spmm_row(const SpmmRow<Weight>& row) {
  const int64_t n = row.args.n;
  int64_t f = 0;
  for (; f + 8 * kWidth <= n; f += 8 * kWidth) spmm_tile<8, X>(row, f);
  if (f + 4 * kWidth <= n) spmm_tile<4, X>(row, f), f += 4 * kWidth;
  if (f + 2 * kWidth <= n) spmm_tile<2, X>(row, f), f += 2 * kWidth;
  if (f + kWidth <= n) spmm_tile<1, X>(row, f), f += kWidth;
  if (f < n) spmm_tail<X>(row, f);
}

template <class X, class Weight>
void spmm_rows_typed(const SpmmArgs& args, int64_t begin, int64_t end) {
  const CsrView& a = args.a;
  const int64_t prefetch_end = a.indptr[end];
  for (int64_t i = begin; i < end; ++i) {
    spmm_row<X>(SpmmRow<Weight>{args, Weight(args), a.indptr[i], a.indptr[i + 1], prefetch_end,
                                args.row_scale != nullptr ? args.row_scale[i] : 1.0f,
                                args.row_ids != nullptr ? args.row_ids[i] : i});
  }
}

void spmm_rows(const SpmmArgs& args, int64_t begin, int64_t end) {
  with_type(args.x.dtype, [&](auto type) {
    using X = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    if (args.values != nullptr) {
      spmm_rows_typed<X, ByEdge>(args, begin, end);
    } else if (args.col_scale != nullptr) {
      spmm_rows_typed<X, ByColumn>(args, begin, end);
    } else {
      spmm_rows_typed<X, Unweighted>(args, begin, end);
    }
  });
}

template <class T, class U>
inline float dot(const T* q, const U* k, int64_t d) {
  Vec sums[4] = {};
  int64_t f = 0;
  for (; f + 4 * kWidth <= d; f += 4 * kWidth) {
    for (int v = 0; v < 4; ++v) sums[v] += load(q + f + v * kWidth) * load(k + f + v * kWidth);
  }
  for (; f + kWidth <= d; f += kWidth) sums[0] += load(q + f) * load(k + f);
  if (f < d) sums[1] += load(q + f, d - f) * load(k + f, d - f);
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <class T, class Out>
void sddmm_rows_typed(const SddmmArgs& args, int64_t begin, int64_t end) {
  const CsrView& a = args.a;
  auto* out = static_cast<Out*>(args.out);
  const int64_t prefetch_end = a.indptr[end];
  for (int64_t i = begin; i < end; ++i) {
    const T* q = row_of<T>(args.q, args.row_ids != nullptr ? args.row_ids[i] : i);
    for (int64_t e = a.indptr[i]; e < a.indptr[i + 1]; ++e) {
      if (e + kPrefetchAhead < prefetch_end) {
        prefetch(row_of<T>(args.k, a.indices[e + kPrefetchAhead]), args.d);
      }
      from_float(dot(q, row_of<T>(args.k, a.indices[e]), args.d), out + e);
    }
  }
}

void sddmm_rows(const SddmmArgs& args, int64_t begin, int64_t end) {
  with_type(args.q.dtype, [&](auto type) {
    with_type(args.out_dtype, [&](auto out_type) {
      using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
      using Out = std::remove_const_t<std::remove_pointer_t<decltype(out_type)>>;
      sddmm_rows_typed<T, Out>(args, begin, end);
    });
  });
}

float row_maximum(const float* s, int64_t n) {
  Vec best = broadcast(-std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Vec v = load(s + i);
    best = v > best ? v : best;
  }
  float result = maximum(best);
  for (; i < n; ++i) result = s[i] > result ? s[i] : result;
  return result;
}

void softmax_rows(const SoftmaxArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* s = args.scores + args.a.indptr[r];
    float* out = args.out + args.a.indptr[r];
    const int64_t n = args.a.indptr[r + 1] - args.a.indptr[r];
    float top = row_maximum(s, n);
    // A row of only -inf would be NaN: its weights are defined as 0, like those of no edges.
    if (top == -std::numeric_limits<float>::infinity()) top = 0.0f;
    Vec total = {};
    int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      const Vec p = exp_nonpositive(load(s + i) - top);
      store(out + i, p);
      total += p;
    }
    float rest = 0.0f;
    for (; i < n; ++i) rest += out[i] = std::exp(s[i] - top);
    const float denominator = sum(total) + rest;
    const float scale = denominator == 0.0f ? 0.0f : 1.0f / denominator;
    for (i = 0; i < n; ++i) out[i] *= scale;
  }
}

void softmax_grad_rows(const SoftmaxArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t first = args.a.indptr[r];
    const int64_t n = args.a.indptr[r + 1] - first;
    const float* p = args.scores + first;
    const float* g = args.grad + first;
    float* out = args.out + first;
    const float inner = dot(p, g, n);
    for (int64_t i = 0; i < n; ++i) out[i] = p[i] * (g[i] - inner);
  }
}

}  // namespace
}  // namespace gnnsparse::cpu::GNNSPARSE_ISA
