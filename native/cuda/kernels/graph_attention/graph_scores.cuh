// The scores of edges, and what edges have of their own, as every pass over the rows of A takes
// them.
#pragma once

#include <type_traits>

#include "kernels/graph_attention/graph_loop.cuh"

namespace gnnsparse::cuda {

// What edges have of their own beside numbers: nothing, features, a gate of keys with features or
// without, or features behind a linear map. A kernel is compiled for each.
enum class Terms { kNone, kFeatures, kGate, kMapped };

// The lane's part of the vector of gatv2, in its head.
template <int kElements>
__device__ void load_attention_vector(const GraphLaunch& p, const GraphLane& lane,
                                      float (&att)[kElements]) {
  const float* from = numbers_of(p.problem.att, lane, 0);
#pragma unroll
  for (int j = 0; j < kElements; ++j) {
    const int64_t at = int64_t{kElements} * lane.chunk + j;
    att[j] = at < p.problem.base.d ? from[at] : 0.0f;
  }
}

// Reads the key, value and terms of edges, and makes scores of them. It is the part of a pass
// that forward and backward share.
template <Precision P, Score S, Terms T, bool kExtras>
class GraphScores {
 public:
  static constexpr int kElements = kPerVector<P>;
  static constexpr bool kAdditive = S == Score::kAdditive;
  static constexpr bool kGated = T == Terms::kGate;
  static constexpr bool kFeatures = T == Terms::kFeatures || T == Terms::kGate;
  // Places of an edge's vectors, and of a row's.
  static constexpr int kKey = 0;
  static constexpr int kValue = kAdditive ? 0 : 1;
  static constexpr int kTerm = kValue + 1;
  static constexpr int kGate = kTerm + 1;
  static constexpr int kMappedQuery = 1;
  using EdgeOperands = GraphOperands<kTerm + (T != Terms::kNone) + kGated, kAdditive>;
  static constexpr int kRowVectors = (kAdditive ? 0 : 1) + (T == Terms::kMapped);
  static constexpr int kRowNumbers = kAdditive;
  using Floats = float[kElements];

  __device__ GraphScores(const GraphLaunch& p, const GraphLane& lane)
      : p_(p),
        lane_(lane),
        keys_(pin_register(start_of(p.k, lane) + (kAdditive ? 0 : 16 * lane.chunk))),
        values_(pin_register(start_of(p.v, lane) + 16 * lane.chunk)),
        has_key_(lane.chunk < p.d_chunks),
        has_value_(lane.chunk < p.dv_chunks) {
    if constexpr (S == Score::kGatv2) load_attention_vector(p, lane, att_);
    if (kExtras && p.problem.base.seed != nullptr) philox_ = philox_key(*p.problem.base.seed);
  }

  __device__ __forceinline__ void read_edge(EdgeOperands& to, int32_t column,
                                            int64_t nonzero) const {
    const char* key = row_at(keys_, p_.k, column);
    if constexpr (kAdditive) {
      to.read_number(0, key);
    } else {
      to.read_vector(kKey, key, has_key_);
    }
    if (shares()) {
      to.copy_vector(kValue, kKey);
    } else {
      to.read_vector(kValue, row_at(values_, p_.v, column), has_value_);
    }
    if constexpr (T == Terms::kMapped) {
      read_term(to, kTerm, p_.mapped, nonzero, lane_.chunk < p_.de_chunks);
    }
    if constexpr (kFeatures) {
      read_term(to, kTerm, p_.features, nonzero, has_key_);
      if constexpr (kGated) read_term(to, kGate, p_.gate, nonzero, has_key_);
    }
  }
  // Asks L2 for the features of `kCount` edges of a row, from edge number `at` on. Where they lie
  // is known from the row alone; where keys and values lie is not before the columns are read.
  template <int kCount>
  __device__ __forceinline__ void ask(const GraphRow& row, int at) const {
    if constexpr (!kFeatures) return;
    const char* from = start_of(p_.features, lane_, row.begin) + 16 * lane_.chunk;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (at + i < row.count) prefetch(row_at(from, p_.features, at + i));
    }
  }
  template <class RowOperands>
  __device__ __forceinline__ void read_row(RowOperands& to, const GraphRow& row) const {
    // A forward pass asks for these alone: asking before each step, too, slowed long rows down.
    ask<4>(row, 0);
    const char* query =
        row_at(start_of(p_.q, lane_) + (kAdditive ? 0 : 16 * lane_.chunk), p_.q, row.row);
    if constexpr (kAdditive) {
      to.read_number(0, query);
    } else {
      to.read_vector(0, query, has_key_);
    }
    if constexpr (T == Terms::kMapped) {
      const GraphVectors queries(p_.mapped_q, lane_, p_.de_chunks);
      to.read_vector(kMappedQuery, row_at(queries.start, p_.mapped_q, row.row), queries.has);
    }
  }

