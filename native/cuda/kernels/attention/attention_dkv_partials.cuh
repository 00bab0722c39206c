// The backward pass in one: beside dQ, a pass over rows writes what every column slot of a panel
// adds to dK and dV, and a second kernel sums it. For patterns whose transpose shares so little
// among its rows that a pass over columns would gather several times as much.
#pragma once

#include "kernels/attention/panel_attention.cuh"

namespace gnnsparse::cuda {

// A warp's way from weights to dkv_partials: dV of a K tile's columns is the transposed weights
// times the warp's own rows of the output's gradient, dK that of the scores' gradients times those
// of Q.
template <Precision P>
class DkvPartialWriter {
 public:
  __device__ DkvPartialWriter(const PanelAttention& p, const AttentionWork& work, uint32_t own)
      : lane_(work.lane),
        value_chunks_(DkvPartials::chunks(p.problem.dv)),
        key_chunks_(DkvPartials::chunks(p.problem.d)),
        row_bytes_(static_cast<uint32_t>(DkvPartials::row_bytes(p.problem))),
        places_(p.dkv_partials.place_of_slot + int64_t{work.item.first_k_tile} * kPanelKTile +
                (lane_ & ~3)),
        to_(static_cast<char*>(p.dkv_partials.data) +
            (work.head - p.first_head) * p.dkv_partials.count * int64_t{row_bytes_} +
            16 * (lane_ & 3)) {
    own_ = own + query_address(lane_);
  }

  // Own rows of Q and, 2 KB behind, of the gradient are put in the order of the dkv_partials: tile
  // 4 h + j of a result has the pairs of features that make up, of each lane, 16 bytes over j.
  __device__ void arrange(uint32_t own) const {
    __syncwarp();
    const uint32_t row = own + kQueryBytes * (lane_ / kQueryRows);
    const int in_window = lane_ % kQueryRows;
    uint32_t words[kRowChunks][4];
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) {
      load_shared(row + 16 * query_chunk(in_window, c), words[c]);
    }
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) {
      const int half = c & ~3;
      store_shared(row + 16 * query_chunk(in_window, c),
                   make_uint4(words[half][c & 3], words[half + 1][c & 3], words[half + 2][c & 3],
                              words[half + 3][c & 3]));
    }
    __syncwarp();
  }

  // Where the dkv_partials of a K tile go; before its other work, which hides the wait.
  __device__ __forceinline__ void enter(int k_tile) {
    const int4 places =
        __ldg(reinterpret_cast<const int4*>(places_ + int64_t{k_tile} * kPanelKTile));
    place_[0] = places.x;
    place_[1] = places.y;
    place_[2] = places.z;
    place_[3] = places.w;
  }

  // Of weights, or of scores' gradients, as operand A of the pass over rows.
  __device__ __forceinline__ void write_values(const uint32_t (&a)[2][4]) const {
    write(a, own_ + kQueryBytes, 0, value_chunks_);
  }
  __device__ __forceinline__ void write_keys(const uint32_t (&a)[2][4]) const {
    write(a, own_, 16 * value_chunks_, key_chunks_);
  }

 private:
  __device__ __forceinline__ void write(const uint32_t (&a)[2][4], uint32_t rows, int offset,
                                        int chunks) const {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      // Registers 1 and 2 change places: rows of A become columns.
      const uint32_t turned[4] = {transpose_matrix(a[q][0]), transpose_matrix(a[q][2]),
                                  transpose_matrix(a[q][1]), transpose_matrix(a[q][3])};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sums[4][4] = {};
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          uint32_t x[4];
          load_matrices(rows ^ 32u * (2 * half + pair), x);
          const uint32_t low[2] = {x[0], x[1]};
          const uint32_t high[2] = {x[2], x[3]};
          mma<kArithmetic<P>>(sums[2 * pair], turned, low);
          mma<kArithmetic<P>>(sums[2 * pair + 1], turned, high);
        }
        if ((lane_ & 3) + 4 * half >= chunks) continue;
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          const int place = place_[2 * q + upper];
          if (place < 0) continue;
          char* to = to_ + uint64_t{static_cast<uint32_t>(place)} * row_bytes_ + offset + 64 * half;
          __stcs(reinterpret_cast<uint4*>(to),
                 make_uint4(pack_pair<PrecisionTraits<P>::kStorage>(sums[0][2 * upper],
                                                                    sums[0][2 * upper + 1]),
                            pack_pair<PrecisionTraits<P>::kStorage>(sums[1][2 * upper],
                                                                    sums[1][2 * upper + 1]),
                            pack_pair<PrecisionTraits<P>::kStorage>(sums[2][2 * upper],
                                                                    sums[2][2 * upper + 1]),
                            pack_pair<PrecisionTraits<P>::kStorage>(sums[3][2 * upper],
                                                                    sums[3][2 * upper + 1])));
        }
      }
    }
  }

  int lane_;
  int value_chunks_;
  int key_chunks_;
  uint32_t row_bytes_;
  const int32_t* places_;
  char* to_;
  uint32_t own_;
  int place_[4];
};

// In place of it where nothing is written.
struct NoDkvPartials {
  __device__ NoDkvPartials(const PanelAttention&, const AttentionWork&, uint32_t) {}
};

inline constexpr int kSumThreads = 128;

// Half a warp takes every other partial of a column, a lane 16 bytes of each.
template <Precision P>
__global__ void __launch_bounds__(kSumThreads)
    sum_dkv_partials_kernel(const __grid_constant__ PanelAttention p) {
  constexpr int kInFlight = 4;
  const int64_t column = int64_t{blockIdx.x} * (kSumThreads / kWarp) + threadIdx.x / kWarp;
  if (column >= p.a.cols) return;
  const int lane = threadIdx.x % kWarp;
  const int chunk = lane % 16;
  const int value_chunks = DkvPartials::chunks(p.problem.dv);
  const int64_t row_bytes = DkvPartials::row_bytes(p.problem);
  const bool used = 16 * chunk < row_bytes;
  const char* from = static_cast<const char*>(p.dkv_partials.data) +
                     blockIdx.y * p.dkv_partials.count * row_bytes + 16 * chunk;
  const int end = __ldg(p.dkv_partials.column_starts + column + 1);
  float sum[8] = {};
  for (int i = __ldg(p.dkv_partials.column_starts + column) + lane / 16; i < end;
       i += 2 * kInFlight) {
    Vec16 vectors[kInFlight] = {};
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (used && i + 2 * j < end) vectors[j] = load_vec16(from + (i + 2 * j) * row_bytes);
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      float elements[8];
      to_floats<P>(vectors[j], elements);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum[e] += elements[e];
    }
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 16);
  const bool keys = chunk >= value_chunks;
  const HeadsView& to = keys ? p.dk : p.dv;
  if (!used || lane >= 16 || to.data == nullptr) return;
  const int64_t head = p.first_head + blockIdx.y;
#pragma unroll
  for (int e = 0; e < 8; ++e) sum[e] *= keys ? p.problem.scale : 1.0f;
  store_row(to.mutable_of(head / p.problem.heads, head % p.problem.heads), column,
            8 * (chunk - (keys ? value_chunks : 0)), keys ? p.problem.d : p.problem.dv, sum);
}

template <Precision P>
void launch_sum_dkv_partials(const PanelAttention& p, Stream stream) {
  const dim3 grid = grid_of(p.a.cols, kSumThreads / kWarp, p.head_count, "attention_dkv_partials");
  launch("attention_dkv_partials", sum_dkv_partials_kernel<P>, grid, kSumThreads, stream, p);
}

}  // namespace gnnsparse::cuda
