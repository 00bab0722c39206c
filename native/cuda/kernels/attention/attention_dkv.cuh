// dK and dV without a pass over the transpose: beside dQ, a pass over rows writes the weights of
// every column slot of a panel and the gradients of its scores, and a second kernel multiplies them
// by the panel's rows of the output's gradient and of Q. For patterns whose transpose shares so
// little among its rows that a pass over columns would gather several times as much.
#pragma once

#include "kernels/attention/panel_attention.cuh"

namespace gnnsparse::cuda {

// Writes a K tile's weights and gradients of scores with a column slot's 16 rows together: as
// operand A of products whose rows are column slots.
template <Precision P>
class DkvWeightWriter {
 public:
  __device__ DkvWeightWriter(const PanelAttention& p, const AttentionWork& work)
      : to_(static_cast<char*>(p.dkv.weights) +
            ((work.head - p.first_head) * p.dkv.slots +
             int64_t{work.item.first_k_tile} * kPanelKTile + (work.lane >> 2)) *
                DkvWeights::kSlotBytes +
            8 * (work.lane & 3)) {}

  // Of weights, or of scores' gradients, as operand A of the pass over rows.
  __device__ __forceinline__ void write_values(int k_tile, const uint32_t (&a)[2][4]) const {
    write(k_tile, a, 0);
  }
  __device__ __forceinline__ void write_keys(int k_tile, const uint32_t (&a)[2][4]) const {
    write(k_tile, a, DkvWeights::kSlotBytes / 2);
  }

 private:
  __device__ __forceinline__ void write(int k_tile, const uint32_t (&a)[2][4], int offset) const {
    char* to = to_ + int64_t{k_tile} * (kPanelKTile * DkvWeights::kSlotBytes) + offset;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        // Registers 2 upper and 2 upper + 1 have the lower and the upper rows of these slots.
        __stcs(
            reinterpret_cast<uint2*>(to + (16 * q + 8 * upper) * DkvWeights::kSlotBytes),
            make_uint2(transpose_matrix(a[q][2 * upper]), transpose_matrix(a[q][2 * upper + 1])));
      }
    }
  }

  char* to_;
};

// In place of it where nothing is written.
struct NoDkvWeights {
  __device__ NoDkvWeights(const PanelAttention&, const AttentionWork&) {}
};

struct DkvLaunch : PanelAttention {
  ChunkedHeads rows[2];  // the output's gradient and Q
};

// A block sums a range of columns of a head, in shared memory. A step adds up to 96 column slots of
// one panel, in tiles of 16: three warps share a step's tiles, and four its 64 features of dV and
// of dK. Four more warps copy what later steps need. A step's columns are distinct, and all warps
// meet before the next one.
template <Precision P>
class DkvBlock {
 public:
  static constexpr int kSlices = 4;  // of 32 features
  static constexpr int kAddThreads = kWarp * kSlices * DkvWeights::kStepSlots / 32;
  static constexpr int kCopyThreads = kQueryChunks;
  static constexpr int kThreads = kAddThreads + kCopyThreads;
  static constexpr int kStages = DkvWeights::kStages;

  __device__ DkvBlock(const DkvLaunch& p, uint32_t shared)
      : p_(p),
        thread_(pin_register(threadIdx.x)),
        step_(__ldg(p.dkv.range_starts + blockIdx.x)),
        end_(__ldg(p.dkv.range_starts + blockIdx.x + 1)),
        ring_(shared),
        sums_(shared + kStages * DkvWeights::kStageBytes) {
    const int64_t head = p.first_head + blockIdx.y;
    b_ = head / p.problem.heads;
    h_ = head % p.problem.heads;
  }

  __device__ void run() {
    for (uint32_t at = kChunkBytes * thread_; at < p_.dkv.range * DkvWeights::kColumnBytes;
         at += kChunkBytes * kThreads) {
      store_shared(sums_ + at, make_uint4(0, 0, 0, 0));
    }
    if (thread_ >= kAddThreads) {
      copy_all(thread_ - kAddThreads);
    } else {
      int stage = 0;
      for (; step_ < end_; ++step_) {
        __syncthreads();
        add_step(ring_ + stage * DkvWeights::kStageBytes);
        stage = stage + 1 < kStages ? stage + 1 : 0;
      }
    }
    __syncthreads();
    store();
  }

