// e' = e + norm(W2 act(W1 e + p_i + q_j) + b2), and the sums of e' at targets.
#pragma once

#include "kernels/edges/network_tile.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

// Sums of the first product become the hidden features, in place of q in `tile`.
template <class Tile>
__device__ __forceinline__ void store_hidden(const Tile& t, const EdgeNetwork& p, uint32_t tile,
                                             typename Tile::Sums& sums) {
  constexpr DType kStorage = PrecisionTraits<Tile::P>::kStorage;
  with_activation(p.act, [&](auto act) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t of_target[Tile::kFragments];
      t.of_target(p.p, p.hidden, i, of_target);
#pragma unroll
      for (int j = 0; j < Tile::kFragments; ++j) {
        const uint32_t at = t.pair_at(tile, i, j);
        const FloatPair q = unpack_pair<Tile::P>(load_shared_word(at));
        const FloatPair of = unpack_pair<Tile::P>(of_target[j]);
        float* x = sums[i / 2][j] + i % 2 * 2;
        x[0] += of.low + q.low;
        x[1] += of.high + q.high;
        store_shared(
            at, pack_pair<kStorage>(activated<Tile::P, act>(x[0]), activated<Tile::P, act>(x[1])));
      }
    }
  });
}

template <class Tile>
__device__ __forceinline__ void store_updated(Tile& t, const EdgeNetwork& p, typename Tile::Sums& z,
                                              FloatPair (&stats)[4]) {
  constexpr DType kStorage = PrecisionTraits<Tile::P>::kStorage;
#pragma unroll
  for (int j = 0; j < Tile::kFragments; ++j) {
    float scale[2], shift[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      scale[c] = p.has_norm ? t.vector(1, t.feature(j) + c) : 1.0f;
      shift[c] = p.has_norm ? t.vector(2, t.feature(j) + c) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* x = z[i / 2][j] + i % 2 * 2;
      const FloatPair e = unpack_pair<Tile::P>(load_shared_word(t.pair_at(t.own(), i, j)));
      const float low = (x[0] - stats[i].low) * stats[i].high * scale[0] + shift[0];
      const float high = (x[1] - stats[i].low) * stats[i].high * scale[1] + shift[1];
      store_shared(t.pair_at(t.own(), i, j), pack_pair<kStorage>(e.low + low, e.high + high));
    }
  }
}

template <class Tile>
__device__ __forceinline__ void add_bias(const Tile& t, typename Tile::Sums& z) {
#pragma unroll
  for (int j = 0; j < Tile::kFragments; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float bias = t.vector(0, t.feature(j) + c);
#pragma unroll
      for (int i = 0; i < 4; ++i) z[i / 2][j][i % 2 * 2 + c] += bias;
    }
  }
}

template <class Tile>
__device__ __forceinline__ void run_network(const EdgeNetwork& p) {
  Tile t(p, 2);
  t.prefetch_edges(t.own(), blockIdx.x);
  for (int64_t tile = blockIdx.x; tile < p.tiles(); tile += p.blocks) {
    t.begin(tile);
    typename Tile::Sums sums;
    t.multiply(t.own(), sums, [&] { t.copy_sources(t.other()); });
    store_hidden(t, p, t.other(), sums);
    t.multiply(t.other(), sums, [] {});
    add_bias(t, sums);
    FloatPair stats[4] = {{0.0f, 1.0f}, {0.0f, 1.0f}, {0.0f, 1.0f}, {0.0f, 1.0f}};
    if (p.has_norm) {
      t.row_stats(sums, stats);
    } else {
      __syncthreads();
    }
    t.prefetch_edges(t.other(), tile + p.blocks);  // all warps have read it
    store_updated(t, p, sums, stats);
    __syncthreads();
    t.store_rows(t.own(), p.new_edges, p.edge_dim, true);
    t.add_rows(t.own(), p.sums, p.edge_dim);
    t.swap();
  }
  t.end();
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::Shared::kBlocks)
    network_forward(const __grid_constant__ EdgeNetwork p) {
  if constexpr (Tile::kRuns) run_network<Tile>(p);
}

template <Precision P>
void EdgeNetworkUnit<P>::run(const EdgeNetwork& p, Stream stream) {
  with_network_width(p, [&](auto width) {
    using Tile = NetworkTile<P, width>;
    static std::atomic<uint64_t> prepared{0};
    prefer_shared_memory(network_forward<Tile>, Tile::Shared::kBytes, prepared);
    launch_shared("edge_network", network_forward<Tile>, dim3(static_cast<unsigned>(p.blocks)),
                  Tile::kThreads, Tile::Shared::kBytes, stream, p);
  });
  add_cut_rows<P>(p, p.sums, p.edge_dim, stream);
}

}  // namespace gnnsparse::cuda
