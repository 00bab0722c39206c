// Attention over panels, forward (FlashAttention's online softmax over the columns that exist): the
// scores of a stage are where the next product needs them, nothing of the size of the edges is
// kept.
#pragma once

#include "kernels/panel_attention.cuh"

namespace gnnsparse::cuda {

// kExtras: a bias, dropout or a causal mask.
template <Precision P, int kSlices, bool kExtras>
class AttentionWarp {
 public:
  static constexpr int kRing = 3;

  __device__ AttentionWarp(const PanelAttention& p, const AttentionWork& work, uint32_t shared)
      : p_(p),
        work_(work),
        scale_(p.problem.scale * kLog2E),
        own_(shared + (kRing - 1) * kSliceBytes),
        stream_(p, work, HeadRows(p.problem.k, work.b, work.h, p.problem.d),
                HeadRows(p.problem.v, work.b, work.h, p.problem.dv), shared),
        facts_(p, work) {}

  // Rows of Q on their way to registers share the ring's last slice.
  static constexpr uint32_t kSharedBytes = kRing * kSliceBytes;
  static_assert(kSlices * kQueryBytes <= kSliceBytes, "Q fits a slice");

  __device__ void run() {
    copy_own_rows<kSlices>(p_, work_, HeadRows(p_.problem.q, work_.b, work_.h, p_.problem.d), own_);
    commit_copies();
    stream_.start();
    wait_copies_but<RowStream<kSlices, kRing>::kAhead>();
    __syncwarp();
    QuerySlice queries[kSlices];
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      queries[s] = load_query_matrices(own_ + s * kQueryBytes, work_.lane);
    }
    uint32_t following = stage_bits(p_, work_, 0);
    for (int i = 0; i < work_.item.stages; ++i) {
      const uint32_t bits = following;
      following = stage_bits(p_, work_, i + 1);
      if constexpr (kExtras) facts_.enter(i, bits);
      float scores[4][4] = {};
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
        const uint32_t keys = stream_.next();
        multiply_keys<P>(keys, work_.lane, queries[s], scores);
      }
      weigh(bits, scores);
      uint32_t a[2][4];
      to_operand<P>(scores, a);
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
        const uint32_t values = stream_.next();
        multiply_values<P>(values, work_.lane, a, sums_[s]);
      }
    }
    finish();
  }

 private:
  // Scores to weights that are not divided by their sum yet.
  __device__ void weigh(uint32_t bits, float (&scores)[4][4]) {
    constexpr float kLow = -std::numeric_limits<float>::infinity();
    float top[2] = {kLow, kLow};
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
#pragma unroll
      for (int slot = 0; slot < kLaneColumns; ++slot) {
        float& score = scores[slot >> 1][2 * upper + (slot & 1)];
        const bool edge = bits >> result_bit(upper, slot >> 1, slot & 1) & 1u;
        score = edge ? score * scale_ : kLow;
        if constexpr (kExtras) {
          if (edge && p_.problem.bias.data != nullptr) {
            score += kLog2E * facts_.bias(facts_.place(upper));
          }
          if (!facts_.counts(upper, slot)) score = kLow;
        }
        top[upper] = fmaxf(top[upper], score);
      }
    }
    raise(top);
    float shift[2];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) shift[upper] = max_[upper] == kLow ? 0.0f : max_[upper];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float& score = scores[i / 4][i % 4];
      score = exp2_fast(score - shift[i % 4 / 2]);
      sum_[i % 4 / 2] += score;
      if constexpr (kExtras) {
        if (score != 0.0f) score *= facts_.dropout(i % 4 / 2, 2 * (i / 4) + i % 2);
      }
    }
  }

  // Weights are by powers of two of a maximum that lags behind by at most 8: rescaling the sums
  // each time a row's maximum rises would cost more than all other work on some stages. It is a
  // whole number, so that a weight's rounding does not depend on it, and the backward passes repeat
  // it.
  __device__ void raise(float (&top)[2]) {
    bool rises = false;
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      top[upper] = fmaxf(top[upper], __shfl_xor_sync(0xffffffffu, top[upper], 1));
      top[upper] = fmaxf(top[upper], __shfl_xor_sync(0xffffffffu, top[upper], 2));
      rises |= top[upper] > max_[upper] + 8.0f;
    }
    if (!__any_sync(0xffffffffu, rises)) return;
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const float raised = fmaxf(max_[upper], ceilf(top[upper]));
      const float factor = max_[upper] == raised ? 1.0f : exp2f(max_[upper] - raised);
      max_[upper] = raised;
      sum_[upper] *= factor;
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
#pragma unroll
        for (int tile = 0; tile < 8; ++tile) {
          sums_[s][tile][2 * upper] *= factor;
          sums_[s][tile][2 * upper + 1] *= factor;
        }
      }
    }
  }

  __device__ void finish() {
    float scale[2];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      sum_[upper] += __shfl_xor_sync(0xffffffffu, sum_[upper], 1);
      sum_[upper] += __shfl_xor_sync(0xffffffffu, sum_[upper], 2);
      scale[upper] = sum_[upper] > 0.0f ? 1.0f / sum_[upper] : 0.0f;
      write_facts(upper);
    }
    const AttentionOutput out(p_, work_, p_.out, p_.problem.dv, p_.partial, scale);
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      store_pairs(out, sums_[s], 0, work_.lane, int64_t{kSliceFeatures} * s);
    }
  }

  __device__ void write_facts(int upper) const {
    if ((work_.lane & 3) != 0) return;
    const int in_panel = 8 * upper + (work_.lane >> 2);
    if (work_.item.partial >= 0) {
      const PartialShape shape(p_, p_.problem.dv);
      const int64_t part = work_.partial(p_);
      p_.partial[shape.facts(part, 0, in_panel)] = max_[upper];
      p_.partial[shape.facts(part, 1, in_panel)] = sum_[upper];
    } else if (const int64_t row = work_.row_id(p_, in_panel); row >= 0) {
      p_.lse[work_.head * p_.queries + row] = (max_[upper] + log2f(sum_[upper])) * kLn2;
    }
  }

  const PanelAttention& p_;
  const AttentionWork& work_;
  float scale_;
  uint32_t own_;
  RowStream<kSlices, kRing> stream_;
  EdgeFacts<false> facts_;
  float max_[2] = {-std::numeric_limits<float>::infinity(),
                   -std::numeric_limits<float>::infinity()};
  float sum_[2] = {};
  float sums_[kSlices][8][4] = {};
};

