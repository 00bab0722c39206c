// The scores of edges, and what edges have of their own, as every pass over the rows of A takes
// them.
#pragma once

#include <type_traits>

#include "kernels/graph_attention/graph_rows.cuh"

namespace gnnsparse::cuda {

// What edges have of their own beside numbers: nothing, features or a gate of keys, or features
// behind a linear map. A kernel is compiled for each.
enum class Terms { kNone, kFeatures, kMapped };

// Row of an edge's key and value in the lane's registers, and the edge's own features.
template <Score S, Terms T>
struct EdgeVectors {
  Vec16 key;
  Vec16 value;
  Vec16 features;  // or the mapped ones
  Vec16 gate;
};

// Reads what edges lead to, and makes scores of it. It is the part of a pass that forward and
// backward share.
template <Precision P, Score S, Terms T, bool kExtras>
class GraphScores {
 public:
  static constexpr int kElements = kPerVector<P>;
  static constexpr bool kAdditive = S == Score::kAdditive;
  using Floats = float[kElements];

  __device__ GraphScores(const GraphLaunch& p, const GraphLane& lane)
      : p_(p),
        lane_(lane),
        keys_(start_of(p.k, lane) + (kAdditive ? 0 : 16 * lane.chunk)),
        values_(start_of(p.v, lane) + 16 * lane.chunk),
        has_key_(lane.chunk < p.d_chunks),
        has_value_(lane.chunk < p.dv_chunks) {
    if constexpr (S == Score::kGatv2) load_att();
    if (kExtras && p.problem.base.seed != nullptr) philox_ = philox_key(*p.problem.base.seed);
  }

  // Reads the row's query.
  __device__ __forceinline__ void start(const GraphRow& row) {
    row_ = row.row;
    if constexpr (kAdditive) {
      own_ = number_in(start_of(p_.q, lane_), p_.q, row.row);
    } else {
      load_vector<P>(p_.q, lane_, p_.d_chunks, row.row, query_);
    }
    if constexpr (T == Terms::kFeatures) {
      features_ = start_of(p_.features, lane_, row.begin) + 16 * lane_.chunk;
      gates_ = start_of(p_.gate, lane_, row.begin) + 16 * lane_.chunk;
    }
    if constexpr (T == Terms::kMapped) {
      features_ = start_of(p_.mapped, lane_, row.begin) + 16 * lane_.chunk;
      if (p_.mapped_q.data != nullptr) {
        load_vector<P>(p_.mapped_q, lane_, p_.de_chunks, row.row, mapped_query_);
      }
    }
    begin_ = row.begin;
  }

  __device__ __forceinline__ EdgeVectors<S, T> load(int32_t column, int number) const {
    EdgeVectors<S, T> edge;
    if constexpr (!kAdditive) edge.key = vector_at(keys_, p_.k, column, has_key_);
    edge.value = vector_at(values_, p_.v, column, has_value_);
    if constexpr (T == Terms::kMapped) {
      edge.features = vector_at(features_, p_.mapped, number, lane_.chunk < p_.de_chunks);
    }
    if constexpr (T == Terms::kFeatures) {
      edge.features =
          vector_at(features_, p_.features, number, has_key_ && p_.features.data != nullptr);
      if (has_gate()) edge.gate = vector_at(gates_, p_.gate, number, has_key_);
    }
    return edge;
  }

  __device__ __forceinline__ bool has_gate() const {
    return T == Terms::kFeatures && S == Score::kDot && p_.gate.data != nullptr;
  }
  __device__ __forceinline__ bool has_features(bool of) const {
    return T == Terms::kFeatures && p_.features.data != nullptr && of;
  }
  // An edge's key, gated and with its features.
  __device__ __forceinline__ void key_of(const EdgeVectors<S, T>& edge, Floats& key) const {
    to_floats<P>(edge.key, key);
    if (has_gate()) {
      Floats gate;
      to_floats<P>(edge.gate, gate);
#pragma unroll
      for (int j = 0; j < kElements; ++j) key[j] *= gate[j];
    }
    if (has_features(p_.problem.terms.to_keys)) add_features(edge, key);
  }
  // An edge's value with its features.
  __device__ __forceinline__ void value_of(const EdgeVectors<S, T>& edge, Floats& value) const {
    to_floats<P>(edge.value, value);
    if (has_features(p_.problem.terms.to_values)) add_features(edge, value);
  }

