#include "kernels/attention/panel_attention.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

namespace {

constexpr int kThreads = 128;

struct Combine {
  PanelAttention p;
  HeadsView to;
  int64_t width;
  float scale;
  const float* partial;
};

// How much each part of a softmax counts, by its own maximum.
class PartWeights {
 public:
  __device__ PartWeights(const Combine& c, const PartialShape& shape, int64_t part, int count,
                         int row)
      : maxima_(c.partial + shape.row_stat(part, 0, row)), stride_(2 * shape.rows) {
    top_ = -std::numeric_limits<float>::infinity();
    for (int i = 0; i < count; ++i) top_ = fmaxf(top_, maxima_[stride_ * i]);
    for (int i = 0; i < count; ++i) {
      total_ += (*this)(i)*maxima_[stride_ * i + stride_ / 2];
    }
  }
  __device__ float operator()(int i) const {
    return isinf(top_) ? 0.0f : exp2f(maxima_[stride_ * i] - top_);
  }
  __device__ float total() const { return total_; }
  __device__ float top() const { return isinf(top_) ? 0.0f : top_; }

 private:
  const float* maxima_;
  int stride_;  // of a part
  float top_;
  float total_ = 0.0f;
};

// A block takes a cut panel of a head; four features of a row a thread.
template <bool kSoftmax>
__global__ void __launch_bounds__(kThreads) combine_kernel(const __grid_constant__ Combine c) {
  wait_for_previous();
  const PanelAttention& p = c.p;
  const auto cut = p.work.cuts[blockIdx.x];
  const int64_t head = p.first_head + blockIdx.y;
  const PartialShape shape(p, c.width);
  const int64_t first = int64_t{blockIdx.y} * p.work.partials + cut.first;
  const int quads = static_cast<int>(shape.stride / 4);
  const MutableDenseView to = c.to.mutable_of(head / p.problem.heads, head % p.problem.heads);
  for (int i = threadIdx.x; i < shape.rows * quads; i += kThreads) {
    const int in_panel = i / quads;
    const int64_t feature = i % quads * 4;
    const int64_t row = int64_t{cut.index} * shape.rows + in_panel;
    if (row >= p.a.rows || feature >= c.width) continue;
    const int64_t id = p.stored.row_ids != nullptr ? p.stored.row_ids[row] : row;
    float sum[4] = {};
    const float* part = c.partial + shape.at(first, in_panel) + feature;
    const auto add = [&](int j, float weight) {
      const auto v = *reinterpret_cast<const float4*>(part + shape.at(j, 0));
      sum[0] += weight * v.x;
      sum[1] += weight * v.y;
      sum[2] += weight * v.z;
      sum[3] += weight * v.w;
    };
    float scale = c.scale;
    if constexpr (kSoftmax) {
      const PartWeights weights(c, shape, first, cut.count, in_panel);
      for (int j = 0; j < cut.count; ++j) add(j, weights(j));
      scale = weights.total() > 0.0f ? 1.0f / weights.total() : 0.0f;
      if (feature == 0) p.stats[head * p.queries + id] = {weights.top(), scale};
    } else {
      for (int j = 0; j < cut.count; ++j) add(j, 1.0f);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[j] *= scale;
    store_row(to, id, feature, c.width, sum);
  }
}

// Heads [first, first + count) of the problem.
PanelAttention heads_of(const PanelAttention& p, int64_t first, int64_t count) {
  PanelAttention some = p;
  some.first_head = p.first_head + first;
  some.head_count = count;
  return some;
}

// Calls run_heads with all heads, or, where they share a bias that has a gradient, one after the
// other, so that the gradient has one writer.
template <class RunHeads>
void by_bias_writer(const PanelAttention& p, const RunHeads& run_heads) {
  const EdgeValuesView& to = p.dbias;
  const bool shared = to.data != nullptr && ((to.batch == 0 && p.problem.batches > 1) ||
                                             (to.head == 0 && p.problem.heads > 1));
  if (!shared) return run_heads(p);
  for (int64_t head = 0; head < p.head_count; ++head) run_heads(heads_of(p, head, 1));
}

template <Precision P>
void run_rows(const PanelAttention& p, Stream stream) {
  by_bias_writer(p, [&](const PanelAttention& some) { AttentionGradUnit<P>::rows(some, stream); });
}

// As many heads at a time as the weights have room for.
template <Precision P>
void run_fused_backward(const PanelAttention& p, Stream stream) {
  by_bias_writer(p, [&](const PanelAttention& some) {
    const int64_t concurrent_heads = p.dkv.heads;
    for (int64_t head = 0; head < some.head_count; head += concurrent_heads) {
      const auto now = heads_of(some, head, std::min(concurrent_heads, some.head_count - head));
      AttentionGradUnit<P>::fused_pass(now, stream);
      AttentionGradUnit<P>::sum_dkv(now, stream);
    }
  });
}

template <Precision P>
void run(const PanelAttention& p, AttentionPass pass, Stream stream) {
  switch (pass) {
    case AttentionPass::kForward:
      return AttentionForwardUnit<P>::run(p, stream);
    case AttentionPass::kRows:
      return run_rows<P>(p, stream);
    case AttentionPass::kColumns:
      return AttentionGradUnit<P>::columns(p, stream);
    case AttentionPass::kFused:
      return run_fused_backward<P>(p, stream);
  }
}

}  // namespace

void combine_attention(const PanelAttention& p, const HeadsView& to, int64_t width, float scale,
                       const float* partial, bool softmax, Stream stream) {
  if (p.work.cut_count == 0 || to.data == nullptr) return;
  const Combine combine = {p, to, width, scale, partial};
  const auto kernel = softmax ? combine_kernel<true> : combine_kernel<false>;
  const dim3 grid = grid_of(p.work.cut_count, 1, p.head_count, "attention_combine");
  launch_early("attention_combine", kernel, grid, kThreads, stream, combine);
}

void attention_panel(const PanelAttention& p, AttentionPass pass, Stream stream) {
  dispatch_precision<StoredOperands>(p.problem.precision, "attention",
                                     [&](auto precision) { run<precision>(p, pass, stream); });
}

}  // namespace gnnsparse::cuda
