// cuTeSpMM (section 3.3, algorithm 1): SpMM over HRPB's packed blocks. A block of threads takes a
// panel, or a part of it, and up to four tiles of features, one for each of its warps. For each
// block of 16 column slots it copies the block's record and its 16 rows of X to shared memory. The
// bricks of 16 x 4 are decoded from their 64-bit patterns, and multiplied as the left operand of
// m16n8k4. Partial sums of a cut panel are added in order, where the paper has atomics.
#pragma once

#include "device/async.cuh"
#include "device/launch.cuh"
#include "device/mma.cuh"
#include "device/vector.cuh"
#include "gnnsparse/packed_problem.h"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

inline constexpr int kRecordWarps = 4;   // of a block of threads, at most
inline constexpr int kRecordTile = 8;    // features of an mma
inline constexpr int kRecordXPad = 8;    // floats between rows of X: their banks differ
inline constexpr int kRecordValues = 4;  // bytes of a value

// kBricks: bricks of a brick column, a panel has 16 times as many rows. kTiles: mmas that a warp
// computes with a decoded brick ("warp coarsening", section 3.3).
template <int kBricks, Staging kStageA, bool kStageX, int kTiles>
class RecordBlock {
 public:
  static constexpr int kRecordMost = static_cast<int>(record_bytes(
      kRecordColumns * kBricks, kRecordSlots * kBricks * kRecordBrickRows, kRecordValues));
  static constexpr int kWarpFeatures = kTiles * kRecordTile;
  static constexpr int kBuffers = kStageA == Staging::kDouble ? 2 : 1;

  GNNSPARSE_HD static constexpr int row_floats(int warps) {
    return warps * kWarpFeatures + kRecordXPad;
  }
  GNNSPARSE_HD static constexpr int record_part() {
    return kStageA == Staging::kNone ? 0 : kRecordMost;
  }
  // Of one buffer: the record, then the rows of X.
  GNNSPARSE_HD static constexpr int buffer_bytes(int warps) {
    return record_part() + (kStageX ? 4 * kRecordSlots * row_floats(warps) : 0);
  }

  __device__ RecordBlock(const PackedSpmm& p, char* shared, uint32_t address)
      : p_(p),
        item_(p.work.items[blockIdx.x]),
        warps_(blockDim.x / kWarp),
        lane_(threadIdx.x % kWarp),
        in_block_(threadIdx.x / kWarp * kWarpFeatures),
        feature_(int64_t{blockIdx.y} * warps_ * kWarpFeatures),
        block_(p.a.panel_ptr[item_.window] / kRecordSlots + item_.first_k_tile),
        shared_(shared),
        address_(address) {}

  __device__ void run() {
    constexpr bool kCopies = kStageA != Staging::kNone || kStageX;
    if constexpr (kBuffers == 2) {
      if (item_.k_tiles > 0) copy(0);
      commit_copies();
    }
    for (int k = 0; k < item_.k_tiles; ++k) {
      if constexpr (kBuffers == 2) {
        if (k + 1 < item_.k_tiles) copy(k + 1);
        commit_copies();
        wait_copies_but<1>();
        __syncthreads();
      } else if constexpr (kCopies) {
        copy(k);
        wait_copies();
        __syncthreads();
      }
      multiply(k);
      if constexpr (kCopies) __syncthreads();  // before the next copy to this buffer
    }
  }

