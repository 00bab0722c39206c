// A block's work on an item of a panel kernel: K tiles come through the ring, are multiplied and,
// slice by slice, stored. A block is one warp, or a few that share what the ring brings and
// multiply each its own part of the slice.
#pragma once

#include "gnnsparse/panel_problem.h"
#include "kernels/common/panel_item.cuh"

namespace gnnsparse::cuda {

// K tiles on their way through a block. Parts are what a kernel is made of:
//   Problem  its arguments, a PanelSpmm,
//   Ring     of the rows of X (panel_ring.cuh),
//   Operand  A (panel_operand.cuh),
//   Product  the sums of a slice: add(rows, operand), clear(),
//   Rows     where results go (panel_store.cuh),
//   kFeatures of a slice,
//   kWarps   of a block,
//   expect(problem, item, rows, slice): before a slice is multiplied, so that what store reads is
//            on its way; every lane calls it,
//   store(problem, item, rows, lane, warp, slice, product, own): `own` is the shared memory of a
//            stage that no copy is on its way to.
template <class Parts>
class PanelPipeline {
 public:
  using Problem = typename Parts::Problem;
  using Ring = typename Parts::Ring;
  static constexpr uint32_t kSharedChunks = Ring::kBytes / 16 + Parts::Operand::kSharedChunks;

  __device__ PanelPipeline(const Problem& p, const PanelItem& item, int lane, int warp, int slice,
                           uint32_t shared)
      : p_(p),
        lane_(lane),
        warp_(warp),
        slice_(slice),
        ring_(p, item, lane, warp, shared),
        operand_(p.a, lane, shared + Ring::kBytes),
        product_(lane, warp) {
    ring_.start_at(p, slice);
  }

  // Starts the copies of the first of `k_tiles` K tiles.
  __device__ void start(int k_tiles) {
    remaining_ = k_tiles;
#pragma unroll
    for (int i = 0; i < Ring::kAhead; ++i) {
      if (remaining_ > 0) {
        if (i == 0) operand_.look_up(ring_.next());
        uint32_t ids[Ring::kLaneSlots];
        ring_.load_first_columns(ids);
        ring_.copy(remaining_, ids, i * Ring::kPitch);
        if (i == 0) operand_.take();
      }
      ring_.commit();
    }
    ring_.prefetch_later(p_.work);
  }

  // Adds the next K tile to the sums.
  __device__ void add() {
    operand_.look_up(ring_.next());
    operand_.put();
    ring_.wait();
    // Now the copies of all lanes to this stage are there, and all lanes have read the one that was
    // multiplied before.
    meet<Parts::kWarps>();
    if (remaining_ > 0) {
      uint32_t ids[Ring::kLaneSlots];
      ring_.load_columns(here_, ids);
      ring_.copy(remaining_, ids, Ring::before(here_));
    }
    ring_.commit();
    operand_.open(ring_.metadata(here_));
    operand_.take();
    product_.add(ring_.rows(here_), operand_);
    operand_.close();
    here_ = Ring::behind(here_);
  }

  // Writes the sums, of the slice that is `slice` slices behind the first one, and starts new ones.
  __device__ void store(const PanelItem& item, const typename Parts::Rows& rows, int slice) {
    // What was multiplied last is copied to next.
    Parts::store(p_, item, rows, lane_, warp_, slice_ + slice, product_,
                 ring_.rows(Ring::before(here_)));
    product_.clear();
  }

 private:
  const Problem& p_;
  int lane_;
  int warp_;
  int slice_;
  Ring ring_;
  typename Parts::Operand operand_;
  typename Parts::Product product_;
  uint32_t here_ = 0;  // the stage that is multiplied
  int remaining_ = 0;  // K tiles to copy
};

// The block's item: all its K tiles for each of `p.slices` slices of X. The ring runs on from one
// slice to the next. `shared` has kSharedChunks chunks.
template <class Parts>
__device__ __forceinline__ void run_panel(const typename Parts::Problem& p, uint32_t shared) {
  const int lane = Parts::kWarps == 1 ? threadIdx.x : threadIdx.x % kWarp;
  const int warp = Parts::kWarps == 1 ? 0 : threadIdx.x / kWarp;
  const PanelItem item = load_item(p.work.items + blockIdx.x);
  const int first = blockIdx.y * p.slices;
  const int slices =
      min(p.slices, static_cast<int>(ceil_div<int64_t>(p.n, Parts::kFeatures)) - first);
  PanelPipeline<Parts> pipeline(p, item, lane, warp, first, shared);
  const typename Parts::Rows rows(p, item, lane);
  pipeline.start(item.k_tiles * slices);
  for (int slice = 0; slice < slices; ++slice) {
    Parts::expect(p, item, rows, first + slice);
    for (int i = item.k_tiles; i > 0; --i) pipeline.add();
    pipeline.store(item, rows, slice);
  }
}

// The grid of a panel kernel.
template <class Parts>
dim3 panel_grid(const PanelSpmm& p, const char* kernel) {
  const int64_t slices = ceil_div<int64_t>(p.n, Parts::kFeatures);
  return grid_of(p.work.item_count, 1, ceil_div<int64_t>(slices, p.slices), kernel);
}

}  // namespace gnnsparse::cuda
