// SpMM of few features on CUDA cores: every precision, any row length. Where a row of X is shorter
// than a sector, lanes that read whole vectors of it are idle for the most part. Here the lanes of
// a warp take nonzeros side by side, as many as there is room for: a warp loads the nonzeros of
// several neighbouring rows as one run, whatever the length of each, and puts their products into
// shared memory, from where the lanes add them up row by row. That is CSR-Stream: Greathouse and
// Daga, "Efficient Sparse Matrix-Vector Multiplication on GPUs Using the CSR Storage Format", SC14,
// section III, with a warp in place of a block.
#include "device/launch.cuh"
#include "device/vector.cuh"
#include "kernels/common/csr_rows.cuh"
#include "kernels/common/reduce.cuh"

namespace gnnsparse::cuda {
namespace {

constexpr int kThreads = 128;
// Blocks on a multiprocessor: all that 48 and 64 registers a thread leave room for.
template <int kWidth>
constexpr int kBlocks = kWidth > 0 ? 10 : 8;
constexpr int kInFlight = 8;  // nonzeros that a lane has in flight
constexpr uint32_t kAll = 0xffffffffu;

// How the lanes of a warp share out nonzeros and features. Slot s is the lanes [s * width, (s + 1)
// * width), one for each feature of a nonzero.
struct Shape {
  int width;
  int slots;
  int stage;          // lanes of all slots
  int capacity;       // nonzeros that a warp loads at a time
  int half_slots;     // the largest power of two below `slots`, but at least 1
  uint32_t fraction;  // i * fraction >> 16 is i / width for any i < 2^11

  constexpr explicit Shape(int features)
      : width(features),
        slots(kWarp / features),
        stage(slots * features),
        capacity(kInFlight * slots),
        half_slots(1),
        fraction(65536 / static_cast<uint32_t>(features) + 1) {
    while (2 * half_slots < slots) half_slots *= 2;
  }
};

// A product as its kernel is launched. kWidth: its features, which the compiler then knows; 0: any.
template <int kWidth>
struct NarrowLaunch : CsrSpmm {
  uint32_t x_stride;  // elements

  explicit NarrowLaunch(const CsrSpmm& p)
      : CsrSpmm(p), x_stride(static_cast<uint32_t>(p.x.stride)) {}
  __device__ static constexpr Shape shape() { return Shape(kWidth); }
};
template <>
struct NarrowLaunch<0> : CsrSpmm {
  uint32_t x_stride;
  Shape given;

  explicit NarrowLaunch(const CsrSpmm& p)
      : CsrSpmm(p), x_stride(static_cast<uint32_t>(p.x.stride)), given(static_cast<int>(p.n)) {}
  __device__ const Shape& shape() const { return given; }
};

// What a lane takes of the warp's nonzeros.
struct Lane {
  int index;
  int slot;
  int feature;
  bool active;  // lanes past the last whole slot are not

  __device__ explicit Lane(const Shape& shape)
      : index(threadIdx.x % kWarp),
        slot(static_cast<int>(index * shape.fraction >> 16)),
        feature(index - slot * shape.width),
        active(slot < shape.slots) {}
};

// Columns of the nonzeros of the lane's slot among [first, last): one in `slots`, so that the lanes
// read neighbouring ones. Where there is none: -1.
template <class Launch>
__device__ __forceinline__ void load_columns(const Launch& p, const Lane& lane, int first, int last,
                                             int32_t (&columns)[kInFlight]) {
  const int left = lane.active ? last - first - lane.slot : 0;
  const int32_t* indices = p.a.indices + first + lane.slot;
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    columns[i] = i * p.shape().slots < left ? __ldg(indices + i * p.shape().slots) : -1;
  }
}

// The products of these nonzeros; zero where there is none. Nothing else is read: zero times an
// infinity of X is no number.
template <Precision P, bool kWeighted, class Launch>
__device__ __forceinline__ void multiply(const Launch& p, const Lane& lane, int first,
                                         const int32_t (&columns)[kInFlight],
                                         float (&products)[kInFlight]) {
  using Storage = StorageOf<P>;
  const auto* x = static_cast<const Storage*>(p.x.data) + lane.feature;
  Storage elements[kInFlight] = {};
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    if (columns[i] >= 0) {
      elements[i] = __ldg(x + uint64_t{static_cast<uint32_t>(columns[i])} * p.x_stride);
    }
  }
  Storage weights[kInFlight] = {};
  if constexpr (kWeighted) {
    const auto* values = static_cast<const Storage*>(p.stored.values) + first + lane.slot;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (columns[i] >= 0) weights[i] = __ldg(values + i * p.shape().slots);
    }
  }
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    products[i] = scalar_to_float<P>(elements[i]);
    if constexpr (kWeighted) products[i] *= scalar_to_float<P>(weights[i]);
  }
}

