// The gather of rows alone: the time below which no kernel that gathers them can come. Rows are
// added up as 32-bit integers, an addition a word, so that nothing but the loads can bind it, and
// so that the sums do not depend on their order.
#include "device/launch.cuh"
#include "device/vector.cuh"
#include "gnnsparse/panel_tile.h"

namespace gnnsparse::cuda {
namespace {

constexpr int kWarps = 32;
constexpr int kThreads = 32 * kWarps;
constexpr int kLoads = 8;              // in flight a lane
constexpr int kRowLanes = kRowChunks;  // that take a slice of a row together
constexpr int kSliceWords = kRowSliceBytes / 4;
constexpr int kIds = kLoads * 32 / kRowLanes;  // that a warp takes at a time
static_assert(kIds == 32, "each lane holds one id");

// One block on each multiprocessor. Slices are slowest, so that one slice of x at a time is in L2.
__global__ void __launch_bounds__(kThreads, 1)
    gather_floor_kernel(const int32_t* __restrict__ columns, int64_t count,
                        const char* __restrict__ x, int64_t row_bytes, int64_t bytes,
                        uint32_t* __restrict__ out) {
  __shared__ uint32_t sums[kGatherFloorWords];
  for (int i = threadIdx.x; i < kGatherFloorWords; i += kThreads) sums[i] = 0;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  // Neighbours in the list are gathered at the same time, each 32 on another multiprocessor.
  const int64_t warp = int64_t{threadIdx.x / 32} * gridDim.x + blockIdx.x;
  const int64_t step = int64_t{kIds} * kWarps * gridDim.x;
  const auto id_at = [&](int64_t at) { return at < count ? __ldg(columns + at) : -1; };

  for (int64_t slice = 0; slice * kRowSliceBytes < bytes; ++slice) {
    const int64_t offset = slice * kRowSliceBytes + lane % kRowLanes * 16;
    const char* from = offset < bytes ? x + offset : nullptr;
    uint32_t total[4] = {};
    int32_t id = id_at(warp * kIds + lane);
    for (int64_t first = warp * kIds; first < count; first += step) {
      const int32_t next = id_at(first + step + lane);
      Vec16 v[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int32_t row = __shfl_sync(0xffffffffu, id, i * (32 / kRowLanes) + lane / kRowLanes);
        v[i] = Vec16{};
        if (row >= 0 && from != nullptr) v[i] = load_vec16(from + row * row_bytes);
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
#pragma unroll
        for (int w = 0; w < 4; ++w) total[w] += v[i].word[w];
      }
      id = next;
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      for (int away = kRowLanes; away < 32; away *= 2) {
        total[w] += __shfl_xor_sync(0xffffffffu, total[w], away);
      }
      const int64_t word = slice * kSliceWords + lane * 4 + w;
      if (lane < kRowLanes) atomicAdd(sums + word % kGatherFloorWords, total[w]);
    }
  }
  __syncthreads();
  uint32_t* mine = out + int64_t{blockIdx.x} * kGatherFloorWords;
  for (int i = threadIdx.x; i < kGatherFloorWords; i += kThreads) mine[i] = sums[i];
}

}  // namespace

void gather_floor(const int32_t* columns, int64_t count, const DenseView& x, int64_t n,
                  uint32_t* out, int64_t out_rows, Stream stream) {
  int device = 0;
  int processors = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  if (out_rows < processors) {
    throw std::invalid_argument("out: must have a row for each of " + std::to_string(processors) +
                                " multiprocessors");
  }
  const int64_t size = size_of(x.dtype);
  const int64_t bytes = ceil_div<int64_t>(n * size, 16) * 16;
  launch("gather_floor", gather_floor_kernel, dim3(processors), kThreads, stream, columns, count,
         static_cast<const char*>(x.data), x.stride * size, bytes, out);
}

}  // namespace gnnsparse::cuda
