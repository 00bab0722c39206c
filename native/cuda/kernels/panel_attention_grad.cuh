// Gradients of attention over panels. The weights are made anew from the rows' logarithms of sums.
// A pass over rows of A gives dQ, one over rows of A^T gives dK and dV: no sum is shared between
// warps.
#pragma once

#include "kernels/panel_attention.cuh"

namespace gnnsparse::cuda {

// The pass over rows holds rows of Q and of the output's gradient and gathers K and V; that over
// columns holds K and V and gathers the others. `first` is Q or K, `second` the gradient or V. The
// pass over columns gives dK (kWhat & 1) and dV (kWhat & 2): both where their sums fit registers.
template <Precision P, int kSlices, bool kTransposed, int kWhat, bool kExtras>
class AttentionGradWarp {
 public:
  static constexpr bool kFirst = kWhat & 1;
  static constexpr bool kSecond = kWhat & 2;
  static constexpr int kSecondSums = kFirst ? kSlices : 0;
  static constexpr bool kHeld = kSlices == 1;    // own rows in registers
  static constexpr int kRing = 2 * kSlices + 2;  // a stage and what is on its way
  static constexpr uint32_t kOwnBytes = 2 * kSlices * kQueryBytes;
  // On their way to registers they share slices that are copied to after that.
  static constexpr uint32_t kOwnOffset = (kHeld ? 2 : kRing) * kSliceBytes;
  static constexpr uint32_t kSharedBytes = kRing * kSliceBytes + (kHeld ? 0 : kOwnBytes);

  __device__ AttentionGradWarp(const PanelAttention& p, const AttentionWork& work, uint32_t shared)
      : p_(p),
        work_(work),
        scale_(p.problem.scale * kLog2E),
        own_(shared + kOwnOffset),
        stream_(p, work, gathered_second(p, work), gathered_first(p, work), shared),
        facts_(p, work) {}

  __device__ void run() {
    copy_own_rows<kSlices>(p_, work_, own_first(p_, work_), own_);
    copy_own_rows<kSlices>(p_, work_, own_second(p_, work_), own_ + kSlices * kQueryBytes);
    commit_copies();
    stream_.start();
    wait_copies_but<RowStream<kSlices, kRing>::kAhead>();
    __syncwarp();
    if constexpr (kHeld) {
      held_[0] = load_query_matrices(own_, work_.lane);
      held_[1] = load_query_matrices(own_ + kQueryBytes, work_.lane);
    }
    if constexpr (!kTransposed) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) load_row_facts(facts_.own(upper), upper);
    }
    uint32_t following = stage_bits(p_, work_, 0);
    for (int i = 0; i < work_.item.stages; ++i) {
      const uint32_t bits = following;
      following = stage_bits(p_, work_, i + 1);
      stage(i, bits);
    }
    finish();
  }

 private:
  static __device__ HeadRows own_first(const PanelAttention& p, const AttentionWork& w) {
    return {kTransposed ? p.problem.k : p.problem.q, w.b, w.h, p.problem.d};
  }
  static __device__ HeadRows own_second(const PanelAttention& p, const AttentionWork& w) {
    return {kTransposed ? p.problem.v : p.grad, w.b, w.h, p.problem.dv};
  }
  static __device__ HeadRows gathered_first(const PanelAttention& p, const AttentionWork& w) {
    return {kTransposed ? p.problem.q : p.problem.k, w.b, w.h, p.problem.d};
  }
  static __device__ HeadRows gathered_second(const PanelAttention& p, const AttentionWork& w) {
    return {kTransposed ? p.grad : p.problem.v, w.b, w.h, p.problem.dv};
  }

  __device__ QuerySlice own_slice(int which, int slice) const {
    if constexpr (kHeld) {
      return held_[which];
    } else {
      return load_query_matrices(own_ + (which * kSlices + slice) * kQueryBytes, work_.lane);
    }
  }

  // Of a query: what its scores are lowered by, a whole number as in the forward pass, what is left
  // to divide its weights by, and what the gradients of its weights are lowered by.
  __device__ void load_row_facts(int query, int at) {
    const bool real = query >= 0;
    const int64_t place = work_.head * p_.queries + query;
    const float lse = real ? __ldg(p_.lse + place) : 0.0f;
    // Where no edge counts, every weight is zero.
    const bool empty = isinf(lse);
    shift_[at] = empty ? std::numeric_limits<float>::infinity() : floorf(lse * kLog2E);
    rest_[at] = empty ? 0.0f : exp2_fast(shift_[at] - lse * kLog2E);
    delta_[at] = real ? __ldg(p_.delta + place) : 0.0f;
  }

  __device__ void stage(int i, uint32_t bits) {
    if constexpr (kTransposed || kExtras) facts_.enter(i, bits);
    if constexpr (kTransposed) {
#pragma unroll
      for (int slot = 0; slot < kLaneColumns; ++slot) load_row_facts(facts_.id(slot), slot);
    }
    uint32_t second[kSlices];
    uint32_t first[kSlices];
    float weights[4][4] = {};    // scores at first
    float gradients[4][4] = {};  // of the weights, then of the scores
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      second[s] = stream_.next();
      multiply_keys<P>(second[s], work_.lane, own_slice(1, s), gradients);
    }
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      first[s] = stream_.next();
      multiply_keys<P>(first[s], work_.lane, own_slice(0, s), weights);
    }
    weigh(bits, weights, gradients);
    uint32_t a[2][4];
    if constexpr (kFirst) {
      to_operand<P>(gradients, a);
#pragma unroll
      for (int s = 0; s < kSlices; ++s) multiply_values<P>(first[s], work_.lane, a, sums_[s]);
    }
    if constexpr (kSecond) {
      to_operand<P>(weights, a);
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
        multiply_values<P>(second[s], work_.lane, a, sums_[kSecondSums + s]);
      }
    }
  }

  __device__ void weigh(uint32_t bits, float (&weights)[4][4], float (&gradients)[4][4]) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
