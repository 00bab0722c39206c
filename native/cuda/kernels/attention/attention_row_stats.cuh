// What the backward passes know of each query beside its row of Q: its SoftmaxStats, and delta, the
// sum of gradient times output that the weights' gradients are lowered by (FlashAttention-2,
// section 3.2).
#pragma once

#include "kernels/attention/panel_attention.cuh"

namespace gnnsparse::cuda {

// Those of a warp's own queries, made in the pass over rows, which also writes them for the pass
// over columns. Two lanes take a row.
template <class Tile>
class RowStats {
  static constexpr Precision P = Tile::P;
  static constexpr int kElements = kPerVector<P>;
  static constexpr int kChunks = Tile::kPaired ? 2 : 4;  // of a slice that a lane takes

 public:
  // Asks for rows of the output while those of the gradient are on their way.
  __device__ RowStats(const AttentionLaunch& p, const AttentionWork& work)
      : row_(work.row_id(work.lane >> 1)), half_(work.lane & 1) {
    if (row_ < 0) return;
    at_ = work.head * p.queries + row_;
    softmax_ = __ldg(reinterpret_cast<const float2*>(p.stats) + at_);
    if (p.out_chunks.data == nullptr) return;
    const ChunkRows out = p.out_chunks.of(work.b, work.h);
    const char* row = out.data + uint64_t{static_cast<uint32_t>(row_)} * out.stride;
#pragma unroll
    for (int i = 0; i < Tile::kSlices * kChunks; ++i) {
      const int byte = sizeof(StorageOf<P>) * feature(i);
      if (byte < out.bytes) out_[i] = load_vec16(row + byte);
    }
  }

  // Once the warp's rows of the gradient are in shared memory: their first slice is at `grads`.
  __device__ void make(const AttentionLaunch& p, const AttentionWork& work, uint32_t grads) {
    float sum = 0.0f;
    if (p.out_chunks.data != nullptr) {
#pragma unroll
      for (int i = 0; i < Tile::kSlices * kChunks; ++i) {
        float out[kElements];
        decode<PrecisionTraits<P>::kStorage>(out_[i], out);
        sum += dot(grad_chunk(grads, work.lane, i), out);
      }
    } else if (row_ >= 0) {
#pragma unroll 1
      for (int i = 0; i < Tile::kSlices * kChunks; ++i) {
        float out[kElements];
        load_out(p, work, i, out);
        sum += dot(grad_chunk(grads, work.lane, i), out);
      }
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    stats_ = make_float4(softmax_.x, softmax_.y, sum, 0.0f);
    if (row_ >= 0 && half_ == 0) reinterpret_cast<float4*>(p.row_stats)[at_] = stats_;
  }

  // Of a row of the warp; all lanes ask together.
  __device__ float4 of(int in_window) const {
    const int from = 2 * in_window;
    return make_float4(__shfl_sync(0xffffffffu, stats_.x, from, kWarp),
                       __shfl_sync(0xffffffffu, stats_.y, from, kWarp),
                       __shfl_sync(0xffffffffu, stats_.z, from, kWarp), 0.0f);
  }

 private:
  // First of the lane's chunk i.
  __device__ int feature(int i) const {
    return Tile::kSliceFeatures * (i / kChunks) + kElements * (half_ * kChunks + i % kChunks);
  }

  __device__ Vec16 grad_chunk(uint32_t grads, int lane, int i) const {
    const int chunk = (Tile::kPaired ? kRowChunks / 2 : 0) + half_ * kChunks + i % kChunks;
    Vec16 grad;
    load_shared(grads + i / kChunks * kQueryBytes + kChunkBytes * query_chunk(lane >> 1, chunk),
                grad.word);
    return grad;
  }
  __device__ void load_out(const AttentionLaunch& p, const AttentionWork& work, int i,
                           float (&out)[kElements]) const {
    const DenseView view = p.out.of(work.b, work.h);
    for (int e = 0; e < kElements; ++e) {
      const int f = feature(i) + e;
      out[e] = f < p.problem.dv ? load_scalar(view.data, view.dtype, row_ * view.stride + f) : 0.0f;
    }
  }
  // Of the gradient as the passes multiply it.
  __device__ static float dot(const Vec16& grad, const float (&out)[kElements]) {
    float g[kElements];
    to_floats<P>(grad, g);
    float sum = 0.0f;
#pragma unroll
    for (int e = 0; e < kElements; ++e) sum += g[e] * out[e];
    return sum;
  }

  int row_;
  int half_;
  int64_t at_ = 0;
  float2 softmax_ = {};
  Vec16 out_[Tile::kSlices * kChunks] = {};
  float4 stats_ = {};
};

}  // namespace gnnsparse::cuda