  // Takes the row's query.
  template <class RowOperands>
  __device__ __forceinline__ void start(const GraphRow& row, const RowOperands& from) {
    row_ = row.row;
    begin_ = row.begin;
    if constexpr (kAdditive) {
      own_ = from.number(0);
    } else {
      to_floats<P>(from.vector(0), query_);
    }
    if constexpr (T == Terms::kMapped) to_floats<P>(from.vector(kMappedQuery), mapped_query_);
  }

  __device__ __forceinline__ bool has_gate() const { return kGated && p_.gate.data != nullptr; }
  __device__ __forceinline__ bool has_features(bool of) const {
    return kFeatures && p_.features.data != nullptr && of;
  }
  // An edge's key, gated and with its features.
  __device__ __forceinline__ void key_of(const EdgeOperands& edge, Floats& key) const {
    to_floats<P>(edge.vector(kKey), key);
    if (has_gate()) {
      Floats gate;
      to_floats<P>(edge.vector(kGate), gate);
#pragma unroll
      for (int j = 0; j < kElements; ++j) key[j] *= gate[j];
    }
    if (has_features(p_.problem.terms.to_keys)) add_features(edge, key);
  }
  // An edge's value with its features.
  __device__ __forceinline__ void value_of(const EdgeOperands& edge, Floats& value) const {
    to_floats<P>(edge.vector(kValue), value);
    if (has_features(p_.problem.terms.to_values)) add_features(edge, value);
  }
  __device__ __forceinline__ void mapped_of(const EdgeOperands& edge, Floats& mapped) const {
    to_floats<P>(edge.vector(kTerm), mapped);
  }

  // The lane's part of a score, which the lanes of a head add up; of an additive score the argument
  // of its leaky_relu.
  __device__ __forceinline__ float part_of(const EdgeOperands& edge, int number) const {
    if constexpr (kAdditive) {
      float x = own_ + edge.number(0);
      if (kExtras && p_.features.data != nullptr) x += number_of(p_.features, number);
      return x;
    } else {
      Floats key;
      key_of(edge, key);
      float sum = 0.0f;
      if constexpr (S == Score::kGatv2) {
#pragma unroll
        for (int j = 0; j < kElements; ++j) sum += att_[j] * leaky(query_[j] + key[j]);
      } else {
        sum = dot(query_, key);
      }
      if constexpr (T == Terms::kMapped) {
        Floats mapped;
        mapped_of(edge, mapped);
        sum += dot(mapped_query_, mapped);
      }
      return sum;
    }
  }
  __device__ __forceinline__ float leaky(float x) const {
    return x > 0.0f ? x : p_.problem.negative_slope * x;
  }
  // The slope of an additive score at its argument: 0 where it is clamped.
  __device__ __forceinline__ float slope_of(float x) const {
    return !is_within(x) ? 0.0f : x > 0.0f ? 1.0f : p_.problem.negative_slope;
  }

