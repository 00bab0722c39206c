// Attention over panels, forward (FlashAttention's online softmax over the columns that exist): the
// scores of a K tile are where the next product needs them, nothing of the size of the edges is
// kept.
#pragma once

#include "kernels/attention/attention_bytes.cuh"
#include "kernels/attention/panel_attention.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

// kExtras: a bias, dropout or a causal mask.
template <class RowTile, bool kExtras>
class AttentionWarp {
 public:
  using Tile = RowTile;
  static constexpr Precision P = Tile::P;
  static constexpr int kSlices = Tile::kSlices;
  static constexpr bool kNarrow = Tile::kPaired && !Tile::kBytes;
  // More warps at a time are worth more than another slice; four that share rows take whole K
  // tiles.
  static constexpr int kTileBatch = Tile::kWarps > 1 ? 2 : 1;  // taken at a time
  static constexpr int kPipelineStages = Tile::kWarps > 1 ? 8 : kSlices == 1 ? 3 : 4;
  static constexpr int kAhead = Tile::kWarps > 1 ? 4 : kPipelineStages - 1;
  using Stream = RowStream<Tile, kPipelineStages, kAhead>;
  static constexpr uint32_t kOwnBytes = kSlices * kQueryBytes;
  // One warp's rows of Q, and those of its results, share the slice that is copied to last.
  static constexpr bool kShares = Tile::kWarps == 1;
  static_assert(kOwnBytes <= kTileSliceBytes, "own rows fit a slice");
  static constexpr uint32_t kSharedBytes =
      Stream::kBytes + (kShares ? 0 : Tile::kWarps * kOwnBytes);
  // That must fit on a multiprocessor: registers are the limit.
  static constexpr int kBlocks = kSlices == 2 ? 8
                                              : resident_blocks((kExtras || kSplit<P> ? 12
                                                                 : kNarrow            ? 18
                                                                                      : 16) /
                                                                Tile::kWarps);

  __device__ AttentionWarp(const AttentionLaunch& p, const AttentionWork& work, uint32_t shared)
      : p_(p),
        work_(work),
        own_(shared + (kShares ? (kPipelineStages - 1) * kTileSliceBytes
                               : Stream::kBytes + work.warp * kOwnBytes)),
        stream_(p.a, work.item,
                LaneChunk<Tile>(p.gathered[0].of(work.b, work.h), p.gathered[1].of(work.b, work.h),
                                work.lane),
                shared),
        bits_(p, work),
        extras_(p, work) {}

