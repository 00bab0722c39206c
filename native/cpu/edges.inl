// Functions over edges: instructions that are executed for some edges of a row, a batch, at a time.
// Values are arrays [edges of a batch, features of a block] that stay in the nearest caches.
// Include it after kernels.inl.
#include <vector>

#include "functions.h"
#include "gnnsparse/edge_program.h"

namespace gnnsparse::cpu::GNNSPARSE_ISA {
namespace {

constexpr int64_t kFeatureBlock = 256;     // at most
constexpr int64_t kMostBatch = 32;         // edges
constexpr int64_t kBatchBytes = 24 << 10;  // of all values of a batch

// Where the vectors of a value lie, and how far apart those of edges and of features are: 0 where
// all have the same. With `rows`, those of edges are rows of an argument.
struct Lanes {
  float* data;
  int64_t edge;
  int64_t vector;
  const float* const* rows = nullptr;

  const float* of(int64_t e) const { return rows == nullptr ? data + e * edge : rows[e]; }
  Vec at(int64_t e, int64_t v) const { return load(of(e) + v * vector); }
};

// Edges of a batch that are of one row, and whether they are the row's first and last ones.
struct Segment {
  int64_t at;  // in the batch
  int64_t count;
  int64_t row;  // the caller's number
  bool is_first;
  bool is_last;
};

struct Batch {
  int64_t begin = 0;  // its first nonzero
  int64_t count = 0;
  int64_t ids[kMostBatch];
  int64_t rows[kMostBatch];  // the caller's numbers; rows[0] is that of values of a row
  int64_t segment_count = 0;
  Segment segments[kMostBatch];
};

class EdgeMachine {
 public:
  EdgeMachine(const EdgeArgs& args, float* partials)
      : args_(args), program_(*args.program), partials_(partials) {
    const int64_t width = std::max<int64_t>(args.width, 1);
    const int64_t blocks = ceil_div(width, kFeatureBlock);
    block_ = ceil_div<int64_t>(ceil_div(width, blocks), kWidth) * kWidth;
    const int64_t slots = std::max(program_.edge_slots, 1);
    batch_ = std::clamp<int64_t>(kBatchBytes / (slots * block_ * 4), 1, kMostBatch);
    const int64_t outputs = static_cast<int64_t>(program_.outputs.size());
    const int64_t values = (program_.fixed_slots + slots * batch_ + outputs) * block_;
    memory_.resize(values + program_.size * args.padded() + kWidth);
    winners_.resize(outputs * block_);
    rows_.resize(slots * kMostBatch);
    is_argument_.resize(slots);
    totals_.resize(outputs);
    // Whole vectors begin where lines of the cache do.
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    fixed_ = memory_.data() + (-address % (kWidth * 4)) / 4;
    edges_ = fixed_ + program_.fixed_slots * block_;
    sums_ = edges_ + slots * batch_ * block_;
    map_ = sums_ + outputs * block_;
    for (int k = 0; k < program_.size; ++k) {
      memcpy(map_ + k * args.padded(), args.map + k * args.width, args.width * 4);
    }
  }

  void run(int64_t begin, int64_t end) {
    last_ = args_.a.indptr[end];
    if (program_.spans_rows) {  // there is one block of features
      run_rows(begin, end, 0);
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t f = 0; f < args_.width; f += block_) run_rows(i, i + 1, f);
    }
  }

 private:
  // Where values are computed once a row it is one row.
  void run_rows(int64_t begin, int64_t end, int64_t f) {
    Batch batch;
    first_ = f;
    features_ = std::min(block_, args_.width - f);
    vectors_ = ceil_div<int64_t>(features_, kWidth);
    if (shared_at_ != f) {
      execute(program_.shared, batch);
      shared_at_ = f;
    }
    int64_t e = args_.a.indptr[begin];
    for (int64_t i = begin; fill(batch, i, e, end);) {
      if (!program_.spans_rows && batch.segments[0].is_first) execute(program_.row, batch);
      execute(program_.edge, batch);
    }
  }

