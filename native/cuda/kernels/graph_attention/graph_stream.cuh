// The loop over the rows and edges of a warp. What edges need is on its way to shared memory some
// steps before it is used, over the ends of rows: most rows of a graph are short, and a warp that
// waited for each would wait most of the time. A lane reads back only what it has copied itself, so
// that nothing has to be synchronised.
#pragma once

#include <atomic>

#include "device/async.cuh"
#include "kernels/graph_attention/graph_rows.cuh"

namespace gnnsparse::cuda {

// What a pass has copied for an edge, or for a row.
template <int kOfVectors, int kOfNumbers, int kOfNumberBytes>
struct GraphCopies {
  static constexpr int kVectors = kOfVectors;  // of 16 bytes a lane
  static constexpr int kNumbers = kOfNumbers;
  static constexpr int kNumberBytes = kOfNumberBytes;  // 4 or 8
  static constexpr uint32_t kBytes = 32 * (16 * kVectors + kNumberBytes * kNumbers);
};

// The place of an edge or a row in a warp's shared memory. Lanes are side by side, so that their
// accesses meet no bank twice.
template <class Copies>
class GraphPlace {
 public:
  __device__ GraphPlace(uint32_t start, int lane) : start_(start), lane_(lane) {}

  __device__ __forceinline__ void copy_vector(int i, const char* from, bool real) const {
    const uint32_t to = start_ + 512 * i + 16 * lane_;
    if constexpr (kArchitecture.async_copies) {
      copy_async_or_zero(to, from, real);
    } else {
      const Vec16 v = real ? load_vec16(from) : Vec16{};
      store_shared(to, make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]));
    }
  }
  __device__ __forceinline__ void copy_number(int i, const char* from, bool real) const {
    if constexpr (kArchitecture.async_copies) {
      copy_number_async<Copies::kNumberBytes>(number_at(i), from, real);
    } else {
      const auto* words = reinterpret_cast<const uint32_t*>(from);
      for (int j = 0; j < Copies::kNumberBytes / 4; ++j) {
        store_shared(number_at(i) + 4 * j, real ? __ldg(words + j) : 0u);
      }
    }
  }
  __device__ __forceinline__ Vec16 vector(int i) const {
    Vec16 v;
    load_shared(start_ + 512 * i + 16 * lane_, v.word);
    return v;
  }
  __device__ __forceinline__ float number(int i) const {
    return __uint_as_float(load_shared_word(number_at(i)));
  }
  __device__ __forceinline__ float2 pair(int i) const {
    return make_float2(__uint_as_float(load_shared_word(number_at(i))),
                       __uint_as_float(load_shared_word(number_at(i) + 4)));
  }

 private:
  __device__ __forceinline__ uint32_t number_at(int i) const {
    constexpr int kBytes = Copies::kNumberBytes;
    return start_ + 512 * Copies::kVectors + 32 * kBytes * i + kBytes * lane_;
  }

  uint32_t start_;
  int lane_;
};

// Edges of a row that a lane takes in a step: numbers are counted from the row's first edge. Where
// there is none (`has` is false) the copies are zeros, and the number is that of some edge for a
// pass that kReadsNumbers.
template <class Pass>
struct GraphStep {
  int number[Pass::kBatch];
  bool has[Pass::kBatch];
  uint32_t start;  // of the places
  int lane;

  __device__ GraphPlace<typename Pass::EdgeCopies> place(int i) const {
    return {start + i * Pass::EdgeCopies::kBytes, lane};
  }
};

template <class Pass>
inline constexpr uint32_t kStageBytes =
    Pass::RowCopies::kBytes + Pass::kBatch * Pass::EdgeCopies::kBytes;
template <class Pass>
inline constexpr uint32_t kRingBytes = kGraphWarps * Pass::kStages * kStageBytes<Pass>;