 private:
  static constexpr int kTiles = 2;                // of a warp in a step
  static constexpr uint32_t kNone = 0xffffffffu;  // no columns
  static constexpr int kTileStep = DkvWeights::kStepSlots / 16 / kTiles;
  static constexpr uint32_t kSliceBytes = DkvWeights::kColumnBytes / kSlices;
  static constexpr uint32_t kOperandBytes = DkvWeights::kStepSlots * DkvWeights::kSlotBytes / 2;
  static constexpr uint32_t kWeightsAt = 2 * kQueryBytes;
  static constexpr uint32_t kColumnsAt = kWeightsAt + 2 * kOperandBytes;
  static constexpr uint32_t kSlotsAt = kColumnsAt + 2 * DkvWeights::kStepSlots;
  static constexpr int kColumnChunks = 2 * DkvWeights::kStepSlots / kChunkBytes;
  static constexpr int kSlotChunks = 2 * kColumnChunks;
  static constexpr int kCopySlots = 4 * DkvWeights::kStepSlots / kCopyThreads;  // of a thread
  static_assert(kSlotsAt + 4 * DkvWeights::kStepSlots <= DkvWeights::kStageBytes);
  static_assert(kColumnChunks + kSlotChunks <= kCopyThreads);

  // The copies of one thread: a chunk of a row of both arrays, and of three slots' weights.
  __device__ void copy_all(int copier) {
    const int chunk = copier % kRowChunks;
    const auto b = static_cast<uint32_t>(b_);
    const auto h = static_cast<uint32_t>(h_);
    const ChunkRows rows[2] = {p_.rows[0].of(b, h), p_.rows[1].of(b, h)};
    const char* weights = static_cast<const char*>(p_.dkv.weights) +
                          blockIdx.y * p_.dkv.slots * DkvWeights::kSlotBytes +
                          kChunkBytes * (copier % 4);
    // In the order in which a slot has the weights of rows: two of the lower eight, two of the
    // upper.
    const int row = copier / kRowChunks;
    const int in_slot = row % 8 / 4 * 8 + row % 4 / 2 * 4 + row / 8 * 2 + row % 2;
    const uint32_t row_to = kChunkBytes * query_chunk(in_slot, chunk);
    const uint32_t weights_to =
        kWeightsAt + kOperandBytes * (copier % 4 / 2) +
        kChunkBytes * (copier / 64 * 32 + copier % 2 * 16 + copier / 4 % 16);

    const auto copy = [&](int step, int stage, const int32_t (&slots)[kCopySlots]) {
      if (step < end_) {
        const uint32_t to = ring_ + stage * DkvWeights::kStageBytes;
#pragma unroll
        for (int i = 0; i < kCopySlots; ++i) {
          const char* from = weights + int64_t{max(slots[i], 0)} * DkvWeights::kSlotBytes;
          copy_async_or_zero(to + weights_to + 16 * kCopyThreads / 2 * i, from, slots[i] >= 0);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const char* from =
              rows[i].data + kChunkBytes * chunk + int64_t{max(id_, 0)} * rows[i].stride;
          copy_async_or_zero(to + kQueryBytes * i + row_to, from,
                             id_ >= 0 && kChunkBytes * chunk < rows[i].bytes);
        }
        if (copier < kColumnChunks) {
          copy_async(to + kColumnsAt + kChunkBytes * copier,
                     p_.dkv.columns + step * int64_t{DkvWeights::kStepSlots / 2} + 4 * copier);
        } else if (copier < kColumnChunks + kSlotChunks && step + kStages - 1 < end_) {
          // Those of the step that is copied while this one is added.
          const int at = copier - kColumnChunks;
          copy_async(to + kSlotsAt + kChunkBytes * at, slots_of(step + kStages - 1) + 4 * at);
        }
      }
      commit_copies();
      ask_row(step + 1, row);
    };

    ask_panel(step_);
    ask_row(step_, row);
    int32_t slots[kCopySlots];
    for (int i = 0; i < kStages - 1; ++i) {
#pragma unroll
      for (int j = 0; j < kCopySlots; ++j) {
        const int at = copier / 4 + kCopyThreads / 4 * j;
        slots[j] = step_ + i < end_ ? __ldg(slots_of(step_ + i) + at) : -1;
      }
      copy(step_ + i, i, slots);
    }
    int stage = 0;
    for (; step_ < end_; ++step_) {
      wait_copies_but<kStages - 2>();
      __syncthreads();  // the step may be added; the one before it has been, and is overwritten
#pragma unroll
      for (int j = 0; j < kCopySlots; ++j) {
        slots[j] = static_cast<int32_t>(load_shared_word(ring_ + stage * DkvWeights::kStageBytes +
                                                         kSlotsAt +
                                                         4 * (copier / 4 + kCopyThreads / 4 * j)));
      }
      copy(step_ + kStages - 1, stage == 0 ? kStages - 1 : stage - 1, slots);
      stage = stage + 1 < kStages ? stage + 1 : 0;
    }
    wait_copies_but<0>();
  }