// The sum of a part of a row, in the lanes of slot 0.
template <Precision P, bool kWeighted, class Launch>
__device__ __forceinline__ float sum_part(const Launch& p, const Lane& lane, int first, int last) {
  float sum = 0.0f;
  int32_t columns[kInFlight];
  load_columns(p, lane, first, last, columns);
  for (int at = first; at < last; at += p.shape().capacity) {
    float products[kInFlight];
    int32_t next[kInFlight];
    load_columns(p, lane, at + p.shape().capacity, last, next);
    multiply<P, kWeighted>(p, lane, at, columns, products);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      sum += products[i];
      columns[i] = next[i];
    }
  }
  for (int apart = p.shape().half_slots; apart > 0; apart /= 2) {
    const float other = __shfl_down_sync(kAll, sum, apart * p.shape().width);
    if (lane.slot + apart < p.shape().slots) sum += other;
  }
  return sum;
}

template <class Launch>
__device__ __forceinline__ void store_sum(const Launch& p, int64_t row, int feature, float sum) {
  if (p.stored.row_scale != nullptr) sum *= __ldg(p.stored.row_scale + row);
  const int64_t to = p.stored.row_ids != nullptr ? __ldg(p.stored.row_ids + row) : row;
  store_scalar(p.y.data, p.y.dtype, to * p.y.stride + feature, sum);
}

// What a warp shares of the nonzeros that it has loaded. The rows that end among them are numbered
// from 1, empty ones left out.
struct Loaded {
  uint16_t ends[kInFlight * kWarp];  // number of the row that ends with a nonzero, or 0
  int rows[kInFlight * kWarp];       // row of a number less one
  // Products by nonzero and feature, with a gap after each 32, so that lanes that read eight in
  // a row use different banks; then sums by number less one and feature, without gaps.
  float sums[kInFlight * (kWarp + 1)];

  __device__ static int gapped(int at) { return at + at / kWarp; }
};

// Numbers the rows from `row` on that end among nonzeros [first, last), and stores the empty ones.
// Returns how many numbers there are; `row` is then the first one that ends later.
template <class Launch>
__device__ __forceinline__ int number_rows(const Launch& p, const Lane& lane, int first, int last,
                                           int last_row, int& row, Loaded& loaded) {
  int count = 0;
  for (int ended = kWarp; ended == kWarp; row += ended) {
    const int own = min(row + lane.index, last_row - 1);
    const int begin = static_cast<int>(__ldg(p.a.indptr + own));
    const int end = static_cast<int>(__ldg(p.a.indptr + own + 1));
    const bool ends = row + lane.index < last_row && end <= last;
    const uint32_t full = __ballot_sync(kAll, ends && end > begin);
    ended = __popc(__ballot_sync(kAll, ends));
    const int number = count + __popc(full & ((1u << lane.index) - 1));
    count += __popc(full);
    if (!ends) continue;
    if (end > begin) {
      loaded.ends[end - 1 - first] = static_cast<uint16_t>(number + 1);
      loaded.rows[number] = own;
    } else {
      for (int feature = 0; feature < p.shape().width; ++feature) store_sum(p, own, feature, 0.0f);
    }
  }
  return count;
}

// Adds the products of rows that end to `loaded.sums`. Each slot adds eight nonzeros in a row, and
// what it has of a row that goes on is added to the slots after it by a segmented scan. `carry` is
// the sum of the row that goes on from one call to the next.
template <class Launch>
__device__ __forceinline__ void add_rows(const Launch& p, const Lane& lane, Loaded& loaded,
                                         float& carry) {
  float products[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const int at = (kInFlight * lane.slot + i) * p.shape().width + lane.feature;
    products[i] = lane.active ? loaded.sums[Loaded::gapped(at)] : 0.0f;
  }
  const uint4 words = reinterpret_cast<const uint4*>(loaded.ends)[lane.slot];
  const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
  __syncwarp();
  float sum = 0.0f;
  float head = 0.0f;  // of the row that was begun before the slot, if it ends here
  int head_number = 0;
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    sum += products[i];
    const int number = static_cast<int>(pairs[i / 2] >> 16 * (i % 2) & 0xffff);
    if (number == 0) continue;
    if (head_number == 0) {
      head = sum;
      head_number = number;
    } else {
      loaded.sums[(number - 1) * p.shape().width + lane.feature] = sum;
    }
    sum = 0.0f;
  }
  // Slots with an end, a bit for each lane.
  const uint32_t ends = __ballot_sync(kAll, lane.active && head_number != 0);
  const uint32_t up_to = ends & kAll >> (kWarp - 1 - lane.index);
  const int begun =
      up_to == 0 ? 0 : (kWarp - 1 - __clz(static_cast<int>(up_to))) * p.shape().fraction >> 16;
  for (int apart = 1; apart < p.shape().slots; apart *= 2) {
    const float before = __shfl_up_sync(kAll, sum, apart * p.shape().width);
    if (lane.slot - apart >= begun) sum += before;
  }
  const float before = __shfl_up_sync(kAll, sum, p.shape().width);
  const bool goes_on = (ends & ((1u << lane.slot * p.shape().width) - 1)) == 0;
  if (lane.active && head_number != 0) {
    head += lane.slot > 0 ? before : 0.0f;
    loaded.sums[(head_number - 1) * p.shape().width + lane.feature] = goes_on ? carry + head : head;
  }
  const float tail = __shfl_sync(kAll, sum, (p.shape().slots - 1) * p.shape().width + lane.feature);
  carry = ends == 0 ? carry + tail : tail;
}

