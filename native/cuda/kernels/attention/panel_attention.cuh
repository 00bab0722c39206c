// What the attention kernels share: their share of the work, what they know of each edge, and where
// results go. A block takes a part of a panel of one head, a warp 16 of the panel's rows.
#pragma once

#include <algorithm>

#include "device/approximate.cuh"
#include "device/async.cuh"
#include "device/launch.cuh"
#include "device/vector.cuh"
#include "gnnsparse/panel_attention.h"
#include "kernels/attention/attention_results.cuh"
#include "kernels/attention/attention_stream.cuh"

namespace gnnsparse::cuda {

// A pass as its kernel is launched.
struct AttentionLaunch : PanelAttention {
  float heads_reciprocal;
  ChunkedHeads own[2];       // arrays of which a panel has its own rows
  ChunkedHeads gathered[2];  // those that its columns name
  ResultHeads results[2];
  ChunkedHeads out_chunks;     // backward: the output, where its rows are whole chunks
  FeatureFactors value_scale;  // of values of 8 bits

  explicit AttentionLaunch(const PanelAttention& p)
      : PanelAttention(p), heads_reciprocal(1.0f / static_cast<float>(p.problem.heads)) {}
};

// One warp's share of the work. All lanes ask for a row_id together.
struct AttentionWork {
  PanelItem item;
  int64_t index;  // of the item
  int head;       // over the whole batch
  int b;
  int h;
  int lane;
  int warp;

  __device__ explicit AttentionWork(const AttentionLaunch& p)
      : index(blockIdx.x),
        lane(pin_register(threadIdx.x % kWarp)),
        warp(pin_register(threadIdx.x / kWarp)) {
    const auto words = __ldg(reinterpret_cast<const int4*>(p.work.items) + index);
    item = {words.x, words.y, words.z, words.w};
    head = static_cast<int>(p.first_head + blockIdx.y);
    // Exact for fewer than 2^22 heads; a division of whole numbers has five times the instructions.
    b = static_cast<int>((static_cast<float>(head) + 0.5f) * p.heads_reciprocal);
    h = head - b * static_cast<int>(p.problem.heads);
    row_id_ = item.row + in_panel(lane % kQueryRows);
    if (row_id_ >= static_cast<int>(p.a.rows)) {
      row_id_ = -1;
    } else if (p.stored.row_ids != nullptr) {
      row_id_ = __ldg(p.stored.row_ids + row_id_);
    }
  }
  __device__ int64_t partial(const PanelAttention& p) const {
    return (head - p.first_head) * p.work.partials + item.partial;
  }
  // Of the warp's rows, in the panel.
  __device__ int in_panel(int in_window) const { return kQueryRows * warp + in_window; }
  // A row of the warp in the caller's numbering; -1 past the end.
  __device__ int row_id(int in_window) const {
    return __shfl_sync(0xffffffffu, row_id_, in_window, kWarp);
  }

 private:
  int row_id_;  // of row lane % 16
};

// Asks for what a later block reads first, so that it starts with hits in L2. Other heads find the
// same there. Panels of several warps are those of patterns whose columns are few: they gain
// nothing.
template <class Tile>
class LaterPanel {
 public:
  __device__ explicit LaterPanel(const PanelAttention& p) {
    const uint32_t later = p.work.prefetched(blockIdx.x);
    if (Tile::kWarps == 1 && blockIdx.y == 0 && p.work.has(later)) {
      k_tile_ = __ldg(&p.work.items[later].first_k_tile);
    }
  }
  __device__ void ask(const PanelAttention& p, const AttentionWork& work) const {
    if (k_tile_ < 0 || work.lane > 2) return;
    const int64_t slot = int64_t{k_tile_} * kPanelKTile;
    const void* columns = p.a.columns + slot + work.lane * kPanelKTile;
    const void* bits = reinterpret_cast<const uint16_t*>(p.a.bitmap) + slot;
    prefetch(work.lane == 2 ? bits : columns);
  }

