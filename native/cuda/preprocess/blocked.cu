#include "gnnsparse/blocked.h"
#include "gnnsparse/packed_entries.h"
#include "preprocess/sorted_keys.cuh"

namespace gnnsparse::cuda {
namespace {

constexpr int kRowLanes = 32;

// A warp a row: keys of its nonzeros are (panel, column).
__global__ void __launch_bounds__(kSortThreads)
    panel_keys_kernel(const CsrView a, int64_t height, uint64_t* keys, uint32_t* ordinals) {
  const int64_t row = int64_t{blockIdx.x} * (kSortThreads / kRowLanes) + threadIdx.x / kRowLanes;
  if (row >= a.rows) return;
  const uint64_t base = static_cast<uint64_t>(row / height) * a.cols;
  for (int64_t e = a.indptr[row] + threadIdx.x % kRowLanes; e < a.indptr[row + 1]; e += kRowLanes) {
    keys[e] = base + a.indices[e];
    ordinals[e] = static_cast<uint32_t>(e);
  }
}

// first[p]: how many distinct keys lie in the panels before p. One thread a sorted key.
__global__ void __launch_bounds__(kSortThreads)
    panel_starts_kernel(const uint64_t* keys, const int64_t* number, int64_t nnz, int64_t cols,
                        int64_t panels, int64_t* first) {
  const int64_t i = int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (i >= nnz) return;
  const auto panel = static_cast<int64_t>(keys[i] / cols);
  const int64_t before = i == 0 ? -1 : static_cast<int64_t>(keys[i - 1] / cols);
  if (panel != before) write_starts(first, before, panel, number[i] - 1);
  if (i == nnz - 1) write_starts(first, panel, panels, number[i]);
}

__global__ void __launch_bounds__(kSortThreads)
    positions_kernel(const uint64_t* keys, const uint32_t* ordinals, const int64_t* number,
                     const int64_t* first, int64_t nnz, int64_t cols, int32_t* position) {
  const int64_t i = int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (i >= nnz) return;
  position[ordinals[i]] = static_cast<int32_t>(number[i] - 1 - first[keys[i] / cols]);
}

__global__ void __launch_bounds__(kSortThreads)
    differences_kernel(const int64_t* first, int64_t panels, int64_t* columns) {
  const int64_t p = int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (p < panels) columns[p] = first[p + 1] - first[p];
}

// A warp a row. Several rows write the same column to a slot, and set bits of the same word.
__global__ void __launch_bounds__(kSortThreads)
    fill_kernel(const CsrView a, const BlockedView format, const int32_t* position,
                int32_t* columns, uint32_t* bitmap, int64_t* value_index) {
  const int64_t row = int64_t{blockIdx.x} * (kSortThreads / kRowLanes) + threadIdx.x / kRowLanes;
  if (row >= a.rows) return;
  const BlockedShape shape = format.shape;
  const int64_t panel = row / shape.panel;
  const int64_t in_panel = row % shape.panel;
  const int64_t first = format.panel_ptr[panel];
  const int64_t slots = format.panel_ptr[panel + 1] - first;
  for (int64_t e = a.indptr[row] + threadIdx.x % kRowLanes; e < a.indptr[row + 1]; e += kRowLanes) {
    const int64_t at = position[e];
    columns[first + at] = a.indices[e];
    if (value_index != nullptr) value_index[e] = dense_offset(shape, first, slots, in_panel, at);
    if (bitmap != nullptr) {
      const EntryLayout entries{entry_value_bytes(format.encoding)};
      const int64_t bit = entries.value_bytes > 0 ? entries.bank_bit(first, in_panel, at)
                                                  : bit_offset(shape, first, in_panel, at);
      atomicOr(bitmap + bit / 32, 1u << (bit % 32));
    }
  }
}

// A padded slot repeats the last column of its panel.
__global__ void __launch_bounds__(kSortThreads)
    pad_kernel(const BlockedView format, int32_t* columns) {
  const int64_t p = int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (p >= format.panels) return;
  const int64_t begin = format.panel_ptr[p];
  const int64_t end = format.panel_ptr[p + 1];
  int64_t last = end - 1;
  while (last >= begin && columns[last] < 0) --last;
  if (last < begin) return;
  for (int64_t i = last + 1; i < end; ++i) columns[i] = columns[last];
}

// A warp a K tile.
__global__ void __launch_bounds__(kSortThreads)
    count_entries_kernel(const uint32_t* banks, int64_t k_tiles, int64_t* counts) {
  const int64_t k_tile = int64_t{blockIdx.x} * (kSortThreads / kBanks) + threadIdx.x / kBanks;
  if (k_tile >= k_tiles) return;
  int count = popcount(banks[k_tile * kBanks + threadIdx.x % kBanks]);
  for (int step = kBanks / 2; step > 0; step /= 2) {
    count += __shfl_xor_sync(0xffffffffu, count, step);
  }
  if (threadIdx.x % kBanks == 0) counts[k_tile] = count;
}

// A warp a row.
template <class Value>
__global__ void __launch_bounds__(kSortThreads)
    fill_entries_kernel(const CsrView a, const BlockedView format, const int32_t* position,
                        const uint32_t* banks, const Value* values, void* entries) {
  constexpr EntryLayout kLayout{sizeof(Value)};
  const int64_t row = int64_t{blockIdx.x} * (kSortThreads / kRowLanes) + threadIdx.x / kRowLanes;
  if (row >= a.rows) return;
  const int64_t first = format.panel_ptr[row / format.shape.panel];
  const int64_t in_panel = row % format.shape.panel;
  for (int64_t e = a.indptr[row] + threadIdx.x % kRowLanes; e < a.indptr[row + 1]; e += kRowLanes) {
    kLayout.write(format, banks, first, in_panel, position[e], values[e], entries);
  }
}

}  // namespace

size_t count_panels(const CsrView& a, int64_t height, int64_t* columns, int32_t* position,
                    Scratch scratch, Stream stream) {
  if (a.nnz > static_cast<int64_t>(UINT32_MAX)) {
    throw std::invalid_argument("nnz: 2^32 or more are not supported on the GPU");
  }
  const int64_t panels = ceil_div(a.rows, height);
  Carver carver(scratch);
  auto* first = carver.take<int64_t>(panels + 1);
  auto arrays = take_keys<uint64_t>(carver, a.nnz);
  carver.check("count_panels");
  if (carver.dry() || a.nnz == 0) return carver.used();
  const dim3 by_row = grid_of(a.rows, kSortThreads / kRowLanes, 1, "count_panels");
  const dim3 by_key = grid_of(a.nnz, kSortThreads, 1, "count_panels");
  launch("count_panels", panel_keys_kernel, by_row, kSortThreads, stream, a, height, arrays.keys,
         arrays.ordinals);
  sort_keys(arrays, a.nnz, bits_of(static_cast<uint64_t>(panels) * a.cols), stream);
  auto* number = reinterpret_cast<int64_t*>(arrays.keys);  // the unsorted keys are done with
  number_distinct(arrays, a.nnz, number, stream);
  launch("count_panels", panel_starts_kernel, by_key, kSortThreads, stream, arrays.sorted_keys,
         number, a.nnz, a.cols, panels, first);
  launch("count_panels", positions_kernel, by_key, kSortThreads, stream, arrays.sorted_keys,
         arrays.sorted_ordinals, number, first, a.nnz, a.cols, position);
  launch("count_panels", differences_kernel, grid_of(panels, kSortThreads, 1, "count_panels"),
         kSortThreads, stream, first, panels, columns);
  return carver.used();
}

void fill_blocked(const CsrView& a, const BlockedView& format, const int32_t* position,
                  int32_t* columns, uint8_t* bitmap, int64_t* value_index, Stream stream) {
  launch("fill_blocked", fill_kernel, grid_of(a.rows, kSortThreads / kRowLanes, 1, "fill_blocked"),
         kSortThreads, stream, a, format, position, columns, reinterpret_cast<uint32_t*>(bitmap),
         value_index);
  if (format.shape.lane_order) return;  // padding stays -1
  launch("fill_blocked", pad_kernel, grid_of(format.panels, kSortThreads, 1, "fill_blocked"),
         kSortThreads, stream, format, columns);
}

void count_entries(const uint32_t* banks, int64_t k_tiles, int64_t* counts, Stream stream) {
  launch("count_entries", count_entries_kernel,
         grid_of(k_tiles, kSortThreads / kBanks, 1, "count_entries"), kSortThreads, stream, banks,
         k_tiles, counts);
}

void fill_entries(const CsrView& a, const BlockedView& format, const int32_t* position,
                  const uint32_t* banks, const void* values, void* entries, Stream stream) {
  const dim3 grid = grid_of(a.rows, kSortThreads / kRowLanes, 1, "fill_entries");
  if (format.encoding == Encoding::kWordEntries) {
    launch("fill_entries", fill_entries_kernel<uint32_t>, grid, kSortThreads, stream, a, format,
           position, banks, static_cast<const uint32_t*>(values), entries);
  } else {
    launch("fill_entries", fill_entries_kernel<uint16_t>, grid, kSortThreads, stream, a, format,
           position, banks, static_cast<const uint16_t*>(values), entries);
  }
}

}  // namespace gnnsparse::cuda
