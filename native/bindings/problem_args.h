// Handles that Python hands over -> the problems of the window and panel kernels.
#pragma once

#include "checks.h"
#include "gnnsparse/panel_attention.h"
#include "gnnsparse/panel_heights.h"
#include "gnnsparse/panel_problem.h"
#include "gnnsparse/window_problem.h"
#include "handles.h"

namespace gnnsparse::bindings {

inline void require_window_shape(const BlockedView& a) {
  if (a.shape.lane_order || (a.shape.window != 8 && a.shape.window != 16)) {
    reject("window", "the window kernel takes 8 or 16 rows, row-major");
  }
}

// X and Y of a product, into a problem that names them `x` and `y`.
template <class Problem>
void set_dense(Problem& p, const Dense& x, const Dense& y, int64_t n, Precision precision) {
  p.x = matrix<DenseView>(x, p.a.cols, n, "x");
  if (p.x.dtype != storage_of(precision)) reject("x", "must be in the storage type of precision");
  p.y = matrix<MutableDenseView>(y, p.a.rows, n, "y");
  p.n = n;
}

inline WindowSpmm window_spmm(const BlockedView& a, const StoredRowsHandle& rows,
                              const WorkListHandle& work, const Dense& x, const Dense& y, int64_t n,
                              Address partial, Precision precision) {
  WindowSpmm p;
  p.a = a;
  const bool has_values = rows.values != 0;
  p.stored = has_values ? stored_rows(rows, a.rows) : stored_rows(rows);
  p.work = work_list<WindowItem>(work, has_values);
  set_dense(p, x, y, n, precision);
  p.partial = optional_array<float>(partial, "partial");
  return p;
}

inline void require_entries(const BlockedView& a) {
  if (a.encoding != Encoding::kEntries) reject("format", "stores no entries");
  if (a.panels > 0 && a.value_ptr == nullptr) reject("value_ptr", "is null");
}

// Panels in lane order that have the arrays of their encoding, in the width of the precision.
inline void require_spmm_panels(const BlockedView& a, Precision precision) {
  if (!a.shape.lane_order) reject("format", "the panel kernel takes panels in lane order");
  if (a.columns != nullptr) {
    if (a.encoding != Encoding::kBitmap && a.values == nullptr) reject("values", "is null");
    if (a.encoding == Encoding::kBitmap && a.bitmap == nullptr) reject("bitmap", "is null");
    if (a.encoding == Encoding::kEntries && a.value_ptr == nullptr) reject("value_ptr", "is null");
  }
  if (!spmm_takes_panels(static_cast<int>(a.shape.panel))) {
    reject("format", "SpMM has no panels of " + std::to_string(a.shape.panel) + " rows");
  }
  if (a.encoding != Encoding::kBitmap && a.shape.panel != a.shape.window) {
    reject("format", "values are stored of panels that are one brick");
  }
  const bool half = size_of(storage_of(precision)) == 2;
  if (a.encoding == Encoding::kEntries && !half) reject("format", "entries hold values of 16 bits");
  if (a.encoding == Encoding::kDense && half && a.shape.window == kPackedRows) {
    reject("format", "16-bit values of panels of 32 rows are entries");
  }
}

inline PanelSpmm panel_spmm(const BlockedView& a, const StoredRowsHandle& rows,
                            const WorkListHandle& work, const Dense& x, const Dense& y, int64_t n,
                            int slices, Address partial, Precision precision) {
  if (slices < 1) reject("slices", "must be at least 1, got " + std::to_string(slices));
  if (n > INT32_MAX) reject("n", "must be below 2^31");
  require_spmm_panels(a, precision);
  PanelSpmm p;
  p.a = a;
  p.stored = stored_rows(rows);
  p.work = work_list<PanelItem>(work, false);
  set_dense(p, x, y, n, precision);
  if (p.x.stride * size_of(p.x.dtype) > UINT32_MAX) reject("x", "rows are 4 GiB long or longer");
  p.slices = slices;
  p.partial = optional_array<float>(partial, "partial");
  return p;
}

inline void require_score_panels(const BlockedView& a) {
  if (!a.shape.lane_order || a.shape.window != kQueryRows || a.encoding != Encoding::kBitmap) {
    reject("format", "SDDMM and attention take the bits of panels with windows of 16 rows");
  }
  if (a.columns != nullptr && a.bitmap == nullptr) reject("bitmap", "is null");
}

// Q, K, the result and the rows of an SDDMM over panels or windows.
template <class Problem>
Problem sddmm_problem(const BlockedView& a, const StoredRowsHandle& rows, const Dense& q,
                      const Dense& k, const EdgeValuesView& out, int64_t d, Precision precision) {
  Problem p;
  p.a = a;
  p.stored = stored_rows(rows, a.rows);
  p.q = matrix<DenseView>(q, a.rows, d, "q");
  p.k = matrix<DenseView>(k, a.cols, d, "k");
  if (p.q.dtype != storage_of(precision)) reject("q", "must be in the storage type of precision");
  if (p.k.dtype != p.q.dtype) reject("k", "must have the dtype of q");
  p.out = const_cast<void*>(out.data);
  p.out_dtype = out.dtype;
  p.d = d;
  return p;
}

inline PanelSddmm panel_sddmm(const BlockedView& a, const StoredRowsHandle& rows,
                              const WorkListHandle& work, const Dense& q, const Dense& k,
                              const EdgeValuesView& out, int64_t d, Precision precision) {
  require_score_panels(a);
  if (a.shape.panel != kQueryRows) reject("format", "SDDMM takes panels of 16 rows");
  auto p = sddmm_problem<PanelSddmm>(a, rows, q, k, out, d, precision);
  p.work = work_list<PanelItem>(work, true);
  if (p.k.stride * size_of(p.k.dtype) > UINT32_MAX) reject("k", "rows are 4 GiB long or longer");
  return p;
}

inline WindowSddmm window_sddmm(const BlockedView& a, const StoredRowsHandle& rows,
                                const WorkListHandle& work, const Dense& q, const Dense& k,
                                const EdgeValuesView& out, int64_t d, Precision precision) {
  if (a.shape.window != 8 || a.shape.brick != 16 || a.encoding != Encoding::kBitmap) {
    reject("format", "SDDMM takes plain 8 x 16 bitmaps");
  }
  auto p = sddmm_problem<WindowSddmm>(a, rows, q, k, out, d, precision);
  p.work = work_list<WindowItem>(work, true);
  return p;
}

// The pattern and the work list of a pass of attention. `row_ids` and the items alone: what the
// CUDA kernels need beside these, cuda_attention.cpp adds.
inline PanelAttention attention_over(const AttentionProblem& problem, const BlockedView& a,
                                     const StoredRowsHandle& rows, const WorkListHandle& work,
                                     bool with_row_offsets) {
  require_score_panels(a);
  if (a.shape.panel != 16 && a.shape.panel != 64) reject("format", "panels have 16 or 64 rows");
  PanelAttention p;
  p.problem = problem;
  p.a = a;
  p.stored = stored_rows(rows);
  p.work = work_list<PanelItem>(work, with_row_offsets);
  return p;
}

}  // namespace gnnsparse::bindings
