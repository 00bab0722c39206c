// Sums over the features of an edge, and over the edges of a row, that graph attention is made of.
// Keys and values are read with the terms of their edges, whatever these are.

namespace gnnsparse::cpu::GNNSPARSE_ISA {
namespace {

constexpr int64_t kBlock = 128;  // nonzeros: whole vectors

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

}  // namespace
}  // namespace gnnsparse::cpu::GNNSPARSE_ISA
