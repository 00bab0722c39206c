// SDDMM on Tensor Cores over panels of 16 rows: the rows of K that a panel needs go once through
// shared memory, as those of X in panel_spmm.cuh, the panel's rows of Q stay there. One warp is a
// block. panel_tile.h has the maps.
#include "device/async.cuh"
#include "device/launch.cuh"
#include "device/mma.cuh"
#include "device/vector.cuh"
#include "gnnsparse/panel_problem.h"

namespace gnnsparse::cuda {
namespace {

constexpr uint32_t kStageBytes = 16 * kStageChunks;
constexpr uint32_t kQueryBytes = 16 * kQueryChunks;
// A score on its way to `at`, counted from the panel's first nonzero.
struct Score {
  uint32_t at;
  float value;
};
constexpr int kListed = 256;  // scores of a stage that are gathered before they are written

constexpr uint32_t kListBytes = kListed * sizeof(Score);
constexpr int kBlocks = 16;  // that must fit on a multiprocessor

// Where the scores of a lane go: rows g and g + 8 of the panel, in row order. Most stages have few:
// they are put side by side in shared memory first, so that a store writes 32 of them.
class ScoreOutput {
 public:
  __device__ ScoreOutput(const PanelSddmm& p, const PanelItem& item, int64_t index, int lane,
                         Score* list)
      : p_(p), lane_(lane), base_(p.indptr[item.row]), list_(list) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int in_panel = 8 * upper + (lane >> 2);
      const int row = item.row + in_panel;
      next_[upper] =
          row < p.a.rows ? p.indptr[row] + p.row_offsets[index * kQueryRows + in_panel] : base_;
    }
  }

  // The scores of a stage where `bits` are set.
  __device__ void store(uint32_t bits, const float (&scores)[4][4]) {
    // Nonzeros of both rows in the lane's slots, and in those of the lanes before it.
    const int mine = __popc(bits & 0x000f000fu) | __popc(bits & 0x00f000f0u) << 16;
    int sum = mine;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, sum, step, 4);
      if ((lane_ & 3) >= step) sum += before;
    }
    const int row_total = __shfl_sync(0xffffffffu, sum, 3, 4);
    const int before = sum - mine;
    const int64_t at[2] = {next_[0] + (before & 0xffff), next_[1] + (before >> 16)};
    next_[0] += row_total & 0xffff;
    next_[1] += row_total >> 16;

    const int count = (mine & 0xffff) + (mine >> 16);
    int end = count;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int others = __shfl_up_sync(0xffffffffu, end, step);
      if (lane_ >= step) end += others;
    }
    const int total = __shfl_sync(0xffffffffu, end, kWarp - 1);
    if (total > kListed || p_.a.cols >= kWide) return write_each(bits, scores, at);
    Score* to = list_ + end - count;
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      auto place = static_cast<uint32_t>(at[upper] - base_);
#pragma unroll
      for (int slot = 0; slot < kLaneColumns; ++slot) {
        if (bits >> result_bit(upper, slot >> 1, slot & 1) & 1u) {
          *to++ = {place++, scores[slot >> 1][2 * upper + (slot & 1)]};
        }
      }
    }
    __syncwarp();
    for (int i = lane_; i < total; i += kWarp) {
      const Score score = list_[i];
      store_scalar(p_.out, p_.out_dtype, base_ + score.at, score.value);
    }
    __syncwarp();  // the next stage writes to the list again
  }

 private:
  // 16 rows of more columns might have more nonzeros than 32 bits count.
  static constexpr int64_t kWide = int64_t{1} << 28;

  __device__ void write_each(uint32_t bits, const float (&scores)[4][4],
                             const int64_t (&first)[2]) const {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      int64_t at = first[upper];
#pragma unroll
      for (int slot = 0; slot < kLaneColumns; ++slot) {
        if (bits >> result_bit(upper, slot >> 1, slot & 1) & 1u) {
          store_scalar(p_.out, p_.out_dtype, at++, scores[slot >> 1][2 * upper + (slot & 1)]);
        }
      }
    }
  }

  const PanelSddmm& p_;
  int lane_;
  int64_t base_;
  int64_t next_[2];
  Score* list_;
};

