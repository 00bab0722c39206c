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

  // What scores are made of, of the lane's edges and heads: the dot product, or the argument of the
  // leaky_relu.
  template <class Stage>
  __device__ __forceinline__ void arguments(uint32_t start, float (&x)[Tile::kOfLane]) const {
    if constexpr (kAdditive) {
#pragma unroll
      for (int i = 0; i < Tile::kHalves; ++i) {
        const int edge = lane_.slow + 8 * i;
        const float2 key = load_numbers(start + Stage::kNumbers + Tile::kNumberBytes * edge, lane_);
        x[2 * i] = own_.x + key.x;
        x[2 * i + 1] = own_.y + key.y;
      }
    } else {
#pragma unroll
      for (float& of : x) of = 0.0f;
      add_products(start + Stage::tile(kKey), lane_, query_, x);
    }
  }
  // A finished score to base 2.
  __device__ __forceinline__ float score_of(float x) const {
    if constexpr (kAdditive) return kLog2E * (x > 0.0f ? x : p_.problem.negative_slope * x);
    return kLog2E * (p_.problem.base.scale * x);
  }

 private:
  const GraphLaunch& p_;
  const TileLane<Tile>& lane_;
  TileCopies<Tile, kTiles> copies_;
  HeadColumns<Tile> query_;
  float2 own_ = {};
};

}  // namespace gnnsparse::cuda