  // Takes edges from nonzero e of row i on, and stores the results of rows without edges. False
  // where there are none before row `end`.
  bool fill(Batch& batch, int64_t& i, int64_t& e, int64_t end) {
    batch.begin = e;
    batch.count = batch.segment_count = 0;
    while (i < end && batch.count < batch_) {
      const int64_t first = args_.a.indptr[i], last = args_.a.indptr[i + 1];
      const int64_t row = args_.row_ids == nullptr ? i : args_.row_ids[i];
      const int64_t count = std::min(batch_ - batch.count, last - e);
      if (first == last) {
        store_nothing(row);
      } else {
        batch.segments[batch.segment_count++] = {batch.count, count, row, e == first,
                                                 e + count == last};
      }
      for (int64_t j = 0; j < count; ++j) {
        batch.ids[batch.count] = id(e++);
        batch.rows[batch.count++] = row;
      }
      if (e == last) ++i;
    }
    return batch.count > 0;
  }

  // The results of a row without edges; sums may be of a row that goes on.
  void store_nothing(int64_t row) {
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      switch (program_.outputs[k]) {
        case EdgeOutput::kMax:
        case EdgeOutput::kMin:
          std::fill_n(args_.winners[k] + row * args_.width + first_, features_, -1);
          [[fallthrough]];
        case EdgeOutput::kSum:
          store_row(static_cast<int>(k), row, [](int64_t) { return Vec{}; });
          break;
        case EdgeOutput::kRowNumber:
          static_cast<float*>(args_.outputs[k].data)[row] = 0.0f;
          break;
        default:
          break;
      }
    }
  }

  void clear(size_t k) {
    memset(sums_ + k * block_, 0, block_ * sizeof(float));
    if (first_ == 0) totals_[k] = 0.0f;
  }

  void execute(const std::vector<EdgeInstruction>& instructions, const Batch& batch) {
    for (const EdgeInstruction& instruction : instructions) {
      switch (instruction.kind) {
        case EdgeInstruction::kLoad:
          load_input(instruction, batch);
          break;
        case EdgeInstruction::kStep:
          compute(instruction, batch.count);
          break;
        case EdgeInstruction::kOutput:
          reduce(instruction, batch);
      }
    }
  }

  // Where a value is, and where it is to be.
  Lanes lanes(const EdgeValue& value) const {
    Lanes found = place(value);
    if (value.level == EdgeLevel::kEdge && is_argument_[value.slot] != 0) {
      found.rows = rows_.data() + value.slot * kMostBatch;
    }
    return found;
  }
  Lanes place(const EdgeValue& value) const {
    if (value.level != EdgeLevel::kEdge) {
      return {fixed_ + value.slot * block_, 0, value.features ? kWidth : 0};
    }
    float* data = edges_ + value.slot * batch_ * block_;
    return value.features ? Lanes{data, block_, kWidth} : Lanes{data, kWidth, 0};
  }

  // Steps.

  template <int kCount, class Function>
  void apply(const EdgeInstruction& step, int64_t edges, Function function) {
    Lanes in[kCount == 0 ? 1 : kCount];
    const Lanes out = place(step.result);
    for (int i = 0; i < kCount; ++i) in[i] = lanes(step.operands[i]);
    int64_t outer = step.result.level == EdgeLevel::kEdge ? edges : 1;
    int64_t inner = step.result.features ? vectors_ : 1;
    // Values that lie without gaps are one long row.
    bool is_flat = outer > 1 && inner > 1 && out.edge == inner * out.vector;
    for (int i = 0; i < kCount; ++i) {
      is_flat = is_flat && in[i].edge == inner * in[i].vector && in[i].rows == nullptr;
    }
    if (is_flat) {
      inner *= outer;
      outer = 1;
    }
    for (int64_t e = 0; e < outer; ++e) {
      const float* x[kCount == 0 ? 1 : kCount];
      for (int i = 0; i < kCount; ++i) x[i] = in[i].of(e);
      const auto at = [&](int i, int64_t v) { return load(x[i] + v * in[i].vector); };
      for (int64_t v = 0; v < inner; ++v) {
        Vec y;
        if constexpr (kCount == 0) y = function();
        if constexpr (kCount == 1) y = function(at(0, v));
        if constexpr (kCount == 2) y = function(at(0, v), at(1, v));
        if constexpr (kCount == 3) y = function(at(0, v), at(1, v), at(2, v));
        store(out.data + e * out.edge + v * kWidth, y);
      }
    }
    if (step.result.level == EdgeLevel::kEdge) is_argument_[step.result.slot] = 0;
  }

