// The loop over the rows of a warp, a tile of edges at a time, with the copies of later tiles on
// their way over the ends of rows (see graph_stream.cuh).
#pragma once

#include "kernels/graph_attention/graph_tile.cuh"

namespace gnnsparse::cuda {

// Shared memory of a step: kTiles tiles, the numbers of edges, and, at a row's first step, the row:
// features and numbers.
template <class Tile, int kTiles, bool kEdgeNumbers, int kRowVectors, int kRowNumbers>
struct TileStage {
  static constexpr uint32_t kNumbers = kTiles * Tile::kBytes;
  static constexpr uint32_t kRow =
      kNumbers + (kEdgeNumbers ? Tile::kEdges * Tile::kNumberBytes : 0);
  static constexpr uint32_t kOfRow = kRow + kRowVectors * Tile::kRowBytes;
  static constexpr uint32_t kBytes =
      ceil_div<uint32_t>(kOfRow + kRowNumbers * Tile::kNumberBytes, 256) * 256;

  static __device__ constexpr uint32_t tile(int i) { return i * Tile::kBytes; }
  static __device__ constexpr uint32_t row_vector(int i) { return kRow + i * Tile::kRowBytes; }
  static __device__ constexpr uint32_t row_number(int i) { return kOfRow + i * Tile::kNumberBytes; }
};

// The edges of a step.
struct TileEdges {
  int edges;        // that there are
  int32_t columns;  // lane i has that of edge i
  int64_t nonzero;  // of edge lane / 2, in A, in the pass over columns
};

// Steps through the rows of a warp, and starts the copies of each step. It reads the columns of a
// step's edges a step before it needs them.
template <class Pass>
class TileProducer {
 public:
  __device__ TileProducer(const GraphLaunch& p, int lane, const WarpRows& rows, const Pass& pass)
      : p_(p), lane_(lane), rows_(rows), pass_(pass) {
    next_row();
    if (r_ < rows_.rows()) read_numbers();
  }

  // Starts the copies of the next step to the stage at `start`, if there is one.
  __device__ __forceinline__ void fetch(uint32_t start) {
    if (r_ < rows_.rows()) {
      if (at_ == 0) pass_.fetch_row(start, row_);
      pass_.fetch_edges(start, edges());
      at_ += Pass::Tile::kEdges;
      if (at_ >= row_.count) next_row();
      if (r_ < rows_.rows()) read_numbers();
    }
    commit_copies();
  }

 private:
  __device__ __forceinline__ int number(int edge) const { return min(at_ + edge, row_.count - 1); }
  // A map of 64 bits is read when it is needed: registers are short.
  __device__ __forceinline__ bool reads_maps() const {
    return Pass::kMaps && !p_.nnz_index_map.wide;
  }
  __device__ __forceinline__ TileEdges edges() const {
    int64_t nonzero = 0;
    if constexpr (Pass::kMaps) {
      nonzero = reads_maps() ? map_ : p_.nnz_index_map[row_.begin() + number(lane_ / 2)];
    }
    return {row_.count - at_, column_, nonzero};
  }
  __device__ __forceinline__ void read_numbers() {
    column_ = __ldg(p_.a.indices + row_.begin() + number(lane_ % Pass::Tile::kEdges));
    if (reads_maps()) {
      const auto* maps = static_cast<const int32_t*>(p_.nnz_index_map.data);
      map_ = __ldg(maps + row_.begin() + number(lane_ / 2));
    }
  }
  __device__ __forceinline__ void next_row() {
    at_ = 0;
    do {
      ++r_;
    } while (r_ < rows_.rows() && rows_.count(r_) <= 0);
    if (r_ < rows_.rows()) row_ = rows_.row(r_);
  }

  const GraphLaunch& p_;
  int lane_;
  const WarpRows& rows_;
  const Pass& pass_;
  GraphRow row_{};
  int32_t column_ = 0;
  int32_t map_ = 0;
  int r_ = -1;
  int at_ = 0;
};

template <class Pass>
__global__ void __launch_bounds__(kGraphThreads, Pass::kBlocks)
    graph_tile_kernel(const __grid_constant__ GraphLaunch p) {
  constexpr uint32_t kStage = Pass::Stage::kBytes;
  constexpr uint32_t kRing = Pass::kStages * kStage;
  const TileLane<typename Pass::Tile> lane(p);
  Pass pass(p, lane);
  char* memory = dynamic_shared();
  const uint32_t ring =
      static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + threadIdx.x / 32 * kRing;
  const WarpRows rows(p, lane.item, lane.id);
  TileProducer<Pass> producer(p, lane.id, rows, pass);
  for (int stage = 0; stage < Pass::kStages; ++stage) producer.fetch(ring + stage * kStage);
  uint32_t stage = ring;
  for (int r = 0; r < rows.rows(); ++r) {
    const GraphRow row = rows.row(r);
    if (row.count < 0) continue;
    pass.clear();
    for (int at = 0; at < row.count; at += Pass::Tile::kEdges) {
      wait_copies_but<Pass::kStages - 1>();
      __syncwarp();  // the copies of all lanes have arrived
      if (at == 0) pass.start(row, stage);
      pass.add(row, at, stage);
      __syncwarp();  // all lanes have read them
      producer.fetch(stage);
      stage += kStage;
      if (stage == ring + kRing) stage = ring;
    }
    pass.finish(row);
  }
  wait_copies();
}

// Calls the kernel for every item of work, block of heads and batch.
template <class Pass>
void launch_tiles(const GraphLaunch& p, const char* call, Stream stream) {
  static std::atomic<uint64_t> prepared{0};
  constexpr uint32_t kBytes = kGraphWarps * Pass::kStages * Pass::Stage::kBytes;
  static_assert(kBytes <= kCopyingSharedBytes, "more shared memory than a block has everywhere");
  prefer_shared_memory(graph_tile_kernel<Pass>, static_cast<int>(kBytes), prepared);
  const AttentionProblem& base = p.problem.base;
  const int64_t blocks = base.batches * GraphTiles::blocks(base.heads, base.dv);
  launch_shared(call, graph_tile_kernel<Pass>, grid_of(p.items(), kGraphWarps, blocks, call),
                kGraphThreads, kBytes, stream, p);
}

// Calls run(width), as a compile-time constant, with the features of a head.
template <class Run>
void with_tile_width(const GraphLaunch& p, const Run& run) {
  switch (p.problem.base.dv) {
    case 8:
      return run(std::integral_constant<int, 8>());
    case 16:
      return run(std::integral_constant<int, 16>());
    case 32:
      return run(std::integral_constant<int, 32>());
    case 64:
      return run(std::integral_constant<int, 64>());
    default:
      throw std::invalid_argument("d: there are no tiles of heads of such a width");
  }
}

// The same with the score: run(score, width).
template <class Run>
void with_tile(const GraphLaunch& p, const Run& run) {
  const auto of = [&](auto score) { with_tile_width(p, [&](auto width) { run(score, width); }); };
  switch (p.problem.score) {
    case Score::kDot:
      return of(std::integral_constant<Score, Score::kDot>());
    case Score::kAdditive:
      return of(std::integral_constant<Score, Score::kAdditive>());
    case Score::kGatv2:
      throw std::invalid_argument("score: there are no tiles for gatv2");
  }
}

}  // namespace gnnsparse::cuda
