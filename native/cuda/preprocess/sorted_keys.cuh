// The pattern behind every conversion: sort keys with the nonzeros they came from, number the
// distinct keys, and find where each group of keys begins.
#pragma once

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "device/launch.cuh"
#include "preprocess/scratch.cuh"

namespace gnnsparse::cuda {

inline constexpr int kSortThreads = 256;

inline int bits_of(uint64_t values) {
  int bits = 0;
  while (values > 0 && bits < 64) {
    values >>= 1;
    ++bits;
  }
  return bits < 1 ? 1 : bits;
}

// Keys and the ordinals they had before sorting.
template <class Key>
struct KeyArrays {
  Key* keys = nullptr;
  Key* sorted_keys = nullptr;
  uint32_t* ordinals = nullptr;
  uint32_t* sorted_ordinals = nullptr;
  void* temporary = nullptr;
  size_t temporary_bytes = 0;
};

template <class Key>
KeyArrays<Key> take_keys(Carver& carver, int64_t count) {
  KeyArrays<Key> arrays;
  arrays.keys = carver.take<Key>(count);
  arrays.sorted_keys = carver.take<Key>(count);
  arrays.ordinals = carver.take<uint32_t>(count);
  arrays.sorted_ordinals = carver.take<uint32_t>(count);
  size_t sort_bytes = 0;
  size_t scan_bytes = 0;
  cub::DoubleBuffer<Key> keys;
  cub::DoubleBuffer<uint32_t> ordinals;
  check(cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, keys, ordinals, count), "radix sort");
  const int64_t* none = nullptr;
  int64_t* out = nullptr;
  check(cub::DeviceScan::InclusiveSum(nullptr, scan_bytes, none, out, count), "scan");
  arrays.temporary_bytes = sort_bytes > scan_bytes ? sort_bytes : scan_bytes;
  arrays.temporary = carver.take<std::byte>(static_cast<int64_t>(arrays.temporary_bytes));
  return arrays;
}

// Afterwards `sorted_keys` and `sorted_ordinals` are sorted; `keys` and `ordinals` hold nothing of
// use. The sort alternates between the two pairs of arrays, and needs no third one.
template <class Key>
void sort_keys(KeyArrays<Key>& arrays, int64_t count, int bits, Stream stream) {
  cub::DoubleBuffer<Key> keys(arrays.keys, arrays.sorted_keys);
  cub::DoubleBuffer<uint32_t> ordinals(arrays.ordinals, arrays.sorted_ordinals);
  check(cub::DeviceRadixSort::SortPairs(arrays.temporary, arrays.temporary_bytes, keys, ordinals,
                                        count, 0, bits, stream),
        "radix sort");
  arrays.keys = keys.Alternate();
  arrays.sorted_keys = keys.Current();
  arrays.ordinals = ordinals.Alternate();
  arrays.sorted_ordinals = ordinals.Current();
}

// heads[i] = 1 where sorted key i differs from the one before it; then their running sum in place.
template <class Key>
__global__ void __launch_bounds__(kSortThreads)
    mark_heads_kernel(const Key* keys, int64_t count, int64_t* heads) {
  const int64_t i = int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (i < count) heads[i] = i == 0 || keys[i] != keys[i - 1];
}

template <class Key>
void number_distinct(KeyArrays<Key>& arrays, int64_t count, int64_t* numbers, Stream stream) {
  launch("mark heads", mark_heads_kernel<Key>, grid_of(count, kSortThreads, 1, "mark heads"),
         kSortThreads, stream, arrays.sorted_keys, count, numbers);
  check(cub::DeviceScan::InclusiveSum(arrays.temporary, arrays.temporary_bytes, numbers, numbers,
                                      count, stream),
        "scan");
}

// Writes starts[g] for every group g in (before, group]: called by the first element of a group,
// or with group = groups by the last element of all.
__device__ __forceinline__ void write_starts(int64_t* starts, int64_t before, int64_t group,
                                             int64_t value) {
  for (int64_t g = before + 1; g <= group; ++g) starts[g] = value;
}

}  // namespace gnnsparse::cuda