// The rows of a warp, at most 32: lane i holds row i. Longer rows than the limit, whose parts are
// items of their own, have a count of -1.
class WarpRows {
 public:
  __device__ WarpRows(const GraphLaunch& p, int64_t item, int lane) {
    int64_t own = 0;
    int64_t begin = 0;
    if (item < p.work.item_count) {
      const RowItem part = p.work.items[item];
      own = part.row;
      begin = p.a.indptr[own] + part.first;
      count_ = part.count;
      partial_ = part.partial;
      rows_ = 1;
    } else {
      const int64_t first = (item - p.work.item_count) * p.rows_per_warp;
      const int64_t left = p.a.rows - first;
      if (left <= 0) return;
      rows_ = static_cast<int>(min(int64_t{p.rows_per_warp}, left));
      own = first + min(lane, rows_ - 1);
      begin = p.a.indptr[own];
      const int64_t count = p.a.indptr[own + 1] - begin;
      count_ = count > p.row_limit ? -1 : static_cast<int>(count);
    }
    taken_ = __ballot_sync(kWarp, lane < rows_ && count_ >= 0);
    filled_ = __ballot_sync(kWarp, lane < rows_ && count_ > 0);
    row_ = p.row_ids != nullptr ? p.row_ids[own] : static_cast<int>(own);
    base_ = __shfl_sync(kWarp, begin, 0);
    first_ = static_cast<int>(begin - base_);
  }
  __device__ int rows() const { return rows_; }
  // Those that the warp takes, and those of them that have edges: bit i is of row i.
  __device__ uint32_t taken() const { return taken_; }
  __device__ uint32_t filled() const { return filled_; }
  // Of the first row's first edge. Numbers from there have 31 bits: a warp takes one row of a
  // matrix with more nonzeros.
  __device__ int64_t base() const { return base_; }
  __device__ __forceinline__ int count(int r) const { return __shfl_sync(kWarp, count_, r); }
  __device__ __forceinline__ GraphRow row(int r) const {
    return {base_, __shfl_sync(kWarp, first_, r), count(r), __shfl_sync(kWarp, row_, r), partial_};
  }

 private:
  int64_t base_ = 0;
  int first_ = 0;
  int count_ = 0;
  int row_ = 0;
  int partial_ = -1;
  int rows_ = 0;
  uint32_t taken_ = 0;
  uint32_t filled_ = 0;
};

// Takes the first row from a set.
__device__ __forceinline__ int take_row(uint32_t& rows) {
  const int first = __ffs(static_cast<int>(rows)) - 1;
  rows &= rows - 1;
  return first;
}

// Steps through the rows of a warp, and starts the copies of each step. It reads the numbers of a
// step's edges a step before it needs them. Issue slots bind these kernels, so that what a lane
// needs again and again is pinned to registers: made anew it is half of the instructions.
template <class Pass>
class GraphProducer {
 public:
  __device__ GraphProducer(const GraphLaunch& p, const GraphLane& lane, const WarpRows& rows,
                           const Pass& pass)
      : p_(p),
        lane_(lane),
        rows_(rows),
        pass_(pass),
        columns_from_(pin_register(p.a.indices + rows.base())),
        left_(rows.filled()) {
    if (reads_maps()) {
      maps_from_ = pin_register(static_cast<const int32_t*>(p.nnz_index_map.data) + rows.base());
    }
    next_row();
    if (count_ > 0) read_numbers();
  }

  // Starts the copies of the next step to the stage at `start`, if there is one.
  __device__ __forceinline__ void fetch(uint32_t start) {
    if (count_ > 0) {
      if (at_ == 0) pass_.fetch_row({start, lane_.id}, row_);
      fetch_edges(start + Pass::RowCopies::kBytes);
      if (at_ >= count_) next_row();
      if (count_ > 0) read_numbers();
    }
    commit_copies();
  }

 private:
  // A map of 64 bits is read when it is needed: registers are short.
  __device__ __forceinline__ bool reads_maps() const {
    return Pass::kMaps && !p_.nnz_index_map.wide;
  }
  __device__ __forceinline__ void read_numbers() {
    const int from = first_ + at_ + lane_.edge;
    const int last = first_ + count_ - 1;
#pragma unroll
    for (int i = 0; i < Pass::kBatch; ++i) {
      const int number = min(from + i * lane_.edges, last);
      columns_[i] = __ldg(columns_from_ + number);
      if (reads_maps()) maps_[i] = __ldg(maps_from_ + number);
    }
  }
  __device__ __forceinline__ void fetch_edges(uint32_t start) {
    const int left = count_ - at_ - lane_.edge;
    const auto fetch = [&](const auto& nonzero_of) {
#pragma unroll
      for (int i = 0; i < Pass::kBatch; ++i) {
        const bool has = i * lane_.edges < left;
        pass_.fetch_edge({start + i * Pass::EdgeCopies::kBytes, lane_.id}, columns_[i],
                         nonzero_of(i, has), has);
      }
    };
    if (reads_maps()) {
      fetch([&](int i, bool) { return static_cast<uint64_t>(static_cast<uint32_t>(maps_[i])); });
    } else {
      const int64_t first = rows_.base() + first_ + at_ + lane_.edge;
      fetch([&](int i, bool has) {
        const int64_t nonzero = first + i * lane_.edges;
        if constexpr (!Pass::kMaps) return static_cast<uint64_t>(nonzero);
        return has ? static_cast<uint64_t>(p_.nnz_index_map[nonzero]) : uint64_t{0};
      });
    }
    at_ += Pass::kBatch * lane_.edges;
  }
  __device__ __forceinline__ void next_row() {
    at_ = count_ = 0;
    if (left_ == 0) return;
    const GraphRow row = rows_.row(take_row(left_));
    first_ = row.first;
    count_ = row.count;
    row_ = row.row;
  }

