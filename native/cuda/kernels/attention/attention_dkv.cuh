// dK and dV without a pass over the transpose: beside dQ, a pass over rows writes the weights of
// every column slot of a panel and the gradients of its scores, and a second kernel multiplies them
// by the panel's rows of the output's gradient and of Q. For patterns whose transpose shares so
// little among its rows that a pass over columns would gather several times as much.
#pragma once

#include "kernels/attention/panel_attention.cuh"

namespace gnnsparse::cuda {

// Writes a K tile's weights and gradients of scores with the rows of a column slot together: as
// operand A of products whose rows are column slots. Eight rows without an edge are left out.
template <Precision P>
class DkvWeightWriter {
 public:
  __device__ DkvWeightWriter(const PanelAttention& p, const AttentionWork& work)
      : to_(static_cast<char*>(p.dkv.weights) +
            ((work.head - p.first_head) * p.dkv.slots +
             int64_t{work.item.first_k_tile} * kPanelKTile + (work.lane >> 2)) *
                DkvWeights::kSlotBytes +
            kChunkBytes * (work.lane & 1) + 4 * (work.lane & 2)),
        lane_(work.lane) {}

  // Of the lane's bits, and weights and gradients as operand A of the pass over rows.
  __device__ __forceinline__ void write(int k_tile, uint32_t bits, const uint32_t (&weights)[2][4],
                                        const uint32_t (&gradients)[2][4]) const {
    // Lanes with the same column slots first: then the slot's own bits, result_bit(half, j, 0).
#pragma unroll
    for (int step = 4; step < kWarp; step *= 2) bits |= __shfl_xor_sync(0xffffffffu, bits, step);
    bits = __shfl_sync(0xffffffffu, bits, lane_ >> 3) >> result_bit(0, 0, lane_ >> 2 & 1);
    char* to = to_ + int64_t{k_tile} * (kPanelKTile * DkvWeights::kSlotBytes);
    const bool odd = lane_ & 1;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Of these slots registers 0 and 1, or 2 and 3 have the lower and the upper rows. Even
        // lanes get the weights of two lanes, odd ones the gradients.
        const uint32_t weight = transpose_matrix(weights[j / 2][j % 2 * 2 + half]);
        const uint32_t gradient = transpose_matrix(gradients[j / 2][j % 2 * 2 + half]);
        const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? weight : gradient, 1);
        if (bits >> result_bit(half, j, 0) & 1u) {
          __stcs(reinterpret_cast<uint2*>(to + 8 * j * DkvWeights::kSlotBytes +
                                          DkvWeights::kSlotBytes / 2 * half),
                 odd ? make_uint2(other, gradient) : make_uint2(weight, other));
        }
      }
    }
  }

 private:
  char* to_;
  int lane_;
};

// In place of it where nothing is written.
struct NoDkvWeights {
  __device__ NoDkvWeights(const PanelAttention&, const AttentionWork&) {}
};

struct DkvLaunch : PanelAttention {
  ChunkedHeads rows[2];  // the output's gradient and Q
};

// Rows of the output's gradient and of Q for a warp that copies: a lane copies one chunk of each
// fourth row.
class DkvRows {
 public:
  __device__ DkvRows(const DkvLaunch& p, int64_t b, int64_t h, int lane)
      : rows_(static_cast<int>(p.a.rows)), row_ids_(p.stored.row_ids) {
    const int at = kChunkBytes * copy_chunk(lane);
    for (int i = 0; i < 2; ++i) {
      const ChunkRows from = p.rows[i].of(static_cast<uint32_t>(b), static_cast<uint32_t>(h));
      from_[i] = pin_register(from.data + at);
      stride_[i] = pin_register(static_cast<uint32_t>(from.stride));
      has_chunk_[i] = at < from.bytes;
    }
  }
  // The caller's row of a stored one; -1: there is none.
  __device__ __forceinline__ int id(int row) const {
    if (row >= rows_) return -1;
    return row_ids_ != nullptr ? __ldg(row_ids_ + row) : row;
  }
  __device__ __forceinline__ void copy(int array, int id, uint32_t to) const {
    copy_async_or_zero(to, from_[array] + uint64_t{static_cast<uint32_t>(id)} * stride_[array],
                       has_chunk_[array] && id >= 0);
  }