#pragma unroll
      for (int slot = 0; slot < kLaneColumns; ++slot) {
        const int at = kTransposed ? slot : upper;
        float& weight = weights[slot >> 1][2 * upper + (slot & 1)];
        float& gradient = gradients[slot >> 1][2 * upper + (slot & 1)];
        const bool edge = bits >> result_bit(upper, slot >> 1, slot & 1) & 1u;
        float score = weight * scale_ - shift_[at];
        int64_t place = 0;
        float factor = 1.0f;
        bool counts = edge;
        if constexpr (kExtras) {
          if (edge) place = facts_.place(upper);
          if (edge && p_.problem.bias.data != nullptr) score += kLog2E * facts_.bias(place);
          counts = edge && facts_.counts(upper, slot);
          if (counts) factor = facts_.dropout(upper, slot);
        }
        // The rounded weight is the one that made the output, and so delta: with another the two
        // would not cancel where one edge has all the weight.
        const float p = counts ? exp2_fast(score) : 0.0f;
        weight = round_to<P>(p * factor);
        gradient = rest_[at] * (weight * gradient - p * delta_[at]);
        weight *= rest_[at];
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
    const AttentionProblem& q = p_.problem;
    const float scale[2] = {q.scale, q.scale};
    const float one[2] = {1.0f, 1.0f};
    if constexpr (kFirst) write(kTransposed ? p_.dk : p_.dq, q.d, p_.partial, scale, 0);
    if constexpr (kSecond) {
      const PartialShape before(p_, q.d);
      write(p_.dv, q.dv, p_.partial + before.at(before.parts, 0), one, kSecondSums);
    }
  }

  __device__ void write(const HeadsView& to, int64_t width, float* partial, const float (&scale)[2],
                        int from) const {
    if (to.data == nullptr) return;
    const AttentionOutput out(p_, work_, to, width, partial, scale);
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      store_pairs(out, sums_[from + s], 0, work_.lane, int64_t{kSliceFeatures} * s);
    }
  }

  const PanelAttention& p_;
  const AttentionWork& work_;
  float scale_;
  uint32_t own_;
  RowStream<kSlices, kRing> stream_;
  EdgeFacts<kTransposed> facts_;
  QuerySlice held_[2];
  float shift_[kTransposed ? kLaneColumns : 2];
  float rest_[kTransposed ? kLaneColumns : 2];
  float delta_[kTransposed ? kLaneColumns : 2];
  float sums_[(kFirst + kSecond) * kSlices][8][4] = {};
};

template <int kSlices, bool kTransposed, bool kExtras>
inline constexpr int kAttentionGradBlocks = kSlices == 2  ? 7
                                            : kTransposed ? 8
                                            : kExtras     ? 9
                                                          : 11;

template <Precision P, int kSlices, bool kTransposed, int kWhat, bool kExtras>
__global__ void __launch_bounds__(kWarp, kAttentionGradBlocks<kSlices, kTransposed, kExtras>)
    panel_attention_grad_kernel(const __grid_constant__ PanelAttention p) {
  using Warp = AttentionGradWarp<P, kSlices, kTransposed, kWhat, kExtras>;
  __shared__ __align__(1024) char memory[Warp::kSharedBytes];
  const AttentionWork work(p);
  Warp warp(p, work, static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
  warp.run();
}

template <Precision P, int kSlices, bool kTransposed, int kWhat, bool kExtras>
void launch_attention_grad(const PanelAttention& p, Stream stream) {
  const auto kernel = panel_attention_grad_kernel<P, kSlices, kTransposed, kWhat, kExtras>;
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(kernel, 0, prepared);
  const dim3 grid = grid_of(p.item_count, 1, p.head_count, "attention_grad");
  launch("attention_grad", kernel, grid, kWarp, stream, p);
  const AttentionProblem& q = p.problem;
  if (kWhat & 1) {
    combine_attention(p, kTransposed ? p.dk : p.dq, q.d, q.scale, p.partial, false, stream);
  }
  if (kWhat & 2) {
    const PartialShape before(p, q.d);
    combine_attention(p, p.dv, q.dv, 1.0f, p.partial + before.at(before.parts, 0), false, stream);
  }
}

template <Precision P, bool kTransposed, bool kExtras>
void run_attention_grads(const PanelAttention& p, Stream stream) {
  const bool wide = p.problem.d > kSliceFeatures || p.problem.dv > kSliceFeatures;
  if constexpr (!kTransposed) {
    wide ? launch_attention_grad<P, 2, false, 1, kExtras>(p, stream)
         : launch_attention_grad<P, 1, false, 1, kExtras>(p, stream);
  } else if (!wide) {
    launch_attention_grad<P, 1, true, 3, kExtras>(p, stream);
  } else {
    if (p.dk.data != nullptr) launch_attention_grad<P, 2, true, 1, kExtras>(p, stream);
    if (p.dv.data != nullptr) launch_attention_grad<P, 2, true, 2, kExtras>(p, stream);
  }
}

template <Precision P>
void run_attention_row_grads(const PanelAttention& p, Stream stream) {
  p.problem.has_extras() ? run_attention_grads<P, false, true>(p, stream)
                         : run_attention_grads<P, false, false>(p, stream);
}

template <Precision P>
void run_attention_column_grads(const PanelAttention& p, Stream stream) {
  p.problem.has_extras() ? run_attention_grads<P, true, true>(p, stream)
                         : run_attention_grads<P, true, false>(p, stream);
}

}  // namespace gnnsparse::cuda
