// Gradients of an edge network over tiles of edges, which are computed again. The products with
// rows of all edges, those of the weights, are left to what calls it: their factors are written.
#pragma once

#include "kernels/edges/network_forward.cuh"

namespace gnnsparse::cuda {

// Sums over the lanes of the same features, of eight numbers of each lane: that of number
// `lane / 4`.
__device__ __forceinline__ float sum_of_eight(float (&v)[8], int lane) {
#pragma unroll
  for (int step = 4; step > 0; step /= 2) {
    const bool upper = lane & 4 * step;
#pragma unroll
    for (int i = 0; i < step; ++i) {
      const float sent = upper ? v[i] : v[i + step];
      v[i] = (upper ? v[i + step] : v[i]) + __shfl_xor_sync(~0u, sent, 4 * step);
    }
  }
  return v[0];
}

template <class Tile>
class NetworkGrad {
 public:
  static constexpr Precision P = Tile::P;
  static constexpr DType kStorage = PrecisionTraits<P>::kStorage;
  static constexpr int kFragments = Tile::kFragments;
  using Sums = typename Tile::Sums;

  __device__ explicit NetworkGrad(const EdgeNetworkGrad& p)
      : p_(p), network_(p.network), t_(p.network, 4) {}

  __device__ void run() {
    const int64_t end = p_.first_tile + p_.tile_count;
    t_.prefetch_edges(t_.own(), p_.first_tile + blockIdx.x);
    for (int64_t tile = p_.first_tile + blockIdx.x; tile < end; tile += network_.blocks) {
      t_.begin(tile);
      const int64_t first = (tile - p_.first_tile) * kNetworkRows;
      Sums sums;
      t_.multiply(t_.own(), sums, [&] { t_.copy_sources(t_.other()); });
      store_hidden(t_, network_, t_.other(), sums);
      keep_inputs(sums);
      t_.multiply(t_.other(), sums, [&] {
        t_.store_rows(t_.other(), p_.hidden_rows + first * network_.hidden, network_.hidden, false);
        if (p_.grad_edges != nullptr) t_.copy_edges(t_.own(), p_.grad_edges, tile);
      });
      of_outputs(sums);
      t_.multiply(t_.other(), sums, [&] {
        const int features = network_.edge_dim;
        t_.store_rows(t_.other(), p_.grad_out + first * features, features, false);
      });
      __syncthreads();
      of_inputs(sums);
      t_.multiply(t_.other(), sums, [&] {
        const int features = network_.hidden;
        t_.store_rows(t_.other(), p_.grad_hidden + first * features, features, false);
        t_.add_rows(t_.other(), p_.grad_p, features);
      });
      add_to_edges(sums);
      __syncthreads();
      t_.prefetch_edges(t_.other(), tile + network_.blocks);
      t_.store_rows(t_.own(), p_.grad_e, network_.edge_dim, true);
      t_.swap();
    }
    t_.end();
    store_columns();
  }

 private:
  // What the activation is computed of, which the lane reads again.
  __device__ uint4* kept(int j) const {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * kFragments + j;
    return reinterpret_cast<uint4*>(p_.scratch) + row * Tile::kThreads + threadIdx.x;
  }
  __device__ void keep_inputs(const Sums& x) const {
#pragma unroll
    for (int j = 0; j < kFragments; ++j) {
      *kept(j) = make_uint4(
          pack_pair<kStorage>(x[0][j][0], x[0][j][1]), pack_pair<kStorage>(x[0][j][2], x[0][j][3]),
          pack_pair<kStorage>(x[1][j][0], x[1][j][1]), pack_pair<kStorage>(x[1][j][2], x[1][j][3]));
    }
  }

