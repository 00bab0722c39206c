// Softmax over the nonzeros of each row, and its gradient. A group of lanes takes a row, a block
// takes a long one; a row's scores are read from L1 or L2 after the first pass.
#include "device/launch.cuh"

namespace gnnsparse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpSize = 32;

struct Sum {
  static constexpr float kNeutral = 0.0f;
  __device__ static float apply(float a, float b) { return a + b; }
};
struct Max {
  static constexpr float kNeutral = -__builtin_huge_valf();
  // Keeps NaN, which fmaxf would drop.
  __device__ static float apply(float a, float b) { return a > b || a != a ? a : b; }
};

// `lanes` neighbouring lanes of a warp.
struct LaneGroup {
  int lanes;
  __device__ int rank() const { return threadIdx.x % lanes; }
  __device__ int size() const { return lanes; }
  template <class Op>
  __device__ float reduce(float v) const {
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
      v = Op::apply(v, __shfl_xor_sync(0xffffffffu, v, offset));
    }
    return v;
  }
};

struct BlockGroup {
  __device__ int rank() const { return threadIdx.x; }
  __device__ int size() const { return kThreads; }
  template <class Op>
  __device__ float reduce(float v) const {
    __shared__ float parts[kThreads / kWarpSize];
    v = LaneGroup{kWarpSize}.reduce<Op>(v);
    __syncthreads();  // the parts of an earlier reduction have been read
    if (threadIdx.x % kWarpSize == 0) parts[threadIdx.x / kWarpSize] = v;
    __syncthreads();
    v = Op::kNeutral;
    for (int i = 0; i < kThreads / kWarpSize; ++i) v = Op::apply(v, parts[i]);
    return v;
  }
};

template <class Group>
__device__ void softmax_row(const Softmax& p, const Group& group, int64_t begin, int64_t end) {
  float top = Max::kNeutral;
  for (int64_t e = begin + group.rank(); e < end; e += group.size()) {
    top = Max::apply(top, p.scores[e]);
  }
  top = group.template reduce<Max>(top);
  if (top == Max::kNeutral) top = 0.0f;  // only -inf: every weight is 0
  float total = 0.0f;
  for (int64_t e = begin + group.rank(); e < end; e += group.size()) {
    total += expf(p.scores[e] - top);
  }
  total = group.template reduce<Sum>(total);
  const float scale = total == 0.0f ? 0.0f : 1.0f / total;
  for (int64_t e = begin + group.rank(); e < end; e += group.size()) {
    p.out[e] = expf(p.scores[e] - top) * scale;
  }
}

template <class Group>
__device__ void softmax_grad_row(const Softmax& p, const Group& group, int64_t begin, int64_t end) {
  float inner = 0.0f;
  for (int64_t e = begin + group.rank(); e < end; e += group.size()) {
    inner += p.scores[e] * p.grad[e];
  }
  inner = group.template reduce<Sum>(inner);
  for (int64_t e = begin + group.rank(); e < end; e += group.size()) {
    p.out[e] = p.scores[e] * (p.grad[e] - inner);
  }
}

template <bool kBackward, class Group>
__device__ void row(const Softmax& p, const Group& group, int64_t begin, int64_t end) {
  if constexpr (kBackward) {
    softmax_grad_row(p, group, begin, end);
  } else {
    softmax_row(p, group, begin, end);
  }
}

template <bool kBackward>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const __grid_constant__ Softmax p, int lanes) {
  const int64_t r = int64_t{blockIdx.x} * (kThreads / lanes) + threadIdx.x / lanes;
  int64_t begin = 0;
  int64_t end = 0;
  if (r < p.a.rows) {
    begin = p.a.indptr[r];
    end = p.a.indptr[r + 1];
    if (end - begin > p.row_limit) end = begin;  // a block of its own takes it
  }
  row<kBackward>(p, LaneGroup{lanes}, begin, end);
}

template <bool kBackward>
__global__ void __launch_bounds__(kThreads) long_rows_kernel(const __grid_constant__ Softmax p) {
  const int64_t r = p.work.cuts[blockIdx.x].index;
  row<kBackward>(p, BlockGroup{}, p.a.indptr[r], p.a.indptr[r + 1]);
}

template <bool kBackward>
void run(const Softmax& p, Stream stream) {
  const char* call = kBackward ? "softmax_grad" : "softmax";
  int lanes = 4;
  while (lanes < kWarpSize && lanes * p.a.rows < p.a.nnz) lanes *= 2;
  launch(call, long_rows_kernel<kBackward>, grid_of(p.work.cut_count, 1, 1, call), kThreads, stream,
         p);
  launch(call, rows_kernel<kBackward>, grid_of(p.a.rows, kThreads / lanes, 1, call), kThreads,
         stream, p, lanes);
}

}  // namespace

void softmax(const Softmax& problem, Stream stream) { run<false>(problem, stream); }
void softmax_grad(const Softmax& problem, Stream stream) { run<true>(problem, stream); }

}  // namespace gnnsparse::cuda
