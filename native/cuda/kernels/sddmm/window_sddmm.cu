// SDDMM on Tensor Cores (FlashSparse, section 3.4): a warp multiplies 16 gathered rows of K by the
// 8 rows of Q of its window and writes the elements that the bits name, in row order.
#include "kernels/sddmm/window_scores.cuh"

namespace gnnsparse::cuda {
namespace {

template <Precision P, int kResident>
__device__ void write_scores(const WindowSddmm& p, const WindowRange& range, int lane) {
  WindowScores<P, kResident> scores(p, range, lane);
  RowBits bits[2] = {RowBits(p.a, range, result_row(lane, 0)),
                     RowBits(p.a, range, result_row(lane, 1))};
  int64_t next[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = result_row(lane, i);
    next[i] = range.row + r < p.a.rows
                  ? p.stored.indptr[range.row + r] + p.work.row_offsets[range.item * kTileRows + r]
                  : 0;
  }
  int position = kWindowKTile * range.first_k_tile + sddmm_slot(lane, 0);
  const int32_t* columns = p.a.columns + range.first;
  for (int k_tile = 0; k_tile < range.k_tiles; ++k_tile, position += kWindowKTile) {
    float c[4] = {};
    scores.multiply(__ldg(columns + position), __ldg(columns + position + 8), c);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = bits[i].next();
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int slot = sddmm_slot(lane, j);
        if (!(word >> slot & 1u)) continue;
        store_scalar(p.out, p.out_dtype, next[i] + popcount(word & ((1u << slot) - 1u)),
                     c[2 * j + i]);
      }
      next[i] += popcount(word);
    }
  }
}

template <Precision P, int kResident>
__global__ void __launch_bounds__(kSddmmWarps* kWarp)
    window_sddmm_kernel(const __grid_constant__ WindowSddmm p) {
  const int64_t item = int64_t{blockIdx.x} * kSddmmWarps + threadIdx.x / kWarp;
  if (item >= p.work.item_count) return;
  const WindowRange range = window_range(p.a, p.work.items, item);
  write_scores<P, kResident>(p, range, threadIdx.x % kWarp);
}

template <Precision P>
void run(const WindowSddmm& p, Stream stream) {
  const dim3 grid = grid_of(p.work.item_count, kSddmmWarps, 1, "sddmm_window");
  with_resident_chunks<P>(p.d, [&](auto resident) {
    launch("sddmm_window", window_sddmm_kernel<P, decltype(resident)::value>, grid,
           kSddmmWarps * kWarp, stream, p);
  });
}

}  // namespace

void sddmm_window(const WindowSddmm& problem, Precision precision, Stream stream) {
  dispatch_precision<StoredWholeOperands>(precision, "window",
                                          [&](auto p) { run<p>(problem, stream); });
}

}  // namespace gnnsparse::cuda
