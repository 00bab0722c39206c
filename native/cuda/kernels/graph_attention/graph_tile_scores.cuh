// The scores of a tile's edges.
#pragma once

#include "kernels/graph_attention/graph_tile_stream.cuh"

namespace gnnsparse::cuda {

// Has the keys and values of edges copied, and makes scores of them. It is the part of a pass that
// forward and backward share.
template <class OfTile, Score S>
class TileScores {
 public:
  using Tile = OfTile;
  static constexpr bool kAdditive = S == Score::kAdditive;
  // The tiles of a step, and what is copied of a row: a query, or its number.
  static constexpr int kKey = 0;
  static constexpr int kValue = kAdditive ? 0 : 1;
  static constexpr int kTiles = kValue + 1;
  static constexpr int kRowVectors = kAdditive ? 0 : 1;
  static constexpr int kRowNumbers = kAdditive ? 1 : 0;

  __device__ TileScores(const GraphLaunch& p, const TileLane<Tile>& lane)
      : p_(p), lane_(lane), copies_(lane, kAdditive ? p.v : p.k, p.v) {}

  template <class Stage>
  __device__ __forceinline__ void fetch_row(uint32_t start, const GraphRow& row) const {
    if constexpr (kAdditive) {
      copy_row_numbers(start + Stage::row_number(0), p_.q, lane_, row.row);
    } else {
      copy_row(start + Stage::row_vector(0), p_.q, lane_, row.row);
    }
  }
  template <class Stage>
  __device__ __forceinline__ void fetch_edges(uint32_t start, const TileEdges& edges) const {
    copies_.copy(start + Stage::tile(0), edges.columns, edges.edges);
    if constexpr (kAdditive) {
      copy_numbers(start + Stage::kNumbers, p_.k, lane_, edges.columns, edges.edges);
    }
  }

  // Takes the row's query.
  template <class Stage>
  __device__ __forceinline__ void start(uint32_t start) {
    if constexpr (kAdditive) {
      own_ = load_numbers(start + Stage::row_number(0), lane_);
    } else {
      query_.set(HeadWords<Tile>(start + Stage::row_vector(0), lane_), lane_);
    }
  }

  // What scores are made of, of the edges `slow` and `slow` + 8 in each of the lane's two heads:
  // the dot product, or the argument of the leaky_relu.
  template <class Stage>
  __device__ __forceinline__ void arguments(uint32_t start, float (&x)[4]) const {
    if constexpr (kAdditive) {
      const uint32_t from = start + Stage::kNumbers + Tile::kNumberBytes * lane_.slow;
      const float2 near = load_numbers(from, lane_);
      const float2 far = load_numbers(from + 8 * Tile::kNumberBytes, lane_);
      x[0] = own_.x + near.x;
      x[1] = own_.y + near.y;
      x[2] = own_.x + far.x;
      x[3] = own_.y + far.y;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = 0.0f;
      add_products(start + Stage::tile(kKey), lane_, query_, x);
    }
  }
  // A finished score to base 2.
  __device__ __forceinline__ float score_of(float x) const {
    if constexpr (kAdditive) return kLog2E * (x > 0.0f ? x : p_.problem.negative_slope * x);
    return p_.score_scale * x;
  }

 private:
  const GraphLaunch& p_;
  const TileLane<Tile>& lane_;
  TileCopies<Tile, kTiles> copies_;
  HeadColumns<Tile> query_;
  float2 own_ = {};
};

}  // namespace gnnsparse::cuda
