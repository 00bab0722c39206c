// A function over the edges of a graph, reduced at its rows: what a `Message`, generated for a pass
// (gnnsparse/ops/edges/cuda.py), computes for an edge and a feature. A warp takes neighbouring
// rows, or a part of a long one; lanes are side by side along the features, 16 bytes each, or where
// there is a map 4 features, and then along the edges. What edges need is on its way to shared
// memory some steps before it is used, over the ends of rows. Issue slots bind, so that a step is
// full whatever rows it is of, and knows no rows until it is used.
//
// A Message has kElements (features of a lane), kIs16Bits, kIsHalf, kLanesLog, kIsWhole (all lanes
// have features, and as many as they have room for), kBatch (edges that a lane takes in a step),
// kStages (steps that are on their way), kBlocks (for registers), kRingBytes, kInputs, kOutputs,
// kSize (of its map, or 0), kAddend (the input that what is mapped is added to before `run` sees
// it, or -1), input(i) and output(i), and run(in, out).
#pragma once

#include "device/approximate.cuh"
#include "device/async.cuh"
#include "device/scalars.cuh"
#include "gnnsparse/edge_rows.h"

namespace gnnsparse::cuda {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

// A value of code as it is, and what the generated code calls. NaN gets through all of them.
__device__ __forceinline__ float edge_relu(float x) { return max_or_nan(x, 0.0f); }
__device__ __forceinline__ float edge_maximum(float a, float b) { return max_or_nan(a, b); }
__device__ __forceinline__ float edge_minimum(float a, float b) { return min_or_nan(a, b); }
// The error is below 2^-22, and below 2^-23 (4 + 0.6 |x|) of the result.
__device__ __forceinline__ float edge_sigmoid(float x) {
  return reciprocal_fast(1.0f + exp2_fast(-1.44269504f * x));
}
__device__ __forceinline__ float edge_softplus(float x) {
  return edge_relu(x) + log1pf(expf(-fabsf(x)));
}

// Calls f with each number from kFirst to kEnd - 1 as a constant: what depends on it has no
// register, and arrays that it indexes are registers.
template <int kNumber>
struct EdgeIndex {
  constexpr GNNSPARSE_EDGE_HD operator int() const { return kNumber; }
};
template <int kEnd, int kFirst = 0, class F>
__device__ __forceinline__ void for_each(const F& f) {
  if constexpr (kFirst < kEnd) {
    f(EdgeIndex<kFirst>{});
    for_each<kEnd, kFirst + 1>(f);
  }
}

constexpr GNNSPARSE_EDGE_HD int power_of_two(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}
constexpr GNNSPARSE_EDGE_HD int at_least_one(int n) { return n < 1 ? 1 : n; }

// The numbers of inputs and outputs by what they need.
template <class M>
struct EdgeCounts {
  static constexpr GNNSPARSE_EDGE_HD bool is_number_of_edge(EdgeInput kind) {
    return kind == EdgeInput::kGatheredNumber || kind == EdgeInput::kEdgeNumber;
  }
  // Bytes of a lane's features.
  static constexpr int kLaneBytes = M::kElements * (M::kIs16Bits ? 2 : 4);
  // Vectors that a lane copies for an edge, or for a row, for an input: of kLaneBytes, or 16.
  static constexpr GNNSPARSE_EDGE_HD int edge_vectors(EdgeInput kind) {
    if (kind == EdgeInput::kGathered || kind == EdgeInput::kEdge) return 1;
    return is_wide(kind) && !is_of_row(kind) ? M::kElements / 4 : 0;
  }
  static constexpr GNNSPARSE_EDGE_HD int row_vectors(EdgeInput kind) {
    if (kind == EdgeInput::kRow) return 1;
    return is_wide(kind) && is_of_row(kind) ? M::kElements / 4 : 0;
  }
  // Whether a feature has 4 bytes whatever the storage type is.
  static constexpr GNNSPARSE_EDGE_HD bool is_wide(EdgeInput kind) {
    return kind == EdgeInput::kGatheredWinner || kind == EdgeInput::kGatheredWide ||
           is_of_row(kind);
  }
  static constexpr GNNSPARSE_EDGE_HD bool is_of_row(EdgeInput kind) {
    return kind == EdgeInput::kRowWinner || kind == EdgeInput::kRowWide;
  }
  static constexpr GNNSPARSE_EDGE_HD int vector_bytes(EdgeInput kind) {
    return is_wide(kind) ? 16 : kLaneBytes;
  }
  // How many times as many bytes it has as a feature.
  static constexpr GNNSPARSE_EDGE_HD int times_as_wide(EdgeInput kind) {
    return is_wide(kind) && M::kIs16Bits ? 2 : 1;
  }
  // What inputs before `end` need, and bytes that all lanes copy for an edge.
  static constexpr GNNSPARSE_EDGE_HD int edge_bytes(int end) {
    int n = 0;
    for (int i = 0; i < end; ++i) n += 32 * edge_vectors(M::input(i)) * vector_bytes(M::input(i));
    return n;
  }
  static constexpr GNNSPARSE_EDGE_HD int row_vector(int end) {
    int n = 0;
    for (int i = 0; i < end; ++i) n += row_vectors(M::input(i));
    return n;
  }
  static constexpr GNNSPARSE_EDGE_HD int edge_number(int end) {
    int n = 0;
    for (int i = 0; i < end; ++i) n += is_number_of_edge(M::input(i));
    return n;
  }
  static constexpr GNNSPARSE_EDGE_HD int row_number(int end) {
    int n = 0;
    for (int i = 0; i < end; ++i) n += M::input(i) == EdgeInput::kRowNumber;
    return n;
  }
  static constexpr GNNSPARSE_EDGE_HD bool is_extreme(EdgeOutput kind) {
    return kind == EdgeOutput::kMax || kind == EdgeOutput::kMin;
  }
  // Outputs of a kind before `end`; maxima and minima count as one kind.
  static constexpr GNNSPARSE_EDGE_HD int outputs(EdgeOutput kind, int end) {
    int n = 0;
    for (int i = 0; i < end; ++i) {
      n += M::output(i) == kind || (is_extreme(kind) && is_extreme(M::output(i)));
    }
    return n;
  }
  static constexpr GNNSPARSE_EDGE_HD int all(EdgeOutput kind) { return outputs(kind, M::kOutputs); }
  static constexpr GNNSPARSE_EDGE_HD bool has(EdgeInput kind) {
    for (int i = 0; i < M::kInputs; ++i) {
      if (M::input(i) == kind) return true;
    }
    return false;
  }
};

template <class M>
class EdgeRows {
  using Counts = EdgeCounts<M>;
  static constexpr int kElements = M::kElements;
  static constexpr int kLanes = 1 << M::kLanesLog;   // along the features
  static constexpr int kEdges = 32 / kLanes;         // side by side
  static constexpr int kSlots = M::kBatch * kEdges;  // edges of a step
  static constexpr int kSize = M::kSize;
  static constexpr int kPaddedSize = (kSize + 3) / 4 * 4;
  static constexpr int kPower = power_of_two(at_least_one(kSize));
  static constexpr bool kHasMappedEdges = Counts::all(EdgeOutput::kMappedEdge) > 0;
  // Halvings of kSize sums (`fold`) in which lanes hold other vectors of the map's numbers first.
  static constexpr int kSwaps = kHasMappedEdges && kSize % 8 == 0 ? kSize / 8 : 0;
  static_assert(kSize == 0 || kSize == 8 || kSize == 16 || kSwaps == 0, "log2 of vectors");
  static constexpr int kLaneBytes = Counts::kLaneBytes;
  static constexpr int kEdgeBytes = Counts::edge_bytes(M::kInputs);
  static constexpr int kRowVectors = Counts::row_vector(M::kInputs);
  static constexpr int kNumbers = Counts::edge_number(M::kInputs);
  static constexpr int kRowNumbers = Counts::row_number(M::kInputs);
  static constexpr int kSums = Counts::all(EdgeOutput::kSum);
  static constexpr int kExtremes = Counts::all(EdgeOutput::kMax);
  static constexpr int kOutNumbers = Counts::all(EdgeOutput::kRowNumber);
  static constexpr int kOutVectors = Counts::all(EdgeOutput::kVector);
  static constexpr bool kHasWeights = Counts::all(EdgeOutput::kMappedWeight) > 0;
  // Whether the numbers of edges are read when they are used.
  static constexpr bool kReadsIds =
      Counts::all(EdgeOutput::kEdge) + Counts::all(EdgeOutput::kEdgeNumber) +
              Counts::all(EdgeOutput::kMappedEdge) >
          0 ||
      Counts::has(EdgeInput::kGatheredWinner) || Counts::has(EdgeInput::kRowWinner);
  // Whether copies find anything by them.
  static constexpr bool kNeedsIds =
      kReadsIds || kSize > 0 ||
      Counts::has(EdgeInput::kEdge) || Counts::has(EdgeInput::kEdgeNumber);
  // Whether lanes read what others have copied.
  static constexpr bool kShares = kSize + kNumbers > 0;
  static constexpr bool kHasRowInputs = kRowVectors + kRowNumbers > 0;
  // A stage: vectors of each of the edges that a lane takes, and of all edges the numbers behind
  // the map, and single ones.
  static constexpr uint32_t kMappedAt = kEdgeBytes * M::kBatch;
  static constexpr uint32_t kNumbersAt = kMappedAt + 4 * kPaddedSize * kSlots;
  static constexpr uint32_t kStageBytes = (kNumbersAt + 4 * kNumbers * kSlots + 15) / 16 * 16;
  // A warp's memory: stages, columns of the 32 edges of which some are copied next, numbers of
  // edges until they are used, and of the rows the ends and the caller's numbers.
  static constexpr int kAhead = (M::kStages - 1) * kSlots;  // from the edge that is used
  static constexpr int kIds = kNeedsIds ? power_of_two(kAhead + 32) : 0;
  static constexpr uint32_t kColumnsAt = M::kStages * kStageBytes;
  static constexpr uint32_t kIdsAt = kColumnsAt + 4 * 32;
  static constexpr int kMappedCopies = (kSlots * kSize + 31) / 32;
  static constexpr uint32_t kEndsAt = kIdsAt + 4 * kIds;
  static constexpr uint32_t kRowsAt = kEndsAt + 4 * 32;
  static constexpr uint32_t kWarpBytes = kRowsAt + 4 * 32;
  static_assert(32 % kSlots == 0, "the columns of a step are there at once");
  static_assert(kEdgeWarps * kWarpBytes == M::kRingBytes, "as Python allocates it");

