// What the attention kernels share: the stream of gathered rows through shared memory, and what
// they know of each edge. One warp is a block and takes a part of a panel of 16 rows of one head,
// as in panel_sddmm.cuh.
#pragma once

#include "device/async.cuh"
#include "device/launch.cuh"
#include "device/vector.cuh"
#include "gnnsparse/panel_attention.h"
#include "kernels/panel_multiply.cuh"

namespace gnnsparse::cuda {

inline constexpr int kSliceFeatures = 64;
inline constexpr int kRowBytesOfSlice = 128;

// Width of a row of partial sums, and where the two facts of each row lie behind all of them.
struct PartialShape {
  int64_t stride;  // floats of a row
  int64_t parts;   // of all heads

  __host__ __device__ PartialShape(const PanelAttention& p, int64_t width)
      : stride(partial_stride(width)), parts(p.partials * p.head_count) {}
  __host__ __device__ int64_t at(int64_t part, int row) const {
    return (part * kQueryRows + row) * stride;
  }
  __host__ __device__ int64_t facts(int64_t part, int which, int row) const {
    return parts * kQueryRows * stride + (part * 2 + which) * kQueryRows + row;
  }
};

// The rows of one head of a dense array of 16-bit elements.
struct HeadRows {
  const char* data;
  uint32_t stride;  // bytes
  int bytes;        // of a row

  __device__ HeadRows(const HeadsView& view, int64_t b, int64_t h, int64_t width)
      : data(static_cast<const char*>(view.of(b, h).data)),
        stride(static_cast<uint32_t>(2 * view.row)),
        bytes(static_cast<int>(2 * width)) {}

  // Bytes of chunk `chunk` of slice `slice` that exist.
  __device__ int left(int slice, int chunk) const {
    return max(0, min(16, bytes - kRowBytesOfSlice * slice - 16 * chunk));
  }
};

// One block's share of the work.
struct AttentionWork {
  PanelItem item;
  int64_t index;  // of the item
  int64_t head;   // over the whole batch
  int64_t b;
  int64_t h;
  int lane;

  __device__ explicit AttentionWork(const PanelAttention& p) : lane(threadIdx.x) {
    index = blockIdx.x;
    const auto words = __ldg(reinterpret_cast<const int4*>(p.items) + index);
    item = {words.x, words.y, words.z, words.w};
    head = p.first_head + blockIdx.y;
    b = head / p.problem.heads;
    h = head % p.problem.heads;
  }
  __device__ int64_t partial(const PanelAttention& p) const {
    return (head - p.first_head) * p.partials + item.partial;
  }
  // A row of the panel in the caller's numbering; -1 past the end.
  __device__ int64_t row_id(const PanelAttention& p, int in_panel) const {
    const int64_t row = int64_t{item.row} + in_panel;
    if (row >= p.a.rows) return -1;
    return p.row_ids != nullptr ? p.row_ids[row] : row;
  }
};

// The panel's own rows of a head, brought to `to` in shared memory.
template <int kSlices>
__device__ void copy_own_rows(const PanelAttention& p, const AttentionWork& work,
                              const HeadRows& rows, uint32_t to) {
  const int chunk = copy_chunk(work.lane);
#pragma unroll
  for (int i = 0; i < kQueryRows / 4; ++i) {
    const int in_panel = 4 * i + work.lane / kRowChunks;
    const int64_t id = work.row_id(p, in_panel);
    const char* from = rows.data + max(id, int64_t{0}) * rows.stride + 16 * chunk;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      const int bytes = id >= 0 ? rows.left(slice, chunk) : 0;
      const uint32_t place = to + slice * kQueryBytes + 16 * query_chunk(in_panel, chunk);
      copy_async(place, bytes > 0 ? from + kRowBytesOfSlice * slice : rows.data, bytes);
    }
  }
}

// The rows that a panel's columns name, of two dense arrays by turns: all slices of the first, then
// all of the second, stage by stage, through a ring of kSlots slices. Two are on their way while
// one is in hand; the kSlots - 3 before it are still there.
template <int kSlices, int kSlots>
class RowStream {
 public:
  static constexpr int kAhead = 2;

  __device__ RowStream(const PanelAttention& p, const AttentionWork& work, const HeadRows& first,
                       const HeadRows& second, uint32_t ring)
      : columns_(p.a.columns + int64_t{work.item.stage} * kStage + copy_slot(work.lane, 0)),
        stages_(work.item.stages),
        lane_(work.lane),
        first_(first),
        second_(second),
        ring_(ring) {}