template <Precision P>
class ScoreWarp {
 public:
  using Tile = PanelTile<P>;
  static constexpr int kSize = sizeof(typename Tile::Storage);

  __device__ ScoreWarp(const PanelSddmm& p, const PanelItem& item, int lane, void* shared)
      : p_(p), item_(item), lane_(lane), list_(static_cast<Score*>(shared)) {
    ring_ = static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + kListBytes;
    queries_ = ring_ + 2 * kStageBytes;
    slices_ = static_cast<int>(ceil_div<int64_t>(p.d, Tile::kFeatures));
    k_ = static_cast<const char*>(p.k.data) + 16 * copy_chunk(lane);
    stride_ = static_cast<uint32_t>(p.k.stride * kSize);
  }

  __device__ void run(int64_t index) {
    copy_queries();
    ScoreOutput out(p_, item_, index, lane_, list_);
    load_ids(0, ids_);
    load_ids(1, following_ids_);
    copy();
    uint32_t here = 0;
    for (int i = 0; i < item_.stages; ++i) {
      const uint32_t bits = load_bits<kQueryRows>(p_.a, int64_t{item_.stage} + i, lane_);
      float scores[4][4] = {};
      for (int slice = 0; slice < slices_; ++slice) {
        wait_copies();
        // Now every lane's copies of this slice are there, and all have read the one before it.
        __syncwarp();
        copy();
        if constexpr (Tile::kTf32) {
          multiply_words(ring_ + here, queries_ + slice * kQueryBytes, scores);
        } else {
          multiply_matrices(ring_ + here, queries_ + slice * kQueryBytes, scores);
        }
        here ^= kStageBytes;
      }
      out.store(lane_bits(bits, kQueryRows), scores);
    }
  }

 private:
  // How much of the lane's chunk of a slice lies before the end of the rows.
  __device__ int chunk_bytes(int slice, int chunk) const {
    const int64_t left = (p_.d - int64_t{slice} * Tile::kFeatures) * kSize - 16 * chunk;
    return left >= 16 ? 16 : left > 0 ? static_cast<int>(left) : 0;
  }

  __device__ void copy_queries() const {
    const int chunk = copy_chunk(lane_);
    for (int i = 0; i < kQueryRows / 4; ++i) {
      const int in_panel = 4 * i + lane_ / kRowChunks;
      const int64_t row = int64_t{item_.row} + in_panel;
      const bool inside = row < p_.a.rows;
      const int64_t id = !inside ? 0 : p_.row_ids != nullptr ? p_.row_ids[row] : row;
      const char* from =
          static_cast<const char*>(p_.q.data) + id * p_.q.stride * kSize + 16 * chunk;
      for (int slice = 0; slice < slices_; ++slice) {
        const int bytes = inside ? chunk_bytes(slice, chunk) : 0;
        const uint32_t to = queries_ + slice * kQueryBytes + 16 * query_chunk(in_panel, chunk);
        copy_async(to, bytes > 0 ? from + 128 * slice : p_.q.data, bytes);
      }
    }
  }

  __device__ void load_ids(int i, int (&ids)[kLaneColumns]) const {
    if (i >= item_.stages) return;
    load_words(p_.a.columns + (int64_t{item_.stage} + i) * kStage + copy_slot(lane_, 0),
               reinterpret_cast<uint32_t (&)[kLaneColumns]>(ids));
  }

  // Copies the next slice of the stage's rows, or the first one of the next stage's.
  __device__ void copy() {
    if (copied_ == item_.stages) return;
    const int bytes = chunk_bytes(copied_slice_, copy_chunk(lane_));
#pragma unroll
    for (int j = 0; j < kLaneColumns; ++j) {
      const bool real = bytes > 0 && ids_[j] >= 0;
      const char* from = k_ + uint64_t{static_cast<uint32_t>(real ? ids_[j] : 0)} * stride_;
      const uint32_t to = ring_ + to_ + 16 * stage_chunk(copy_slot(lane_, j), copy_chunk(lane_));
      copy_async(to, real ? from + 128 * copied_slice_ : p_.k.data, real ? bytes : 0);
    }
    to_ ^= kStageBytes;
    if (++copied_slice_ < slices_) return;
    copied_slice_ = 0;
    ++copied_;
#pragma unroll
    for (int j = 0; j < kLaneColumns; ++j) ids_[j] = following_ids_[j];
    load_ids(copied_ + 1, following_ids_);
  }

