// Gradients of attention over panels. The weights are computed again, from the statistics of each
// row's softmax. There are two ways. Two passes: one over rows of A gives dQ and the
// statistics of each query row, one over rows of A^T gives dK and dV; no two warps add to one sum.
// Or one pass over rows of A gives dQ, and the weights that make dK and dV afterwards
// (attention_dkv.cuh, attention_dkv_tiles.cuh).
#pragma once

#include "kernels/attention/attention_dkv.cuh"
#include "kernels/attention/attention_dkv_tiles.cuh"
#include "kernels/attention/attention_row_stats.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

// The pass over rows holds rows of Q and of the output's gradient and gathers K and V; that over
// columns holds K and V and gathers the others. `first` is Q or K, `second` the gradient or V. The
// pass over columns gives dK (kWhat & 1) and dV (kWhat & 2): both where their sums fit registers.
// That over rows gives dQ (1) and, asked for, the weights that make the others (kDkvWeights).
inline constexpr int kDkvWeights = 4;
template <class RowTile, bool kTransposed, int kWhat, bool kExtras>
class AttentionGradWarp {
 public:
  using Tile = RowTile;
  static constexpr Precision P = Tile::P;
  static constexpr int kSlices = Tile::kSlices;
  static constexpr bool kFirst = kWhat & 1;
  static constexpr bool kSecond = kWhat & 2;
  static constexpr int kSecondSums = kFirst ? kSlices : 0;
  static constexpr bool kWritesDkv = kWhat & kDkvWeights;
  static constexpr bool kHeld = kSlices == 1;  // own rows in registers
  // A K tile stays while the next ones are on their way.
  static constexpr int kAhead = Tile::kWarps > 1 ? 4 : 2;
  static constexpr int kPipelineStages = Tile::kTileSlices + kAhead;
  using Stream = RowStream<Tile, kPipelineStages, kAhead, kTransposed>;
  static constexpr uint32_t kOwnBytes = Tile::kTileSlices * kQueryBytes;
  // One warp's own rows on their way to registers, and its results, share slices that are copied
  // to after that.
  static constexpr bool kShares = Tile::kWarps == 1 && kHeld;
  static constexpr uint32_t kSharedBytes =
      Stream::kBytes + (kShares ? 0 : Tile::kWarps * kOwnBytes);
  // That must fit on a multiprocessor: registers are the limit, and shared memory.
  static constexpr int kBlocks = Tile::kWarps > 1                        ? 3
                                 : kSlices == 2                          ? 6
                                 : Tile::kPaired                         ? (kTransposed ? 12 : 16)
                                 : kSplit<P> || (kTransposed && kExtras) ? 8
                                                                         : 12;

  __device__ AttentionGradWarp(const AttentionLaunch& p, const AttentionWork& work, uint32_t shared)
      : p_(p),
        work_(work),
        scale_(p.problem.scale * kLog2E),
        own_(shared +
             (kShares ? kAhead * kTileSliceBytes : Stream::kBytes + work.warp * kOwnBytes)),
        stream_(p.a, work.item,
                LaneChunk<Tile>(p.gathered[0].of(work.b, work.h), p.gathered[1].of(work.b, work.h),
                                work.lane),
                shared, row_stats_of(p, work)),
        bits_(p, work),
        extras_(p, work),
        dkv_(p, work) {}

  __device__ void run() {
    const LaterPanel<Tile> later(p_);
    stream_.start([&] { copy_own_rows<Tile, Tile::kTileSlices>(p_, work_, own_); });
    later.ask(p_, work_);
    uint32_t following = bits_.of(0);
    wait_for_own();
    if constexpr (kHeld) {
      held_[0] = load_query_slice<P>(own_, work_.lane);
      if constexpr (!Tile::kPaired) held_[1] = load_query_slice<P>(own_ + kQueryBytes, work_.lane);
    }
    for (int i = 0; i < work_.item.k_tiles; ++i) {
      const uint32_t bits = lane_bits(following, kQueryRows);
      following = bits_.of(i + 1);
      multiply_k_tile(i, bits);
    }
    stream_.finish();
    finish();
  }

 private:
  static __device__ const float4* row_stats_of(const PanelAttention& p, const AttentionWork& w) {
    return reinterpret_cast<const float4*>(p.row_stats) + w.head * p.queries;
  }

  __device__ QuerySlice own_slice(int which, int slice) const {
    if constexpr (kHeld) {
      return held_[Tile::kPaired ? 0 : which];
    } else {
      return load_query_slice<P>(own_ + (which * kSlices + slice) * kQueryBytes, work_.lane);
    }
  }

