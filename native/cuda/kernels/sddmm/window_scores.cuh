// Scores of a window: dot products of its 8 rows of Q with gathered rows of K, 16 at a time. The
// contraction runs over features in any order both operands agree on, so that every load is 16
// bytes and goes into the registers as it is (window_tile.h).
#pragma once

#include <type_traits>

#include "device/launch.cuh"
#include "device/mma.cuh"
#include "gnnsparse/window_problem.h"
#include "kernels/common/masked.cuh"

namespace gnnsparse::cuda {

inline constexpr int kSddmmWarps = 4;  // of a block; they share nothing

// A chunk is what the four lanes of a row load at once. Up to kResident chunks of Q stay in
// registers; with kResident = 0 they are read again for every K tile.
template <Precision P, int kResident>
class WindowScores {
 public:
  using Tile = WindowTile<P>;
  using Storage = typename Tile::Storage;
  static constexpr int kChunk = 4 * Tile::kLaneFeatures;

  __device__ WindowScores(const WindowSddmm& p, const WindowRange& range, int lane)
      : p_(p), feature_(Tile::kLaneFeatures * (lane & 3)) {
    const int64_t row = min(range.row + lane_row(lane), p.a.rows - 1);
    q_row_ = static_cast<const Storage*>(p.q.data) +
             (p.stored.row_ids != nullptr ? p.stored.row_ids[row] : row) * p.q.stride;
#pragma unroll
    for (int c = 0; c < kResident; ++c) q_[c] = load_masked<P>(q_row_, feature_ + c * kChunk, p.d);
  }

  // c[2 j + i]: row result_row(lane, i) by the K row of slot sddmm_slot(lane, j), of whose columns
  // `low` and `high` are this lane's.
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

 private:
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
  int64_t feature_;
  const Storage* q_row_;
  Vec16 q_[kResident > 0 ? kResident : 1];
};

// Launches kernel<resident>() for the number of chunks that q and k have: `launch` gets how many of
// them stay in registers, at most 128 features.
template <Precision P, class Launch>
void with_resident_chunks(int64_t d, const Launch& launch) {
  constexpr int64_t kChunk = WindowScores<P, 0>::kChunk;
  constexpr int kMost = 128 / kChunk;
  const int64_t chunks = ceil_div(d, kChunk);
  if (chunks <= kMost / 4) return launch(std::integral_constant<int, kMost / 4>{});
  if (chunks <= kMost) return launch(std::integral_constant<int, kMost>{});
  launch(std::integral_constant<int, 0>{});
}

}  // namespace gnnsparse::cuda