 public:
  __device__ explicit EdgeRows(const EdgeLaunch& p) : p_(p) {
    lane_ = static_cast<int>(threadIdx.x % 32);
    warp_ = int64_t{blockIdx.x} * kEdgeWarps + threadIdx.x / 32;
    edge_ = lane_ / kLanes;
    chunk_ = static_cast<int>(blockIdx.y) * kLanes + lane_ % kLanes;
    is_own_ = M::kIsWhole || chunk_ < p.chunks;
    valid_ = p.width - chunk_ * kElements;
    offset_ = is_own_ ? static_cast<uint32_t>(kLaneBytes * chunk_) : 0u;
    memory_ = pin_register(static_cast<uint32_t>(__cvta_generic_to_shared(launched_)) +
                           threadIdx.x / 32 * kWarpBytes);
    lane_bytes_ = pin_register(static_cast<uint32_t>(kLaneBytes * lane_));
    word_bytes_ = pin_register(4u * static_cast<uint32_t>(lane_));
    for_each<M::kInputs>([&](auto k) {
      if constexpr (Counts::edge_vectors(M::input(k)) > 0) {
        from_[k] = pin_register(p.inputs[k].data + Counts::times_as_wide(M::input(k)) * offset_);
      }
      if constexpr (M::input(k) == EdgeInput::kVectorNumber) {
        fixed_[k][0] = __ldg(reinterpret_cast<const float*>(p.inputs[k].data));
      } else if constexpr (M::input(k) == EdgeInput::kVector) {
        load_floats(p.inputs[k].data, fixed_[k]);
      }
    });
    if constexpr (kSize > 0) mapped_ = place_of_word(lane_);
#pragma unroll
    for (int s = 0; s < kSize; ++s) {
      load_floats(p.map.data + swapped(s) * int64_t{p.map.row}, map_[s]);
    }
#pragma unroll
    for (int v = 0; v < kPaddedSize / 4; ++v) {
      mapped_from_[v] = pin_register(4u * static_cast<uint32_t>(swapped(4 * v)));
    }
    for_each<M::kOutputs>([&](auto k) {
      if constexpr (M::output(k) == EdgeOutput::kMappedEdge) {
        mapped_to_ =
            pin_register(block_of(p.outputs[k], p.edges * kSize) + max(first_of_fold<kPower>(), 0));
      }
    });
  }