  __device__ void wait_for_own() {
    if constexpr (kTransposed) {
      stream_.wait_for_own();
    } else {
      RowStats<Tile> stats(p_, work_);
      stream_.wait_for_own();
      if (work_.item.k_tiles == 0) return;  // nothing has been copied
      stats.make(p_, work_, own_ + (Tile::kPaired ? 0 : kSlices * kQueryBytes));
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        query_[upper] = stats.of(8 * upper + (work_.lane >> 2));
      }
    }
  }
  __device__ float4 query_row_stats(int k_tile, int upper, int slot) const {
    if constexpr (kTransposed) {
      const uint32_t first =
          stream_.row_stats(k_tile) + row_stats_address(kLaneColumns * (work_.lane & 3));
      uint32_t words[4];
      load_shared(first + 16 * slot, words);
      return make_float4(__uint_as_float(words[0]), __uint_as_float(words[1]),
                         __uint_as_float(words[2]), 0.0f);
    } else {
      return query_[upper];
    }
  }

  // Slices as they arrive, and the products with them.
  template <int kSlice>
  __device__ __forceinline__ void gather_first(int i, uint32_t (&first)[kSlices],
                                               float (&weights)[4][4]) {
    first[kSlice] = stream_.template next<kSlice>(i);
    multiply_keys<P, 0, Tile::kFirstKeysEnd>(first[kSlice], work_.lane, own_slice(0, kSlice),
                                             weights);
    if constexpr (kSlice + 1 < kSlices) gather_first<kSlice + 1>(i, first, weights);
  }
  template <int kSlice>
  __device__ __forceinline__ void gather_second(int i, uint32_t (&second)[kSlices],
                                                float (&gradients)[4][4]) {
    if constexpr (!Tile::kPaired) second[kSlice] = stream_.template next<kSlices + kSlice>(i);
    multiply_keys<P, Tile::kSecondKeys>(second[kSlice], work_.lane, own_slice(1, kSlice),
                                        gradients);
    if constexpr (kSlice + 1 < kSlices) gather_second<kSlice + 1>(i, second, gradients);
  }

  __device__ __forceinline__ void multiply_k_tile(int i, uint32_t bits) {
    if constexpr (kExtras) extras_.enter(i, bits);
    uint32_t first[kSlices];
    uint32_t second[kSlices];
    float weights[4][4] = {};    // scores at first
    float gradients[4][4] = {};  // of the weights, then of the scores
    if constexpr (Tile::kWarps > 1) {
      stream_.next_k_tiles(i, first, second);
      if (!__any_sync(0xffffffffu, bits != 0)) return;
      multiply_keys<P>(first[0], work_.lane, own_slice(0, 0), weights);
      multiply_keys<P>(second[0], work_.lane, own_slice(1, 0), gradients);
    } else {
      gather_first<0>(i, first, weights);
      if constexpr (Tile::kPaired) second[0] = first[0];
      gather_second<0>(i, second, gradients);
    }
    weigh(i, bits, weights, gradients);
    if constexpr (kFirst) {
      const WeightOperand<P> a(gradients);
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
        add_values<P, 0, Tile::kFirstValuesEnd>(first[s], work_.lane, a, sums_[s]);
      }
      if constexpr (kWritesDkv) dkv_.write(i, bits, WeightOperand<P>(weights).reg, a.reg);
    }
    if constexpr (kSecond) {
      const WeightOperand<P> a(weights);
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
        add_values<P, Tile::kSecondValues>(second[s], work_.lane, a, sums_[kSecondSums + s]);
      }
    }
  }

  __device__ void weigh(int i, uint32_t bits, float (&weights)[4][4], float (&gradients)[4][4]) {
#pragma unroll
    for (int slot = 0; slot < kLaneColumns; ++slot) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const float4 query = query_row_stats(i, upper, slot);
        const float shift = query.x;
        const float scale = query.y;
        const float delta = query.z;
        float& weight = weights[slot >> 1][2 * upper + (slot & 1)];
        float& gradient = gradients[slot >> 1][2 * upper + (slot & 1)];
        const bool edge = bits >> result_bit(upper, slot >> 1, slot & 1) & 1u;
        float score = fmaf(weight, scale_, -shift);
        int64_t place = 0;
        float factor = 1.0f;
        bool counts = edge;
        if constexpr (kExtras) {
          if (edge) {
            place = extras_.place(upper);
            score = extras_.biased(__fmul_rn(weight, scale_), place) - shift;
          }
          counts = edge && extras_.counts(upper, slot);
          if (counts) factor = extras_.dropout(upper, slot);
        }
        // The rounded weight is the one that made the output, and so delta: with another the two
        // would not cancel where one edge has all the weight.
        const float p = counts ? exp2_fast(score) : 0.0f;
        weight = round_to<P>(p * factor);
        gradient = scale * (weight * gradient - p * delta);
        weight *= scale;
        if constexpr (kExtras && !kTransposed) {
          if (edge && p_.dbias.data != nullptr) add_bias_gradient(place, gradient);
        }
      }
    }
  }

  // Every edge is one lane's, and heads that share a bias run one after the other.
  __device__ void add_bias_gradient(int64_t place, float gradient) const {
    auto* to = static_cast<float*>(const_cast<void*>(p_.dbias.data));
    to[p_.dbias.offset(work_.b, work_.h) + place] += gradient;
  }

  __device__ void finish() {
    const float scale[2] = {p_.problem.scale, p_.problem.scale};
    const float one[2] = {1.0f, 1.0f};
    if constexpr (kFirst) write(p_.results[0], p_.partial, scale, 0);
    if constexpr (kSecond) {
      const PartialShape before(p_, p_.problem.d);
      write(p_.results[1], p_.partial + before.at(before.parts, 0), one, kSecondSums);
    }
  }

  __device__ void write(const ResultHeads& to, float* partial, const float (&scale)[2],
                        int from) const {
    if (to.view.data == nullptr) return;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      store_results<P>(p_, work_, to, Tile::kSliceFeatures * s, partial, scale, sums_[from + s],
                       own_);
    }
  }

  const AttentionLaunch& p_;
  const AttentionWork& work_;
  float scale_;
  uint32_t own_;
  Stream stream_;
  KTileBits<Tile> bits_;
  EdgeExtras<kTransposed> extras_;
  std::conditional_t<kWritesDkv, DkvWeightWriter<P>, NoDkvWeights> dkv_;
  QuerySlice held_[Tile::kPaired ? 1 : 2];
  float4 query_[2] = {};
  float sums_[(kFirst + kSecond) * kSlices][Tile::kTiles][4] = {};
};

