// Work lists: which part of a product each block or warp of a kernel takes. Python makes them
// (gnnsparse/plan/work.py). An item is 16 bytes, which one load brings; every kernel has
// its own type of item.
#pragma once

#include <cstdint>

#include "gnnsparse/types.h"

namespace gnnsparse {

// A row, window or panel that was cut into several items, each of which gives a partial sum. The
// partial sums of one cut follow one another, in the order of the columns.
struct Cut {
  int32_t index;  // of the row, window or panel
  int32_t first;  // index of its first partial sum
  int32_t count;  // number of its partial sums
  int32_t unused;
};

// What the kernel that adds up partial sums reads of a work list.
struct CutList {
  const Cut* cuts = nullptr;
  int64_t cut_count = 0;
  int64_t partials = 0;  // partial sums of all cuts together
};

template <class Item>
struct WorkList : CutList {
  const Item* items = nullptr;
  int64_t item_count = 0;
  // [item_count][rows of an item]: nonzeros of each row that lie before the item. Kernels that read
  // or write a value for each nonzero in row order need it; null for the others.
  const int32_t* row_offsets = nullptr;
  // A block asks L2 for what the block this many places after it reads first. About half of the
  // blocks that run at a time is a good distance; kernels that ask for nothing ignore it.
  uint32_t prefetch_distance = 0;

  // The item whose first reads block `block` asks for; item_count or more where there is none. In
  // 32 bits, which hold it (bindings/handles.h): 64 cost the attention kernels registers.
  GNNSPARSE_HD uint32_t prefetched(uint32_t block) const { return block + prefetch_distance; }
  GNNSPARSE_HD bool has(uint32_t item) const { return item < static_cast<uint32_t>(item_count); }
};

}  // namespace gnnsparse