  // All items of the warp: parts of rows, and groups of neighbouring ones.
  __device__ void run() {
    clear_rows();
    clear_all();
    for (int64_t item = warp_; item < p_.items; item += p_.warps) run_item(item);
    finish_all();
  }

  // Adds up the parts of a row that was cut.
  __device__ void run_cut() {
    if (warp_ >= p_.cut_count || edge_ != 0) return;
    const EdgeCut cut = p_.cuts[warp_];
    clear_rows();
    for (int i = 0; i < cut.count; ++i) {
      const float* from = p_.partial + (int64_t{cut.first} + i) * p_.partial_floats;
      if (is_own_) {
#pragma unroll
        for (int k = 0; k < kSums; ++k) {
#pragma unroll
          for (int e = 0; e < kElements; ++e) sums_[k][e] += from[place(k, e)];
        }
        for_each<kExtremes>([&](auto k) {
#pragma unroll
          for (int e = 0; e < kElements; ++e) {
            const float value = from[place(kSums + 2 * k, e)];
            const int id = static_cast<int>(__float_as_uint(from[place(kSums + 2 * k + 1, e)]));
            if (id >= 0 && is_better<k>(value, best_[k][e], where_[k][e])) {
              best_[k][e] = value;
              where_[k][e] = id;
            }
          }
        });
      }
#pragma unroll
      for (int k = 0; k < kOutNumbers; ++k) numbers_[k] += from[number_place(k)];
    }
    const int row = p_.row_ids != nullptr ? p_.row_ids[cut.row] : cut.row;
    write_row(row);
  }

 private:
  struct MappedPlace {
    uint32_t slot;     // 4 times the edge of a step
    uint32_t to;       // behind kMappedAt
    const char* from;  // without the edge's offset
  };
  __device__ __forceinline__ MappedPlace place_of_word(int word) const {
    const char* data = nullptr;
    for_each<M::kInputs>([&](auto k) {
      if constexpr (M::input(k) == EdgeInput::kMapped) data = p_.inputs[k].data;
    });
    const int slot = word / at_least_one(kSize);
    const int s = word - slot * kSize;
    return {pin_register(4u * static_cast<uint32_t>(slot)),
            pin_register(4u * static_cast<uint32_t>(slot * kPaddedSize + s)),
            pin_register(data + 4 * s)};
  }

  // Which of the numbers behind the map the lane has in place of number s.
  __device__ __forceinline__ int swapped(int s) const {
    int vector = 0;
#pragma unroll
    for (int i = 0; i < kSwaps; ++i) {
      vector = 2 * vector + ((lane_ & (kLanes >> (i + 1))) != 0 ? 1 : 0);
    }
    return s ^ (4 * vector);
  }
  __device__ __forceinline__ bool is_real(int e) const { return M::kIsWhole || e < valid_; }
  __device__ __forceinline__ void load_floats(const char* from, float (&to)[kElements]) const {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int at = chunk_ * kElements + e;
      to[e] = is_real(e) ? __ldg(reinterpret_cast<const float*>(from) + at) : 0.0f;
    }
  }

  // A warp goes through the edges of neighbouring rows in steps that do not end where rows do.

  __device__ void run_item(int64_t item) {
    int partial = -1;
    int rows = 1;
    int count = 0;
    int64_t own = 0;
    int64_t begin = 0;
    bool is_long = false;
    if (item < p_.part_count) {
      const EdgePart part = p_.parts[item];
      own = part.row;
      begin = p_.indptr[own] + part.first;
      count = part.count;
      partial = part.partial;
    } else {
      const int64_t first = (item - p_.part_count) * p_.rows_per_warp;
      const int64_t left = p_.rows - first;
      rows = static_cast<int>(left < p_.rows_per_warp ? left : p_.rows_per_warp);
      own = first + min(lane_, rows - 1);
      begin = p_.indptr[own];
      const int64_t of_row = p_.indptr[own + 1] - begin;
      is_long = lane_ < rows && of_row > p_.row_limit;
      count = static_cast<int>(of_row);
    }
    const int64_t base = __shfl_sync(kAllLanes, begin, 0);
    const int first = static_cast<int>(begin - base);
    const int row = p_.row_ids != nullptr ? p_.row_ids[own] : static_cast<int>(own);
    __syncwarp();  // all have read those of the item before
    store_shared(memory_ + kEndsAt + 4 * lane_, static_cast<uint32_t>(first + count));
    store_shared(memory_ + kRowsAt + 4 * lane_, static_cast<uint32_t>(row));
    __syncwarp();
    // Rows between those that are cut into parts.
    const uint32_t longs = __ballot_sync(kAllLanes, is_long);
    for (int r = 0; r < rows;) {
      const uint32_t left = longs >> r;
      const int end = left == 0 ? rows : r + __ffs(static_cast<int>(left)) - 1;
      const int start = __shfl_sync(kAllLanes, first, r);
      if (end > r) run_rows(r, end, start, base + start, partial);
      r = end + 1;
    }
  }
  __device__ __forceinline__ int shared_int(uint32_t from) const {
    return static_cast<int>(load_shared_word(memory_ + from));
  }
  // Rows [row, rows_end) of the item, whose edges follow one another from `begin` on.
  __device__ __forceinline__ void run_rows(int row, int rows_end, int start, int64_t begin,
                                           int partial) {
    begin_ = begin;
    start_ = start;
    rows_end_ = rows_end;
    edges_ = shared_int(kEndsAt + 4 * (rows_end - 1)) - start;
    if constexpr (kHasRowInputs) load_row(row);
    start_row(row);
    if (edges_ > 0) read_numbers(0);
    uint32_t stage = memory_;
#pragma unroll 1
    for (int at = -kAhead; at < max(edges_, 1); at += kSlots) {
      wait_copies_but<M::kStages - 2>();
      // All see what others have copied, and have read what is overwritten now.
      if constexpr (kShares) __syncwarp();
      fetch(stage, at + kAhead);
      stage += kStageBytes;
      if (stage == memory_ + M::kStages * kStageBytes) stage = memory_;
      if (at >= 0) take_step(stage, at, partial);
    }
    wait_copies();
  }

