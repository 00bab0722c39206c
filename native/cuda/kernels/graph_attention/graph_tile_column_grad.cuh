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
  static constexpr int kStages = kAdditive ? 3 : 2;  // steps that are on their way
  static constexpr int kBlocks = kAdditive ? 4 : 3;
  static constexpr bool kMaps = true;

  __device__ TileColumnGrad(const GraphLaunch& p, const TileLane<Tile>& lane)
      : p_(p),
        lane_(lane),
        queries_(p.q, lane),
        grads_(p.grad, lane),
        edges_(p.edges.data + lane.batch * p.edges.batch + lane.block * p.edges.head) {}

  __device__ __forceinline__ void fetch_row(uint32_t, const GraphRow&) const {}
  __device__ __forceinline__ void fetch_edges(uint32_t start, const TileEdges& edges) const {
#pragma unroll
    for (int i = 0; i < Tile::kCopies; ++i) {
      const int edge = i * Tile::kRowsPerCopy + lane_.copied_row();
      const int32_t row = __shfl_sync(kWarp, edges.columns, edge);
      const bool real = edge < edges.edges && lane_.has_group();
      if constexpr (!kAdditive) queries_.copy(start + Stage::tile(kQuery), i, row, real);
      grads_.copy(start + Stage::tile(kGrad), i, row, real);
    }
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
      write_features(p_, lane_, row, p_.to_v, of_values_, one);
      write_key_number(row);
    } else {
      const float scale[2] = {p_.problem.base.scale, p_.problem.base.scale};
      write_features(p_, lane_, row, p_.to_v, of_values_, one, 8 * p_.d_chunks);
      write_features(p_, lane_, row, p_.to_k, of_keys_, scale);
    }
  }

 private:
  // Here the lanes 4 h to 4 h + 3 have the edges of head h.
  __device__ __forceinline__ void write_key_number(const GraphRow& row) {
    for (int offset = 1; offset < 4; offset *= 2) sum_ += __shfl_xor_sync(kWarp, sum_, offset);
    float sums[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[i] = __shfl_sync(kWarp, sum_, 4 * lane_.head(i));
    if (row.partial < 0) return write_numbers(p_.grads.k, lane_, row.row, sums);
    if (lane_.slow != 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (lane_.head(i) < lane_.heads) {
        partial_of(p_, lane_, lane_.head(i), row.partial)[0] = sums[i];
      }
    }
  }

  const GraphLaunch& p_;
  const TileLane<Tile>& lane_;
  TileCopies<Tile> queries_;
  TileCopies<Tile> grads_;
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