 private:
  int rows_;
  const int32_t* row_ids_;
  const char* from_[2];
  uint32_t stride_[2];
  bool has_chunk_[2];
};

// A block sums a range of columns of a head, in shared memory: a warp 16 features of dV or of dK,
// so that no two warps add to one sum. Other warps copy what these need, some steps together, and
// each of them has a stage for that: it begins when all others have added what is there.
template <Precision P>
class DkvBlock {
 public:
  static constexpr int kSlices = 8;  // of 16 features
  static constexpr int kStages = DkvWeights::kStages;
  static constexpr int kSteps = DkvWeights::kStageSteps;
  static constexpr int kThreads = kWarp * (kSlices + kStages);

  __device__ DkvBlock(const DkvLaunch& p, uint32_t shared)
      : p_(p),
        warp_(__shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0)),  // the same in a warp
        lane_(threadIdx.x % kWarp),
        step_(__ldg(p.dkv.range_starts + blockIdx.x)),
        end_(__ldg(p.dkv.range_starts + blockIdx.x + 1)),
        ring_(pin_register(shared)),
        sums_(ring_ + kStages * DkvWeights::kStageBytes) {
    const int64_t head = p.first_head + blockIdx.y;
    b_ = head / p.problem.heads;
    h_ = head % p.problem.heads;
  }

  __device__ void run() {
    for (uint32_t at = kChunkBytes * threadIdx.x; at < p_.dkv.range * DkvWeights::kColumnBytes;
         at += kChunkBytes * kThreads) {
      store_shared(sums_ + at, make_uint4(0, 0, 0, 0));
    }
    if (threadIdx.x < kStages) {
      make_barrier(copied(threadIdx.x), kWarp);
      make_barrier(added(threadIdx.x), kWarp * kSlices);
    }
    __syncthreads();
    warp_ < kSlices ? add_stages() : copy_stages(warp_ - kSlices);
    __syncthreads();
    store();
  }

 private:
  static constexpr uint32_t kNone = 0xffffffffu;  // no columns
  static constexpr int kTiles = DkvWeights::kStepSlots / 16;
  static constexpr uint32_t kSliceBytes = DkvWeights::kColumnBytes / kSlices;
  static constexpr int kStageSlots = kSteps * DkvWeights::kStepSlots;
  static constexpr uint32_t kRowBytes = 2 * kQueryBytes;  // of a step
  static constexpr uint32_t kOperandBytes = kStageSlots * DkvWeights::kSlotBytes / 2;
  static constexpr uint32_t kWeightsAt = kSteps * kRowBytes;
  static constexpr uint32_t kColumnsAt = kWeightsAt + 2 * kOperandBytes;
  static constexpr int kPairWords = DkvWeights::kPairWords;
  static constexpr int kColumnChunks = 32 * kPairWords * kSteps / kChunkBytes;
  static constexpr int kOwnRows = kQueryRows / 4;  // of a step and a lane
  static constexpr int kOwnSlots = kStageSlots / 8;
  static_assert(kColumnsAt + kChunkBytes * kColumnChunks <= DkvWeights::kStageBytes);
  static_assert(kColumnChunks <= kWarp);

  // The barriers of a stage. All lanes arrive: for racecheck one lane of a warp does not stand for
  // the others.
  __device__ uint32_t copied(int stage) const {
    return sums_ + p_.dkv.range * DkvWeights::kColumnBytes + 16 * stage;
  }
  __device__ uint32_t added(int stage) const { return copied(stage) + 8; }

  // A warp that copies. A lane copies one of the four chunks of every eighth slot.
  class Copier {
   public:
    __device__ explicit Copier(const DkvBlock& block)
        : dkv_(block.p_.dkv),
          lane_(block.lane_),
          end_(block.end_),
          rows_(block.p_, block.b_, block.h_, block.lane_) {
      weights_ = pin_register(static_cast<const char*>(dkv_.weights) +
                              blockIdx.y * dkv_.slots * DkvWeights::kSlotBytes +
                              kChunkBytes * (lane_ % 4));
      half_ = lane_ % 4 / 2;
      weights_to_ =
          kWeightsAt + kOperandBytes * (lane_ % 2) + weights_address(half_, lane_ % 2, lane_ / 4);
    }

    // What is to be copied of the steps from `step` on.
    __device__ __forceinline__ void ask(int step) {
      if (step >= end_) return;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int first = kQueryRows * __ldg(dkv_.panels + step + i);
#pragma unroll
        for (int j = 0; j < kOwnRows; ++j) ids_[i][j] = rows_.id(first + own_row(lane_, j));
      }
      const int32_t* slots =
          dkv_.slot_of_entry + step * int64_t{DkvWeights::kStepSlots} + lane_ / 4;
#pragma unroll
      for (int i = 0; i < kOwnSlots; ++i) slots_[i] = __ldg(slots + 8 * i);
    }

    __device__ __forceinline__ void copy(int step, uint32_t to) const {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
#pragma unroll
        for (int j = 0; j < 2 * kOwnRows; ++j) {
          const uint32_t rows_to = to + kRowBytes * i + kQueryBytes * (j % 2);
          rows_.copy(j % 2, ids_[i][j / 2], rows_to + own_address(own_address(lane_), j / 2));
        }
      }