  // The producer: it starts the copies of each step. Behind the last edge it copies that again.

  __device__ __forceinline__ void read_numbers(int at) {
    const int64_t edge = begin_ + min(at + lane_, edges_ - 1);
    column_ = __ldg(p_.indices + edge);
    if constexpr (kNeedsIds) {
      id_ = p_.edge_ids != nullptr ? __ldg(p_.edge_ids + edge) : static_cast<int>(edge);
    }
  }
  __device__ __forceinline__ static constexpr uint32_t id_at(int at) {
    return kIdsAt + 4 * (static_cast<uint32_t>(at) % at_least_one(kIds));
  }
  __device__ __forceinline__ void store_numbers(int at) const {
    __syncwarp();  // all have read the columns before
    store_shared(memory_ + kColumnsAt + word_bytes_, static_cast<uint32_t>(column_));
    if constexpr (kNeedsIds) {
      store_shared(memory_ + id_at(at + lane_), static_cast<uint32_t>(id_));
    }
    __syncwarp();
  }
  __device__ __forceinline__ void fetch(uint32_t stage, int at) {
    if (at < edges_) {
      if (at % 32 == 0) {
        store_numbers(at);
        read_numbers(at + 32);
      }
      const uint32_t columns = memory_ + kColumnsAt + 4 * (static_cast<uint32_t>(at) % 32);
      const uint32_t ids = memory_ + id_at(at);
      // All that is read comes first: ptxas waits before copies that follow reads.
      uint32_t column[M::kBatch];
      uint32_t id[M::kBatch];
      uint32_t behind_map[at_least_one(kMappedCopies)];
      if constexpr (Counts::has(EdgeInput::kGathered) || Counts::has(EdgeInput::kGatheredWinner) ||
                    Counts::has(EdgeInput::kGatheredWide)) {
        read_batch(columns, column);
      }
      if constexpr (Counts::has(EdgeInput::kEdge)) read_batch(ids, id);
#pragma unroll
      for (int j = 0; j < kMappedCopies; ++j) {
        behind_map[j] = load_shared_word(ids + mapped_place(j).slot);
      }
      const uint32_t of_column =
          Counts::has(EdgeInput::kGatheredNumber) ? load_shared_word(columns + word_bytes_) : 0;
      const uint32_t of_edge =
          Counts::has(EdgeInput::kEdgeNumber) ? load_shared_word(ids + word_bytes_) : 0;
      for_each<M::kInputs>([&](auto k) {
        constexpr EdgeInput kKind = M::input(k);
#pragma unroll
        for (int i = 0; i < (Counts::edge_vectors(kKind) > 0 ? M::kBatch : 0); ++i) {
          const uint64_t row = kKind == EdgeInput::kEdge ? id[i] : column[i];
          const char* from = from_[k] + row * p_.inputs[k].row;
          const uint32_t to = stage + place_of<k>(i);
#pragma unroll
          for (int v = 0; v < Counts::edge_vectors(kKind); ++v) {
            if constexpr (Counts::edge_vectors(kKind) > 1) {
              // Through L1: the next vector has the other half of the same sector.
              copy_number_async<16>(to + 512 * v, from + 16 * v, true);
            } else if constexpr (Counts::vector_bytes(kKind) == 16) {
              copy_async(to + 512 * v, from + 16 * v);
            } else {
              copy_number_async<8>(to, from, true);
            }
          }
        }
        if constexpr (Counts::is_number_of_edge(kKind)) {
          constexpr uint32_t kAt = kNumbersAt + 4 * Counts::edge_number(k) * kSlots;
          const uint64_t row = kKind == EdgeInput::kEdgeNumber ? of_edge : of_column;
          if (lane_ < kSlots) {
            copy_number_async<4>(stage + kAt + word_bytes_, p_.inputs[k].data + 4 * row, true);
          }
        } else if constexpr (kKind == EdgeInput::kMapped) {
#pragma unroll
          for (int j = 0; j < kMappedCopies; ++j) {
            const MappedPlace place = mapped_place(j);
            if (32 * (j + 1) <= kSlots * kSize || place.slot < 4 * kSlots) {
              copy_number_async<4>(stage + kMappedAt + place.to,
                                   place.from + uint64_t{behind_map[j]} * (4 * kSize), true);
            }
          }
        }
      });
    }
    commit_copies();
  }
  // Where in a stage a lane finds an input of one of its edges.
  template <int kInput>
  __device__ __forceinline__ uint32_t place_of(int i) const {
    constexpr uint32_t kAt = Counts::edge_bytes(kInput);
    constexpr uint32_t kTimes = Counts::vector_bytes(M::input(kInput)) / kLaneBytes;
    return lane_bytes_ * kTimes + kEdgeBytes * i + kAt;
  }
  // Of the lane's edges of a step.
  __device__ __forceinline__ void read_batch(uint32_t from, uint32_t (&to)[M::kBatch]) const {
    if constexpr (kEdges == 1 && M::kBatch == 4) {
      load_shared(from, to);
    } else {
#pragma unroll
      for (int i = 0; i < M::kBatch; ++i) to[i] = load_shared_word(from + 4 * (i * kEdges + edge_));
    }
  }
  // A lane copies every 32nd of the numbers behind the map of a step's edges.
  __device__ __forceinline__ MappedPlace mapped_place(int copy) const {
    constexpr int kOfEdge = at_least_one(kSize);
    if (32 % kOfEdge == 0 && copy > 0) {
      MappedPlace place = mapped_;
      place.slot += 4 * (32 / kOfEdge) * copy;
      place.to += 4 * kPaddedSize * (32 / kOfEdge) * copy;
      return place;
    }
    if (copy == 0) return mapped_;
    return place_of_word(32 * copy + lane_);
  }

