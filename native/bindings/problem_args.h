// Handles that Python hands over -> the problems of the window and panel kernels.
#pragma once

#include "attention_args.h"
#include "checks.h"
#include "gnnsparse/cuda_api.h"
#include "gnnsparse/packed_entries.h"
#include "gnnsparse/packed_problem.h"
#include "gnnsparse/panel_attention.h"
#include "gnnsparse/panel_heights.h"
#include "gnnsparse/panel_problem.h"
#include "gnnsparse/policy_problem.h"
#include "gnnsparse/window_problem.h"
#include "handles.h"

namespace gnnsparse::bindings {

// The workspace of partial sums: for each of `partials` so many rows of `width`, padded.
inline float* partial_sums(const Memory& partial, int64_t partials, int64_t rows, int64_t width) {
  const int64_t floats = product("partial", partials, rows, cuda::partial_stride(width));
  return gpu_array<float>(partial, floats, "partial");
}

inline void require_window_shape(const BlockedView& a) {
  if (a.shape.lane_order || (a.shape.window != 8 && a.shape.window != 16)) {
    reject("window", "the window kernel takes 8 or 16 rows, row-major");
  }
}

// The arrays that the window kernel reads of an encoding.
inline void require_window_arrays(const BlockedView& a, int64_t slots) {
  if (slots == 0) return;
  if (a.encoding == Encoding::kDense && a.values == nullptr) reject("values", "is None");
  if (a.encoding == Encoding::kBitmap && a.bitmap == nullptr) reject("bitmap", "is None");
  if (a.encoding == Encoding::kBitmap && a.values != nullptr && a.value_ptr == nullptr) {
    reject("value_ptr", "is None");
  }
}

// X and Y of a product, into a problem that names them `x` and `y`.
template <class Problem>
void set_dense(Problem& p, const Dense& x, const Dense& y, int64_t n, Precision precision) {
  p.x = gpu_matrix<DenseView>(x, p.a.cols, n, "x");
  if (p.x.dtype != storage_of(precision)) reject("x", "must be in the storage type of precision");
  p.y = gpu_matrix<MutableDenseView>(y, p.a.rows, n, "y");
  p.n = n;
}

inline WindowSpmm window_spmm(const BlockedHandle& a, const StoredRowsHandle& rows,
                              const WorkListHandle& work, const Dense& x, const Dense& y, int64_t n,
                              const Memory& partial, Precision precision) {
  WindowSpmm p;
  p.a = gpu(a);
  a.require_storage(precision);
  require_window_arrays(p.a, a.slots);
  const bool has_values = rows.values.given;
  p.stored = has_values ? indexed_rows(rows, p.a.rows, a.nnz, precision)
                        : stored_rows(rows, p.a.rows, a.nnz, precision);
  p.work = work_list<WindowItem>(work, has_values ? p.a.shape.window : 0);
  set_dense(p, x, y, n, precision);
  p.partial = partial_sums(partial, p.work.partials, p.a.shape.window, n);
  return p;
}

// Blocks that a dense format's kernels find by shifts. Returns the logarithm of their columns.
inline int require_dense_blocks(const BlockedView& a) {
  if (a.encoding != Encoding::kDense) reject("format", "policies take dense formats");
  int log_block = 0;
  while (log_block < 4 && 1 << log_block < a.shape.block) ++log_block;
  if (1 << log_block != a.shape.block) {
    reject("format", "policies take blocks of 1, 2, 4, 8 or 16 columns");
  }
  if (a.shape.panel != a.shape.window) reject("format", "dense panels are one window");
  return log_block;
}

// Raises where no kernel is compiled for a policy: gnnsparse/formats/policy.py says why.
inline void require_policy(const WindowPolicy& policy, int window) {
  const bool vector = policy.x_load == XLoad::kVector;
  if (policy.shuffle && !vector) reject("shuffle", "needs vector loads");
  if (policy.stage_x && !vector) reject("stage_x", "needs vector loads");
  if (vector && !policy.shuffle && !policy.stage_x) reject("shuffle", "is off without stage_x");
  if (policy.stage_x && policy.stage_a == Staging::kNone) reject("stage_x", "needs stage_a");
  if (!policy.swapped && window != 16) reject("swapped", "is off with windows of 8 rows");
  require_at_least_one(policy.coarsening, "coarsening");
}

inline PolicySpmm policy_spmm(const BlockedHandle& a, const StoredRowsHandle& rows,
                              const WorkListHandle& work, const WindowPolicyHandle& handle,
                              const Dense& x, const Dense& y, int64_t n, const Memory& partial,
                              Precision precision) {
  PolicySpmm p;
  static_cast<WindowSpmm&>(p) = window_spmm(a, rows, work, x, y, n, partial, precision);
  if (rows.values.given) reject("values", "are the format's own");
  if (n > INT32_MAX) reject("n", "must be below 2^31");
  p.log_block = require_dense_blocks(p.a);
  require_policy(handle.policy, p.a.shape.window);
  require_aligned(a.values, 16, "values");
  p.policy = handle.policy;
  if (handle.zero_ptr.given) {
    p.zero_ptr = gpu_array<const int64_t>(handle.zero_ptr, p.a.rows + 1, "zero_ptr");
    p.zero_cols = gpu_array<const int32_t>(handle.zero_cols, handle.zero_cols.count, "zero_cols");
  }
  return p;
}

inline WindowPolicy packed_policy(const PackedPolicyHandle& handle) {
  require_code(handle.stage_a, 3, "stage_a");
  if (handle.coarsening != 1 && handle.coarsening != 2 && handle.coarsening != 4) {
    reject("coarsening", "must be 1, 2 or 4");
  }
  WindowPolicy policy;
  policy.stage_a = static_cast<Staging>(handle.stage_a);
  policy.stage_x = handle.stage_x;
  policy.coarsening = handle.coarsening;
  return policy;
}

// The parts that HRPB and RS-Tile have in common; `item_rows`: of a partial sum.
inline PackedSpmm packed_spmm(const BlockedHandle& a, const StoredRowsHandle& rows,
                              const WorkListHandle& work, const Dense& x, const Dense& y, int64_t n,
                              const Memory& partial, const PackedPolicyHandle& policy,
                              int64_t item_rows, Precision precision) {
  PackedSpmm p;
  p.policy = packed_policy(policy);
  p.residual_with_windows = policy.residual_with_windows;
  p.a = gpu(a);
  a.require_storage(precision);
  if (rows.values.given) reject("rows", "have values; those of the format are in its blocks");
  p.stored = stored_rows(rows, p.a.rows, a.nnz, precision);
  p.work = work_list<WindowItem>(work, 0);
  set_dense(p, x, y, n, precision);
  p.partial = partial_sums(partial, p.work.partials, item_rows, n);
  p.records = a.records;
  p.residual = a.residual;
  return p;
}

inline PackedSpmm record_spmm(const BlockedHandle& a, const StoredRowsHandle& rows,
                              const WorkListHandle& work, const Dense& x, const Dense& y, int64_t n,
                              const Memory& partial, const PackedPolicyHandle& policy,
                              Precision precision) {
  const BlockedView& view = gpu(a);
  if (a.records.size_ptr == nullptr) reject("format", "has no packed blocks");
  require_aligned(a.packed_blocks, kRecordAlignment, "packed_blocks");
  if (policy.coarsening != 4 && !(policy.stage_a == 1 && policy.stage_x)) {
    reject("coarsening", "must be 4 unless A and X are staged once");
  }
  return packed_spmm(a, rows, work, x, y, n, partial, policy, view.shape.panel, precision);
}

inline PackedSpmm tile_spmm(const BlockedHandle& a, const StoredRowsHandle& rows,
                            const WorkListHandle& work, const Dense& x, const Dense& y, int64_t n,
                            const Memory& partial, const PackedPolicyHandle& policy,
                            Precision precision) {
  const BlockedView& view = gpu(a);
  const BlockedShape& shape = view.shape;
  if (shape.window != 8 || shape.panel != 8 || shape.block != 8 || shape.brick != 8 ||
      view.encoding != Encoding::kBitmap || view.brick_ptr != nullptr || shape.lane_order) {
    reject("format", "must have windows of 8 rows in blocks of one brick of 8 x 8, all stored");
  }
  if (a.slots > 0) {
    if (view.bitmap == nullptr) reject("bitmap", "is None");
    if (view.value_ptr == nullptr) reject("value_ptr", "is None");
    if (view.values == nullptr) reject("values", "is None");
  }
  require_aligned(a.values, 16, "values");
  require_aligned(a.columns, 16, "columns");
  require_aligned(a.bitmap, 8, "bitmap");
  if (policy.stage_x) reject("stage_x", "rows of X go to registers");
  if (a.residual.count > 0 && a.residual.values == nullptr) reject("residual_values", "is None");
  auto p = packed_spmm(a, rows, work, x, y, n, partial, policy, shape.window, precision);
  p.value_bytes = product("values", a.values.count, size_of(storage_of(precision)));
  return p;
}

inline void require_entries(const BlockedHandle& a) {
  if (entry_value_bytes(a.view.encoding) == 0) reject("format", "stores no entries");
  if (a.view.panels > 0 && a.view.value_ptr == nullptr) reject("value_ptr", "is None");
}

// The values that entries are made of, in the width that their encoding has.
inline const void* entry_values(const BlockedView& format, const Memory& values, int64_t nnz,
                                Place place) {
  if (format.encoding == Encoding::kWordEntries) {
    return array<const float>(values, nnz, place, "values");
  }
  return array<const uint16_t>(values, nnz, place, "values");
}

// Panels in lane order that have the arrays of their encoding, in the width of the precision.
inline void require_spmm_panels(const BlockedView& a, int64_t slots, Precision precision) {
  if (!a.shape.lane_order) reject("format", "the panel kernel takes panels in lane order");
  if (slots > 0) {
    if (a.encoding != Encoding::kBitmap && a.values == nullptr) reject("values", "is None");
    if (a.encoding == Encoding::kBitmap && a.bitmap == nullptr) reject("bitmap", "is None");
    if (entry_value_bytes(a.encoding) > 0 && a.value_ptr == nullptr) {
      reject("value_ptr", "is None");
    }
  }
  if (!spmm_takes_panels(static_cast<int>(a.shape.panel))) {
    reject("format", "SpMM has no panels of " + std::to_string(a.shape.panel) + " rows");
  }
  if (a.encoding != Encoding::kBitmap && a.shape.panel != a.shape.window) {
    reject("format", "values are stored of panels that are one brick");
  }
  const int bytes = entry_value_bytes(a.encoding);
  if (bytes > 0 && bytes != size_of(storage_of(precision))) {
    reject("format", "entries hold values of " + std::to_string(8 * bytes) + " bits");
  }
  if (a.encoding == Encoding::kDense && a.shape.window == kPackedRows) {
    reject("format", "values of panels of 32 rows are entries");
  }
}

inline PanelSpmm panel_spmm(const BlockedHandle& a, const StoredRowsHandle& rows,
                            const WorkListHandle& work, const Dense& x, const Dense& y, int64_t n,
                            int slices, const Memory& partial, Precision precision) {
  require_at_least_one(slices, "slices");
  if (n > INT32_MAX) reject("n", "must be below 2^31");
  PanelSpmm p;
  p.a = gpu(a);
  require_spmm_panels(p.a, a.slots, precision);
  a.require_storage(precision);
  p.stored = stored_rows(rows, p.a.rows, a.nnz, precision);
  p.work = work_list<PanelItem>(work, 0);
  set_dense(p, x, y, n, precision);
  if (p.x.stride * size_of(p.x.dtype) > UINT32_MAX) reject("x", "rows are 4 GiB long or longer");
  p.slices = slices;
  p.partial = partial_sums(partial, p.work.partials, p.a.shape.panel, n);
  return p;
}

inline void require_score_panels(const BlockedView& a, int64_t slots) {
  if (!a.shape.lane_order || a.shape.window != kQueryRows || a.encoding != Encoding::kBitmap) {
    reject("format", "SDDMM and attention take the bits of panels with windows of 16 rows");
  }
  if (slots > 0 && a.bitmap == nullptr) reject("bitmap", "is None");
}

// The result of an SDDMM: a value for every nonzero.
template <class Problem>
void set_scores(Problem& p, const EdgeValuesHandle& out, int64_t nnz) {
  const EdgeValuesView& view = out.checked(1, 1, nnz, Place::kGpu, "out");
  p.out = const_cast<void*>(view.data);
  p.out_dtype = view.dtype;
}

// Q, K, the result and the rows of an SDDMM over panels or windows.
template <class Problem>
Problem sddmm_problem(const BlockedHandle& a, const StoredRowsHandle& rows, const Dense& q,
                      const Dense& k, const EdgeValuesHandle& out, int64_t d, Precision precision) {
  Problem p;
  p.a = gpu(a);
  p.stored = indexed_rows(rows, p.a.rows, a.nnz, precision);
  p.q = gpu_matrix<DenseView>(q, p.a.rows, d, "q");
  p.k = gpu_matrix<DenseView>(k, p.a.cols, d, "k");
  if (p.q.dtype != storage_of(precision)) reject("q", "must be in the storage type of precision");
  if (p.k.dtype != p.q.dtype) reject("k", "must have the dtype of q");
  set_scores(p, out, a.nnz);
  p.d = d;
  return p;
}

inline PanelSddmm panel_sddmm(const BlockedHandle& a, const StoredRowsHandle& rows,
                              const WorkListHandle& work, const Dense& q, const Dense& k,
                              const EdgeValuesHandle& out, int64_t d, Precision precision) {
  const BlockedView& view = gpu(a);
  require_score_panels(view, a.slots);
  if (view.shape.panel != kQueryRows) reject("format", "SDDMM takes panels of 16 rows");
  auto p = sddmm_problem<PanelSddmm>(a, rows, q, k, out, d, precision);
  p.work = work_list<PanelItem>(work, kQueryRows);
  if (p.k.stride * size_of(p.k.dtype) > UINT32_MAX) reject("k", "rows are 4 GiB long or longer");
  return p;
}

inline WindowSddmm window_sddmm(const BlockedHandle& a, const StoredRowsHandle& rows,
                                const WorkListHandle& work, const Dense& q, const Dense& k,
                                const EdgeValuesHandle& out, int64_t d, Precision precision) {
  const BlockedView& view = gpu(a);
  if (view.shape.window != 8 || view.shape.brick != 16 || view.encoding != Encoding::kBitmap) {
    reject("format", "SDDMM takes plain 8 x 16 bitmaps");
  }
  require_window_arrays(view, a.slots);
  auto p = sddmm_problem<WindowSddmm>(a, rows, q, k, out, d, precision);
  p.work = work_list<WindowItem>(work, view.shape.window);
  return p;
}

// Scores of a dense format in its own layout, in row order, or both: one may be None.
inline BlockSddmm block_sddmm(const BlockedHandle& a, const StoredRowsHandle& rows,
                              const WorkListHandle& work, const Dense& q, const Dense& k,
                              const Memory& blocks, const EdgeValuesHandle& out, int64_t d,
                              Precision precision) {
  require_window_shape(gpu(a));
  if (gpu(a).shape.window != 8) reject("window", "SDDMM takes windows of 8 rows");
  require_dense_blocks(gpu(a));
  a.require_storage(precision);
  require_window_arrays(gpu(a), a.slots);
  auto p = sddmm_problem<BlockSddmm>(a, rows, q, k, out, d, precision);
  p.work = work_list<WindowItem>(work, 8);
  if (blocks.given) {
    const int64_t count = product("blocks", a.slots, 8);
    p.blocks = stored_array(blocks, count, p.out_dtype, Place::kGpu, "blocks");
  }
  return p;
}

// The pattern and the work list of a pass of attention. `transposed`: rows of `a` are keys.
inline PanelAttention attention_over(const AttentionHandle& call, const BlockedHandle& a,
                                     const StoredRowsHandle& rows, const WorkListHandle& work,
                                     bool transposed) {
  PanelAttention p;
  p.a = gpu(a);
  require_score_panels(p.a, a.slots);
  if (p.a.shape.panel != kQueryRows && p.a.shape.panel != kTallPanelRows) {
    reject("format", "panels have 16 or 64 rows");
  }
  p.problem = transposed ? call.checked(p.a.cols, p.a.rows, a.nnz, Place::kGpu)
                         : call.checked(p.a.rows, p.a.cols, a.nnz, Place::kGpu);
  p.stored = indexed_rows(rows, p.a.rows, a.nnz, p.problem.precision);
  p.work = work_list<PanelItem>(work, p.a.shape.panel);
  p.head_count = call.head_count();
  p.queries = call.queries;
  return p;
}

}  // namespace gnnsparse::bindings