  // Of the updated features, in `own`: e' and its sums have gradients. Returns a pair of them.
  __device__ FloatPair of_updated(int i, int j) const {
    return unpack_pair<P>(load_shared_word(t_.pair_at(t_.own(), i, j)));
  }
  __device__ void gather_updated() const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t of_target[kFragments] = {};
      if (p_.grad_sums != nullptr) t_.of_target(p_.grad_sums, network_.edge_dim, i, of_target);
#pragma unroll
      for (int j = 0; j < kFragments; ++j) {
        FloatPair grad = unpack_pair<P>(of_target[j]);
        const uint32_t at = t_.pair_at(t_.own(), i, j);
        if (p_.grad_edges != nullptr) {
          const FloatPair more = unpack_pair<P>(load_shared_word(at));
          grad = {grad.low + more.low, grad.high + more.high};
        }
        store_shared(at, pack_pair<kStorage>(grad.low, grad.high));
      }
    }
  }

  // The gradients before the norm, in place of the hidden features. `z` is what the norm is of.
  __device__ void of_outputs(Sums& z) {
    gather_updated();
    FloatPair means[4] = {};
    if (network_.has_norm) {
      normalise(z);
    } else {
      __syncthreads();  // all warps have read the hidden features
    }
    if (network_.has_norm) norm_means(z, means);
    const float all = static_cast<float>(network_.edge_dim);
#pragma unroll
    for (int group = 0; group < kFragments / 4; ++group) {
      float sums[kNetworkColumnSums][8] = {};
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int j = 4 * group + k / 2;
        const int c = k % 2;
        const float weight = network_.has_norm ? t_.vector(1, t_.feature(j) + c) : 1.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const FloatPair grads = of_updated(i, j);
          const float grad = c == 0 ? grads.low : grads.high;
          float& x = z[i / 2][j][i % 2 * 2 + c];
          sums[1][k] += grad;
          sums[2][k] += grad * x;
          const float centred = grad * weight - means[i].low / all - x * (means[i].high / all);
          const bool real = t_.feature(j) < network_.edge_dim;
          x = !network_.has_norm ? grad : real ? centred * rstd_[i] : 0.0f;
          sums[0][k] += x;
        }
      }
#pragma unroll
      for (int s = 0; s < kNetworkColumnSums; ++s) {
        columns_[s][group] += sum_of_eight(sums[s], t_.lane());
      }
#pragma unroll
      for (int j = 4 * group; j < 4 * group + 4; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* x = z[i / 2][j] + i % 2 * 2;
          store_shared(t_.pair_at(t_.other(), i, j), pack_pair<kStorage>(x[0], x[1]));
        }
      }
    }
  }
  __device__ void normalise(Sums& z) {
    add_bias(t_, z);
    FloatPair stats[4];
    t_.row_stats(z, stats);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rstd_[i] = stats[i].high;
#pragma unroll
      for (int j = 0; j < kFragments; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = z[i / 2][j][i % 2 * 2 + c];
          x = (x - stats[i].low) * stats[i].high;
        }
      }
    }
  }
  // The sums of the normed features' gradients, and of them times the normed features `x`.
  __device__ void norm_means(const Sums& x, FloatPair (&means)[4]) {
#pragma unroll
    for (int j = 0; j < kFragments; ++j) {
      const float low = t_.vector(1, t_.feature(j));
      const float high = t_.vector(1, t_.feature(j) + 1);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const FloatPair grad = of_updated(i, j);
        const float* of = x[i / 2][j] + i % 2 * 2;
        means[i].low += grad.low * low + grad.high * high;
        means[i].high += grad.low * low * of[0] + grad.high * high * of[1];
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      means[i] = {Tile::quad_sum(means[i].low), Tile::quad_sum(means[i].high)};
    }
    t_.exchange(1, means, [&](int i, int part, FloatPair other) {
      if (part == 0) means[i] = {0.0f, 0.0f};
      means[i].low += other.low;
      means[i].high += other.high;
    });
  }

  // The gradients before the activation, in `other`, of those behind it.
  __device__ void of_inputs(const Sums& grads) const {
    with_activation(network_.act, [&](auto act) {
#pragma unroll
      for (int j = 0; j < kFragments; ++j) {
        const uint4 words = *kept(j);
        const uint32_t inputs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const FloatPair x = unpack_pair<P>(inputs[i]);
          const float* grad = grads[i / 2][j] + i % 2 * 2;
          store_shared(t_.pair_at(t_.other(), i, j),
                       pack_pair<kStorage>(grad[0] * activation_slope<P, act>(x.low),
                                           grad[1] * activation_slope<P, act>(x.high)));
        }
      }
    });
  }
  __device__ void add_to_edges(const Sums& grads) const {
#pragma unroll
    for (int j = 0; j < kFragments; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const FloatPair grad = of_updated(i, j);
        const float* more = grads[i / 2][j] + i % 2 * 2;
        store_shared(t_.pair_at(t_.own(), i, j),
                     pack_pair<kStorage>(grad.low + more[0], grad.high + more[1]));
      }
    }
  }
  // A lane has the sums of one feature in each four fragments.
  __device__ void store_columns() const {
    const int64_t row =
        static_cast<int64_t>(blockIdx.x) * kNetworkRowGroups + t_.warp() / Tile::Shared::kParts;
    const int number = t_.lane() / 4;
#pragma unroll
    for (int s = 0; s < kNetworkColumnSums; ++s) {
#pragma unroll
      for (int group = 0; group < kFragments / 4; ++group) {
        const int feature = t_.feature(4 * group + number / 2) + number % 2;
        p_.columns[(row * kNetworkColumnSums + s) * Tile::kWidth + feature] = columns_[s][group];
      }
    }
  }

  const EdgeNetworkGrad& p_;
  const EdgeNetwork& network_;
  Tile t_;
  float rstd_[4] = {};
  float columns_[kNetworkColumnSums][kFragments / 4] = {};
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::Shared::kBlocks)
    network_grad(const __grid_constant__ EdgeNetworkGrad p) {
  if constexpr (Tile::kRuns) NetworkGrad<Tile>(p).run();
}