 private:
  int k_tile_ = -1;
};

// The first kSlices slices of the warp's own rows of a head, brought to `to` in shared memory.
template <class Tile, int kSlices>
__device__ void copy_own_rows(const AttentionLaunch& p, const AttentionWork& work, uint32_t to) {
  const LaneChunk<typename Tile::Own> chunk(p.own[0].of(work.b, work.h),
                                            p.own[1].of(work.b, work.h), work.lane);
  const uint32_t first = to + own_address(work.lane);
#pragma unroll
  for (int i = 0; i < kQueryRows / 4; ++i) {
    chunk.template copy_row<kSlices>(own_address(first, i), work.row_id(own_row(work.lane, i)));
  }
}

// What a lane knows of its 16 possible edges of a K tile beside their scores: slot 2 j + odd of row
// g + 8 upper is element [j][2 upper + odd] of the scores.
template <bool kTransposed>
class EdgeExtras {
 public:
  __device__ EdgeExtras(const PanelAttention& p, const AttentionWork& work) : p_(p), work_(work) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int in_window = 8 * upper + (work.lane >> 2);
      const int in_panel = work.in_panel(in_window);
      const int64_t row = int64_t{work.item.row} + in_panel;
      const int32_t* before = p.work.row_offsets + work.index * p.a.shape.panel;
      next_[upper] = row < p.a.rows ? p.stored.indptr[row] + before[in_panel] : 0;
      own_[upper] = work.row_id(in_window);
    }
  }

  // Comes before any question about the edges of a K tile; `bits` are the lane's of its bitmap.
  __device__ void enter(int k_tile, uint32_t bits) {
    const int mine = __popc(bits & 0x000f000fu) | __popc(bits & 0x00f000f0u) << 16;
    int sum = mine;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, sum, step, 4);
      if ((work_.lane & 3) >= step) sum += before;
    }
    const int row_total = __shfl_sync(0xffffffffu, sum, 3, 4);
    const int before = sum - mine;
    at_[0] = next_[0] + (before & 0xffff);
    at_[1] = next_[1] + (before >> 16);
    next_[0] += row_total & 0xffff;
    next_[1] += row_total >> 16;
    load_words(p_.a.columns + (int64_t{work_.item.first_k_tile} + k_tile) * kPanelKTile +
                   kLaneColumns * (work_.lane & 3),
               reinterpret_cast<uint32_t (&)[kLaneColumns]>(ids_));
  }

  // Of each edge in the order of the columns: its place in A.
  __device__ int64_t place(int upper) { return at_[upper]++; }
  __device__ int64_t forward_place(int64_t place) const {
    if (!kTransposed || p_.nnz_index_map.data == nullptr) return place;
    return p_.nnz_index_map[place];
  }
  __device__ float bias(int64_t place) const {
    const EdgeValuesView& view = p_.problem.bias;
    const int64_t at = view.offset(work_.b, work_.h) + forward_place(place);
    if (view.dtype == DType::kFloat32) return static_cast<const float*>(view.data)[at];
    const uint16_t bits = static_cast<const uint16_t*>(view.data)[at];
    return view.dtype == DType::kFloat16 ? half_to_float(bits) : bf16_to_float(bits);
  }
  // The score of an edge to base 2, of a scaled product. Every pass rounds it alike: of a row whose
  // biases are large, weights come of small differences of scores.
  __device__ float biased(float scaled, int64_t place) const {
    return p_.problem.bias.data == nullptr ? scaled : fmaf(kLog2E, bias(place), scaled);
  }
  __device__ int query(int upper, int slot) const { return kTransposed ? ids_[slot] : own_[upper]; }
  __device__ int key(int upper, int slot) const { return kTransposed ? own_[upper] : ids_[slot]; }
  __device__ bool counts(int upper, int slot) const {
    return !p_.problem.is_causal || key(upper, slot) <= query(upper, slot);
  }
  // What dropout multiplies an edge's weight with.
  __device__ float dropout(int upper, int slot) const {
    const AttentionProblem& q = p_.problem;
    if (q.seed == nullptr) return 1.0f;
    const bool kept = dropout_keeps(philox_key(*q.seed), query(upper, slot), key(upper, slot),
                                    static_cast<uint32_t>(work_.head), q.threshold);
    return kept ? q.kept_scale : 0.0f;
  }

 private:
  const PanelAttention& p_;
  const AttentionWork& work_;
  int64_t next_[2];
  int64_t at_[2];
  int own_[2];
  int ids_[kLaneColumns];
};