  void compute(const EdgeInstruction& step, int64_t edges) {
    const auto unary = [&](auto function) { apply<1>(step, edges, function); };
    const auto binary = [&](auto function) { apply<2>(step, edges, function); };
    using Op = EdgeOperation;
    switch (step.operation) {
      case Op::kConst:
        return apply<0>(step, edges, [&] { return broadcast(step.constant); });
      case Op::kNeg:
        return unary([](Vec x) { return -x; });
      case Op::kAbs:
        return unary([](Vec x) { return absolute(x); });
      case Op::kExp:
        return unary([](Vec x) { return exp_any(x); });
      case Op::kExpm1:
        return unary([](Vec x) { return exp_minus_one(x); });
      case Op::kLog:
        return unary([](Vec x) { return logarithm(x); });
      case Op::kLog1p:
        return unary([](Vec x) { return logarithm_of_more(x); });
      case Op::kSqrt:
        return unary([](Vec x) { return square_root(x); });
      case Op::kTanh:
        return unary([](Vec x) { return hyperbolic_tangent(x); });
      case Op::kSigmoid:
        return unary([](Vec x) { return sigmoid(x); });
      case Op::kSoftplus:
        return unary([](Vec x) { return softplus(x); });
      case Op::kErf:
        return unary([](Vec x) { return error_function(x); });
      case Op::kSin:
        return unary([](Vec x) { return wave<0>(x); });
      case Op::kCos:
        return unary([](Vec x) { return wave<1>(x); });
      case Op::kRelu:
        return unary([](Vec x) { return x < 0.0f ? Vec{} : x; });
      case Op::kAdd:
        return binary([](Vec x, Vec y) { return x + y; });
      case Op::kSub:
        return binary([](Vec x, Vec y) { return x - y; });
      case Op::kMul:
        return binary([](Vec x, Vec y) { return x * y; });
      case Op::kDiv:
        return binary([](Vec x, Vec y) { return x / y; });
      case Op::kMaximum:
        return binary([](Vec x, Vec y) { return larger(x, y); });
      case Op::kMinimum:
        return binary([](Vec x, Vec y) { return smaller(x, y); });
      case Op::kGt:
        return binary([](Vec x, Vec y) { return is_true(x > y); });
      case Op::kGe:
        return binary([](Vec x, Vec y) { return is_true(x >= y); });
      case Op::kEq:
        return binary([](Vec x, Vec y) { return is_true(x == y); });
      case Op::kWhere:
        return apply<3>(step, edges, [](Vec c, Vec x, Vec y) { return c != 0.0f ? x : y; });
    }
  }

  // Inputs.

  int64_t column(int64_t nonzero) const { return args_.a.indices[nonzero]; }
  int64_t id(int64_t nonzero) const {
    return args_.edge_ids == nullptr ? nonzero : args_.edge_ids[nonzero];
  }

  // Calls body(j, row) for each edge j of the batch with its row of the input, and asks for those
  // of edges to come.
  template <class T, class Index, class Body>
  void for_rows(const T* x, int64_t stride, int64_t width, const Batch& batch, Index index,
                Body body) const {
    const int64_t ahead = prefetch_ahead(width * sizeof(T));
    for (int64_t j = 0; j < batch.count; ++j) {
      const int64_t next = batch.begin + j + ahead;
      if (next < last_) prefetch(x + index(next) * stride, width);
      body(j, x + index(batch.begin + j) * stride);
    }
  }

  template <class T>
  void copy_block(const T* from, float* to) const {
    int64_t f = 0;
    for (; f + kWidth <= features_; f += kWidth) store(to + f, load(from + f));
    if (f < features_) store(to + f, load(from + f, features_ - f));
  }