template <bool kTransposed>
struct GradLauncher {
  const PanelAttention& p;
  Stream stream;

  template <class Tile, bool kExtras>
  void run() const {
    if constexpr (!kTransposed) {
      run_pass<Tile, 1, kExtras>();
    } else if constexpr (Tile::kSlices * Tile::kTiles <= 8) {
      run_pass<Tile, 3, kExtras>();
    } else {
      if (p.dk.data != nullptr) run_pass<Tile, 1, kExtras>();
      if (p.dv.data != nullptr) run_pass<Tile, 2, kExtras>();
    }
  }

  template <class Tile, int kWhat, bool kExtras>
  void run_pass() const {
    using Warp = AttentionGradWarp<Tile, kTransposed, kWhat, kExtras>;
    const AttentionProblem& q = p.problem;
    AttentionLaunch now(p);
    const ChunkedHeads of_rows[2] = {{q.q, q.d}, {p.grad, q.dv}};
    const ChunkedHeads of_columns[2] = {{q.k, q.d}, {q.v, q.dv}};
    for (int i = 0; i < 2; ++i) {
      now.own[i] = (kTransposed ? of_columns : of_rows)[i];
      now.gathered[i] = (kTransposed ? of_rows : of_columns)[i];
    }
    now.out_chunks = ResultHeads(p.out, q.dv, PrecisionTraits<Tile::P>::kStorage).chunks;
    now.results[0] =
        ResultHeads(kTransposed ? p.dk : p.dq, q.d, PrecisionTraits<Tile::P>::kStorage);
    now.results[1] = ResultHeads(p.dv, q.dv, PrecisionTraits<Tile::P>::kStorage);
    launch_attention<Warp>(now, "attention_grad", stream);
    if (kWhat & 1) {
      combine_attention(p, kTransposed ? p.dk : p.dq, q.d, q.scale, p.partial, false, stream);
    }
    if (kWhat & 2) {
      const PartialShape before(p, q.d);
      float* partial = p.partial + before.at(before.parts, 0);
      combine_attention(p, p.dv, q.dv, 1.0f, partial, false, stream);
    }
  }
};

// The pass over rows that also writes the weights that make dK and dV: of rows of one slice.
template <Precision P>
struct FusedBackwardLauncher {
  const PanelAttention& p;
  Stream stream;

  template <class Tile, bool kExtras>
  void run() const {
    if (Tile::kWarps > 1 || Tile::kSlices > 1) {
      throw std::invalid_argument("a: the backward pass in one has panels of 16 rows, 64 features");
    }
    GradLauncher<false>{p, stream}
        .template run_pass<AttentionTile<P, 1, Tile::kPaired ? 0 : 1>, 1 | kDkvWeights, kExtras>();
  }
};

template <Precision P>
void AttentionGradUnit<P>::rows(const PanelAttention& p, Stream stream) {
  with_attention_tile<P>(p, GradLauncher<false>{p, stream});
}

template <Precision P>
void AttentionGradUnit<P>::columns(const PanelAttention& p, Stream stream) {
  with_attention_tile<P>(p, GradLauncher<true>{p, stream});
}

template <Precision P>
void AttentionGradUnit<P>::fused_pass(const PanelAttention& p, Stream stream) {
  if constexpr (kWords<P>) {
    throw std::invalid_argument("precision: the backward pass in one has 16 bits");
  } else {
    with_attention_tile<P>(p, FusedBackwardLauncher<P>{p, stream});
  }
}

template <Precision P>
void AttentionGradUnit<P>::sum_dkv(const PanelAttention& p, Stream stream) {
  if constexpr (!kWords<P>) {
    p.dkv.tiles.starts != nullptr ? launch_dkv_tiles<P>(p, stream) : launch_dkv<P>(p, stream);
  }
}

}  // namespace gnnsparse::cuda
