// Softmax over the nonzeros of each row, and its gradient. A group of lanes takes a row, a block
// takes a long one; a row's scores are read from L1 or L2 after the first pass.
#include <algorithm>

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

// `lanes` neighbouring lanes of a warp, of which `heads` (both powers of two) take a nonzero's
// heads.
struct LaneGroup {
  int lanes;
  int heads;
  __device__ int rank() const { return threadIdx.x % lanes / heads; }
  __device__ int size() const { return lanes / heads; }
  __device__ int head() const { return threadIdx.x % heads; }
  template <class Op>
  __device__ float reduce(float v) const {
    for (int offset = lanes / 2; offset >= heads; offset /= 2) {
      v = Op::apply(v, __shfl_xor_sync(0xffffffffu, v, offset));
    }
    return v;
  }
};

struct BlockGroup {
  int heads;
  __device__ int rank() const { return threadIdx.x / heads; }
  __device__ int size() const { return kThreads / heads; }
  __device__ int head() const { return threadIdx.x % heads; }
  template <class Op>
  __device__ float reduce(float v) const {
    __shared__ float parts[kThreads / kWarpSize][kWarpSize];
    v = LaneGroup{kWarpSize, heads}.reduce<Op>(v);
    __syncthreads();  // the parts of an earlier reduction have been read
    if (threadIdx.x % kWarpSize < heads) parts[threadIdx.x / kWarpSize][head()] = v;
    __syncthreads();
    v = Op::kNeutral;
    for (int i = 0; i < kThreads / kWarpSize; ++i) v = Op::apply(v, parts[i][head()]);
    return v;
  }
};

// The softmax of one head of a row. `p` and what follows are of that head; a lane whose head does
// not exist has no nonzeros.
template <class Group>
__device__ void softmax_row(const Softmax& p, const Group& group, int64_t head, int64_t begin,
                            int64_t end) {
  const float* scores = p.scores + head;
  float* out = p.out + head;
  float top = Max::kNeutral;
  for (int64_t e = begin + group.rank(); e < end; e += group.size()) {
    top = Max::apply(top, scores[e * p.heads]);
  }
  top = group.template reduce<Max>(top);
  if (top == Max::kNeutral) top = 0.0f;  // only -inf: every weight is 0
  float total = 0.0f;
  for (int64_t e = begin + group.rank(); e < end; e += group.size()) {
    total += expf(scores[e * p.heads] - top);
  }
  total = group.template reduce<Sum>(total);
  const float scale = total == 0.0f ? 0.0f : 1.0f / total;
  for (int64_t e = begin + group.rank(); e < end; e += group.size()) {
    out[e * p.heads] = expf(scores[e * p.heads] - top) * scale;
  }
}

template <class Group>
__device__ void softmax_grad_row(const Softmax& p, const Group& group, int64_t head, int64_t begin,
                                 int64_t end) {
  const float* weights = p.scores + head;
  const float* grad = p.grad + head;
  float inner = 0.0f;
  for (int64_t e = begin + group.rank(); e < end; e += group.size()) {
    inner += weights[e * p.heads] * grad[e * p.heads];
  }
  inner = group.template reduce<Sum>(inner);
  for (int64_t e = begin + group.rank(); e < end; e += group.size()) {
    p.out[e * p.heads + head] = weights[e * p.heads] * (grad[e * p.heads] - inner);
  }
}

// Heads that a group does not take at a time are blocks of their own along y.
template <bool kBackward, class Group>
__device__ void row(const Softmax& p, const Group& group, int64_t begin, int64_t end) {
  const int64_t head = int64_t{blockIdx.y} * group.heads + group.head();
  if (head >= p.heads) end = begin;
  if constexpr (kBackward) {
    softmax_grad_row(p, group, head, begin, end);
  } else {
    softmax_row(p, group, head, begin, end);
  }
}

template <bool kBackward>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const __grid_constant__ Softmax p, int lanes, int heads) {
  const int64_t r = int64_t{blockIdx.x} * (kThreads / lanes) + threadIdx.x / lanes;
  int64_t begin = 0;
  int64_t end = 0;
  if (r < p.a.rows) {
    begin = p.a.indptr[r];
    end = p.a.indptr[r + 1];
    if (end - begin > p.row_limit) end = begin;  // a block of its own takes it
  }
  row<kBackward>(p, LaneGroup{lanes, heads}, begin, end);
}

template <bool kBackward>
__global__ void __launch_bounds__(kThreads)
    long_rows_kernel(const __grid_constant__ Softmax p, int heads) {
  const int64_t r = p.work.cuts[blockIdx.x].index;
  row<kBackward>(p, BlockGroup{heads}, p.a.indptr[r], p.a.indptr[r + 1]);
}

template <bool kBackward>
void run(const Softmax& p, Stream stream) {
  const char* call = kBackward ? "softmax_grad" : "softmax";
  int heads = 1;
  while (heads < kWarpSize && heads < p.heads) heads *= 2;
  int lanes = std::max(4, heads);
  while (lanes < kWarpSize && lanes * p.a.rows < p.a.nnz * heads) lanes *= 2;
  const int64_t slices = ceil_div<int64_t>(p.heads, heads);
  launch(call, long_rows_kernel<kBackward>, grid_of(p.work.cut_count, 1, slices, call), kThreads,
         stream, p, heads);
  launch(call, rows_kernel<kBackward>, grid_of(p.a.rows, kThreads / lanes, slices, call), kThreads,
         stream, p, lanes, heads);
}

}  // namespace

void softmax(const Softmax& problem, Stream stream) { run<false>(problem, stream); }
void softmax_grad(const Softmax& problem, Stream stream) { run<true>(problem, stream); }

}  // namespace gnnsparse::cuda
