// What a warp has multiplied by a policy -> rows of y, or partial sums of a window that was cut.
#pragma once

#include "device/vector.cuh"
#include "gnnsparse/cuda_api.h"
#include "gnnsparse/policy_problem.h"
#include "gnnsparse/policy_tile.h"

namespace gnnsparse::cuda {

// `kCount` neighbours of a row from column `col` on, of which those before `limit` exist.
template <int kCount>
__device__ __forceinline__ void store_run(const MutableDenseView& y, int64_t row, int64_t col,
                                          int64_t limit, const float (&v)[kCount]) {
  if constexpr (kCount >= 4) {
    store_row(y, row, col, limit, v);
  } else {
    const int64_t at = row * y.stride + col;
    const int64_t bytes = kCount * size_of(y.dtype);
    char* p = static_cast<char*>(y.data) + at * size_of(y.dtype);
    if (kCount == 2 && col + kCount <= limit && reinterpret_cast<uintptr_t>(p) % bytes == 0) {
      switch (y.dtype) {
        case DType::kFloat16:
          *reinterpret_cast<uint32_t*>(p) = pack_pair<DType::kFloat16>(v[0], v[kCount - 1]);
          break;
        case DType::kBFloat16:
          *reinterpret_cast<uint32_t*>(p) = pack_pair<DType::kBFloat16>(v[0], v[kCount - 1]);
          break;
        default:
          *reinterpret_cast<float2*>(p) = make_float2(v[0], v[kCount - 1]);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (col + i < limit) store_scalar(y.data, y.dtype, at + i, v[i]);
    }
  }
}

// The sums of one feature tile, which starts at column `tile`.
template <class Result>
__device__ __forceinline__ void store_tile(const PolicySpmm& p, const WindowRange& range,
                                           int partial, int64_t tile, int lane,
                                           const float (&sums)[Result::kSums][4]) {
  MutableDenseView to = p.y;
  if (partial >= 0) to = {p.partial, partial_stride(p.n), DType::kFloat32};
#pragma unroll
  for (int r = 0; r < Result::kRows; ++r) {
    const int in_window = Result::row(lane, r);
    int64_t row = range.row + in_window;
    float scale = 1.0f;
    if (partial >= 0) {
      row = int64_t{partial} * p.a.shape.window + in_window;
    } else {
      if (row >= p.a.rows) continue;
      if (p.stored.row_scale != nullptr) scale = p.stored.row_scale[row];
      if (p.stored.row_ids != nullptr) row = p.stored.row_ids[row];
    }
#pragma unroll
    for (int run = 0; run < Result::kRuns; ++run) {
      const int64_t feature = tile + Result::feature(lane, run);
      float out[Result::kLength];
#pragma unroll
      for (int m = 0; m < Result::kLength; ++m) {
        const int sum = Result::sum(run, m, r);
        out[m] = sums[sum / 4][sum % 4] * scale;
      }
      if (feature < p.n) store_run(to, row, feature, p.n, out);
    }
  }
}

}  // namespace gnnsparse::cuda
