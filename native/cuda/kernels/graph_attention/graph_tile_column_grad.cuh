// The gradients of graph attention over tiles of the rows of A^T, which are keys (see
// graph_column_grad.cuh).
#pragma once

#include "kernels/graph_attention/graph_parts.cuh"
#include "kernels/graph_attention/graph_tile_stream.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

template <class OfTile, Score S>
class TileColumnGrad {
 public:
  using Tile = OfTile;
  static constexpr bool kAdditive = S == Score::kAdditive;
  // The tiles of a step: queries, and rows of the result's gradient.
  static constexpr int kQuery = 0;
  static constexpr int kGrad = kAdditive ? 0 : 1;
  using Stage = TileStage<Tile, kGrad + 1, true, 0, 0>;
  static constexpr int kStages = 2;  // steps that are on their way
  static constexpr int kBlocks = kAdditive ? 4 : 3;
  static constexpr bool kMaps = true;

  __device__ TileColumnGrad(const GraphLaunch& p, const TileLane<Tile>& lane)
      : p_(p),
        lane_(lane),
        copies_(lane, kAdditive ? p.grad : p.q, p.grad),
        to_k_(p, lane, p.to_k),
        to_v_(p, lane, p.to_v),
        edges_(p.edges.data + lane.batch * p.edges.batch + lane.block * p.edges.head) {}

  __device__ __forceinline__ void fetch_row(uint32_t, const GraphRow&) const {}
  __device__ __forceinline__ void fetch_edges(uint32_t start, const TileEdges& edges) const {
    copies_.copy(start + Stage::tile(0), edges.columns, edges.edges);
    // Two lanes an edge: its weights, and the gradients of its scores.
    copy_async_or_zero(start + Stage::kNumbers + 16 * lane_.id,
                       edges_ + edges.nonzero * p_.edges.row + 16 * (lane_.id % 2),
                       lane_.id / 2 < edges.edges);
  }

  __device__ __forceinline__ void clear() {
    of_values_.clear();
    if constexpr (!kAdditive) of_keys_.clear();
    sum_ = 0.0f;
  }
  __device__ __forceinline__ void start(const GraphRow&, uint32_t) {}

  __device__ __forceinline__ void add(const GraphRow&, int, uint32_t start) {
    const int edge = lane_.id % 16;
    uint32_t words[4];
    load_matrices(start + Stage::kNumbers + Tile::kNumberBytes * edge + 16 * (lane_.id / 16),
                  words);
    const TileFactors weights = {{words[0], words[1]}};
    const TileFactors grads = {{words[2], words[3]}};
    of_values_.add(start + Stage::tile(kGrad), lane_, weights);
    if constexpr (kAdditive) {
#pragma unroll
      for (const uint32_t pair : grads.word) {
        const float2 x = decode_pair<Tile::kStorage>(pair);
        sum_ += x.x + x.y;
      }
    } else {
      of_keys_.add(start + Stage::tile(kQuery), lane_, grads);
    }
  }

  __device__ void finish(const GraphRow& row) {
    const float one[2] = {1.0f, 1.0f};
    if constexpr (kAdditive) {
      to_v_.write(row, of_values_, one);
      float sums[2];
      key_numbers(sums);
      to_k_.write(row, sums);
    } else {
      const float scale[2] = {p_.problem.base.scale, p_.problem.base.scale};
      to_v_.write(row, of_values_, one, 8 * p_.d_chunks);
      to_k_.write(row, of_keys_, scale);
    }
  }

 private:
  // The sums of the lane's two heads. The lanes 4 h to 4 h + 3 have the edges of head h.
  __device__ __forceinline__ void key_numbers(float (&sums)[2]) {
    for (int offset = 1; offset < 4; offset *= 2) sum_ += __shfl_xor_sync(kWarp, sum_, offset);
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[i] = __shfl_sync(kWarp, sum_, 4 * lane_.head(i));
  }

  const GraphLaunch& p_;
  const TileLane<Tile>& lane_;
  TileCopies<Tile, kGrad + 1> copies_;
  TileResult<Tile> to_k_;
  TileResult<Tile> to_v_;
  const char* edges_;
  TileSums<Tile> of_values_;
  TileSums<Tile> of_keys_;
  float sum_ = 0.0f;
};

template <Precision P>
void GraphTileColumnGradUnit<P>::run(const GraphAttentionPass& pass, Stream stream) {
  const GraphLaunch p(pass, kPerVector<P>);
  const char* call = "graph_attention_columns";
  with_tile(p, [&](auto score, auto width) {
    launch_tiles<TileColumnGrad<GraphTile<P, width>, score>>(p, call, stream);
  });
  if (p.work.cut_count == 0) return;
  add_graph_parts<P>(p, {p.grads.k, p.d_chunks, p.problem.base.d, 0},
                     {p.grads.v, p.dv_chunks, p.problem.base.dv, p.d_chunks}, call, stream);
}

}  // namespace gnnsparse::cuda