// The lane's bits of a K tile of the work as they are stored; 0 past its end. What is read ahead is
// taken apart (lane_bits) when it is used: any sooner, and the warp waits for it.
template <class Tile>
class KTileBits {
 public:
  __device__ KTileBits(const PanelAttention& p, const AttentionWork& work)
      : k_tiles_(work.item.k_tiles) {
    const int64_t window = int64_t{work.item.first_k_tile} * Tile::kWarps + work.warp;
    from_ =
        pin_register(reinterpret_cast<const uint16_t*>(p.a.bitmap) + window * kWarp + work.lane);
  }
  __device__ __forceinline__ uint32_t of(int k_tile) const {
    return k_tile < k_tiles_ ? __ldg(from_ + int64_t{k_tile} * (kWarp * Tile::kWarps)) : 0;
  }

 private:
  int k_tiles_;
  const uint16_t* from_;
};

// As it enters a product.
template <Precision P>
__device__ __forceinline__ float round_to(float x) {
  if constexpr (kArithmetic<P> == Arithmetic::kFp16) {
    return __half2float(__float2half_rn(x));
  } else if constexpr (kArithmetic<P> == Arithmetic::kBf16) {
    return __bfloat162float(__float2bfloat16_rn(x));
  } else if constexpr (kArithmetic<P> == Arithmetic::kTf32) {
    return bits_float(to_tf32(float_bits(x)));
  } else {
    return x;
  }
}

// Scores of a K tile as operand A of its mmas: they are where the lane needs them.
template <Precision P>
struct WeightOperand {
  static constexpr int kMmas = PanelTile<P>::kMmas;
  uint32_t reg[kMmas][4];

  __device__ __forceinline__ explicit WeightOperand(const float (&scores)[4][4]) {
#pragma unroll
    for (int q = 0; q < kMmas; ++q) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if constexpr (kWords<P>) {
          const Element2D at = weight_word(q, r);
          reg[q][r] = float_bits(scores[at.row][at.col]);
        } else {
          const Element2D low = weight_element(q, r, 0);
          const Element2D high = weight_element(q, r, 1);
          reg[q][r] = pack_pair<PrecisionTraits<P>::kOperand>(scores[low.row][low.col],
                                                              scores[high.row][high.col]);
        }
      }
    }
  }
};

// sums += weights values: of the tiles kFrom to kTo of a slice in pairs, in 16 bits.
template <Precision P, int kFrom = 0, int kTo = 4, int kTiles>
__device__ __forceinline__ void add_values(uint32_t values, int lane, const WeightOperand<P>& a,
                                           float (&sums)[kTiles][4]) {
  if constexpr (kWords<P>) {
    multiply_value_words<P>(values, lane, a.reg, sums);
  } else {
    multiply_values<P, kFrom, kTo>(values, lane, a.reg, sums);
  }
}

// Where rows of results go, four neighbours at a time: to a head of an array, or, of a cut panel,
// to the partial sums.
class AttentionOutput {
 public:
  __device__ AttentionOutput(const PanelAttention& p, const AttentionWork& work,
                             const ResultHeads& to, float* partial, const float (&scale)[2])
      : to_(to.view.mutable_of(work.b, work.h)), width_(to.width), partial_(nullptr) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      row_[upper] = work.row_id(8 * upper + (work.lane >> 2));
      scale_[upper] = scale[upper];
    }
    if (work.item.partial >= 0) {
      const PartialShape shape(p, to.width);
      stride_ = shape.stride;
      partial_ = partial + shape.at(work.partial(p), work.in_panel(work.lane >> 2));
    }
  }

  __device__ void store(int upper, int64_t feature, float (&v)[4]) const {
    if (feature >= width_ || row_[upper] < 0) return;
    if (partial_ != nullptr) {
      float* to = partial_ + 8 * upper * stride_ + feature;
      *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] *= scale_[upper];
    store_row(to_, row_[upper], feature, width_, v);
  }

 private:
  MutableDenseView to_;
  int64_t width_;
  float* partial_;
  int64_t stride_ = 0;
  int row_[2];
  float scale_[2];
};