#pragma unroll
      for (int i = 0; i < kOwnSlots; ++i) {
        if (slots_[i] == 0) continue;  // what a column slot has does not matter to others
        copy_async_or_zero(to + weights_to_ + 128 * (i % 2) + 512 * (i / 2),
                           weights_ + int64_t{slots_[i] >> 2} * DkvWeights::kSlotBytes,
                           slots_[i] >> half_ & 1);
      }
      if (lane_ < kColumnChunks) {
        copy_async(to + kColumnsAt + kChunkBytes * lane_,
                   dkv_.columns + step * int64_t{8 * kPairWords} + 4 * lane_);
      }
    }

   private:
    const DkvWeights& dkv_;
    int lane_;
    int end_;
    DkvRows rows_;
    const char* weights_;
    int half_;  // of a slot's rows
    uint32_t weights_to_;
    int ids_[kSteps][kOwnRows];
    int32_t slots_[kOwnSlots];
  };

  __device__ void copy_stages(int stage) const {
    Copier copier(*this);
    int step = step_ + kSteps * stage;
    copier.ask(step);
    uint32_t parity = 1;  // nothing has to be added before the first steps
#pragma unroll 1
    for (; step < end_; step += kSteps * kStages) {
      wait_at(added(stage), parity);
      parity ^= 1;
      copier.copy(step, ring_ + stage * DkvWeights::kStageBytes);
      commit_copies();
      copier.ask(step + kSteps * kStages);
      wait_copies_but<0>();
      arrive_at(copied(stage));
    }
  }

  __device__ void add_stages() const {
    uint32_t parity = 0;
    for (int step = step_, stage = 0; step < end_; step += kSteps) {
      wait_at(copied(stage), parity);
      __syncwarp();
      add_stage(ring_ + stage * DkvWeights::kStageBytes);
      arrive_at(added(stage));
      stage = stage + 1 < kStages ? stage + 1 : 0;
      if (stage == 0) parity ^= 1;
    }
  }

  // All products of the stage come before the sums, which steps may share; all sums of a step are
  // read before any is written.
  __device__ void add_stage(uint32_t stage) const {
    const int slice = warp_;
    const uint32_t rows = stage + kQueryBytes * (slice / 4) + query_address(lane_);
    const uint32_t weights = stage + kWeightsAt + kOperandBytes * (slice / 4) +
                             weights_address(lane_ / 16, slice / 4, lane_ % 16);
    const uint32_t columns = stage + kColumnsAt + 4 * kPairWords * (lane_ / 4);
    uint32_t pairs[kSteps][4];             // of each tile
    float products[kSteps][kTiles][2][4];  // of 8 features
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t x[4];  // 16 rows of 16 features
      load_matrices(query_address(rows + kRowBytes * i, slice % 4), x);
      if constexpr (kPairWords == 2) {
        load_shared_pair(columns + 32 * kPairWords * i, pairs[i]);
      } else {
        load_shared(columns + 32 * kPairWords * i, pairs[i]);
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const int tile = kTiles * i + j;
        if (__any_sync(0xffffffffu, pairs[i][j] != kNone)) {
          uint32_t a[4];
          load_matrices_plain(weights + 512 * tile, a);
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const uint32_t b[2] = {x[2 * n], x[2 * n + 1]};
#pragma unroll
            for (int k = 0; k < 4; ++k) products[i][j][n][k] = 0.0f;
            mma<kArithmetic<P>>(products[i][j][n], a, b);
          }
        }
      }
    }
    const uint32_t sums_at =
        sums_ + slice * (p_.dkv.range * kSliceBytes) + kChunkBytes * (lane_ % 4);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t sums[kTiles][2][4];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          const int of = column(pairs[i][j], upper);
          if (of >= 0) load_shared(sums_at + of * kSliceBytes, sums[j][upper]);
        }
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          const int of = column(pairs[i][j], upper);
          if (of >= 0)
            store_shared(sums_at + of * kSliceBytes, added(sums[j][upper], products[i][j], upper));
        }
      }
      __syncwarp();  // other lanes may add to the same sums in the next step
    }
  }

  // A lane has features 2t, 2t + 1 and 8 more than these of a column slot. The products are added
  // to the sums by themselves: as the operand of an mma those would have to be in other registers
  // than they are loaded to.
  static __device__ __forceinline__ uint4 added(const uint32_t (&sums)[4],
                                                const float (&products)[2][4], int upper) {
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = __float_as_uint(__uint_as_float(sums[i]) + products[i / 2][2 * upper + i % 2]);
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
  }

  // Of 16 slots' weights of an array: matrices of eight slots, whose chunks are copied together
  // with those of the slot's other matrices, to other banks.
  static __device__ __forceinline__ uint32_t weights_address(int half, int array, int slot) {
    return 256 * half + 128 * (slot / 8) + kChunkBytes * ((slot % 8) ^ (4 * half + 2 * array));
  }

  static __device__ __forceinline__ int column(uint32_t pair, int upper) {
    return static_cast<int16_t>(upper ? pair >> 16 : pair & 0xffffu);
  }
  // A thread takes eight features of a column: half of each of four chunks.
  __device__ void store() const {
    const int slice = threadIdx.x / 2 % kSlices;
    const int eight = threadIdx.x % 2;
    const bool keys = slice >= 4;
    const HeadsView& view = keys ? p_.dk : p_.dv;
    const int64_t width = keys ? p_.problem.d : p_.problem.dv;
    const int feature = 16 * (slice % 4) + 8 * eight;
    if (view.data == nullptr || feature >= width) return;
    const MutableDenseView to = view.mutable_of(b_, h_);
    const float scale = keys ? p_.problem.scale : 1.0f;
    const int64_t first = int64_t{blockIdx.x} * p_.dkv.range;
    for (int i = threadIdx.x / 16; i < p_.dkv.range && first + i < p_.a.cols; i += kThreads / 16) {
      const uint32_t from = sums_ + (slice * p_.dkv.range + i) * kSliceBytes + 8 * eight;
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
  int warp_;
  int lane_;
  int step_;  // first of the range
  int end_;
  uint32_t ring_;
  uint32_t sums_;
  int64_t b_;
  int64_t h_;
};

template <class Block>
__global__ void __launch_bounds__(Block::kThreads, 1)
    dkv_kernel(const __grid_constant__ DkvLaunch p) {
  char* memory = dynamic_shared();
  Block block(p, static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
  block.run();
}

// A block takes `columns` with `bytes` of shared memory, of which no launch has more than `most`.
template <class Block>
void launch_dkv_blocks(const char* call, const PanelAttention& p, int64_t columns, uint32_t bytes,
                       int most, Stream stream) {
  const DkvLaunch now = {p, {{p.grad, p.problem.dv}, {p.problem.q, p.problem.d}}};
  static std::atomic<uint64_t> prepared{0};
  const auto kernel = dkv_kernel<Block>;
  prefer_shared_memory(kernel, most, prepared);
  const dim3 grid = grid_of(p.a.cols, columns, p.head_count, call);
  launch_shared(call, kernel, grid, Block::kThreads, bytes, stream, now);
}

template <Precision P>
void launch_dkv(const PanelAttention& p, Stream stream) {
  launch_dkv_blocks<DkvBlock<P>>("attention_dkv", p, p.dkv.range,
                                 DkvWeights::shared_bytes(p.dkv.range),
                                 current_architecture().block_shared_bytes, stream);
}

}  // namespace gnnsparse::cuda