  // The consumer.

  // A row's features are on their way since the row before it began.
  __device__ __forceinline__ void load_row(int r) {
    const uint64_t row = static_cast<uint32_t>(shared_int(kRowsAt + 4 * r));
    for_each<M::kInputs>([&](auto k) {
      constexpr EdgeInput kKind = M::input(k);
      constexpr int kAt = Counts::row_vector(k);
      constexpr int kNumberAt = Counts::row_number(k);
      const EdgeArray& array = p_.inputs[k];
#pragma unroll
      for (int v = 0; v < Counts::row_vectors(kKind); ++v) {
        const char* from =
            array.data + row * array.row + Counts::times_as_wide(kKind) * offset_ + 16 * v;
        uint32_t (&to)[4] = next_vectors_[kAt + v];
        if constexpr (Counts::vector_bytes(kKind) == 16) {
          const uint4 words = __ldg(reinterpret_cast<const uint4*>(from));
          to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
        } else {
          const uint2 words = __ldg(reinterpret_cast<const uint2*>(from));
          to[0] = words.x, to[1] = words.y;
        }
      }
      if constexpr (kKind == EdgeInput::kRowNumber) {
        next_numbers_[kNumberAt] = __ldg(reinterpret_cast<const float*>(array.data) + row);
      }
    });
  }
  __device__ __forceinline__ void start_row(int r) {
    row_ = r;
    end_ = shared_int(kEndsAt + 4 * r) - start_;
    clear_rows();
    if constexpr (kHasRowInputs) {
      for_each<M::kInputs>([&](auto k) {
        constexpr EdgeInput kKind = M::input(k);
        constexpr int kAt = Counts::row_vector(k);
        constexpr int kNumberAt = Counts::row_number(k);
        if constexpr (kKind == EdgeInput::kRow) {
          decode(next_vectors_[kAt], fixed_[k]);
        } else if constexpr (Counts::is_of_row(kKind)) {
#pragma unroll
          for (int e = 0; e < kElements; ++e) {
            fixed_[k][e] = __uint_as_float(next_vectors_[kAt + e / 4][e % 4]);
          }
        } else if constexpr (kKind == EdgeInput::kRowNumber) {
          fixed_[k][0] = next_numbers_[kNumberAt];
        }
      });
      load_row(min(r + 1, rows_end_ - 1));
    }
  }
  // Takes the edges of a step, those of one row after those of another.
  __device__ __forceinline__ void take_step(uint32_t stage, int at, int partial) {
    int from = at;
    if (end_ >= at + kSlots) {
#pragma unroll
      for (int i = 0; i < M::kBatch; ++i) add_edge<true>(stage, at, i, true);
      from += kSlots;
    }
    if (end_ > at + kSlots) return;
    const int stop = min(at + kSlots, edges_);
    do {
      const int to = min(end_, stop);
#pragma unroll 1
      for (int i = (from - at) / kEdges; at + i * kEdges < to; ++i) {
        const int edge = at + i * kEdges + edge_;
        add_edge<kEdges == 1>(stage, at, i, edge >= from && edge < to);
      }
      from = to;
      if (to == end_) {
        finish_row(partial);
        if (row_ + 1 < rows_end_) {
          start_row(row_ + 1);
        } else {
          end_ = -1;
        }
      }
    } while (from < stop || from == end_);
  }

  // kLaneBytes of the words.
  __device__ __forceinline__ static void decode(const uint32_t (&words)[4],
                                                float (&to)[kElements]) {
#pragma unroll
    for (int w = 0; w < kLaneBytes / 4; ++w) {
      if constexpr (!M::kIs16Bits) {
        to[w] = __uint_as_float(words[w]);
      } else if constexpr (M::kIsHalf) {
        to[2 * w] = half_bits_to_float(words[w] & 0xffffu);
        to[2 * w + 1] = half_bits_to_float(words[w] >> 16);
      } else {
        to[2 * w] = __uint_as_float(words[w] << 16);
        to[2 * w + 1] = __uint_as_float(words[w] & 0xffff0000u);
      }
    }
  }
  // 4 bytes for each feature: winners as they are, in floats' bits.
  __device__ __forceinline__ void load_wide(uint32_t from, float (&to)[kElements]) const {
#pragma unroll
    for (int v = 0; v < kElements / 4; ++v) {
      uint32_t words[4];
      load_shared(from + 512 * v, words);
#pragma unroll
      for (int w = 0; w < 4; ++w) to[4 * v + w] = __uint_as_float(words[w]);
    }
  }
  __device__ __forceinline__ static float shared_float(uint32_t from) {
    return __uint_as_float(load_shared_word(from));
  }

