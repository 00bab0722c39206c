// Graph attention forward over tiles: FlashAttention's online softmax (Dao et al. 2022), sixteen
// edges at a time.
#pragma once

#include "kernels/graph_attention/graph_combine.cuh"
#include "kernels/graph_attention/graph_tile_scores.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

// Of additive scores: the kernels that go edge by edge are faster for dot products.
template <class OfTile>
class TileForward {
 public:
  using Tile = OfTile;
  using Scores = TileScores<Tile, Score::kAdditive>;
  using Stage =
      TileStage<Tile, Scores::kTiles, Scores::kAdditive, Scores::kRowVectors, Scores::kRowNumbers>;
  static constexpr int kStages = 2;  // steps that are on their way
  static constexpr int kBlocks = 4;
  static constexpr bool kMaps = false;

  __device__ TileForward(const GraphLaunch& p, const TileLane<Tile>& lane)
      : p_(p),
        lane_(lane),
        scores_(p, lane),
        to_out_(p, lane, p.to_out),
        to_shift_(p, lane, p.to_shift),
        to_scale_(p, lane, p.to_scale) {}

  __device__ __forceinline__ void fetch_row(uint32_t start, const GraphRow& row) const {
    scores_.template fetch_row<Stage>(start, row);
  }
  __device__ __forceinline__ void fetch_edges(uint32_t start, const TileEdges& edges) const {
    scores_.template fetch_edges<Stage>(start, edges);
  }

  __device__ __forceinline__ void clear() {
    values_.clear();
#pragma unroll
    for (int i = 0; i < 2; ++i) top_[i] = kNoEdge;
#pragma unroll
    for (int i = 0; i < 4; ++i) sums_[i] = 0.0f;
  }
  __device__ __forceinline__ void start(const GraphRow&, uint32_t start) {
    scores_.template start<Stage>(start);
  }

  __device__ __forceinline__ void add(const GraphRow& row, int at, uint32_t start) {
    float x[4];
    scores_.template arguments<Stage>(start, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool has = at + lane_.slow + 8 * (i / 2) < row.count;
      x[i] = has ? scores_.score_of(x[i]) : kNoEdge;
    }
    raise(at == 0, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = weight_relative(x[i], top_[i % 2]);
    const TileFactors weights = factors_of<Tile>(x);
    add_factors<Tile>(weights, sums_);
    values_.add(start + Stage::tile(Scores::kValue), lane_, weights);
  }

  __device__ void finish(const GraphRow& row) {
    float scale[2] = {1.0f, 1.0f};
    if (row.partial >= 0) {
      write_state(row.partial);
    } else {
      float shift[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool is_empty = sums_[i] == 0.0f;
        shift[i] = is_empty ? 0.0f : top_[i];
        scale[i] = is_empty ? 0.0f : reciprocal_fast(sums_[i]);
      }
      to_shift_.write(row, shift);
      to_scale_.write(row, scale);
    }
    to_out_.write(row, values_, scale);
  }

 private:
  // Makes the tops the largest scores so far, and what was added up relative to them.
  __device__ __forceinline__ void raise(bool is_first, const float (&scores)[4]) {
    float top[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) top[i] = fmaxf(scores[i], scores[i + 2]);
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) top[i] = fmaxf(top[i], __shfl_xor_sync(kWarp, top[i], offset));
    }
    if (!is_first) {
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        top[i] = fmaxf(top[i], top_[i]);
        factor[i] = top[i] == top_[i] ? 1.0f : exp2_fast(top_[i] - top[i]);
      }
      if (__any_sync(kWarp, factor[0] != 1.0f || factor[1] != 1.0f)) {
        values_.scale(factor);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums_[i] *= factor[i % 2];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) top_[i] = top[i];
  }
  __device__ void write_state(int partial) const {
    if (lane_.slow != 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (lane_.head(i) >= lane_.heads) continue;
      float* to = partial_of(p_, lane_, lane_.head(i), partial);
      to[0] = top_[i];
      to[1] = sums_[i];
    }
  }

  const GraphLaunch& p_;
  const TileLane<Tile>& lane_;
  Scores scores_;
  TileResult<Tile> to_out_;
  TileResult<Tile> to_shift_;
  TileResult<Tile> to_scale_;
  TileSums<Tile> values_;
  float top_[2];
  float sums_[4];  // of weights in the lane's two heads, twice
};

template <Precision P>
void GraphTileForwardUnit<P>::run(const GraphAttentionPass& pass, Stream stream) {
  const GraphLaunch p(pass, kPerVector<P>);
  const char* call = "graph_attention";
  if (p.problem.score != Score::kAdditive) {
    throw std::invalid_argument("score: the forward pass over tiles takes additive scores alone");
  }
  with_tile_width(
      p, [&](auto width) { launch_tiles<TileForward<GraphTile<P, width>>>(p, call, stream); });
  combine_graph_rows<P, false>(p, call, stream);
}

}  // namespace gnnsparse::cuda