  // The lane's part of a score, which the lanes of a head add up.
  __device__ __forceinline__ float part_of(const EdgeVectors<S, T>& edge) const {
    if constexpr (kAdditive) {
      return 0.0f;
    } else {
      Floats key;
      key_of(edge, key);
      float sum = 0.0f;
      if constexpr (S == Score::kGatv2) {
#pragma unroll
        for (int j = 0; j < kElements; ++j) {
          const float x = query_[j] + key[j];
          sum += att_[j] * (x > 0.0f ? x : p_.problem.negative_slope * x);
        }
      } else {
        sum = dot(query_, key);
      }
      if constexpr (T == Terms::kMapped) {
        if (p_.mapped_q.data != nullptr) {
          Floats mapped;
          to_floats<P>(edge.features, mapped);
          sum += dot(mapped_query_, mapped);
        }
      }
      return sum;
    }
  }

  // The argument of an additive score's leaky_relu.
  __device__ __forceinline__ float argument_of(int32_t column, int number) const {
    float x = own_ + number_in(keys_, p_.k, column);
    if (kExtras && p_.features.data != nullptr) {
      x += number_in(start_of(p_.features, lane_, begin_), p_.features, number);
    }
    return x;
  }
  __device__ __forceinline__ float leaky(float x) const {
    return x > 0.0f ? x : p_.problem.negative_slope * x;
  }

  // A finished score to base 2, of the sum of its parts, or of an additive score's argument.
  __device__ __forceinline__ float score_of(float sum, int number) const {
    float score = kLog2E;
    if constexpr (kAdditive) score *= leaky(sum);
    if constexpr (S == Score::kGatv2) score *= sum;
    if constexpr (S == Score::kDot) score *= p_.problem.base.scale * sum;
    if constexpr (kExtras) {
      const float clamp = p_.problem.clamp * kLog2E;
      // Comparisons let NaN through.
      if (clamp > 0.0f && score > clamp) score = clamp;
      if (clamp > 0.0f && score < -clamp) score = -clamp;
      if (p_.bias.data != nullptr) {
        score += kLog2E * bias_of(number);
      }
    }
    return score;
  }
  // Whether the score of such a sum is not clamped.
  __device__ __forceinline__ bool is_within(float sum) const {
    if (!kExtras || p_.problem.clamp == 0.0f) return true;
    float score = sum;
    if constexpr (kAdditive) score = leaky(sum);
    if constexpr (S == Score::kDot) score = p_.problem.base.scale * sum;
    return score <= p_.problem.clamp && score >= -p_.problem.clamp;
  }
  // Whether an edge counts: it is not masked.
  __device__ __forceinline__ bool counts(int32_t column, int number) const {
    if constexpr (!kExtras) return true;
    if (p_.problem.base.is_causal && column > row_) return false;
    return p_.bias.data == nullptr || bias_of(number) != kNoEdge;
  }
  // What dropout multiplies a weight by.
  __device__ __forceinline__ float dropout(int32_t column) const {
    if (!kExtras || p_.problem.base.seed == nullptr) return 1.0f;
    const bool keeps =
        dropout_keeps(philox_, static_cast<uint32_t>(row_), static_cast<uint32_t>(column),
                      static_cast<uint32_t>(lane_.head_of_all(p_)), p_.problem.base.threshold);
    return keeps ? p_.problem.base.kept_scale : 0.0f;
  }

  __device__ const Floats& query() const { return query_; }
  __device__ const Floats& att() const { return att_; }

 private:
  __device__ __forceinline__ float bias_of(int number) const {
    return number_in(start_of(p_.bias, lane_, begin_), p_.bias, number);
  }
  __device__ void add_features(const EdgeVectors<S, T>& edge, Floats& to) const {
    Floats features;
    to_floats<P>(edge.features, features);
#pragma unroll
    for (int j = 0; j < kElements; ++j) to[j] += features[j];
  }
  __device__ void load_att() {
    const float* att = numbers_of(p_.problem.att, lane_, 0);
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      const int64_t at = int64_t{kElements} * lane_.chunk + j;
      att_[j] = at < p_.problem.base.d ? att[at] : 0.0f;
    }
  }

  const GraphLaunch& p_;
  const GraphLane& lane_;
  const char* keys_;
  const char* values_;
  const char* features_ = nullptr;
  const char* gates_ = nullptr;
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
  const bool has_features = p.features.data != nullptr || p.gate.data != nullptr;
  if constexpr (S != Score::kAdditive) {
    if (has_features) return with_extras(integral_constant<Terms, Terms::kFeatures>());
  }
  if constexpr (S == Score::kDot) {
    if (p.mapped.data != nullptr) return with_extras(integral_constant<Terms, Terms::kMapped>());
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
