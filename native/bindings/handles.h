// What Python hands over instead of long lists of numbers: addresses and sizes that belong
// together. A handle holds addresses only, so whoever makes one keeps the arrays alive. A kernel's
// binding checks what it needs of a handle when it is called, before anything is read.
#pragma once

#include "checks.h"
#include "gnnsparse/csr_problem.h"
#include "gnnsparse/types.h"
#include "gnnsparse/work_list.h"

namespace gnnsparse::bindings {

// A work list; which items it has is known to the kernel that takes it.
struct WorkListHandle {
  Address items;  // int32 [item_count, 4]
  int64_t item_count;
  Address row_offsets;  // int32 [item_count, rows of an item], or 0
  Address cuts;         // int32 [cut_count, 4]
  int64_t cut_count;
  int64_t partials;
  int64_t prefetch_distance;
};

inline CutList cut_list(const WorkListHandle& handle) {
  require_size(handle.partials, "partials");
  CutList list;
  list.cuts = array<const Cut>(handle.cuts, handle.cut_count, "cuts");
  list.cut_count = handle.cut_count;
  list.partials = handle.partials;
  return list;
}

template <class Item>
WorkList<Item> work_list(const WorkListHandle& handle, bool with_row_offsets) {
  // A block's number, below 2^31, and the distance must have a sum of 32 bits.
  require_size(handle.prefetch_distance, "prefetch_distance");
  if (handle.prefetch_distance > INT32_MAX) reject("prefetch_distance", "must be below 2^31");
  WorkList<Item> list;
  static_cast<CutList&>(list) = cut_list(handle);
  list.items = array<const Item>(handle.items, handle.item_count, "items");
  list.item_count = handle.item_count;
  if (with_row_offsets) {
    list.row_offsets = array<const int32_t>(handle.row_offsets, handle.item_count, "row_offsets");
  }
  list.prefetch_distance = static_cast<uint32_t>(handle.prefetch_distance);
  return list;
}

// The rows of a stored matrix: see StoredRows. Every address may be 0.
struct StoredRowsHandle {
  Address indptr;
  Address row_ids;
  Address row_scale;
  Address values;
};

// All but `indptr`, which kernels need only where they find values by it.
inline StoredRows stored_rows(const StoredRowsHandle& handle) {
  StoredRows rows;
  rows.row_ids = optional_array<const int32_t>(handle.row_ids, "row_ids");
  rows.row_scale = optional_array<const float>(handle.row_scale, "row_scale");
  rows.values = optional_array<const uint16_t>(handle.values, "values");
  return rows;
}

inline StoredRows stored_rows(const StoredRowsHandle& handle, int64_t rows) {
  StoredRows stored = stored_rows(handle);
  stored.indptr = array<const int64_t>(handle.indptr, rows + 1, "indptr");
  return stored;
}

// How the lanes of the csr kernels share out rows: see CsrLanes.
struct CsrLanesHandle {
  int lanes;
  int row_lanes;
  int64_t row_limit;
  Address groups;  // int32 [group_count + 1]
  int64_t group_count;
};

inline CsrLanes csr_lanes(const CsrLanesHandle& handle) {
  const auto power = [](int v) { return v >= 1 && v <= 32 && (v & (v - 1)) == 0; };
  if (!power(handle.lanes) || !power(handle.row_lanes) || handle.row_lanes < handle.lanes) {
    reject("lanes", "must be powers of two with lanes <= row_lanes <= 32");
  }
  CsrLanes lanes;
  lanes.lanes = handle.lanes;
  lanes.row_lanes = handle.row_lanes;
  lanes.row_limit = handle.row_limit;
  if (handle.group_count > 0) {
    lanes.groups = array<const int32_t>(handle.groups, handle.group_count + 1, "groups");
  }
  lanes.group_count = handle.group_count;
  return lanes;
}

// An array of indices of nonzeros, 32 or 64 bits wide.
struct NnzIndicesHandle {
  Address data;
  bool wide;
};

// An address of 0 is accepted for an empty array only.
inline IndexView index_view(Address data, bool wide, int64_t count, const char* name) {
  return {wide ? static_cast<const void*>(array<const int64_t>(data, count, name))
               : array<const int32_t>(data, count, name),
          wide};
}

inline MutableIndexView mutable_index_view(const NnzIndicesHandle& handle, int64_t count,
                                           const char* name) {
  return {const_cast<void*>(index_view(handle.data, handle.wide, count, name).data), handle.wide};
}

// The edges of a graph as two arrays of one width.
struct EdgesHandle {
  Address row;
  Address col;
  bool wide;
  int64_t count;

  IndexView rows() const { return index_view(row, wide, count, "row"); }
  IndexView cols() const { return index_view(col, wide, count, "col"); }
};

}  // namespace gnnsparse::bindings
