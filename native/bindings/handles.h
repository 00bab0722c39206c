// What Python hands over instead of long lists of arguments: tensors and sizes that belong
// together. A handle owns its tensors. Those that many kernels read differently are checked when a
// kernel takes them, which knows the sizes.
#pragma once

#include "checks.h"
#include "gnnsparse/blocked.h"
#include "gnnsparse/csr_problem.h"
#include "gnnsparse/policy_problem.h"
#include "gnnsparse/work_list.h"

namespace gnnsparse::bindings {

// A CSR matrix. Its arrays have the lengths of `view`; the places of both are equal.
struct CsrHandle {
  CsrView view;
  Held indptr;
  Held indices;

  const CsrView& on(Place place) const {
    require_place(indptr, place, "a");
    return view;
  }
};
inline const CsrView& host(const CsrHandle& a) { return a.on(Place::kHost); }
inline const CsrView& gpu(const CsrHandle& a) { return a.on(Place::kGpu); }

// A matrix in the blocked format. Its arrays have the lengths that its shape, its panels and its
// column slots ask for; kernels check which of them are there.
struct BlockedHandle {
  BlockedView view;
  int64_t slots = 0;
  int64_t nnz = 0;
  Held panel_rows, panel_ptr, columns, bitmap, brick_ptr, brick_rows, value_ptr, values, slot_scale;
  Held zero_ptr, zero_cols;
  RecordsView records;
  Held size_ptr, packed_blocks;
  ResidualView residual;
  Held residual_rows, residual_cols, residual_values;

  const BlockedView& on(Place place) const {
    if (!panel_ptr.given) reject("format", "has no arrays: attach them");
    require_place(panel_ptr, place, "format");
    return view;
  }
  // Values or weights, which kernels read in the storage type of the precision.
  void require_storage(Precision precision) const {
    const DType dtype = storage_of(precision);
    const auto require = [dtype](const Held& array, const char* name) {
      if (array.given && storage_dtype(array, name) != dtype) {
        reject(name, "must be in the storage type of the precision");
      }
    };
    require(values, "values");
    require(slot_scale, "slot_scale");
    require(packed_blocks, "packed_blocks");
    require(residual_values, "residual_values");
  }
};
inline const BlockedView& host(const BlockedHandle& a) { return a.on(Place::kHost); }
inline const BlockedView& gpu(const BlockedHandle& a) { return a.on(Place::kGpu); }

// A work list; which items it has is known to the kernel that takes it.
struct WorkListHandle {
  Held items;  // int32 [items, 4]
  Held cuts;   // int32 [cuts, 4]
  Held row_offsets;
  int64_t partials;
  int64_t prefetch_distance;
};

inline CutList cut_list(const WorkListHandle& handle) {
  require_size(handle.partials, "partials");
  require_aligned(handle.cuts, 16, "cuts");
  CutList list;
  list.cut_count = handle.cuts.count / 4;
  list.cuts = gpu_array<const Cut>(handle.cuts, list.cut_count, "cuts");
  list.partials = handle.partials;
  return list;
}

// `item_rows`: rows of an item whose offsets the kernel reads; 0: none.
template <class Item>
WorkList<Item> work_list(const WorkListHandle& handle, int64_t item_rows) {
  static_assert(sizeof(Item) == 4 * sizeof(int32_t));
  // A block's number, below 2^31, and the distance must have a sum of 32 bits.
  require_size(handle.prefetch_distance, "prefetch_distance");
  if (handle.prefetch_distance > INT32_MAX) reject("prefetch_distance", "must be below 2^31");
  require_aligned(handle.items, 16, "items");
  WorkList<Item> list;
  static_cast<CutList&>(list) = cut_list(handle);
  list.item_count = handle.items.count / 4;
  if (list.item_count > INT32_MAX) reject("items", "must be fewer than 2^31");
  list.items = gpu_array<const Item>(handle.items, list.item_count, "items");
  if (item_rows > 0) {
    list.row_offsets = gpu_array<const int32_t>(
        handle.row_offsets, product("row_offsets", list.item_count, item_rows), "row_offsets");
  }
  list.prefetch_distance = static_cast<uint32_t>(handle.prefetch_distance);
  return list;
}

// The rows of a stored matrix: see StoredRows. Every array may be None.
struct StoredRowsHandle {
  Held indptr;
  Held row_ids;
  Held row_scale;
  Held values;
  Held col_scale;  // the CPU's kernels alone read it
};

// All but `indptr`, which kernels need only where they find values by it.
inline StoredRows stored_rows(const StoredRowsHandle& handle, int64_t rows, int64_t nnz,
                              Precision precision) {
  StoredRows stored;
  stored.row_ids = optional_gpu_array<const int32_t>(handle.row_ids, rows, "row_ids");
  stored.row_scale = optional_gpu_array<const float>(handle.row_scale, rows, "row_scale");
  if (handle.values.given) {
    stored.values = stored_array(handle.values, nnz, storage_of(precision), Place::kGpu, "values");
  }
  return stored;
}

// With `indptr`, for kernels that find by it the values of a nonzero, or where its result goes.
inline StoredRows indexed_rows(const StoredRowsHandle& handle, int64_t rows, int64_t nnz,
                               Precision precision) {
  StoredRows stored = stored_rows(handle, rows, nnz, precision);
  stored.indptr = gpu_array<const int64_t>(handle.indptr, rows + 1, "indptr");
  return stored;
}

// How the window kernel multiplies a dense format: see WindowPolicy.
struct WindowPolicyHandle {
  WindowPolicy policy;
  Held zero_ptr;  // int64 [rows + 1], with zero_cols; or None
  Held zero_cols;
};

// How an operand of a packed format is multiplied: see PackedSpmm.
struct PackedPolicyHandle {
  int stage_a;
  bool stage_x;
  int coarsening;
  bool residual_with_windows;
};

// How the lanes of the csr kernels share out rows: see CsrLanes.
struct CsrLanesHandle {
  int lanes;
  int row_lanes;
  int64_t row_limit;
  Held groups;  // int32 [groups + 1]
  bool narrow;
};

inline CsrLanes csr_lanes(const CsrLanesHandle& handle) {
  const auto power = [](int v) { return v >= 1 && v <= 32 && (v & (v - 1)) == 0; };
  if (!power(handle.lanes) || !power(handle.row_lanes) || handle.row_lanes < handle.lanes) {
    reject("lanes", "must be powers of two with lanes <= row_lanes <= 32");
  }
  require_size(handle.row_limit, "row_limit");
  CsrLanes lanes;
  lanes.narrow = handle.narrow;
  lanes.lanes = handle.lanes;
  lanes.row_lanes = handle.row_lanes;
  lanes.row_limit = handle.row_limit;
  if (handle.groups.count > 1) {
    lanes.group_count = handle.groups.count - 1;
    lanes.groups = gpu_array<const int32_t>(handle.groups, handle.groups.count, "groups");
  }
  return lanes;
}

// The edges of a graph as two arrays of one dtype and length.
struct EdgesHandle {
  Held row;
  Held col;

  int64_t count() const { return row.count; }
  IndexView rows(Place place) const { return view(row, place, "row"); }
  IndexView cols(Place place) const { return view(col, place, "col"); }

 private:
  IndexView view(const Held& array, Place place, const char* name) const {
    const MutableIndexView made = index_array(array, row.count, place, name);
    return {made.data, made.wide};
  }
};

}  // namespace gnnsparse::bindings