  template <bool kFull>
  __device__ __forceinline__ void add_edge(uint32_t stage, int at, int i, bool has) {
    float in[M::kInputs][kElements];
    float mapped[at_least_one(kPaddedSize)];
    const int slot = i * kEdges + edge_;
    const int id = kReadsIds ? shared_int(id_at(at) + 4 * slot) : 0;
#pragma unroll
    for (int s = 0; s < kPaddedSize; s += 4) {
      uint32_t words[4];
      load_shared(stage + kMappedAt + 4 * slot * kPaddedSize + mapped_from_[s / 4], words);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        mapped[s + w] = kFull || has ? __uint_as_float(words[w]) : 0.0f;
      }
    }
    for_each<M::kInputs>([&](auto k) {
      constexpr EdgeInput kKind = M::input(k);
      constexpr bool kIsOfRow = kKind == EdgeInput::kRowWinner;
      if constexpr (kKind == EdgeInput::kGathered || kKind == EdgeInput::kEdge) {
        uint32_t words[4];
        if constexpr (kLaneBytes == 16) {
          load_shared(stage + place_of<k>(i), words);
        } else {
          load_shared_pair(stage + place_of<k>(i), words);
        }
        decode(words, in[k]);
      } else if constexpr (kKind == EdgeInput::kGatheredWinner || kIsOfRow) {
        float winners[kElements];
        if constexpr (!kIsOfRow) load_wide(stage + place_of<k>(i), winners);
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const uint32_t winner = __float_as_uint(kIsOfRow ? fixed_[k][e] : winners[e]);
          in[k][e] = static_cast<int>(winner) == id ? 1.0f : 0.0f;
        }
      } else if constexpr (kKind == EdgeInput::kGatheredWide) {
        load_wide(stage + place_of<k>(i), in[k]);
      } else if constexpr (kKind == EdgeInput::kMapped) {
        // Below, when what it is added to is there.
      } else if constexpr (Counts::is_number_of_edge(kKind)) {
        constexpr uint32_t kNumberAt = kNumbersAt + 4 * Counts::edge_number(k) * kSlots;
        const float number_of_edge = shared_float(stage + kNumberAt + 4 * slot);
#pragma unroll
        for (int e = 0; e < kElements; ++e) in[k][e] = number_of_edge;
      } else {
        constexpr bool kIsOne = kKind == EdgeInput::kRowNumber || kKind == EdgeInput::kVectorNumber;
#pragma unroll
        for (int e = 0; e < kElements; ++e) in[k][e] = fixed_[k][kIsOne ? 0 : e];
      }
    });
    for_each<M::kInputs>([&](auto k) {
      if constexpr (M::input(k) == EdgeInput::kMapped) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          in[k][e] = M::kAddend < 0 ? 0.0f : in[M::kAddend < 0 ? 0 : M::kAddend][e];
#pragma unroll
          for (int s = 0; s < kSize; ++s) in[k][e] += mapped[s] * map_[s][e];
        }
      }
    });
    float out[M::kOutputs][kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      float x[M::kInputs];
      float y[M::kOutputs];
#pragma unroll
      for (int k = 0; k < M::kInputs; ++k) x[k] = in[k][e];
      M::run(x, y);
#pragma unroll
      for (int k = 0; k < M::kOutputs; ++k) out[k][e] = kFull || has ? y[k] : 0.0f;
    }
    for_each<M::kOutputs>([&](auto k) { take<kFull, k>(out[k], mapped, id, at + slot, has); });
  }

  // What an edge gives for an output.
  template <bool kFull, int k>
  __device__ __forceinline__ void take(const float (&value)[kElements],
                                       const float (&mapped)[at_least_one(kPaddedSize)], int id,
                                       int number, bool has) {
    constexpr EdgeOutput kKind = M::output(k);
    constexpr int kPlace = Counts::outputs(kKind, k);
    if constexpr (kKind == EdgeOutput::kSum) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) sums_[kPlace][e] += value[e];
    } else if constexpr (Counts::is_extreme(kKind)) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if ((kFull || has) && is_better<kPlace>(value[e], best_[kPlace][e], where_[kPlace][e])) {
          best_[kPlace][e] = value[e];
          where_[kPlace][e] = number;
        }
      }
    } else if constexpr (kKind == EdgeOutput::kEdge) {
      if ((kFull || has) && is_own_) write(p_.outputs[k], id, value);
    } else if constexpr (kKind == EdgeOutput::kRowNumber) {
      numbers_[kPlace] += sum_of(value);
    } else if constexpr (kKind == EdgeOutput::kEdgeNumber) {
      float sum[1] = {sum_of(value)};
      fold<1>(sum);
      if ((kFull || has) && lane_ % kLanes == 0) {
        block_of(p_.outputs[k], p_.edges)[id] = sum[0];
      }
    } else if constexpr (kKind == EdgeOutput::kVector) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) vectors_[kPlace][e] += value[e];
    } else if constexpr (kKind == EdgeOutput::kMappedEdge) {
      float sums[kPower] = {};
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const float own = is_real(e) ? value[e] : 0.0f;
#pragma unroll
        for (int s = 0; s < kSize; ++s) sums[s] += own * map_[s][e];
      }
      fold<kPower, kSwaps>(sums);
      const int first = first_of_fold<kPower>();
      constexpr int kLeft = kPower > kLanes ? kPower / kLanes : 1;
      float* to = mapped_to_ + static_cast<uint64_t>(static_cast<uint32_t>(id)) * kSize;