  __device__ void store() const {
#pragma unroll
    for (int brick = 0; brick < kBricks; ++brick) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_row_of(kRecordBrickRows * brick + 8 * half + lane_ / 4, brick, half);
      }
    }
  }

 private:
  __device__ int buffer(int k) const { return k % kBuffers * buffer_bytes(warps_); }

  __device__ void copy(int k) {
    if constexpr (kStageA != Staging::kNone) {
      const int64_t begin = p_.records.size_ptr[block_ + k];
      const int bytes = static_cast<int>(p_.records.size_ptr[block_ + k + 1] - begin);
      for (int at = 16 * threadIdx.x; at < bytes; at += 16 * blockDim.x) {
        copy_async(address_ + buffer(k) + at, p_.records.packed_blocks + begin + at);
      }
    }
    if constexpr (kStageX) {
      const uint32_t to = address_ + buffer(k) + record_part();
      const int vectors = warps_ * (kWarpFeatures / 4);  // of a row, a power of two
      const int shift = __ffs(vectors) - 1;
      for (int i = threadIdx.x; i < kRecordSlots * vectors; i += blockDim.x) {
        const int row = i >> shift;
        const int vector = i & (vectors - 1);
        const int64_t feature = feature_ + 4 * vector;
        copy_async_or_zero(to + 4 * (row * row_floats(warps_) + 4 * vector),
                           x_of(column(k, row)) + feature, feature < p_.n);
      }
    }
  }

  __device__ int64_t column(int k, int slot) const {
    return load_const(p_.a.columns + (block_ + k) * kRecordSlots + slot);
  }
  __device__ const float* x_of(int64_t row) const {
    return static_cast<const float*>(p_.x.data) + row * p_.x.stride;
  }

  // Elements of X in row t of brick column `column`: operand B of the mmas.
  __device__ void x_registers(int k, int column, uint32_t (&b)[kTiles]) const {
    const int slot = kRecordBrickWidth * column + lane_ % 4;
    if constexpr (kStageX) {
      const auto* rows =
          reinterpret_cast<const float*>(shared_ + buffer(k) + record_part()) + in_block_;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        b[tile] = to_tf32(
            __float_as_uint(rows[slot * row_floats(warps_) + kRecordTile * tile + lane_ / 4]));
      }
    } else {
      const float* row = x_of(this->column(k, slot));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int64_t feature = feature_ + in_block_ + kRecordTile * tile + lane_ / 4;
        b[tile] = feature < p_.n ? to_tf32(__float_as_uint(load_const(row + feature))) : 0u;
      }
    }
  }

  __device__ void multiply(int k) {
    const void* memory = p_.records.packed_blocks + p_.records.size_ptr[block_ + k];
    if constexpr (kStageA != Staging::kNone) memory = shared_ + buffer(k);
    const PackedRecord record(memory);
    const auto* values = reinterpret_cast<const uint32_t*>(record.values());
#pragma unroll
    for (int column = 0; column < kRecordColumns; ++column) {
      const uint32_t end = record.col_ptr(column + 1);
      uint32_t brick = record.col_ptr(column);
      if (brick == end) continue;
      uint32_t b[kTiles];
      x_registers(k, column, b);
      for (; brick < end; ++brick) {
        const uint64_t pattern = record.pattern(brick);
        uint32_t a[2];
        values = decode(pattern, values, a);
        multiply_brick(record.row(brick), a, b);
      }
    }
  }

  // The lane's two elements of a brick, rows g and g + 8 of column t: bits `lane` and `lane + 32`.
  // Returns where the next brick's values begin.
  __device__ const uint32_t* decode(uint64_t pattern, const uint32_t* values,
                                    uint32_t (&a)[2]) const {
    const auto low = static_cast<uint32_t>(pattern);
    const auto high = static_cast<uint32_t>(pattern >> 32);
    const uint32_t below = (1u << lane_) - 1u;
    const uint32_t* upper = values + popcount(low);
    a[0] = low >> lane_ & 1u ? to_tf32(values[popcount(low & below)]) : 0u;
    a[1] = high >> lane_ & 1u ? to_tf32(upper[popcount(high & below)]) : 0u;
    return upper + popcount(high);
  }

  __device__ void multiply_brick(uint32_t row, const uint32_t (&a)[2],
                                 const uint32_t (&b)[kTiles]) {
#pragma unroll
    for (int brick = 0; brick < kBricks; ++brick) {
      if (kBricks > 1 && row != static_cast<uint32_t>(brick)) continue;  // registers have no index
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint32_t one[1] = {b[tile]};
        mma<Arithmetic::kTf32>(sums_[brick][tile], a, one);
      }
    }
  }

  __device__ void store_row_of(int in_panel, int brick, int half) const {
    const int64_t panel = item_.window;
    const int64_t row = p_.a.panel_row(panel) + in_panel;
    const bool cut = item_.partial >= 0;
    if (!cut && row >= p_.a.rows) return;
    const float scale = !cut && p_.stored.row_scale != nullptr ? p_.stored.row_scale[row] : 1.0f;
    const int64_t to = p_.stored.row_ids != nullptr && !cut ? p_.stored.row_ids[row] : row;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int64_t feature = feature_ + in_block_ + kRecordTile * tile + 2 * (lane_ % 4);
      const float first = sums_[brick][tile][2 * half] * scale;
      const float second = sums_[brick][tile][2 * half + 1] * scale;
      if (feature >= p_.n) continue;
      if (cut) {
        const int64_t place = int64_t{item_.partial} * p_.a.shape.panel + in_panel;
        *reinterpret_cast<float2*>(p_.partial + place * partial_stride(p_.n) + feature) =
            make_float2(first, second);
      } else {
        store_pair(p_.y, to, feature, p_.n, first, second);
      }
    }
  }

  const PackedSpmm& p_;
  const WindowItem item_;
  const int warps_;
  const int lane_;
  const int in_block_;     // first feature of the warp, counted in the block of threads
  const int64_t feature_;  // first feature of the block of threads
  const int64_t block_;    // first block of the item, counted over all panels
  char* shared_;
  const uint32_t address_;
  float sums_[kBricks][kTiles][4] = {};
};