  void load_input(const EdgeInstruction& instruction, const Batch& batch) {
    const DenseView& x = args_.inputs[instruction.index];
    const Lanes out = place(instruction.result);
    if (instruction.result.level == EdgeLevel::kEdge) is_argument_[instruction.result.slot] = 0;
    const auto by_column = [this](int64_t e) { return column(e); };
    const auto by_id = [this](int64_t e) { return id(e); };
    const auto by_row = [&](int64_t e) {
      return batch.rows[std::min(e - batch.begin, batch.count - 1)];
    };
    const auto features = [&](auto index) {
      with_type(x.dtype, [&](auto type) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
        const auto each = [&](auto body) {
          for_rows(row_of<T>(x, 0) + first_, x.stride, features_, batch, index, body);
        };
        if constexpr (std::is_same_v<T, float>) {
          // Whole vectors are read where they are.
          if (features_ % kWidth == 0) {
            const int slot = instruction.result.slot;
            const float** rows = rows_.data() + slot * kMostBatch;
            is_argument_[slot] = 1;
            return each([&](int64_t j, const float* row) { rows[j] = row; });
          }
        }
        each([&](int64_t j, const T* row) { copy_block(row, out.data + j * out.edge); });
      });
    };
    const auto number = [&](int64_t j, int64_t at) {
      store(out.data + j * out.edge, broadcast(static_cast<const float*>(x.data)[at]));
    };
    switch (program_.inputs[instruction.index]) {
      case EdgeInput::kGathered:
      case EdgeInput::kGatheredWide:
        return features(by_column);
      case EdgeInput::kEdge:
        return features(by_id);
      case EdgeInput::kRow:
      case EdgeInput::kRowWide:
        if (program_.spans_rows) return features(by_row);
        return with_type(x.dtype, [&](auto type) {
          using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
          copy_block(row_of<T>(x, batch.rows[0]) + first_, out.data);
        });
      case EdgeInput::kVector:
        return copy_block(static_cast<const float*>(x.data) + first_, out.data);
      case EdgeInput::kVectorNumber:
        return number(0, 0);
      case EdgeInput::kRowNumber:
        for (int64_t j = 0; j < (program_.spans_rows ? batch.count : 1); ++j) {
          number(j, batch.rows[j]);
        }
        return;
      case EdgeInput::kGatheredNumber:
        for (int64_t j = 0; j < batch.count; ++j) number(j, column(batch.begin + j));
        return;
      case EdgeInput::kEdgeNumber:
        for (int64_t j = 0; j < batch.count; ++j) number(j, batch.ids[j]);
        return;
      case EdgeInput::kMapped:
        return load_mapped(batch, out);
      case EdgeInput::kGatheredWinner:
        return for_rows(row_of<int32_t>(x, 0) + first_, x.stride, features_, batch, by_column,
                        [&](int64_t j, const int32_t* row) {
                          is_winner(row, batch.ids[j], out.data + j * out.edge);
                        });
      case EdgeInput::kRowWinner:
        for (int64_t j = 0; j < batch.count; ++j) {
          is_winner(row_of<int32_t>(x, batch.rows[j]) + first_, batch.ids[j],
                    out.data + j * out.edge);
        }
    }
  }

  void is_winner(const int32_t* row, int64_t id, float* to) const {
    for (int64_t f = 0; f < features_; f += kWidth) {
      IntVec winner = {};
      memcpy(&winner, row + f, std::min<int64_t>(kWidth, features_ - f) * 4);
      store(to + f, is_true(winner == static_cast<int32_t>(id)));
    }
  }

  const float* numbers(int64_t id) const {
    return static_cast<const float*>(args_.inputs[program_.mapped].data) + id * program_.size;
  }

  // Edges [j, j + kEdges) and vectors from v on: the map's elements are read once for them.
  template <int kEdges>
  void map_edges(const float* const* numbers, int64_t j, const Lanes& out) const {
    for (int64_t v = 0; v < vectors_; ++v) {
      Vec y[kEdges] = {};
      const float* map = map_ + first_ + v * kWidth;
      for (int k = 0; k < program_.size; ++k, map += args_.padded()) {
        const Vec m = load(map);
        for (int e = 0; e < kEdges; ++e) y[e] += numbers[e][k] * m;
      }
      for (int e = 0; e < kEdges; ++e) store(out.data + (j + e) * out.edge + v * kWidth, y[e]);
    }
  }
  void load_mapped(const Batch& batch, const Lanes& out) {
    const float* rows[kMostBatch];
    for_rows(
        numbers(0), program_.size, program_.size, batch, [this](int64_t e) { return id(e); },
        [&](int64_t j, const float* row) { rows[j] = row; });
    int64_t j = 0;
    for (; j + 4 <= batch.count; j += 4) map_edges<4>(rows + j, j, out);
    for (; j < batch.count; ++j) map_edges<1>(rows + j, j, out);
  }

  // Outputs.

  void reduce(const EdgeInstruction& instruction, const Batch& batch) {
    const int k = instruction.index;
    const Lanes x = lanes(instruction.operands[0]);
    float* own = partials_ + args_.partials_before(k) + first_;
    switch (program_.outputs[k]) {
      case EdgeOutput::kSum:
      case EdgeOutput::kRowNumber:
        return for_segments(batch, k, [&](const Segment& of) {
          add_edges(x, of.at, of.at + of.count, sums_ + k * block_);
        });
      case EdgeOutput::kVector:
        return add_edges(x, 0, batch.count, own);
      case EdgeOutput::kMax:
        return for_segments(batch, k, [&](const Segment& of) { extreme<true>(x, batch, of, k); });
      case EdgeOutput::kMin:
        return for_segments(batch, k, [&](const Segment& of) { extreme<false>(x, batch, of, k); });
      case EdgeOutput::kEdge:
        for (int64_t j = 0; j < batch.count; ++j) {
          store_row(k, batch.ids[j], [&](int64_t v) { return x.at(j, v); });
        }
        return;
      case EdgeOutput::kEdgeNumber: {
        float* out = static_cast<float*>(args_.outputs[k].data);
        for (int64_t j = 0; j < batch.count; ++j) {
          const float total = sum_features([&](int64_t v) { return x.at(j, v); });
          out[batch.ids[j]] = first_ == 0 ? total : out[batch.ids[j]] + total;
        }
        return;
      }
      case EdgeOutput::kMappedEdge:
        return mapped_edge(x, batch, static_cast<float*>(args_.outputs[k].data));
      case EdgeOutput::kMappedWeight:
        for (int i = 0; i < program_.size; i += 4, own += 4 * args_.padded()) {
          mapped_weight(x, batch, i, own);
        }
    }
  }

  template <class Body>
  void for_segments(const Batch& batch, size_t k, Body body) {
    for (int64_t s = 0; s < batch.segment_count; ++s) {
      const Segment& of = batch.segments[s];
      if (of.is_first) clear(k);
      body(of);
      if (of.is_last) finish(k, of.row);
    }
  }

  void add_edges(const Lanes& x, int64_t begin, int64_t end, float* to) const {
    for (int64_t v = 0; v < vectors_; ++v) {
      Vec total = {};
      for (int64_t e = begin; e < end; ++e) total += x.at(e, v);
      store(to + v * kWidth, load(to + v * kWidth) + total);
    }
  }

  template <bool kLargest>
  void extreme(const Lanes& x, const Batch& batch, const Segment& of, int k) {
    for (int64_t v = 0; v < vectors_; ++v) {
      float* value = sums_ + k * block_ + v * kWidth;
      int32_t* place = winners_.data() + k * block_ + v * kWidth;
      Vec best = load(value);
      IntVec winner;
      memcpy(&winner, place, sizeof winner);
      int64_t e = of.at;
      if (of.is_first) {
        best = x.at(e, v);
        winner = IntVec{} + static_cast<int32_t>(batch.ids[e]);
        ++e;
      }
      for (; e < of.at + of.count; ++e) {
        const Vec y = x.at(e, v);
        const IntVec is_better = kLargest ? y > best : y < best;
        const IntVec takes = is_better | ((y != y) & (best == best));  // the first NaN wins
        best = takes ? y : best;
        winner = takes ? IntVec{} + static_cast<int32_t>(batch.ids[e]) : winner;
      }
      store(value, best);
      memcpy(place, &winner, sizeof winner);
    }
  }

  // The sum over the features of a block. What is behind them is no number of theirs.
  template <class Source>
  float sum_features(Source source) const {
    Vec total = {};
    int64_t v = 0;
    for (; (v + 1) * kWidth <= features_; ++v) total += source(v);
    if (v < vectors_) total += first_lanes(source(v));
    return sum(total);
  }
  Vec first_lanes(Vec x) const {
    float lanes[kWidth];
    store(lanes, x);
    return load(lanes, features_ % kWidth);
  }

  void mapped_edge(const Lanes& x, const Batch& batch, float* out) const {
    for (int64_t j = 0; j < batch.count; ++j) {
      float* to = out + batch.ids[j] * program_.size;
      for (int k = 0; k < program_.size; ++k) {
        const float* map = map_ + k * args_.padded() + first_;
        const float total =
            sum_features([&](int64_t v) { return x.at(j, v) * load(map + v * kWidth); });
        to[k] = first_ == 0 ? total : to[k] + total;
      }
    }
  }

  // Rows [k, k + 4) of the map's gradient.
  void mapped_weight(const Lanes& x, const Batch& batch, int k, float* to) const {
    const int rows = std::min(4, program_.size - k);
    for (int64_t v = 0; v < vectors_; ++v) {
      Vec totals[4] = {};
      for (int64_t e = 0; e < batch.count; ++e) {
        const Vec y = x.at(e, v);
        const float* factors = numbers(batch.ids[e]) + k;
        if (rows == 4) {
          for (int i = 0; i < 4; ++i) totals[i] += factors[i] * y;
        } else {
          for (int i = 0; i < rows; ++i) totals[i] += factors[i] * y;
        }
      }
      for (int i = 0; i < rows; ++i) {
        float* row = to + i * args_.padded() + v * kWidth;
        store(row, load(row) + totals[i]);
      }
    }
  }

  template <class Source>
  void store_row(int k, int64_t row, Source source) const {
    const MutableDenseView& y = args_.outputs[k];
    with_type(y.dtype, [&](auto type) {
      using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
      T* out = static_cast<T*>(y.data) + row * y.stride + first_;
      int64_t v = 0;
      for (; (v + 1) * kWidth <= features_; ++v) store(out + v * kWidth, source(v));
      if (v < vectors_) store(out + v * kWidth, source(v), features_ - v * kWidth);
    });
  }

  // What is stored when all edges of a row have been.
  void finish(size_t k, int64_t row) {
    const float* sums = sums_ + k * block_;
    const auto source = [&](int64_t v) { return load(sums + v * kWidth); };
    switch (program_.outputs[k]) {
      case EdgeOutput::kMax:
      case EdgeOutput::kMin:
        memcpy(args_.winners[k] + row * args_.width + first_, winners_.data() + k * block_,
               features_ * sizeof(int32_t));
        [[fallthrough]];
      case EdgeOutput::kSum:
        return store_row(static_cast<int>(k), row, source);
      case EdgeOutput::kRowNumber:
        totals_[k] += sum_features(source);
        static_cast<float*>(args_.outputs[k].data)[row] = totals_[k];
        return;
      default:
        return;
    }
  }

  const EdgeArgs& args_;
  const EdgeProgram& program_;
  float* partials_;
  int64_t block_;  // features, whole vectors
  int64_t batch_;  // edges
  std::vector<float> memory_;
  std::vector<int32_t> winners_;    // of each output, [block]
  std::vector<const float*> rows_;  // of slots that hold rows of an argument, [slots, kMostBatch]
  std::vector<char> is_argument_;   // whether a slot does
  std::vector<float> totals_;       // of each output, of the blocks of a row so far
  float* fixed_;                    // values of rows and of all, [slots, block]
  float* edges_;                    // values of edges, [slots, batch, block]
  float* sums_;                     // of each output, over a row, [outputs, block]
  float* map_;                      // [size, padded]
  int64_t last_ = 0;                // the nonzero behind the last one
  int64_t first_ = 0;               // the block's first feature
  int64_t features_ = 0;            // of the block
  int64_t vectors_ = 0;             // that they take
  int64_t shared_at_ = -1;          // the block for which the shared values are there
};

void edge_rows(const EdgeArgs& args, int64_t begin, int64_t end, float* partials) {
  EdgeMachine(args, partials).run(begin, end);
}

}  // namespace
}  // namespace gnnsparse::cpu::GNNSPARSE_ISA