#pragma unroll
      for (int s = 0; s < kLeft; ++s) {
        if ((kFull || has) && first >= 0 && first + s < kSize) to[s] = sums[s];
      }
    } else {
#pragma unroll
      for (int s = 0; s < kSize; ++s) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) weights_[s][e] += mapped[s] * value[e];
      }
    }
  }

  __device__ __forceinline__ float sum_of(const float (&value)[kElements]) const {
    float sum = 0.0f;
#pragma unroll
    for (int e = 0; e < kElements; ++e) sum += is_real(e) ? value[e] : 0.0f;
    return sum;
  }
  // Adds up kCount numbers, a power of two, over the lanes of an edge. Lanes share the work: each
  // keeps half of the numbers, until it has one. In the first kSwapped halvings the half that a
  // lane keeps comes first in its registers.
  template <int kCount, int kSwapped = 0>
  __device__ __forceinline__ void fold(float (&x)[kCount]) const {
    int count = kCount;
    int halvings = 0;
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      const bool upper = halvings++ >= kSwapped && (lane_ & offset) != 0;
      if (count > 1) {
        count /= 2;
#pragma unroll
        for (int s = 0; s < kCount / 2; ++s) {
          if (s < count) {
            const float low = x[s];
            const float high = x[s + count];
            const float other = __shfl_xor_sync(kAllLanes, upper ? low : high, offset);
            x[s] = (upper ? high : low) + other;
          }
        }
      } else {
        x[0] += __shfl_xor_sync(kAllLanes, x[0], offset);
      }
    }
  }
  // Which of the numbers the lane's first one is then; -1: another lane has the same.
  template <int kCount>
  __device__ __forceinline__ int first_of_fold() const {
    int first = 0;
    int count = kCount;
    bool is_first = true;
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      const bool upper = (lane_ & offset) != 0;
      if (count > 1) {
        count /= 2;
        if (upper) first += count;
      } else {
        is_first = is_first && !upper;
      }
    }
    return is_first ? first : -1;
  }
  // A number, or numbers of edges, have a part for each block of features.
  __device__ __forceinline__ static float* block_of(const EdgeTarget& to, int64_t count) {
    return reinterpret_cast<float*>(to.data) + int64_t{blockIdx.y} * count;
  }

  static constexpr GNNSPARSE_EDGE_HD bool is_minimum(int extreme) {
    for (int k = 0; k < M::kOutputs; ++k) {
      if (Counts::is_extreme(M::output(k)) && extreme-- == 0) {
        return M::output(k) == EdgeOutput::kMin;
      }
    }
    return false;
  }
  // Whether a value takes the place of the best one so far; NaN does, of numbers.
  template <int kExtreme>
  __device__ __forceinline__ static bool is_better(float value, float best, int where) {
    constexpr bool kIsMinimum = is_minimum(kExtreme);
    const bool is_worse = kIsMinimum ? value >= best : value <= best;
    return where < 0 || (!is_worse && best == best);
  }

  // Rows and their ends.

  __device__ __forceinline__ void clear_rows() {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
#pragma unroll
      for (int k = 0; k < kSums; ++k) sums_[k][e] = 0.0f;
#pragma unroll
      for (int k = 0; k < kExtremes; ++k) {
        best_[k][e] = 0.0f;
        where_[k][e] = -1;
      }
    }
#pragma unroll
    for (int k = 0; k < kOutNumbers; ++k) numbers_[k] = 0.0f;
  }
  __device__ __forceinline__ void clear_all() {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
#pragma unroll
      for (int k = 0; k < kOutVectors; ++k) vectors_[k][e] = 0.0f;
      if constexpr (kHasWeights) {
#pragma unroll
        for (int s = 0; s < kSize; ++s) weights_[s][e] = 0.0f;
      }
    }
  }
  __device__ __forceinline__ static void add_over_edges(float (&x)[kElements]) {
#pragma unroll
    for (int offset = 16; offset >= kLanes; offset /= 2) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) x[e] += __shfl_xor_sync(kAllLanes, x[e], offset);
    }
  }
  __device__ __forceinline__ void finish_row(int partial) {
#pragma unroll
    for (int k = 0; k < kSums; ++k) add_over_edges(sums_[k]);
    for_each<kExtremes>([&](auto k) {
#pragma unroll
      for (int offset = 16; offset >= kLanes; offset /= 2) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const float value = __shfl_xor_sync(kAllLanes, best_[k][e], offset);
          const int where = __shfl_xor_sync(kAllLanes, where_[k][e], offset);
          if (where < 0) continue;
          // Of equal ones, and of two that are NaN, the first edge wins.
          const float best = best_[k][e];
          const bool is_equal = value == best || (value != value && best != best);
          if (is_equal && where_[k][e] >= 0 ? where < where_[k][e]
                                            : is_better<k>(value, best, where_[k][e])) {
            best_[k][e] = value;
            where_[k][e] = where;
          }
        }
      }
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (where_[k][e] < 0) continue;
        const int64_t at = begin_ + where_[k][e];
        where_[k][e] = p_.edge_ids != nullptr ? __ldg(p_.edge_ids + at) : static_cast<int>(at);
      }
    });
#pragma unroll
    for (int k = 0; k < kOutNumbers; ++k) {
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        numbers_[k] += __shfl_xor_sync(kAllLanes, numbers_[k], offset);
      }
    }
    if (edge_ != 0) return;
    if (partial < 0) return write_row(shared_int(kRowsAt + 4 * row_));
    float* to = p_.partial + int64_t{partial} * p_.partial_floats;
    if (is_own_) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
#pragma unroll
        for (int k = 0; k < kSums; ++k) to[place(k, e)] = sums_[k][e];