// Rows [row, last_row), the nonzeros as one run of which a warp loads as many as it has room for.
template <Precision P, bool kWeighted, class Launch>
__device__ __forceinline__ void multiply_rows(const Launch& p, const Lane& lane, int row,
                                              int last_row, Loaded& loaded) {
  int first = static_cast<int>(__ldg(p.a.indptr + row));
  const int last = static_cast<int>(__ldg(p.a.indptr + last_row));
  int32_t columns[kInFlight];
  load_columns(p, lane, first, last, columns);
  float carry = 0.0f;
  do {
    reinterpret_cast<uint4*>(loaded.ends)[lane.index] = make_uint4(0, 0, 0, 0);
    const int loaded_last = min(first + p.shape().capacity, last);
    int32_t next[kInFlight];
    load_columns(p, lane, loaded_last, last, next);
    float products[kInFlight];
    multiply<P, kWeighted>(p, lane, first, columns, products);
    __syncwarp();
    const int count = number_rows(p, lane, first, loaded_last, last_row, row, loaded);
    if (lane.active) {
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        loaded.sums[Loaded::gapped(i * p.shape().stage + lane.index)] = products[i];
      }
    }
    __syncwarp();
    add_rows(p, lane, loaded, carry);
    __syncwarp();
    for (int i = lane.index; i < count * p.shape().width; i += kWarp) {
      const int number = static_cast<int>(i * p.shape().fraction >> 16);
      store_sum(p, loaded.rows[number], i - number * p.shape().width, loaded.sums[i]);
    }
    __syncwarp();
    first = loaded_last;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) columns[i] = next[i];
  } while (first < last);
}

template <Precision P, bool kWeighted, int kWidth>
__global__ void __launch_bounds__(kThreads, kBlocks<kWidth>)
    narrow_spmm_kernel(const __grid_constant__ NarrowLaunch<kWidth> p) {
  __shared__ __align__(16) Loaded loaded[kThreads / kWarp];
  const Lane lane(p.shape());
  const int warp = threadIdx.x / kWarp;
  const int64_t item = int64_t{blockIdx.x} * (kThreads / kWarp) + warp;
  if (item < p.work.item_count) {
    const RowItem part = p.work.items[item];
    const int first = static_cast<int>(p.a.indptr[part.row]) + part.first;
    const float sum = sum_part<P, kWeighted>(p, lane, first, first + part.count);
    if (lane.slot == 0) {
      p.partial[part.partial * partial_stride(p.n) + lane.feature] = sum;
    }
    return;
  }
  const GroupWork group(p, item - p.work.item_count);
  if (group.row < 0) return;
  multiply_rows<P, kWeighted>(p, lane, static_cast<int>(group.row),
                              static_cast<int>(group.last_row), loaded[warp]);
}

template <Precision P, int kWidth>
void run_width(const CsrSpmm& problem, Stream stream) {
  const NarrowLaunch<kWidth> p(problem);
  const dim3 grid =
      grid_of(p.work.item_count + p.lanes.group_count, kThreads / kWarp, 1, "spmm_narrow");
  const auto kernel = p.stored.values != nullptr ? narrow_spmm_kernel<P, true, kWidth>
                                                 : narrow_spmm_kernel<P, false, kWidth>;
  launch("spmm_narrow", kernel, grid, kThreads, stream, p);
  reduce_cut_rows(p, stream);
}

template <Precision P>
void run(const CsrSpmm& problem, Stream stream) {
  switch (problem.n) {
    case 1:
      return run_width<P, 1>(problem, stream);
    case 2:
      return run_width<P, 2>(problem, stream);
    default:
      return run_width<P, 0>(problem, stream);
  }
}

}  // namespace

void spmm_narrow(const CsrSpmm& problem, Precision precision, Stream stream) {
  dispatch_precision<EveryPrecision>(precision, "csr", [&](auto p) { run<p>(problem, stream); });
}

}  // namespace gnnsparse::cuda