  const GraphLaunch& p_;
  const GraphLane& lane_;
  const WarpRows& rows_;
  const Pass& pass_;
  const int32_t* columns_from_;
  const int32_t* maps_from_ = nullptr;
  uint32_t left_;  // rows
  int first_ = 0;
  int count_ = 0;  // 0: no row is left
  int row_ = 0;
  int at_ = 0;
  int32_t columns_[Pass::kBatch] = {};
  int32_t maps_[Pass::kMaps ? Pass::kBatch : 1] = {};
};

// The edges of a row from number `at` on, in the stage at `start`.
template <class Pass>
__device__ __forceinline__ GraphStep<Pass> step_of(const GraphLane& lane, const GraphRow& row,
                                                   int at, uint32_t start) {
  GraphStep<Pass> step;
  step.start = start + Pass::RowCopies::kBytes;
  step.lane = lane.id;
#pragma unroll
  for (int i = 0; i < Pass::kBatch; ++i) {
    step.number[i] = at + i * lane.edges + lane.edge;
    step.has[i] = step.number[i] < row.count;
    if constexpr (Pass::kReadsNumbers) step.number[i] = min(step.number[i], row.count - 1);
  }
  return step;
}

// Has a pass take the rows of the warp.
template <class Pass>
__device__ __forceinline__ void run_rows(const GraphLaunch& p, const GraphLane& lane, Pass& pass) {
  char* memory = dynamic_shared();
  const uint32_t ring = pin_register(static_cast<uint32_t>(__cvta_generic_to_shared(memory)) +
                                     threadIdx.x / 32 * (Pass::kStages * kStageBytes<Pass>));
  const WarpRows rows(p, lane.item, lane.id);
  GraphProducer<Pass> producer(p, lane, rows, pass);
  for (int stage = 0; stage < Pass::kStages; ++stage) {
    producer.fetch(ring + stage * kStageBytes<Pass>);
  }
  uint32_t stage = ring;
  for (uint32_t left = rows.taken(); left != 0;) {
    const GraphRow row = rows.row(take_row(left));
    pass.clear();
    if (row.count > 0) {
      wait_copies_but<Pass::kStages - 1>();
      pass.start(row, {stage, lane.id});
    }
    for (int at = 0; at < row.count;) {
      pass.add(row, step_of<Pass>(lane, row, at, stage));
      producer.fetch(stage);
      stage += kStageBytes<Pass>;
      if (stage == ring + Pass::kStages * kStageBytes<Pass>) stage = ring;
      at += Pass::kBatch * lane.edges;
      if (at < row.count) wait_copies_but<Pass::kStages - 1>();
    }
    pass.finish(row);
  }
  wait_copies();
}

// Calls kernel(p) for every item of work, head and batch.
template <class Pass>
void launch_stream(const GraphLaunch& p, void (*kernel)(GraphLaunch), const char* call,
                   Stream stream) {
  static std::atomic<uint64_t> prepared{0};
  constexpr uint32_t kBytes = kRingBytes<Pass>;
  prefer_shared_memory(kernel, static_cast<int>(kBytes), prepared);
  const int64_t blocks = p.problem.base.batches * p.head_blocks;
  launch_shared(call, kernel, grid_of(p.items(), kGraphWarps, blocks, call), kGraphThreads, kBytes,
                stream, p);
}

// Calls kernel(p) for every row that was cut, head and batch.
template <class... Parameters, class... Arguments>
void launch_cuts(const GraphLaunch& p, void (*kernel)(Parameters...), const char* call,
                 Stream stream, const Arguments&... arguments) {
  const int64_t blocks = p.problem.base.batches * p.head_blocks;
  launch(call, kernel, grid_of(p.work.cut_count, kGraphWarps, blocks, call), kGraphThreads, stream,
         p, arguments...);
}

}  // namespace gnnsparse::cuda