  // A finished score to base 2, of the sum of its parts.
  __device__ __forceinline__ float score_of(float sum, int number) const {
    // Rounded, as other kernels round it, before anything is added.
    float score = S == Score::kDot ? p_.score_scale * sum : __fmul_rn(kLog2E, unclamped(sum));
    if constexpr (kExtras) {
      // Comparisons let NaN through.
      const float clamp = p_.problem.clamp * kLog2E;
      if (clamp > 0.0f && score > clamp) score = clamp;
      if (clamp > 0.0f && score < -clamp) score = -clamp;
      // In one rounding, so that every pass has the same.
      if (p_.bias.data != nullptr) score = fmaf(kLog2E, number_of(p_.bias, number), score);
    }
    return score;
  }
  // Whether the score of such a sum is not clamped.
  __device__ __forceinline__ bool is_within(float sum) const {
    if (!kExtras || p_.problem.clamp == 0.0f) return true;
    const float score = unclamped(sum);
    return score <= p_.problem.clamp && score >= -p_.problem.clamp;
  }
  // Whether an edge counts: it is not masked.
  __device__ __forceinline__ bool counts(int number) const {
    if constexpr (!kExtras) return true;
    if (p_.problem.base.is_causal && column_of(number) > row_) return false;
    return p_.bias.data == nullptr || number_of(p_.bias, number) != kNoEdge;
  }
  // What dropout multiplies a weight by.
  __device__ __forceinline__ float dropout(int number) const {
    if (!kExtras || p_.problem.base.seed == nullptr) return 1.0f;
    const bool keeps = dropout_keeps(
        philox_, static_cast<uint32_t>(row_), static_cast<uint32_t>(column_of(number)),
        static_cast<uint32_t>(lane_.head_of_all(p_)), p_.problem.base.threshold);
    return keeps ? p_.problem.base.kept_scale : 0.0f;
  }
  // A number that edges have in each head.
  __device__ __forceinline__ float number_of(const GraphArray& array, int number) const {
    return number_in(start_of(array, lane_, begin_), array, number);
  }

  __device__ const Floats& query() const { return query_; }
  __device__ const Floats& att() const { return att_; }

 private:
  __device__ __forceinline__ bool shares() const {
    return S == Score::kGatv2 && T == Terms::kNone && p_.keys_are_values;
  }
  __device__ __forceinline__ float unclamped(float sum) const {
    if constexpr (kAdditive) return leaky(sum);
    return S == Score::kDot ? p_.problem.base.scale * sum : sum;
  }
  __device__ __forceinline__ int32_t column_of(int number) const {
    return __ldg(p_.a.indices + begin_ + number);
  }
  __device__ __forceinline__ void read_term(EdgeOperands& to, int i, const GraphArray& from,
                                            int64_t nonzero, bool has) const {
    const char* at = start_of(from, lane_, nonzero) + 16 * lane_.chunk;
    // Features behind a map are read by every head.
    if constexpr (T == Terms::kMapped) {
      to.read_vector(i, at, has);
    } else {
      to.read_once(i, at, has && from.data != nullptr);
    }
  }
  __device__ void add_features(const EdgeOperands& edge, Floats& to) const {
    Floats features;
    to_floats<P>(edge.vector(kTerm), features);
#pragma unroll
    for (int j = 0; j < kElements; ++j) to[j] += features[j];
  }

  const GraphLaunch& p_;
  const GraphLane& lane_;
  const char* keys_;
  const char* values_;
  bool has_key_;
  bool has_value_;
  PhiloxKey philox_;
  int64_t begin_ = 0;
  int row_ = 0;
  float own_ = 0.0f;
  float query_[kElements] = {};
  float att_[kElements] = {};
  float mapped_query_[kElements] = {};
};

// Calls run(terms, extras), with both as compile-time constants, for those that a score has.
template <Score S, class Run>
void with_terms(const GraphLaunch& p, const Run& run) {
  using std::integral_constant;
  const auto with_extras = [&](auto terms) {
    p.has_extras() ? run(terms, std::true_type()) : run(terms, std::false_type());
  };
  if constexpr (S == Score::kDot) {
    if (p.gate.data != nullptr) return with_extras(integral_constant<Terms, Terms::kGate>());
    if (p.mapped.data != nullptr) return with_extras(integral_constant<Terms, Terms::kMapped>());
  }
  if constexpr (S != Score::kAdditive) {
    if (p.features.data != nullptr)
      return with_extras(integral_constant<Terms, Terms::kFeatures>());
  }
  with_extras(integral_constant<Terms, Terms::kNone>());
}

// Calls run(score, terms, extras), as compile-time constants.
template <class Run>
void with_score(const GraphLaunch& p, const Run& run) {
  const auto of = [&](auto score) {
    with_terms<decltype(score)::value>(p,
                                       [&](auto terms, auto extras) { run(score, terms, extras); });
  };
  switch (p.problem.score) {
    case Score::kDot:
      return of(std::integral_constant<Score, Score::kDot>());
    case Score::kAdditive:
      return of(std::integral_constant<Score, Score::kAdditive>());
    case Score::kGatv2:
      return of(std::integral_constant<Score, Score::kGatv2>());
  }
}

}  // namespace gnnsparse::cuda
