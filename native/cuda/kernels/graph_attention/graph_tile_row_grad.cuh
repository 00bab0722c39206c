// The gradients of graph attention over tiles of the rows of A: that of queries, and what each edge
// adds to those of keys and values (see graph_row_grad.cuh).
#pragma once

#include "kernels/graph_attention/graph_parts.cuh"
#include "kernels/graph_attention/graph_tile_scores.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

template <class OfTile, Score S>
class TileRowGrad {
 public:
  using Tile = OfTile;
  using Scores = TileScores<Tile, S>;
  static constexpr bool kAdditive = Scores::kAdditive;
  // What is copied of a row after its query: the gradient of the result, and the result; its
  // SoftmaxStats, and, where it is given, the inner sum.
  static constexpr int kGrad = Scores::kRowVectors;
  static constexpr int kShift = Scores::kRowNumbers;
  static constexpr int kScale = kShift + 1;
  static constexpr int kInner = kShift + 2;
  using Stage = TileStage<Tile, Scores::kTiles, kAdditive, kGrad + 2, kShift + 3>;
  static constexpr int kStages = 2;  // steps that are on their way
  static constexpr int kBlocks = kAdditive ? 4 : 3;
  static constexpr bool kMaps = false;

  __device__ TileRowGrad(const GraphLaunch& p, const TileLane<Tile>& lane)
      : p_(p), lane_(lane), scores_(p, lane), to_q_(p, lane, p.to_q) {}

  __device__ __forceinline__ void fetch_row(uint32_t start, const GraphRow& row) const {
    scores_.template fetch_row<Stage>(start, row);
    copy_row(start + Stage::row_vector(kGrad), p_.grad, lane_, row.row);
    copy_row(start + Stage::row_vector(kGrad + 1), p_.out, lane_, row.row);
    copy_row_numbers(start + Stage::row_number(kShift), p_.shift, lane_, row.row);
    copy_row_numbers(start + Stage::row_number(kScale), p_.scale, lane_, row.row);
    if (p_.inner.data != nullptr) {
      copy_row_numbers(start + Stage::row_number(kInner), p_.inner, lane_, row.row);
    }
  }
  __device__ __forceinline__ void fetch_edges(uint32_t start, const TileEdges& edges) const {
    scores_.template fetch_edges<Stage>(start, edges);
  }

  __device__ __forceinline__ void clear() {
    if constexpr (!kAdditive) queries_.clear();
    sum_[0] = sum_[1] = 0.0f;
  }
  __device__ __forceinline__ void start(const GraphRow& row, uint32_t start) {
    scores_.template start<Stage>(start);
    const HeadWords<Tile> grad(start + Stage::row_vector(kGrad), lane_);
    grad_.set(grad, lane_);
    shift_ = load_numbers(start + Stage::row_number(kShift), lane_);
    scale_ = load_numbers(start + Stage::row_number(kScale), lane_);
    set_inner(start, grad);
    edges_ = p_.edges.data + lane_.batch * p_.edges.batch + lane_.block * p_.edges.head +
             row.begin() * p_.edges.row;
  }

  __device__ __forceinline__ void add(const GraphRow& row, int at, uint32_t start) {
    float x[4];
    scores_.template arguments<Stage>(start, x);
    float weights[4];
    float grads[4] = {};
    add_products(start + Stage::tile(Scores::kValue), lane_, grad_, grads);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool has = at + lane_.slow + 8 * (i / 2) < row.count;
      const float shift = i % 2 == 0 ? shift_.x : shift_.y;
      const float scale = i % 2 == 0 ? scale_.x : scale_.y;
      weights[i] = has ? exp2_fast(scores_.score_of(x[i]) - shift) * scale : 0.0f;
      grads[i] = has ? weights[i] * (grads[i] - inner_[i % 2]) : 0.0f;
      if constexpr (kAdditive) {
        if (!(x[i] > 0.0f)) grads[i] *= p_.problem.negative_slope;
        sum_[i % 2] += grads[i];
      }
    }
    write_edges(row, at, weights, grads);
    if constexpr (!kAdditive) {
      queries_.add(start + Stage::tile(Scores::kKey), lane_, factors_of<Tile>(grads));
    }
  }

  __device__ void finish(const GraphRow& row) {
    if constexpr (kAdditive) {
      add_over_slow(sum_);
      to_q_.write(row, sum_);
    } else {
      const float scale[2] = {p_.problem.base.scale, p_.problem.base.scale};
      to_q_.write(row, queries_, scale);
    }
  }

 private:
  // The sums over the row's edges of weight times its gradient: those given, or those of the result
  // and its gradient.
  __device__ __forceinline__ void set_inner(uint32_t start, const HeadWords<Tile>& grad) {
    if (p_.inner.data != nullptr) {
      const float2 inner = load_numbers(start + Stage::row_number(kInner), lane_);
      inner_[0] = inner.x;
      inner_[1] = inner.y;
      return;
    }
    const HeadWords<Tile> out(start + Stage::row_vector(kGrad + 1), lane_);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < Tile::kPerHead; ++j) {
      const float2 x = decode_pair<Tile::kStorage>(grad.word[j]);
      const float2 y = decode_pair<Tile::kStorage>(out.word[j]);
      sum += x.x * y.x + x.y * y.y;
    }
    for (int offset = 1; offset < 4; offset *= 2) sum += __shfl_xor_sync(kWarp, sum, offset);
    // The lanes 4 h to 4 h + 3 have the sum of head h.
#pragma unroll
    for (int i = 0; i < 2; ++i) inner_[i] = __shfl_sync(kWarp, sum, 4 * lane_.head(i));
  }

  __device__ __forceinline__ void write_edges(const GraphRow& row, int at,
                                              const float (&weights)[4],
                                              const float (&grads)[4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int number = at + lane_.slow + 8 * i;
      if (number >= row.count) continue;
      char* to = const_cast<char*>(row_at(edges_, p_.edges, number)) + 4 * lane_.fast;
      auto* words = reinterpret_cast<uint32_t*>(to);
      words[0] = pack_pair<Tile::kStorage>(weights[2 * i], weights[2 * i + 1]);
      words[4] = pack_pair<Tile::kStorage>(grads[2 * i], grads[2 * i + 1]);
    }
  }

  const GraphLaunch& p_;
  const TileLane<Tile>& lane_;
  Scores scores_;
  TileResult<Tile> to_q_;
  const char* edges_ = nullptr;
  HeadColumns<Tile> grad_;
  TileSums<Tile> queries_;
  float2 shift_ = {};
  float2 scale_ = {};
  float inner_[2] = {};
  float sum_[2] = {};
};

template <Precision P>
void GraphTileRowGradUnit<P>::run(const GraphAttentionPass& pass, Stream stream) {
  const GraphLaunch p(pass, kPerVector<P>);
  const char* call = "graph_attention_rows";
  with_tile(p, [&](auto score, auto width) {
    launch_tiles<TileRowGrad<GraphTile<P, width>, score>>(p, call, stream);
  });
  if (p.work.cut_count == 0) return;
  add_graph_parts<P>(p, {p.grads.q, p.d_chunks, p.problem.base.d, 0}, {}, call, stream);
}

}  // namespace gnnsparse::cuda