  // Starts the first copies; each is a group.
  __device__ void start() {
    load_ids(0, ids_);
    load_ids(1, following_ids_);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) copy();
  }

  // The next slice in shared memory, once all its copies have arrived.
  __device__ uint32_t next() {
    wait_copies_but<kAhead - 1>();
    __syncwarp();  // and all lanes are done with the slice that is overwritten now
    copy();
    const uint32_t slice = ring_ + here_;
    here_ = after(here_);
    return slice;
  }

 private:
  static __device__ uint32_t after(uint32_t offset) {
    return offset + kSliceBytes < kSlots * kSliceBytes ? offset + kSliceBytes : 0;
  }

  __device__ void load_ids(int stage, int (&ids)[kLaneColumns]) const {
    if (stage >= stages_) return;
    load_words(columns_ + int64_t{stage} * kStage,
               reinterpret_cast<uint32_t (&)[kLaneColumns]>(ids));
  }

  __device__ void copy() {
    if (stage_ < stages_) {
      const bool second = slice_ >= kSlices;
      // Field by field: a choice between the two objects would move them to local memory.
      copy_slice(second ? second_.data : first_.data, second ? second_.stride : first_.stride,
                 second ? second_.bytes : first_.bytes, second ? slice_ - kSlices : slice_);
      to_ = after(to_);
      if (++slice_ == 2 * kSlices) {
        slice_ = 0;
        ++stage_;
#pragma unroll
        for (int j = 0; j < kLaneColumns; ++j) ids_[j] = following_ids_[j];
        load_ids(stage_ + 1, following_ids_);
      }
    }
    commit_copies();
  }

  __device__ void copy_slice(const char* rows, uint32_t stride, int row_bytes, int slice) {
    const int chunk = copy_chunk(lane_);
    const int offset = kRowBytesOfSlice * slice + 16 * chunk;
    const char* from = rows + offset;
    const uint32_t to = ring_ + to_;
    // The last stage alone has slots without a column, the last slice alone may end early.
    if (stage_ + 1 < stages_ && row_bytes >= kRowBytesOfSlice * (slice + 1)) {
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) {
        copy_async(to + place(j), from + uint64_t{static_cast<uint32_t>(ids_[j])} * stride);
      }
      return;
    }
    const int bytes = max(0, min(16, row_bytes - offset));
#pragma unroll
    for (int j = 0; j < kLaneColumns; ++j) {
      const bool real = bytes > 0 && ids_[j] >= 0;
      const uint64_t id = static_cast<uint32_t>(real ? ids_[j] : 0);
      copy_async(to + place(j), real ? from + id * stride : rows, real ? bytes : 0);
    }
  }

  __device__ uint32_t place(int j) const {
    return 16 * stage_chunk(copy_slot(lane_, j), copy_chunk(lane_));
  }

  const int32_t* columns_;
  int stages_;
  int lane_;
  HeadRows first_;
  HeadRows second_;
  uint32_t ring_;
  uint32_t here_ = 0;
  uint32_t to_ = 0;
  int stage_ = 0;
  int slice_ = 0;
  int ids_[kLaneColumns];
  int following_ids_[kLaneColumns];
};

// What a lane knows of its 16 possible edges of a stage beside their scores: slot 2 j + odd of row
// g + 8 upper is element [j][2 upper + odd] of the scores.
template <bool kTransposed>
class EdgeFacts {
 public:
  __device__ EdgeFacts(const PanelAttention& p, const AttentionWork& work) : p_(p), work_(work) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int in_panel = 8 * upper + (work.lane >> 2);
      const int64_t row = int64_t{work.item.row} + in_panel;
      next_[upper] =
          row < p.a.rows ? p.indptr[row] + p.row_offsets[work.index * kQueryRows + in_panel] : 0;
      own_[upper] = static_cast<int>(work.row_id(p, in_panel));
    }
  }

  // Before the facts of a stage are asked for.
  __device__ void enter(int stage, uint32_t bits) {
    const int mine = __popc(bits & 0x000f000fu) | __popc(bits & 0x00f000f0u) << 16;
    int sum = mine;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, sum, step, 4);
      if ((work_.lane & 3) >= step) sum += before;
    }
    const int row_total = __shfl_sync(0xffffffffu, sum, 3, 4);
    const int before = sum - mine;
    at_[0] = next_[0] + (before & 0xffff);
    at_[1] = next_[1] + (before >> 16);
    next_[0] += row_total & 0xffff;
    next_[1] += row_total >> 16;
    load_words(p_.a.columns + (int64_t{work_.item.stage} + stage) * kStage +
                   kLaneColumns * (work_.lane & 3),
               reinterpret_cast<uint32_t (&)[kLaneColumns]>(ids_));
  }

  // Of each edge in the order of the columns: its place in A.
  __device__ int64_t place(int upper) { return at_[upper]++; }
  __device__ int64_t forward_place(int64_t place) const {
    if (!kTransposed || p_.slot_map == nullptr) return place;
    return p_.wide_map ? static_cast<const int64_t*>(p_.slot_map)[place]
                       : static_cast<const int32_t*>(p_.slot_map)[place];
  }
  __device__ float bias(int64_t place) const {
    const SlotsView& view = p_.problem.bias;
    const int64_t at = view.offset(work_.b, work_.h) + forward_place(place);
    if (view.dtype == DType::kFloat32) return static_cast<const float*>(view.data)[at];
    const uint16_t bits = static_cast<const uint16_t*>(view.data)[at];
    return view.dtype == DType::kFloat16 ? half_to_float(bits) : bf16_to_float(bits);
  }
  __device__ int query(int upper, int slot) const { return kTransposed ? ids_[slot] : own_[upper]; }
  __device__ int key(int upper, int slot) const { return kTransposed ? own_[upper] : ids_[slot]; }
  __device__ bool counts(int upper, int slot) const {
    return !p_.problem.is_causal || key(upper, slot) <= query(upper, slot);
  }
  // What dropout multiplies an edge's weight with.
  __device__ float dropout(int upper, int slot) const {
    const AttentionProblem& q = p_.problem;
    if (q.seed == nullptr) return 1.0f;
    const bool kept = dropout_keeps(philox_key(*q.seed), query(upper, slot), key(upper, slot),
                                    static_cast<uint32_t>(work_.head), q.threshold);
    return kept ? q.kept_scale : 0.0f;
  }
  __device__ int own(int upper) const { return own_[upper]; }
  __device__ int id(int slot) const { return ids_[slot]; }

 private:
  const PanelAttention& p_;
  const AttentionWork& work_;
  int64_t next_[2];
  int64_t at_[2];
  int own_[2];
  int ids_[kLaneColumns];
};