#pragma unroll
        for (int k = 0; k < kExtremes; ++k) {
          to[place(kSums + 2 * k, e)] = best_[k][e];
          to[place(kSums + 2 * k + 1, e)] = __uint_as_float(static_cast<uint32_t>(where_[k][e]));
        }
      }
    }
    if (lane_ == 0) {
#pragma unroll
      for (int k = 0; k < kOutNumbers; ++k) to[number_place(k)] = numbers_[k];
    }
  }
  // Places in partial sums: features one after another, and then numbers of each block of features.
  __device__ __forceinline__ int64_t place(int slot, int e) const {
    return (int64_t{slot} * p_.chunks + chunk_) * kElements + e;
  }
  __device__ __forceinline__ int64_t number_place(int k) const {
    return int64_t{kSums + 2 * kExtremes} * p_.chunks * kElements +
           int64_t{blockIdx.y} * kOutNumbers + k;
  }
  // Writes the results of a row. Lanes side by side along the features call it.
  __device__ __forceinline__ void write_row(int row) const {
    for_each<M::kOutputs>([&](auto k) {
      constexpr EdgeOutput kKind = M::output(k);
      constexpr int kPlace = Counts::outputs(kKind, k);
      if constexpr (kKind == EdgeOutput::kSum) {
        if (is_own_) write(p_.outputs[k], row, sums_[kPlace]);
      } else if constexpr (Counts::is_extreme(kKind)) {
        if (!is_own_) return;
        write(p_.outputs[k], row, best_[kPlace]);
        int32_t* to = p_.outputs[k].winners + int64_t{row} * p_.width + chunk_ * kElements;
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if (is_real(e)) to[e] = where_[kPlace][e];
        }
      } else if constexpr (kKind == EdgeOutput::kRowNumber) {
        if (lane_ == 0) block_of(p_.outputs[k], p_.rows)[row] = numbers_[kPlace];
      }
    });
  }
  __device__ __forceinline__ void write(const EdgeTarget& to, int row,
                                        const float (&value)[kElements]) const {
    char* start = to.data + int64_t{row} * to.row;
    if (to.is_vectors && M::kIs16Bits && to.is_float) {
#pragma unroll
      for (int e = 0; e < kElements; e += 4) {
        *reinterpret_cast<float4*>(start + 2 * offset_ + 4 * e) =
            make_float4(value[e], value[e + 1], value[e + 2], value[e + 3]);
      }
      return;
    }
    if (to.is_vectors) {
      if constexpr (!M::kIs16Bits) {
        *reinterpret_cast<float4*>(start + offset_) =
            make_float4(value[0], value[1], value[2], value[3]);
      } else if constexpr (kElements == 4) {
        *reinterpret_cast<uint2*>(start + offset_) =
            make_uint2(pair(value[0], value[1]), pair(value[2], value[3]));
      } else {
        *reinterpret_cast<uint4*>(start + offset_) =
            make_uint4(pair(value[0], value[1]), pair(value[2], value[3]), pair(value[4], value[5]),
                       pair(value[6], value[7]));
      }
      return;
    }
    const int first = chunk_ * kElements;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (!is_real(e)) continue;
      if (!M::kIs16Bits || to.is_float) {
        reinterpret_cast<float*>(start)[first + e] = value[e];
      } else {
        reinterpret_cast<uint16_t*>(start)[first + e] = static_cast<uint16_t>(pair(value[e], 0.0f));
      }
    }
  }
  __device__ __forceinline__ static uint32_t pair(float low, float high) {
    if constexpr (M::kIsHalf) {
      return float16_pair(low, high);
    } else {
      return bfloat16_pair(low, high);
    }
  }

  // What is added up over all edges: every warp writes its sum, [warps][...][width].
  __device__ __forceinline__ void finish_all() {
    for_each<M::kOutputs>([&](auto k) {
      float* to = reinterpret_cast<float*>(p_.outputs[k].data);
      if constexpr (M::output(k) == EdgeOutput::kVector) {
        constexpr int kPlace = Counts::outputs(EdgeOutput::kVector, k);
        add_over_edges(vectors_[kPlace]);
        write_sum(to + warp_ * p_.width, vectors_[kPlace]);
      } else if constexpr (M::output(k) == EdgeOutput::kMappedWeight) {
#pragma unroll
        for (int s = 0; s < kSize; ++s) {
          add_over_edges(weights_[s]);
          write_sum(to + (warp_ * kSize + swapped(s)) * p_.width, weights_[s]);
        }
      }
    });
  }
  __device__ __forceinline__ void write_sum(float* to, const float (&sum)[kElements]) const {
    if (edge_ != 0) return;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (is_real(e)) to[chunk_ * kElements + e] = sum[e];
    }
  }

  const EdgeLaunch& p_;
  char* launched_ = launched_shared();
  uint32_t memory_;      // the warp's
  uint32_t lane_bytes_;  // kLaneBytes for each lane before this one
  uint32_t word_bytes_;  // 4 for each
  int lane_;
  int edge_;
  int chunk_;    // of all features
  int valid_;    // features from the lane's first on
  bool is_own_;  // it has any
  uint32_t offset_;
  int64_t warp_;
  float fixed_[M::kInputs][kElements];  // what all edges, or those of a row, share
  float map_[at_least_one(kSize)][kElements];
  float sums_[at_least_one(kSums)][kElements];
  float best_[at_least_one(kExtremes)][kElements];
  int where_[at_least_one(kExtremes)][kElements];  // the edge, counted from begin_
  float numbers_[at_least_one(kOutNumbers)];
  float vectors_[at_least_one(kOutVectors)][kElements];
  float weights_[at_least_one(kHasWeights ? kSize : 0)][kElements];
  MappedPlace mapped_;
  uint32_t mapped_from_[at_least_one(kPaddedSize / 4)];  // where a vector of them is
  float* mapped_to_ = nullptr;                           // what the lane writes for edge 0
  const char* from_[M::kInputs];  // what edges gather, with the lane's offset
  // Rows that follow one another: their first edge, how many they have, and where the first one
  // begins, counted from the first edge of the item.
  int64_t begin_ = 0;
  int edges_ = 0;
  int start_ = 0;
  int rows_end_ = 0;
  // The row whose edges are taken, and where it ends; what the next one has.
  int row_ = 0;
  int end_ = 0;
  uint32_t next_vectors_[at_least_one(kRowVectors)][4];
  float next_numbers_[at_least_one(kRowNumbers)];
  // The column and number of one of the edges that come to shared memory next.
  int column_ = 0;
  int id_ = 0;
};

template <class M>
__global__ void __launch_bounds__(32 * kEdgeWarps, M::kBlocks)
    edge_rows_kernel(const __grid_constant__ EdgeLaunch p) {
  EdgeRows<M>(p).run();
}
template <class M>
__global__ void __launch_bounds__(32 * kEdgeWarps)
    edge_cuts_kernel(const __grid_constant__ EdgeLaunch p) {
  EdgeRows<M>(p).run_cut();
}

}  // namespace gnnsparse::cuda
