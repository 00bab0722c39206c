// Graph attention forward over tiles: FlashAttention's online softmax (Dao et al. 2022), sixteen
// edges at a time.
#pragma once

#include "kernels/graph_attention/graph_combine.cuh"
#include "kernels/graph_attention/graph_tile_scores.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

template <class OfTile, Score S>
class TileForward {
 public:
  using Tile = OfTile;
  using Scores = TileScores<Tile, S>;
  using Stage =
      TileStage<Tile, Scores::kTiles, Scores::kAdditive, Scores::kRowVectors, Scores::kRowNumbers>;
  static constexpr int kStages = Scores::kAdditive ? 3 : 2;  // steps that are on their way
  static constexpr int kBlocks = Scores::kAdditive ? 4 : 3;
  static constexpr bool kMaps = false;

  __device__ TileForward(const GraphLaunch& p, const TileLane<Tile>& lane)
      : p_(p), lane_(lane), scores_(p, lane) {}

  __device__ __forceinline__ void fetch_row(uint32_t start, const GraphRow& row) const {
    scores_.template fetch_row<Stage>(start, row);
  }
  __device__ __forceinline__ void fetch_edges(uint32_t start, const TileEdges& edges) const {
    scores_.template fetch_edges<Stage>(start, edges);
  }

  __device__ __forceinline__ void clear() {
    values_.clear();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top_[i] = kNoEdge;
      sum_[i] = 0.0f;
    }
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
    for (int i = 0; i < 4; ++i) {
      x[i] = x[i] == kNoEdge ? 0.0f : exp2_fast(x[i] - top_[i % 2]);
      sum_[i % 2] += x[i];
    }
    values_.add(start + Stage::tile(Scores::kValue), lane_, factors_of<Tile>(x));
  }

  __device__ void finish(const GraphRow& row) {
    add_over_slow(sum_);
    float scale[2] = {1.0f, 1.0f};
    if (row.partial >= 0) {
      write_state(row.partial);
    } else {
      float lse[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scale[i] = sum_[i] == 0.0f ? 0.0f : 1.0f / sum_[i];
        lse[i] = sum_[i] == 0.0f ? kNoEdge : (top_[i] + log2_fast(sum_[i])) * kLn2;
      }
      write_numbers(p_.result.lse, lane_, row.row, lse);
    }
    write_features(p_, lane_, row, p_.to_out, values_, scale);
  }

 private:
  // Makes the tops the largest scores so far, and what was added up relative to them.
  __device__ __forceinline__ void raise(bool is_first, const float (&scores)[4]) {
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = fmaxf(scores[i], scores[i + 2]);
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        top = fmaxf(top, __shfl_xor_sync(kWarp, top, offset));
      }
      top = fmaxf(top, top_[i]);
      factor[i] = top == top_[i] ? 1.0f : exp2_fast(top_[i] - top);
      top_[i] = top;
      sum_[i] *= factor[i];
    }
    if (is_first || !__any_sync(kWarp, factor[0] != 1.0f || factor[1] != 1.0f)) return;
    values_.scale(factor);
  }
  __device__ void write_state(int partial) const {
    if (lane_.slow != 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (lane_.head(i) >= lane_.heads) continue;
      float* to = partial_of(p_, lane_, lane_.head(i), partial);
      to[0] = top_[i];
      to[1] = sum_[i];
    }
  }

  const GraphLaunch& p_;
  const TileLane<Tile>& lane_;
  Scores scores_;
  TileSums<Tile> values_;
  float top_[2];
  float sum_[2];
};

template <Precision P>
void GraphTileForwardUnit<P>::run(const GraphAttentionPass& pass, Stream stream) {
  const GraphLaunch p(pass, kPerVector<P>);
  const char* call = "graph_attention";
  with_tile(p, [&](auto score, auto width) {
    launch_tiles<TileForward<GraphTile<P, width>, score>>(p, call, stream);
  });
  combine_graph_rows<P, false>(p, call, stream);
}

}  // namespace gnnsparse::cuda
