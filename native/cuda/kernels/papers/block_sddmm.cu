// FlashSparse's SDDMM on a dense format with windows of 8 rows (section 3.4): the scores of 16
// columns by the 8 rows of a window, C^T, are split into the blocks that SpMM reads (algorithm 1),
// and put into row order along the way. Which elements are nonzeros the format's values say.
#include "kernels/sddmm/window_scores.cuh"

namespace gnnsparse::cuda {
namespace {

// The lanes that have the same two rows: of four, every fourth lane.
__device__ __forceinline__ uint32_t lanes_of_rows(int lane) { return 0x11111111u << (lane & 3); }

template <Precision P>
__device__ __forceinline__ bool is_nonzero(const BlockSddmm& p, int64_t at) {
  return load_const(static_cast<const StorageOf<P>*>(p.a.values) + at) != 0;
}

template <Precision P, int kResident>
__device__ void write_scores(const BlockSddmm& p, const WindowRange& range, int lane) {
  WindowScores<P, kResident> scores(p, range, lane);
  int64_t next[2] = {};
  int64_t end[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = result_row(lane, i);
    if (p.out == nullptr || range.row + r >= p.a.rows) continue;
    next[i] = p.stored.indptr[range.row + r] + p.work.row_offsets[range.item * kTileRows + r];
    end[i] = p.stored.indptr[range.row + r + 1];
  }
  const int32_t* columns = p.a.columns + range.first;
  for (int k_tile = range.first_k_tile; k_tile < range.first_k_tile + range.k_tiles; ++k_tile) {
    const int position[2] = {kWindowKTile * k_tile + sddmm_slot(lane, 0),
                             kWindowKTile * k_tile + sddmm_slot(lane, 1)};
    const int last = range.slots - 1;  // repeated by the slots that do not exist
    float c[4] = {};
    scores.multiply(__ldg(columns + min(position[0], last)),
                    __ldg(columns + min(position[1], last)), c);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {  // slots 0 to 7 come before 8 to 15
        const bool exists = position[j] <= last;
        const int64_t at = exists ? dense_offset(p.a.shape, range.first, range.slots,
                                                 result_row(lane, i), position[j])
                                  : 0;
        const bool nonzero = exists && is_nonzero<P>(p, at);
        if (exists && p.blocks != nullptr) {
          store_scalar(p.blocks, p.out_dtype, at, nonzero ? c[2 * j + i] : 0.0f);
        }
        const uint32_t row = __ballot_sync(0xffffffffu, nonzero) & lanes_of_rows(lane);
        const int64_t edge = next[i] + popcount(row & ((1u << lane) - 1u));
        if (nonzero && edge < end[i]) store_scalar(p.out, p.out_dtype, edge, c[2 * j + i]);
        next[i] += popcount(row);
      }
    }
  }
}

template <Precision P, int kResident>
__global__ void __launch_bounds__(kSddmmWarps* kWarp)
    block_sddmm_kernel(const __grid_constant__ BlockSddmm p) {
  const int64_t item = int64_t{blockIdx.x} * kSddmmWarps + threadIdx.x / kWarp;
  if (item >= p.work.item_count) return;
  const WindowRange range = window_range(p.a, p.work.items, item);
  write_scores<P, kResident>(p, range, threadIdx.x % kWarp);
}

template <Precision P>
void run(const BlockSddmm& p, Stream stream) {
  const dim3 grid = grid_of(p.work.item_count, kSddmmWarps, 1, "sddmm_blocks");
  with_resident_chunks<P>(p.d, [&](auto resident) {
    launch("sddmm_blocks", block_sddmm_kernel<P, decltype(resident)::value>, grid,
           kSddmmWarps * kWarp, stream, p);
  });
}

}  // namespace

void sddmm_blocks(const BlockSddmm& problem, Precision precision, Stream stream) {
  dispatch_precision<StoredWholeOperands>(precision, "block",
                                          [&](auto p) { run<p>(problem, stream); });
}

}  // namespace gnnsparse::cuda
