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

template <Precision P, class Source, int kCopyBytes>
class PanelWarp {
 public:
  using Ring = PanelRing<P, Source, kCopyBytes>;

  __device__ PanelWarp(const SpmmLaunch& p, const PanelItem& item, int lane, int slice,
                       uint32_t shared)
      : p_(p),
        item_(item),
        lane_(lane),
        slice_(slice),
        ring_(p, item, lane, shared),
        shared_(shared),
        rows_(p, item, lane),
        product_(lane) {
    ring_.start_at(p, slice);
  }

  // All K tiles for each of `slices` slices of X. The ring runs on from one slice to the next.
  __device__ void run(int slices) {
    PanelOperand<Source> operand(p_.a, lane_, shared_ + kPipelineStages * Ring::kPitch);
    uint32_t here = 0;                       // the stage that is multiplied
    int remaining = item_.k_tiles * slices;  // K tiles to copy
    if (remaining > 0) {
      operand.look_up(ring_.next());
      uint32_t ids[kLaneColumns];
      ring_.load_first_columns(ids);
      ring_.copy(remaining, ids, 0);
      operand.take();
    }
    ring_.prefetch_later(p_.work);
    for (int slice = 0; slice < slices; ++slice) {
      for (int i = item_.k_tiles; i > 0; --i) {
        operand.look_up(ring_.next());
        operand.put();
        wait_copies();
        // Now the copies of all lanes to this stage are there, and all lanes have read the other.
        __syncwarp();
        if (remaining > 0) {
          uint32_t ids[kLaneColumns];
          ring_.load_columns(here, ids);
          ring_.copy(remaining, ids, Ring::kPitch - here);
        }
        operand.open(ring_.metadata(here));
        operand.take();
        product_.add(ring_.rows(here), operand);
        operand.close();
        here = Ring::kPitch - here;
      }
      // The stage behind the last one that was multiplied is the one that is copied to.
      store_slice<P>(p_, item_, rows_, lane_, slice_ + slice, product_.sums(),
                     ring_.rows(Ring::kPitch - here));
      product_.clear();
    }
  }

 private:
  const SpmmLaunch& p_;
  const PanelItem& item_;
  int lane_;
  int slice_;
  Ring ring_;
  uint32_t shared_;
  PanelRows<Source> rows_;
  PanelProduct<P, Source> product_;
};

template <Precision P, class Source, int kCopyBytes>
__global__ void __launch_bounds__(kWarp, panel_blocks<P, Source>())
    panel_spmm_kernel(const __grid_constant__ SpmmLaunch p) {
  using Tile = PanelTile<P>;
  constexpr int kChunks = kPipelineStages * PanelRing<P, Source>::kPitch / sizeof(uint4) +
                          PanelOperand<Source>::kSharedChunks;
  __shared__ __align__(1024) uint4 ring[kChunks];
  const int lane = threadIdx.x;
  const PanelItem item = load_item(p.work.items + blockIdx.x);
  const int first = blockIdx.y * p.slices;
  const int slices =
      min(p.slices, static_cast<int>(ceil_div<int64_t>(p.n, Tile::kFeatures)) - first);
  PanelWarp<P, Source, kCopyBytes> warp(p, item, lane, first,
                                        static_cast<uint32_t>(__cvta_generic_to_shared(ring)));
  warp.run(slices);
}

template <Precision P, class Source, int kCopyBytes = kChunkBytes>
void launch_panel_spmm(const PanelSpmm& p, Stream stream) {
  const int64_t slices = ceil_div<int64_t>(p.n, PanelTile<P>::kFeatures);
  const dim3 grid =
      grid_of(p.work.item_count, 1, ceil_div<int64_t>(slices, p.slices), "spmm_panel");
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(panel_spmm_kernel<P, Source, kCopyBytes>, 0, prepared);
  launch("spmm_panel", panel_spmm_kernel<P, Source, kCopyBytes>, grid, kWarp, stream,
         SpmmLaunch(p, PrecisionTraits<P>::kStorage, PanelTile<P>::kFeatures));
}

// Panels of bits, whose X is read as it is.
template <Precision P, class Source>
void launch_bit_panels(const PanelSpmm& p, Stream stream) {
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
    if (p.x.rounded) return launch_panel_spmm<P, Rounded>(p, stream);
    launch_bit_panels<P, UnitPanel<P, kRows>>(p, stream);
  }
}

template <Precision P>
void PanelSpmmUnit<P>::run(const PanelSpmm& p, Stream stream) {
  dispatch_spmm_height(p.a.shape.panel, [&](auto rows) { run_panels_of<P, rows>(p, stream); });
}

}  // namespace gnnsparse::cuda