// A warp takes a segment; a lane eight features.
template <Precision P>
__global__ void __launch_bounds__(kSumThreads) network_column_sums(const NetworkColumnSums p) {
  constexpr DType kStorage = PrecisionTraits<P>::kStorage;
  const int64_t segment =
      static_cast<int64_t>(blockIdx.x) * kSumWarps + static_cast<int>(threadIdx.x / 32);
  const int feature = static_cast<int>(threadIdx.x % 32) * 8;
  if (segment >= p.segments || feature >= p.features) return;
  float* out = p.out + static_cast<int64_t>(p.columns[segment]) * p.features + feature;
  float sums[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) sums[c] = out[c];
  const int32_t end = p.starts[segment + 1];
#pragma unroll 4
  for (int32_t i = p.starts[segment]; i < end; ++i) {
    float x[8];
    decode<kStorage>(load_vec16(p.rows + static_cast<int64_t>(p.order[i]) * p.features + feature),
                     x);
#pragma unroll
    for (int c = 0; c < 8; ++c) sums[c] += x[c];
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) out[c] = sums[c];
}

template <Precision P>
void EdgeNetworkGradUnit<P>::run(const EdgeNetworkGrad& p, Stream stream) {
  with_network_width(p.network, [&](auto width) {
    using Tile = NetworkTile<P, width>;
    static std::atomic<uint64_t> prepared{0};
    prefer_shared_memory(network_grad<Tile>, Tile::Shared::kBytes, prepared);
    launch_shared("edge_network", network_grad<Tile>, dim3(static_cast<unsigned>(p.network.blocks)),
                  Tile::kThreads, Tile::Shared::kBytes, stream, p);
  });
}
template <Precision P>
void EdgeNetworkGradUnit<P>::add_targets(const EdgeNetworkGrad& p, Stream stream) {
  add_cut_rows<P>(p.network, p.grad_p, p.network.hidden, stream);
}
template <Precision P>
void EdgeNetworkGradUnit<P>::add_columns(const NetworkColumnSums& p, Stream stream) {
  launch("edge_network", network_column_sums<P>, grid_of(p.segments, kSumWarps, 1, "edge_network"),
         kSumThreads, stream, p);
}

}  // namespace gnnsparse::cuda