  __device__ void run() {
    const LaterPanel<Tile> later(p_);
    stream_.start([&] { copy_own_rows<Tile, kSlices>(p_, work_, own_); });
    later.ask(p_, work_);
    uint32_t following[kTileBatch];
    load_bits_of(0, following);
    stream_.wait_for_own();
    set_scale();
    QuerySlice queries[kSlices];
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      if constexpr (Tile::kBytes) {
        queries[s] = load_query_for_bytes(own_, work_.lane);
      } else {
        queries[s] = load_query_slice<P>(own_ + s * kQueryBytes, work_.lane);
      }
    }
    for (int i = 0; i < work_.item.k_tiles; i += kTileBatch) {
      uint32_t bits[kTileBatch];
#pragma unroll
      for (int j = 0; j < kTileBatch; ++j) bits[j] = lane_bits(following[j], kQueryRows);
      load_bits_of(i + kTileBatch, following);
      if constexpr (kExtras) extras_.enter(i, bits[0]);
      if constexpr (Tile::kWarps > 1) {
        multiply_shared_k_tiles(i, bits, queries);
      } else {
        multiply_k_tile(i, bits, queries);
      }
    }
    stream_.finish();
    finish();
  }

 private:
  // Without extras a row's largest score is found before it is scaled, by a factor above zero.
  __device__ void set_scale() {
    scale_ = p_.problem.scale * kLog2E;
    if constexpr (!kExtras) {
      if (scale_ < 0.0f) turn_signs();
      scale_ = fmaxf(fabsf(scale_), std::numeric_limits<float>::min());
    }
  }

  // Of the own rows of Q, in shared memory.
  __device__ void turn_signs() const {
    constexpr uint32_t kSigns = kWords<P> ? 0x80000000u : 0x80008000u;
#pragma unroll 1
    for (uint32_t at = kChunkBytes * work_.lane; at < kOwnBytes; at += kChunkBytes * kWarp) {
      uint32_t x[4];
      load_shared(own_ + at, x);
      store_shared(own_ + at,
                   make_uint4(x[0] ^ kSigns, x[1] ^ kSigns, x[2] ^ kSigns, x[3] ^ kSigns));
    }
    __syncwarp();
  }

  __device__ void load_bits_of(int k_tile, uint32_t (&bits)[kTileBatch]) const {
#pragma unroll
    for (int j = 0; j < kTileBatch; ++j) bits[j] = bits_.of(k_tile + j);
  }

  __device__ __forceinline__ void multiply_k_tile(int i, const uint32_t (&bits)[1],
                                                  const QuerySlice (&queries)[kSlices]) {
    float all[1][4][4] = {};
    auto& scores = all[0];
    const uint32_t first = stream_.template next<0>(i);
    if constexpr (Tile::kBytes) {
      multiply_key_bytes<Tile::kType>(first, work_.lane, queries[0], scores);
    } else {
      multiply_keys<P, 0, Tile::kFirstKeysEnd>(first, work_.lane, queries[0], scores);
    }
    if constexpr (kSlices == 2) {
      multiply_keys<P>(stream_.template next<1>(i), work_.lane, queries[1], scores);
    }
    kExtras ? weigh_extras(bits[0], scores) : weigh(bits, all);
    const WeightOperand<P> a(scores);
    add_up(a);
    if constexpr (Tile::kBytes) {
      multiply_value_bytes<Tile::kType>(first, work_.lane, a.reg, sums_[0]);
    } else if constexpr (Tile::kPaired) {
      add_values<P, Tile::kSecondValues>(first, work_.lane, a, sums_[0]);
    } else {
      add_values<P>(stream_.template next<kSlices>(i), work_.lane, a, sums_[0]);
    }
    if constexpr (kSlices == 2) {
      add_values<P>(stream_.template next<3>(i), work_.lane, a, sums_[1]);
    }
  }

  // Of a panel whose warps share the rows. Two K tiles at a time have twice as much to do that does
  // not wait for one another; there is no branch, which would keep it apart.
  __device__ __forceinline__ void multiply_shared_k_tiles(int i, const uint32_t (&bits)[kTileBatch],
                                                          const QuerySlice (&queries)[kSlices]) {
    uint32_t keys[kTileBatch];
    uint32_t values[kTileBatch];
    stream_.next_k_tiles(i, keys, values);
    float scores[kTileBatch][4][4] = {};
#pragma unroll
    for (int j = 0; j < kTileBatch; ++j)
      multiply_keys<P>(keys[j], work_.lane, queries[0], scores[j]);
    weigh(bits, scores);
#pragma unroll
    for (int j = 0; j < kTileBatch; ++j) {
      const WeightOperand<P> a(scores[j]);
      add_up(a);
      add_values<P>(values[j], work_.lane, a, sums_[0]);
    }
  }

  // Scores to weights that are not divided by their sum yet.
  __device__ __forceinline__ void weigh(const uint32_t (&bits)[kTileBatch],
                                        float (&scores)[kTileBatch][4][4]) {
    float top[2] = {kLow, kLow};
#pragma unroll
    for (int i = 0; i < 16 * kTileBatch; ++i) {
      // In the order of the bits seven of them go to predicates at once; where registers are short
      // that costs more than it saves.
      constexpr bool kByBits = Tile::kWarps > 1 || Tile::kPaired;
      const int upper = kByBits ? i / 4 % 2 : i % 4 / 2;
      const int j = kByBits ? i % 4 : i / 4 % 4;
      const int odd = kByBits ? i / 8 % 2 : i % 2;
      float& score = scores[i / 16][j][2 * upper + odd];
      score = bits[i / 16] & 1u << result_bit(upper, j, odd) ? score : kLow;
      top[upper] = fmaxf(top[upper], score);
    }
    raise(top[0] * scale_, top[1] * scale_);
    const float shift[2] = {shift_of(0), shift_of(1)};
#pragma unroll
    for (int i = 0; i < 16 * kTileBatch; ++i) {
      float& score = scores[i / 16][i / 4 % 4][i % 4];
      score = exp2_fast(fmaf(score, scale_, -shift[i % 4 / 2]));
      if constexpr (!kSumsByProduct) sum_[i % 4] += score;
    }
  }

  // The sums of the weights as they enter the product with V: a product with ones.
  __device__ __forceinline__ void add_up(const WeightOperand<P>& a) {
    if constexpr (kSumsByProduct) {
      const uint32_t one = pack_pair<PrecisionTraits<P>::kOperand>(1.0f, 1.0f);
      const uint32_t ones[2] = {one, one};
      mma<kArithmetic<P>>(sum_, a.reg[0], ones);
      mma<kArithmetic<P>>(sum_, a.reg[1], ones);
    }
  }

  __device__ void weigh_extras(uint32_t bits, float (&scores)[4][4]) {
    float top[2] = {kLow, kLow};
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
#pragma unroll
      for (int slot = 0; slot < kLaneColumns; ++slot) {
        float& score = scores[slot >> 1][2 * upper + (slot & 1)];
        const bool edge = bits >> result_bit(upper, slot >> 1, slot & 1) & 1u;
        score = edge ? extras_.biased(__fmul_rn(score, scale_), extras_.place(upper)) : kLow;
        if (!extras_.counts(upper, slot)) score = kLow;
        top[upper] = fmaxf(top[upper], score);
      }
    }
    raise(top[0], top[1]);
    const float shift[2] = {shift_of(0), shift_of(1)};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float& score = scores[i / 4][i % 4];
      score = exp2_fast(score - shift[i % 4 / 2]);
      sum_[i % 4] += score;
      if (score != 0.0f) score *= extras_.dropout(i % 4 / 2, 2 * (i / 4) + i % 2);
    }
  }

  // Before a row's first edge, weights of nothing.
  __device__ float shift_of(int upper) const { return max_[upper] == kLow ? 0.0f : max_[upper]; }

  // Weights are by powers of two of a maximum that lags behind by at most 8: rescaling the sums
  // each time a row's maximum rises would cost more than all other work on some K tiles. It is a
  // whole number, so that a weight's rounding does not depend on it, and the backward passes repeat
  // it.
  __device__ __forceinline__ void raise(float lower_top, float upper_top) {
    float top[2] = {lower_top, upper_top};  // of the lane's slots
    const bool rises = top[0] > max_[0] + 8.0f || top[1] > max_[1] + 8.0f;
    if (!__any_sync(0xffffffffu, rises)) return;
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      top[upper] = fmaxf(top[upper], __shfl_xor_sync(0xffffffffu, top[upper], 1));
      top[upper] = fmaxf(top[upper], __shfl_xor_sync(0xffffffffu, top[upper], 2));
      const float raised = fmaxf(max_[upper], ceilf(top[upper]));
      const float factor = max_[upper] == raised ? 1.0f : exp2f(max_[upper] - raised);
      max_[upper] = raised;
      sum_[2 * upper] *= factor;
      sum_[2 * upper + 1] *= factor;
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
#pragma unroll
        for (int tile = 0; tile < Tile::kTiles; ++tile) {
          sums_[s][tile][2 * upper] *= factor;
          sums_[s][tile][2 * upper + 1] *= factor;
        }
      }
    }
  }

  __device__ void finish() {
    float sum[2];
    float scale[2];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      sum[upper] = sum_[2 * upper];
      if constexpr (!kSumsByProduct) {
        sum[upper] += sum_[2 * upper + 1];
        sum[upper] += __shfl_xor_sync(0xffffffffu, sum[upper], 1);
        sum[upper] += __shfl_xor_sync(0xffffffffu, sum[upper], 2);
      }
      scale[upper] = sum[upper] > 0.0f ? reciprocal_fast(sum[upper]) : 0.0f;
    }
    write_row_stats(sum, scale);
    if constexpr (Tile::kBytes) {
      store_byte_results(scale);
    } else {
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
        store_results<P>(p_, work_, p_.results[0], Tile::kSliceFeatures * s, p_.partial, scale,
                         sums_[s], own_);
      }
    }
  }

  // The sums times the scales of V, partial ones too. Rows without edges stay zeros where a scale
  // is NaN.
  __device__ void store_byte_results(const float (&scale)[2]) const {
    const AttentionOutput out(p_, work_, p_.results[0], p_.partial, scale);
    const FeatureFactors& factors = p_.value_scale;
    const float* from = factors.data + work_.b * factors.batch + work_.h * factors.head;
#pragma unroll
    for (int chunk = 0; chunk < kByteHeadChunks; ++chunk) {
      const int feature = byte_feature(work_.lane, chunk);
      if (feature >= p_.results[0].width) continue;
      const float4 found = __ldg(reinterpret_cast<const float4*>(from + feature));
      const float of_feature[4] = {found.x, found.y, found.z, found.w};
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        float v[4];
        byte_sums(sums_[0], chunk, upper, v);
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = scale[upper] > 0.0f ? v[i] * of_feature[i] : 0.0f;
        out.store(upper, feature, v);
      }
    }
  }

  // Of the four lanes that know a pair of rows, two take one each.
  __device__ void write_row_stats(const float (&sums)[2], const float (&scale)[2]) const {
    const bool upper = work_.lane & 1;
    const int in_window = 8 * upper + (work_.lane >> 2);
    const int row = work_.row_id(in_window);
    if (row < 0 || (work_.lane & 2) != 0) return;
    const float top = upper ? max_[1] : max_[0];
    const float sum = upper ? sums[1] : sums[0];
    if (work_.item.partial >= 0) {
      const PartialShape shape(p_, p_.problem.dv);
      const int64_t part = work_.partial(p_);
      p_.partial[shape.row_stat(part, 0, work_.in_panel(in_window))] = top;
      p_.partial[shape.row_stat(part, 1, work_.in_panel(in_window))] = sum;
    } else {
      p_.stats[work_.head * p_.queries + row] = {top == kLow ? 0.0f : top, scale[upper]};
    }
  }

  static constexpr float kLow = -std::numeric_limits<float>::infinity();
  const AttentionLaunch& p_;
  const AttentionWork& work_;
  float scale_;
  uint32_t own_;
  Stream stream_;
  KTileBits<Tile> bits_;
  EdgeExtras<false> extras_;
  float max_[2] = {kLow, kLow};
  // Of the weights: of the lane's even and odd slots, of a row or, by a product, of both alike.
  static constexpr bool kSumsByProduct = !kExtras && !kWords<P>;
  float sum_[4] = {};
  float sums_[kSlices][Tile::kTiles][4] = {};
};

struct ForwardLauncher {
  const PanelAttention& p;
  Stream stream;

  template <class Tile, bool kExtras>
  void run() const {
    AttentionLaunch now(p);
    now.own[0] = ChunkedHeads(p.problem.q, p.problem.d);
    now.gathered[0] = ChunkedHeads(p.problem.k, p.problem.d);
    now.gathered[1] = ChunkedHeads(p.problem.v, p.problem.dv);
    now.results[0] = ResultHeads(p.out, p.problem.dv, PrecisionTraits<Tile::P>::kStorage);
    launch_attention<AttentionWarp<Tile, kExtras>>(now, "attention", stream);
    combine_attention(p, p.out, p.problem.dv, 1.0f, p.partial, true, stream);
  }
};

template <Precision P>
void AttentionForwardUnit<P>::run(const PanelAttention& p, Stream stream) {
  with_attention_tile<P>(p, ForwardLauncher{p, stream});
}

}  // namespace gnnsparse::cuda
