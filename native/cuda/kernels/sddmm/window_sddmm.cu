// SDDMM on Tensor Cores (FlashSparse, section 3.4): a warp multiplies 16 gathered rows of K by the
// 8 rows of Q of its window and writes the elements that the bits name, in row order. The
// contraction runs over features in any order both operands agree on, so that every load is 16
// bytes and goes into the registers as it is (window_tile.h).
#include "device/launch.cuh"
#include "device/mma.cuh"
#include "gnnsparse/window_problem.h"
#include "kernels/common/masked.cuh"

namespace gnnsparse::cuda {
namespace {

constexpr int kSddmmWarps = 4;

// A chunk is what the four lanes of a row load at once. Up to kResident chunks of Q stay in
// registers; with kResident = 0 they are read again for every K tile.
template <Precision P, int kResident>
class SddmmWarp {
 public:
  using Tile = WindowTile<P>;
  using Storage = typename Tile::Storage;
  static constexpr int kChunk = 4 * Tile::kLaneFeatures;

  __device__ SddmmWarp(const WindowSddmm& p, const WindowRange& range, int lane)
      : p_(p), range_(range), lane_(lane), feature_(Tile::kLaneFeatures * (lane & 3)) {
    const int64_t row = min(range.row + lane_row(lane), p.a.rows - 1);
    q_row_ = static_cast<const Storage*>(p.q.data) +
             (p.stored.row_ids != nullptr ? p.stored.row_ids[row] : row) * p.q.stride;
#pragma unroll
    for (int c = 0; c < kResident; ++c) q_[c] = load_masked<P>(q_row_, feature_ + c * kChunk, p.d);
  }

  __device__ void run() {
    RowBits bits[2] = {RowBits(p_.a, range_, result_row(lane_, 0)),
                       RowBits(p_.a, range_, result_row(lane_, 1))};
    int64_t next[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = result_row(lane_, i);
      next[i] = range_.row + r < p_.a.rows ? p_.stored.indptr[range_.row + r] +
                                                 p_.work.row_offsets[range_.item * kTileRows + r]
                                           : 0;
    }
    int position = kWindowKTile * range_.first_k_tile + sddmm_slot(lane_, 0);
    const int32_t* columns = p_.a.columns + range_.first;
    for (int k_tile = 0; k_tile < range_.k_tiles; ++k_tile, position += kWindowKTile) {
      float c[4] = {};
      multiply(__ldg(columns + position), __ldg(columns + position + 8), c);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t word = bits[i].next();
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int slot = sddmm_slot(lane_, j);
          if (!(word >> slot & 1u)) continue;
          store_scalar(p_.out, p_.out_dtype, next[i] + popcount(word & ((1u << slot) - 1u)),
                       c[2 * j + i]);
        }
        next[i] += popcount(word);
      }
    }
  }

 private:
  __device__ void multiply(int32_t low, int32_t high, float (&c)[4]) {
    __syncwarp();  // the stores before it branch by lane, an mma takes the whole warp
    const auto* k = static_cast<const Storage*>(p_.k.data);
    const Storage* k_low = k + low * p_.k.stride;
    const Storage* k_high = k + high * p_.k.stride;
    if constexpr (kResident > 0) {
      Vec16 rows[kResident][2];
#pragma unroll
      for (int i = 0; i < kResident; ++i) {
        rows[i][0] = load_masked<P>(k_low, feature_ + i * kChunk, p_.d);
        rows[i][1] = load_masked<P>(k_high, feature_ + i * kChunk, p_.d);
      }
#pragma unroll
      for (int i = 0; i < kResident; ++i) multiply_chunk(rows[i][0], rows[i][1], q_[i], c);
    } else {
      for (int64_t f = feature_; f - feature_ < p_.d; f += kChunk) {
        multiply_chunk(load_masked<P>(k_low, f, p_.d), load_masked<P>(k_high, f, p_.d),
                       load_masked<P>(q_row_, f, p_.d), c);
      }
    }
  }

  __device__ static void multiply_chunk(const Vec16& low, const Vec16& high, const Vec16& q,
                                        float (&c)[4]) {
#pragma unroll
    for (int m = 0; m < kSddmmMmas; ++m) {
      uint32_t a[4];
      uint32_t b[2];
      sddmm_a_registers<Tile>(low, high, m, a);
      sddmm_b_registers<Tile>(q, m, b);
      mma<kArithmetic<P>>(c, a, b);
    }
  }

  const WindowSddmm& p_;
  const WindowRange& range_;
  int lane_;
  int64_t feature_;
  const Storage* q_row_;
  Vec16 q_[kResident > 0 ? kResident : 1];
};

template <Precision P, int kResident>
__global__ void __launch_bounds__(kSddmmWarps* kWarp)
    window_sddmm_kernel(const __grid_constant__ WindowSddmm p) {
  const int64_t item = int64_t{blockIdx.x} * kSddmmWarps + threadIdx.x / kWarp;
  if (item >= p.work.item_count) return;
  const WindowRange range = window_range(p.a, p.work.items, item);
  SddmmWarp<P, kResident>(p, range, threadIdx.x % kWarp).run();
}

template <Precision P, int kResident>
void launch_sddmm(const WindowSddmm& p, Stream stream) {
  const dim3 grid = grid_of(p.work.item_count, kSddmmWarps, 1, "sddmm_window");
  launch("sddmm_window", window_sddmm_kernel<P, kResident>, grid, kSddmmWarps * kWarp, stream, p);
}

template <Precision P>
void run(const WindowSddmm& p, Stream stream) {
  constexpr int64_t kChunk = SddmmWarp<P, 0>::kChunk;
  constexpr int kMost = 128 / kChunk;  // 128 features in registers
  const int64_t chunks = ceil_div(p.d, kChunk);
  if (chunks <= kMost / 4) return launch_sddmm<P, kMost / 4>(p, stream);
  if (chunks <= kMost) return launch_sddmm<P, kMost>(p, stream);
  launch_sddmm<P, 0>(p, stream);
}

}  // namespace

void sddmm_window(const WindowSddmm& problem, Precision precision, Stream stream) {
  dispatch_precision<StoredWholeOperands>(precision, "window",
                                          [&](auto p) { run<p>(problem, stream); });
}

}  // namespace gnnsparse::cuda