// The lane's bits of a stage of the work; 0 past its end.
__device__ __forceinline__ uint32_t stage_bits(const PanelAttention& p, const AttentionWork& work,
                                               int stage) {
  if (stage >= work.item.stages) return 0;
  const int64_t at = int64_t{work.item.stage} + stage;
  return lane_bits(load_bits<kQueryRows>(p.a, at, work.lane), kQueryRows);
}

// As it enters a product.
template <Precision P>
__device__ __forceinline__ float round_to(float x) {
  if constexpr (P == Precision::kFp16) {
    return __half2float(__float2half_rn(x));
  } else {
    return __bfloat162float(__float2bfloat16_rn(x));
  }
}

// 2^x; what would be denormal is 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two scores in the storage type.
template <Precision P>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  if constexpr (P == Precision::kFp16) {
    return pack(__floats2half2_rn(low, high));
  } else {
    return pack(__floats2bfloat162_rn(low, high));
  }
}

// Scores of a stage as operand A of its two mmas: they are where the lane needs them.
template <Precision P>
__device__ __forceinline__ void to_operand(const float (&scores)[4][4], uint32_t (&a)[2][4]) {
#pragma unroll
  for (int q = 0; q < 2; ++q) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const Element2D low = weight_element(q, r, 0);
      const Element2D high = weight_element(q, r, 1);
      a[q][r] = pack_pair<P>(scores[low.row][low.col], scores[high.row][high.col]);
    }
  }
}

// Where rows of results go: to a head of an array, or, of a cut panel, to the partial sums.
class AttentionOutput {
 public:
  __device__ AttentionOutput(const PanelAttention& p, const AttentionWork& work,
                             const HeadsView& to, int64_t width, float* partial,
                             const float (&scale)[2])
      : to_(to.mutable_of(work.b, work.h)), width_(width), partial_(nullptr) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int in_panel = 8 * upper + (work.lane >> 2);
      row_[upper] = work.row_id(p, in_panel);
      scale_[upper] = scale[upper];
    }
    if (work.item.partial >= 0) {
      const PartialShape shape(p, width);
      stride_ = shape.stride;
      partial_ = partial + shape.at(work.partial(p), work.lane >> 2);
    }
  }

  __device__ void store(int upper, int64_t feature, float (&v)[4]) const {
    if (feature >= width_ || row_[upper] < 0) return;
    if (partial_ != nullptr) {
      float* to = partial_ + 8 * upper * stride_ + feature;
      *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] *= scale_[upper];
    store_row(to_, row_[upper], feature, width_, v);
  }

 private:
  MutableDenseView to_;
  int64_t width_;
  float* partial_;
  int64_t stride_ = 0;
  int64_t row_[2];
  float scale_[2];
};

// Adds the parts of cut panels in their order; of the softmax each by its own maximum.
void combine_attention(const PanelAttention& p, const HeadsView& to, int64_t width, float scale,
                       const float* partial, bool softmax, Stream stream);

template <Precision P>
void run_attention_forward(const PanelAttention& p, Stream stream);
template <Precision P>
void run_attention_row_grads(const PanelAttention& p, Stream stream);
template <Precision P>
void run_attention_column_grads(const PanelAttention& p, Stream stream);

}  // namespace gnnsparse::cuda