template <int kSlices, bool kExtras>
inline constexpr int kAttentionBlocks = kSlices == 2 ? 8
                                        : kExtras    ? 12
                                                     : 16;

template <Precision P, int kSlices, bool kExtras>
__global__ void __launch_bounds__(kWarp, kAttentionBlocks<kSlices, kExtras>)
    panel_attention_kernel(const __grid_constant__ PanelAttention p) {
  __shared__ __align__(1024) char memory[AttentionWarp<P, kSlices, kExtras>::kSharedBytes];
  const AttentionWork work(p);
  AttentionWarp<P, kSlices, kExtras> warp(p, work,
                                          static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
  warp.run();
}

template <Precision P, int kSlices, bool kExtras>
void launch_attention_forward(const PanelAttention& p, Stream stream) {
  const auto kernel = panel_attention_kernel<P, kSlices, kExtras>;
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(kernel, 0, prepared);
  launch("attention", kernel, grid_of(p.item_count, 1, p.head_count, "attention"), kWarp, stream,
         p);
  combine_attention(p, p.out, p.problem.dv, 1.0f, p.partial, true, stream);
}

template <Precision P>
void run_attention_forward(const PanelAttention& p, Stream stream) {
  const AttentionProblem& q = p.problem;
  const bool extras = q.has_extras();
  const bool wide = q.d > kSliceFeatures || q.dv > kSliceFeatures;
  if (wide) {
    extras ? launch_attention_forward<P, 2, true>(p, stream)
           : launch_attention_forward<P, 2, false>(p, stream);
  } else {
    extras ? launch_attention_forward<P, 1, true>(p, stream)
           : launch_attention_forward<P, 1, false>(p, stream);
  }
}

}  // namespace gnnsparse::cuda