template <int kBricks, Staging kStageA, bool kStageX, int kTiles>
__global__ void __launch_bounds__(kRecordWarps* kWarp)
    record_spmm_kernel(const __grid_constant__ PackedSpmm p) {
  char* shared = dynamic_shared();
  RecordBlock<kBricks, kStageA, kStageX, kTiles> block(
      p, shared, static_cast<uint32_t>(__cvta_generic_to_shared(shared)));
  block.run();
  block.store();
}

template <int kBricks, Staging kStageA, bool kStageX, int kTiles>
void launch_record_spmm(const PackedSpmm& p, Stream stream) {
  using Block = RecordBlock<kBricks, kStageA, kStageX, kTiles>;
  // As many warps as the features need (section 3.3): 1, 2 or 4.
  const int64_t wanted = ceil_div<int64_t>(p.n, Block::kWarpFeatures);
  const int warps = wanted > 2 ? kRecordWarps : static_cast<int>(wanted);
  const dim3 grid = grid_of(p.work.item_count, 1, ceil_div<int64_t>(wanted, warps), "spmm_records");
  launch_shared("spmm_records", record_spmm_kernel<kBricks, kStageA, kStageX, kTiles>, grid,
                warps * kWarp, Block::kBuffers * Block::buffer_bytes(warps), stream, p);
}

template <int kBricks>
void run_record_spmm(const PackedSpmm& p, Stream stream) {
  const WindowPolicy& policy = p.policy;
  constexpr auto kNone = Staging::kNone;
  constexpr auto kSingle = Staging::kSingle;
  constexpr auto kDouble = Staging::kDouble;
  if (policy.stage_a == kSingle && policy.stage_x) {
    if (policy.coarsening == 1) return launch_record_spmm<kBricks, kSingle, true, 1>(p, stream);
    if (policy.coarsening == 2) return launch_record_spmm<kBricks, kSingle, true, 2>(p, stream);
    return launch_record_spmm<kBricks, kSingle, true, 4>(p, stream);
  }
  if (policy.stage_a == kNone) {
    return policy.stage_x ? launch_record_spmm<kBricks, kNone, true, 4>(p, stream)
                          : launch_record_spmm<kBricks, kNone, false, 4>(p, stream);
  }
  if (policy.stage_a == kSingle) return launch_record_spmm<kBricks, kSingle, false, 4>(p, stream);
  return policy.stage_x ? launch_record_spmm<kBricks, kDouble, true, 4>(p, stream)
                        : launch_record_spmm<kBricks, kDouble, false, 4>(p, stream);
}

template <Precision P>
void RecordSpmmUnit<P>::run(const PackedSpmm& p, Stream stream) {
  static_assert(P == Precision::kTf32, "the paper has no other");
  return p.a.shape.panel == kRecordBrickRows ? run_record_spmm<1>(p, stream)
                                             : run_record_spmm<2>(p, stream);
}

}  // namespace gnnsparse::cuda
