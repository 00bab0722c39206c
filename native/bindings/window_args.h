// Python arguments -> WindowSpmm, WindowSddmm, PanelSpmm, PanelSddmm and PanelAttention.
#pragma once

#include "checks.h"
#include "gnnsparse/panel_attention.h"
#include "gnnsparse/panel_problem.h"
#include "gnnsparse/window_problem.h"

namespace gnnsparse::bindings {

// The segments of a blocked matrix, [count][4] int32 as WindowSegment, and where each row of each
// segment starts among the nonzeros of its row.
struct Segments {
  Address data;
  int64_t count;
  Address row_offsets;
};

inline void require_window_shape(const BlockedView& a) {
  if (a.shape.lane_order || (a.shape.window != 8 && a.shape.window != 16)) {
    reject("window", "the window kernel takes 8 or 16 rows, row-major");
  }
}

inline WindowSpmm window_spmm(const BlockedView& a, const Segments& segments, Address indptr,
                              Address edge_values, Address row_ids, Address row_scale,
                              const Dense& x, const Dense& y, int64_t n, Address partial,
                              Precision precision) {
  WindowSpmm p;
  p.a = a;
  p.segments = array<const WindowSegment>(segments.data, segments.count, "segments");
  p.segment_count = segments.count;
  p.edges.values = optional_array<const uint16_t>(edge_values, "edge_values");
  if (edge_values != 0) {
    p.edges.indptr = array<const int64_t>(indptr, a.rows + 1, "indptr");
    p.edges.row_offsets = array<const int32_t>(segments.row_offsets, segments.count, "row_offsets");
  }
  p.row_ids = optional_array<const int32_t>(row_ids, "row_ids");
  p.row_scale = optional_array<const float>(row_scale, "row_scale");
  p.x = matrix<DenseView>(x, a.cols, n, "x");
  if (p.x.dtype != storage_of(precision)) reject("x", "must be in the storage type of precision");
  p.y = matrix<MutableDenseView>(y, a.rows, n, "y");
  p.n = n;
  p.partial = optional_array<float>(partial, "partial");
  return p;
}

inline void require_entries(const BlockedView& a) {
  if (a.encoding != Encoding::kEntries) reject("format", "stores no entries");
  if (a.panels > 0 && a.value_ptr == nullptr) reject("value_ptr", "is null");
}

// The same for a panel kernel, whose segments are PanelItems.
inline PanelSpmm panel_spmm(const BlockedView& a, const Segments& items, Address row_ids,
                            Address row_scale, const Dense& x, const Dense& y, int64_t n,
                            int slices, Address partial, Precision precision) {
  if (slices < 1) reject("slices", "must be at least 1, got " + std::to_string(slices));
  if (n > INT32_MAX) reject("n", "must be below 2^31");
  if (!a.shape.lane_order) reject("format", "the panel kernel takes panels in lane order");
  if (a.columns != nullptr) {
    if (a.encoding != Encoding::kBitmap && a.values == nullptr) reject("values", "is null");
    if (a.encoding == Encoding::kBitmap && a.bitmap == nullptr) reject("bitmap", "is null");
    if (a.encoding == Encoding::kEntries && a.value_ptr == nullptr) reject("value_ptr", "is null");
  }
  const bool half = storage_of(precision) != DType::kFloat32;
  if (a.encoding == Encoding::kEntries && !half) reject("format", "entries hold values of 16 bits");
  if (a.encoding == Encoding::kDense && half && a.shape.window == 32) {
    reject("format", "16-bit values of panels of 32 rows are entries");
  }
  PanelSpmm p;
  p.a = a;
  p.items = array<const PanelItem>(items.data, items.count, "items");
  p.item_count = items.count;
  p.row_ids = optional_array<const int32_t>(row_ids, "row_ids");
  p.row_scale = optional_array<const float>(row_scale, "row_scale");
  p.x = matrix<DenseView>(x, a.cols, n, "x");
  if (p.x.dtype != storage_of(precision)) reject("x", "must be in the storage type of precision");
  if (p.x.stride * size_of(p.x.dtype) > UINT32_MAX) reject("x", "rows are 4 GiB long or longer");
  p.y = matrix<MutableDenseView>(y, a.rows, n, "y");
  p.n = n;
  p.slices = slices;
  p.partial = optional_array<float>(partial, "partial");
  return p;
}

inline void require_score_panels(const BlockedView& a) {
  if (!a.shape.lane_order || a.shape.window != 16 || a.encoding != Encoding::kBitmap) {
    reject("format", "SDDMM and attention take the bits of panels with windows of 16 rows");
  }
  if (a.columns != nullptr && a.bitmap == nullptr) reject("bitmap", "is null");
}

// What both SDDMM problems are told in the same words.
template <class Problem>
Problem sddmm_problem(const BlockedView& a, const Segments& items, Address indptr, Address row_ids,
                      const Dense& q, const Dense& k, Address out, int out_dtype, int64_t d,
                      Precision precision) {
  Problem p;
  p.a = a;
  p.indptr = array<const int64_t>(indptr, a.rows + 1, "indptr");
  p.row_offsets = array<const int32_t>(items.row_offsets, items.count, "row_offsets");
  p.row_ids = optional_array<const int32_t>(row_ids, "row_ids");
  p.q = matrix<DenseView>(q, a.rows, d, "q");
  p.k = matrix<DenseView>(k, a.cols, d, "k");
  if (p.q.dtype != storage_of(precision)) reject("q", "must be in the storage type of precision");
  if (p.k.dtype != p.q.dtype) reject("k", "must have the dtype of q");
  p.out = optional_array<uint16_t>(out, "out");
  p.out_dtype = dtype_of(out_dtype);
  p.d = d;
  return p;
}

inline PanelSddmm panel_sddmm(const BlockedView& a, const Segments& items, Address indptr,
                              Address row_ids, const Dense& q, const Dense& k, Address out,
                              int out_dtype, int64_t d, Precision precision) {
  require_score_panels(a);
  if (a.shape.panel != 16) reject("format", "SDDMM takes panels of 16 rows");
  auto p = sddmm_problem<PanelSddmm>(a, items, indptr, row_ids, q, k, out, out_dtype, d, precision);
  p.items = array<const PanelItem>(items.data, items.count, "items");
  p.item_count = items.count;
  if (p.k.stride * size_of(p.k.dtype) > UINT32_MAX) reject("k", "rows are 4 GiB long or longer");
  return p;
}

// What all passes of attention are told in the same words.
inline PanelAttention attention_over(const AttentionProblem& problem, const BlockedView& a,
                                     const Segments& items, Address row_ids) {
  require_score_panels(a);
  if (a.shape.panel != 16 && a.shape.panel != 64) reject("format", "panels have 16 or 64 rows");
  PanelAttention p;
  p.problem = problem;
  p.a = a;
  p.items = array<const PanelItem>(items.data, items.count, "items");
  p.item_count = items.count;
  p.row_ids = optional_array<const int32_t>(row_ids, "row_ids");
  return p;
}

inline WindowSddmm window_sddmm(const BlockedView& a, const Segments& segments, Address indptr,
                                Address row_ids, const Dense& q, const Dense& k, Address out,
                                int out_dtype, int64_t d, Precision precision) {
  if (a.shape.window != 8 || a.shape.brick != 16 || a.encoding != Encoding::kBitmap) {
    reject("format", "SDDMM takes plain 8 x 16 bitmaps");
  }
  auto p =
      sddmm_problem<WindowSddmm>(a, segments, indptr, row_ids, q, k, out, out_dtype, d, precision);
  p.segments = array<const WindowSegment>(segments.data, segments.count, "segments");
  p.segment_count = segments.count;
  return p;
}

}  // namespace gnnsparse::bindings