// A warp's rows of results, `sums` of the features from `feature` on, times `scale` where they are
// final. `own`: 2 KB of shared memory that only this warp uses.
template <Precision P, int kTiles>
__device__ void store_results(const PanelAttention& p, const AttentionWork& work,
                              const ResultHeads& to, int feature, float* partial,
                              const float (&scale)[2], const float (&sums)[kTiles][4],
                              uint32_t own) {
  if (to.chunks.data != nullptr && work.item.partial < 0) {
    ChunkRows rows = to.chunks.of(work.b, work.h);
    const int before = static_cast<int>(sizeof(StorageOf<P>)) * feature;
    rows.data += before;
    rows.bytes -= before;
    const auto row_id = [&](int in_window) { return work.row_id(in_window); };
    return store_chunks<P>(sums, scale, row_id, rows, work.lane, own);
  }
  const AttentionOutput out(p, work, to, partial, scale);
  if constexpr (kWords<P>) {
    store_words(out, sums, 0, work.lane, feature);
  } else {
    store_pairs(out, sums, 0, work.lane, feature);
  }
}

// Of every pass: one part of a panel, by the warps of a block.
template <class Warp>
__global__ void __launch_bounds__(kWarp* Warp::Tile::kWarps, Warp::kBlocks)
    attention_kernel(const __grid_constant__ AttentionLaunch p) {
  __shared__ __align__(1024) char memory[Warp::kSharedBytes];
  const AttentionWork work(p);
  Warp warp(p, work, static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
  warp.run();
}

template <class Warp>
void launch_attention(const AttentionLaunch& p, const char* call, Stream stream) {
  const auto kernel = attention_kernel<Warp>;
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(kernel, 0, prepared);
  const dim3 grid = grid_of(p.work.item_count, 1, p.head_count, call);
  launch(call, kernel, grid, kWarp * Warp::Tile::kWarps, stream, p);
}

// Calls launcher.run<Tile, kExtras>() with what the problem needs.
template <Precision P, class Launcher>
void with_attention_tile(const PanelAttention& p, const Launcher& launcher) {
  constexpr int kSliceFeatures = PanelTile<P>::kFeatures;
  const int64_t width = std::max(p.problem.d, p.problem.dv);
  const bool extras = p.problem.has_extras();
  if (width > kAttentionFeatures<P>) {
    throw std::invalid_argument("d: panels take at most 128 features, 64 in tf32, 32 in fp32");
  }
  if (p.a.shape.panel != kQueryRows) {
    if constexpr (!kWords<P>) {
      if (!extras && width <= kSliceFeatures) {
        return launcher.template run<AttentionTile<P, 4, 1>, false>();
      }
    }
    throw std::invalid_argument(
        "a: panels of 64 rows have 16 bits, at most 64 features, no bias, dropout or causal mask");
  }
  if constexpr (kAttentionSlices<P> == 2) {
    if (width > kSliceFeatures) {
      return extras ? launcher.template run<AttentionTile<P, 1, 2>, true>()
                    : launcher.template run<AttentionTile<P, 1, 2>, false>();
    }
  }
  if (extras) return launcher.template run<AttentionTile<P, 1, 1>, true>();
  if constexpr (!kWords<P>) {
    if (width <= kSliceFeatures / 2) {
      return launcher.template run<AttentionTile<P, 1, 0>, false>();
    }
  }
  launcher.template run<AttentionTile<P, 1, 1>, false>();
}

// Adds the parts of cut panels in their order; of the softmax each by its own maximum.
void combine_attention(const PanelAttention& p, const HeadsView& to, int64_t width, float scale,
                       const float* partial, bool softmax, Stream stream);

}  // namespace gnnsparse::cuda
