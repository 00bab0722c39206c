// SpMM on Tensor Cores over panels of 16 or 32 rows. One warp takes an item of the work list, a run
// of K tiles of one panel, and a slice of X: 128 bytes of every row. The rows of X that a K tile
// needs are copied once into shared memory (panel_ring.cuh), and every row of the panel uses them:
// they are multiplied (panel_product.cuh) with operand A (panel_operand.cuh). Then the sums of the
// slice are written (panel_store.cuh). panel_tile.h has the maps of addresses and registers.
//
// One warp is a block, so that no warp ever waits for another one. The second dimension of the grid
// runs over the slices of X, so that the rows in use at a time are those of one slice, which stays
// in L2. Where panels are short a warp takes several slices, to pay for its start less often.
#pragma once

#include <type_traits>

#include "device/launch.cuh"
#include "kernels/spmm/panel_product.cuh"
#include "kernels/spmm/panel_ring.cuh"
#include "kernels/spmm/panel_store.cuh"
#include "kernels/spmm/panel_warp.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

// Blocks that must fit on a multiprocessor; registers are the limit.
template <Precision P, class Source>
constexpr int panel_blocks() {
  constexpr PanelHeight kHeight = panel_height(Source::kRows);
  // In fp32 the compiler may take more registers, and hardly does. Of packed values it would, for
  // no fewer instructions.
  if (kSplit<P> && !kPackedSource<Source>) return kHeight.spmm_blocks_fp32;
  return resident_blocks(kHeight.spmm_blocks);
}

template <Precision P, class Source, int kCopyBytes, bool kAdd>
struct PanelSpmmParts {
  using Problem = SpmmLaunch;
  using Ring = PanelRing<PanelTile<P>, Source, kCopyBytes>;
  using Operand = PanelOperand<Source>;
  using Product = PanelProduct<P, Source>;
  using Rows = PanelRows<Source>;
  static constexpr int kFeatures = PanelTile<P>::kFeatures;
  static constexpr int kWarps = 1;

  static __device__ void expect(const SpmmLaunch& p, const PanelItem& item, const Rows& rows,
                                int slice) {
    if constexpr (kAdd) prefetch_slice(p, item, rows, slice);
  }
  static __device__ void store(const SpmmLaunch& p, const PanelItem& item, const Rows& rows,
                               int lane, int, int slice, const Product& product, uint32_t own) {
    store_slice<P, kAdd>(p, item, rows, lane, slice, product.sums(), own);
  }
};

// kAdd: a kernel of its own, because the rows that it reads take registers.
template <Precision P, class Source, int kCopyBytes, bool kAdd>
__global__ void __launch_bounds__(kWarp, panel_blocks<P, Source>())
    panel_spmm_kernel(const __grid_constant__ SpmmLaunch p) {
  using Parts = PanelSpmmParts<P, Source, kCopyBytes, kAdd>;
  __shared__ __align__(1024) uint4 shared[PanelPipeline<Parts>::kSharedChunks];
  run_panel<Parts>(p, static_cast<uint32_t>(__cvta_generic_to_shared(shared)));
}

template <Precision P, class Source, int kCopyBytes = kChunkBytes, bool kAdd = false>
void launch_panel_spmm(const PanelSpmm& p, Stream stream) {
  using Parts = PanelSpmmParts<P, Source, kCopyBytes, kAdd>;
  const auto kernel = panel_spmm_kernel<P, Source, kCopyBytes, kAdd>;
  const dim3 grid = panel_grid<Parts>(p, "spmm_panel");
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(kernel, 0, prepared);
  launch("spmm_panel", kernel, grid, kWarp, stream,
         SpmmLaunch(p, PrecisionTraits<P>::kStorage, PanelTile<P>::kFeatures));
}

// Panels of bits, whose X is read as it is.
template <Precision P, class Source>
void launch_bit_panels(const PanelSpmm& p, Stream stream) {
  if (p.add) return launch_panel_spmm<P, Source, kChunkBytes, true>(p, stream);
  const int64_t stride = p.x.stride * size_of(p.x.dtype);
  const bool chunks = (reinterpret_cast<uintptr_t>(p.x.data) | stride) % kChunkBytes == 0;
  if (chunks) return launch_panel_spmm<P, Source>(p, stream);
  launch_panel_spmm<P, Source, kHalfChunkBytes>(p, stream);
}

template <Precision P, int kRows>
void run_panels_of(const PanelSpmm& p, Stream stream) {
  if (p.a.encoding != Encoding::kBitmap) {
    if constexpr (kRows == kPackedRows) {
      launch_panel_spmm<P, PackedPanel<P>>(p, stream);
    } else if constexpr (panel_height(kRows).brick_rows == kRows) {
      launch_panel_spmm<P, ValuePanel<P, kRows>>(p, stream);
    }
  } else if (p.a.slot_scale != nullptr) {
    launch_bit_panels<P, ScaledPanel<P, kRows>>(p, stream);
  } else {
    // Only tf32 rounds X when it is multiplied, so only there it can have been rounded before.
    using Rounded = std::conditional_t<kArithmetic<P> == Arithmetic::kTf32, RoundedPanel<kRows>,
                                       UnitPanel<P, kRows>>;
    if (p.x.rounded && !p.add) return launch_panel_spmm<P, Rounded>(p, stream);
    launch_bit_panels<P, UnitPanel<P, kRows>>(p, stream);
  }
}

template <Precision P>
void PanelSpmmUnit<P>::run(const PanelSpmm& p, Stream stream) {
  dispatch_spmm_height(p.a.shape.panel, [&](auto rows) { run_panels_of<P, rows>(p, stream); });
}

}  // namespace gnnsparse::cuda