  __device__ void multiply_matrices(uint32_t keys, uint32_t queries, float (&scores)[4][4]) const {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int chunk = query_step_chunk(lane_, 2 * pair + i);
        load_matrices_plain(queries + 16 * query_chunk(query_row(lane_), chunk), a[i]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t k[4];
        const int slot = column_slot(lane_ & 7, j);
        load_matrices_plain(keys + 16 * stage_chunk(slot, key_step_chunk(lane_, pair)), k);
        const uint32_t low[2] = {k[0], k[1]};
        const uint32_t high[2] = {k[2], k[3]};
        mma<P>(scores[j], a[0], low);
        mma<P>(scores[j], a[1], high);
      }
    }
  }

  __device__ void multiply_words(uint32_t keys, uint32_t queries, float (&scores)[4][4]) const {
    uint32_t q[2][2][4];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = (lane_ >> 2) + 8 * upper;
        load_shared(queries + 16 * query_chunk(row, word_pair_chunk(lane_, half)), q[upper][half]);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t k[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int slot = column_slot(lane_ >> 2, j);
        load_shared(keys + 16 * stage_chunk(slot, word_pair_chunk(lane_, half)), k[half]);
      }
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint32_t a[4] = {to_tf32(q[0][0][w]), to_tf32(q[1][0][w]), to_tf32(q[0][1][w]),
                               to_tf32(q[1][1][w])};
        const uint32_t b[2] = {to_tf32(k[0][w]), to_tf32(k[1][w])};
        mma<P>(scores[j], a, b);
      }
    }
  }

  const PanelSddmm& p_;
  const PanelItem& item_;
  int lane_;
  Score* list_;
  uint32_t ring_;
  uint32_t queries_;
  int slices_;
  const char* k_;
  uint32_t stride_;
  int ids_[kLaneColumns];
  int following_ids_[kLaneColumns];
  int copied_ = 0;
  int copied_slice_ = 0;
  uint32_t to_ = 0;
};

template <Precision P>
__global__ void __launch_bounds__(kWarp, kBlocks)
    panel_sddmm_kernel(const __grid_constant__ PanelSddmm p) {
  extern __shared__ __align__(1024) uint4 shared[];
  const int4 words = __ldg(reinterpret_cast<const int4*>(p.items) + blockIdx.x);
  const PanelItem item = {words.x, words.y, words.z, words.w};
  if (item.stages == 0) return;
  ScoreWarp<P> warp(p, item, threadIdx.x, shared);
  warp.run(blockIdx.x);
}

template <Precision P>
void run(const PanelSddmm& p, Stream stream) {
  const auto slices = static_cast<uint32_t>(ceil_div<int64_t>(p.d, PanelTile<P>::kFeatures));
  const uint32_t bytes = kListBytes + 2 * kStageBytes + slices * kQueryBytes;
  constexpr uint32_t kMost = 96 * 1024;  // what every device of capability 8.0 has
  if (bytes > kMost) throw std::invalid_argument("d: too wide for the panel kernel");
  const auto kernel = panel_sddmm_kernel<P>;
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(kernel, kMost, prepared);
  const dim3 grid = grid_of(p.item_count, 1, 1, "sddmm_panel");
  launch_shared("sddmm_panel", kernel, grid, kWarp, bytes, stream, p);
}

}  // namespace

void sddmm_panel(const PanelSddmm& problem, Precision precision, Stream stream) {
  switch (precision) {
    case Precision::kFp16:
      return run<Precision::kFp16>(problem, stream);
    case Precision::kBf16:
      return run<Precision::kBf16>(problem, stream);
    case Precision::kTf32:
      return run<Precision::kTf32>(problem, stream);
    default:
      throw std::invalid_argument("precision: the panel kernel has no fp32");
  }
}

}  // namespace gnnsparse::cuda