  __device__ const int32_t* slots_of(int step) const {
    return p_.dkv.slot_of_entry + step * int64_t{DkvWeights::kStepSlots};
  }

  // The row of a step is asked for one step before it is copied, the panel two.
  __device__ void ask_panel(int step) { panel_ = step < end_ ? __ldg(p_.dkv.panels + step) : 0; }
  __device__ void ask_row(int step, int row) {
    id_ = panel_ * kQueryRows + row;
    if (id_ >= static_cast<int>(p_.a.rows)) {
      id_ = -1;
    } else if (p_.stored.row_ids != nullptr) {
      id_ = __ldg(p_.stored.row_ids + id_);
    }
    ask_panel(step + 1);
  }

  // A warp's tiles of a step: those after an empty one are empty too.
  __device__ void add_step(uint32_t stage) const {
    const int lane = thread_ % kWarp;
    const int first = thread_ / (kSlices * kWarp);
    uint32_t pairs[kTiles];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      pairs[j] = load_shared_word(stage + kColumnsAt + 32 * (first + kTileStep * j) + lane / 4 * 4);
    }
    const uint32_t weights = stage + kWeightsAt + 512 * first + kChunkBytes * lane;
    if (__any_sync(0xffffffffu, pairs[1] != kNone)) {
      add_tiles<2>(stage, weights, pairs);
    } else if (__any_sync(0xffffffffu, pairs[0] != kNone)) {
      add_tiles<1>(stage, weights, pairs);
    }
  }

  // All sums of the first kCount tiles are read before any is written.
  template <int kCount>
  __device__ __forceinline__ void add_tiles(uint32_t stage, uint32_t weights,
                                            const uint32_t (&pairs)[kTiles]) const {
    const int lane = thread_ % kWarp;
    const int slice = thread_ / kWarp % kSlices;
    uint32_t x[2][4];  // 16 rows of 16 features
    const uint32_t rows = stage + kQueryBytes * (slice / 2) + query_address(lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_matrices(query_address(rows, slice % 2 * 2 + half), x[half]);
    }
    uint32_t at[kCount][2];
    uint32_t sums[kCount][2][2][4] = {};
    uint32_t a[kCount][4];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      load_matrices_plain(weights + kOperandBytes * (slice / 2) + 512 * kTileStep * j, a[j]);
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        at[j][upper] = sums_of(pairs[j], upper);
        if (column(pairs[j], upper) < 0) continue;
        load_shared(at[j][upper], sums[j][upper][0]);
        load_shared(at[j][upper] ^ 64u, sums[j][upper][1]);
      }
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        add_tile(a[j], x[half], sums[j][0][half], sums[j][1][half]);
      }
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        if (column(pairs[j], upper) < 0) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t (&v)[4] = sums[j][upper][half];
          store_shared(at[j][upper] ^ 64u * half, make_uint4(v[0], v[1], v[2], v[3]));
        }
      }
    }
  }

  // Of 16 features, of which a lane has 2t, 2t + 1 and 8 more than these of two column slots. The
  // products are added to the sums by themselves: as the operand of an mma those would have to be
  // in other registers than they are loaded to.
  static __device__ __forceinline__ void add_tile(const uint32_t (&a)[4], const uint32_t (&x)[4],
                                                  uint32_t (&lower)[4], uint32_t (&upper)[4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint32_t b[2] = {x[2 * n], x[2 * n + 1]};
      float products[4] = {};
      mma<kArithmetic<P>>(products, a, b);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        lower[2 * n + i] = __float_as_uint(__uint_as_float(lower[2 * n + i]) + products[i]);
        upper[2 * n + i] = __float_as_uint(__uint_as_float(upper[2 * n + i]) + products[2 + i]);
      }
    }
  }

  static __device__ __forceinline__ int column(uint32_t pair, int upper) {
    return static_cast<int16_t>(upper ? pair >> 16 : pair & 0xffffu);
  }
  // Halves of 64 bytes change places in odd columns: lanes that read together have one of each.
  static __device__ __forceinline__ uint32_t sums_at(int column) {
    return column * kSliceBytes + 64 * (column & 1);
  }
  __device__ __forceinline__ uint32_t sums_of(uint32_t pair, int upper) const {
    const uint32_t slice = thread_ / kWarp % kSlices * (p_.dkv.range * kSliceBytes);
    return sums_ + slice + sums_at(column(pair, upper)) + kChunkBytes * (thread_ % 4);
  }

  // A thread takes eight features of a column: half of each of four chunks.
  __device__ void store() const {
    const int slice = thread_ / 4 % kSlices;
    const int eight = thread_ % 4;
    const bool keys = slice >= 2;
    const HeadsView& view = keys ? p_.dk : p_.dv;
    const int64_t width = keys ? p_.problem.d : p_.problem.dv;
    const int feature = 32 * (slice % 2) + 8 * eight;
    if (view.data == nullptr || feature >= width) return;
    const MutableDenseView to = view.mutable_of(b_, h_);
    const float scale = keys ? p_.problem.scale : 1.0f;
    const int64_t first = int64_t{blockIdx.x} * p_.dkv.range;
    for (int i = thread_ / 16; i < p_.dkv.range && first + i < p_.a.cols; i += kThreads / 16) {
      const uint32_t from = sums_ + slice * (p_.dkv.range * kSliceBytes) +
                            (sums_at(i) ^ 64u * (eight / 2)) + 8 * (eight % 2);
      float v[8];
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
        uint32_t two[4];
        load_shared_pair(from + kChunkBytes * chunk, two);
        v[2 * chunk] = scale * __uint_as_float(two[0]);
        v[2 * chunk + 1] = scale * __uint_as_float(two[1]);
      }
      store_row(to, first + i, feature, width, v);
    }
  }

  const DkvLaunch& p_;
  int thread_;
  int step_;
  int end_;
  uint32_t ring_;
  uint32_t sums_;
  int64_t b_;
  int64_t h_;
  int panel_ = 0;
  int id_ = -1;
};

template <Precision P>
__global__ void __launch_bounds__(DkvBlock<P>::kThreads, 1)
    dkv_kernel(const __grid_constant__ DkvLaunch p) {
  char* memory = dynamic_shared();
  DkvBlock<P> block(p, static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
  block.run();
}

template <Precision P>
void launch_dkv(const PanelAttention& p, Stream stream) {
  const DkvLaunch now = {p, {{p.grad, p.problem.dv}, {p.problem.q, p.problem.d}}};
  static std::atomic<uint64_t> prepared{0};
  const auto kernel = dkv_kernel<P>;
  // All that a block can have: how much a launch takes follows from its range of columns.
  prefer_shared_memory(kernel, current_architecture().block_shared_bytes, prepared);
  const dim3 grid =
      grid_of(ceil_div<int64_t>(p.a.cols, p.dkv.range), 1, p.head_count, "attention_dkv");
  launch_shared("attention_dkv", kernel, grid, DkvBlock<P>::kThreads,
                DkvWeights::shared_bytes(p.dkv.range), stream, now);
}

}  // namespace gnnsparse::cuda
