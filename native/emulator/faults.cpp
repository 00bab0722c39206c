// Small kernels with errors that the emulator is there to find, for the tests of the emulator.
#include "faults.h"

#include <map>
#include <stdexcept>

#include "device/async.cuh"
#include "device/launch.cuh"

namespace gnnsparse::emulator {
namespace {

constexpr int kThreads = 64;

struct Arrays {
  const float* in;  // [kThreads]
  float* out;
};

// out[i] = in[kThreads - 1 - i], through shared memory: by stores or by copies of four each.
enum Left { kNothing, kWarpBarrier, kBlockBarrier, kWait, kArrival, kInit };

template <Left kOut>
void reverse(Arrays p) {
  __shared__ float memory[kThreads];
  const unsigned i = threadIdx.x;
  __cvta_generic_to_shared(memory);
  memory[i] = p.in[i];
  if (kOut != kBlockBarrier) __syncthreads();
  p.out[i] = memory[kThreads - 1 - i];
}

template <Left kOut>
void reverse_in_warps(Arrays p) {
  __shared__ float memory[kThreads];
  const unsigned i = threadIdx.x;
  __cvta_generic_to_shared(memory);
  memory[i] = p.in[i];
  if (kOut != kWarpBarrier) __syncwarp();
  p.out[i] = memory[i ^ 31u];
}

template <Left kOut>
void reverse_copies(Arrays p) {
  __shared__ __align__(16) float memory[kThreads];
  const unsigned i = threadIdx.x;
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  if (i % 4 == 0) cuda::copy_async(shared + 4 * i, p.in + i);
  cuda::commit_copies();
  if (kOut != kWait) cuda::wait_copies_but<0>();
  __syncthreads();
  p.out[i] = memory[kThreads - 1 - i];
  __syncthreads();
  if (kOut == kWait) cuda::wait_copies_but<0>();
}

// One warp hands its lanes' numbers to the other, twice through the same memory.
template <Left kOut>
void reverse_by_barriers(Arrays p) {
  __shared__ __align__(16) uint32_t memory[4 + 32];
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const unsigned lane = threadIdx.x % 32;
  const uint32_t written = shared;
  const uint32_t read = shared + 8;
  if (kOut != kInit && threadIdx.x < 2) cuda::make_barrier(shared + 8 * threadIdx.x, 32);
  __syncthreads();
  for (unsigned round = 0; round < 2; ++round) {
    const unsigned i = 32 * round + lane;
    if (threadIdx.x < 32) {
      cuda::wait_at(read, round ^ 1);
      memory[4 + lane] = __float_as_uint(p.in[i]);
      cuda::arrive_at(written);
    } else {
      cuda::wait_at(written, round);
      p.out[kThreads - 1 - i] = __uint_as_float(memory[4 + lane]);
      if (kOut != kArrival || lane != 3) cuda::arrive_at(read);
    }
  }
}

// The next copy comes where the last one is still being read.
void overwrite_too_soon(Arrays p) {
  __shared__ __align__(16) float memory[kThreads];
  const unsigned i = threadIdx.x;
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  for (int round = 0; round < 2; ++round) {
    if (i % 4 == 0) cuda::copy_async(shared + 4 * i, p.in + (i + 32 * round) % kThreads);
    cuda::wait_copies();
    __syncthreads();
    if (round == 0) p.out[i] = memory[kThreads - 1 - i];
  }
}

void read_unwritten(Arrays p) {
  __shared__ float memory[kThreads];
  __cvta_generic_to_shared(memory);
  p.out[threadIdx.x] = memory[threadIdx.x];
}

void leave_a_copy(Arrays p) {
  __shared__ __align__(16) float memory[kThreads];
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  cuda::copy_async(shared, p.in);
}

void read_beyond(Arrays p) {
  __shared__ __align__(16) float memory[kThreads];
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  p.out[0] = __uint_as_float(cuda::load_shared_word(shared + sizeof memory));
}

void read_between(Arrays p) {
  __shared__ __align__(16) float memory[kThreads];
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  uint32_t words[4];
  cuda::load_shared(shared + 4, words);
  p.out[0] = __uint_as_float(words[0]);
}

void write_nowhere(Arrays p) { p.out[int64_t{threadIdx.x} << 40] = 1.0f; }

void end_early(Arrays p) {
  if (threadIdx.x == 3) return;
  p.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, p.in[threadIdx.x], 1);
}

void meet_elsewhere(Arrays p) {
  if (threadIdx.x == 3) return __syncwarp();
  p.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, p.in[threadIdx.x], 1);
}

// The lanes of one half of a warp meet twice, those of the other not at all, or once.
template <bool kLeaveOut>
void reverse_a_half(Arrays p) {
  const unsigned lane = threadIdx.x % 32;
  const uint32_t lower = kLeaveOut ? 0xffu : 0xffffu;
  float x = p.in[threadIdx.x];
  if (lane < 16) {
    for (int mask = 1; mask < 16; mask *= 4) x = __shfl_xor_sync(lower, x, mask);
    for (int mask = 2; mask < 16; mask *= 4) x = __shfl_xor_sync(lower, x, mask);
  } else if (lane < 24) {
    x = __shfl_xor_sync(0xff0000u, x, 7);
  }
  p.out[threadIdx.x] = x;
}

// What it wants is of a lane that takes no part.
void ask_an_absent_lane(Arrays p) {
  float x = p.in[threadIdx.x];
  if (threadIdx.x % 32 < 4) x = __shfl_xor_sync(0xfu, x, 8);
  p.out[threadIdx.x] = x;
}

}  // namespace

std::vector<float> run_fault(const std::string& name) {
  static const std::map<std::string, void (*)(Arrays)> kernels = {
      {"right", reverse<kNothing>},
      {"right in warps", reverse_in_warps<kNothing>},
      {"right copies", reverse_copies<kNothing>},
      {"right by barriers", reverse_by_barriers<kNothing>},
      {"no block barrier", reverse<kBlockBarrier>},
      {"no warp barrier", reverse_in_warps<kWarpBarrier>},
      {"no wait", reverse_copies<kWait>},
      {"overwrites too soon", overwrite_too_soon},
      {"reads what nobody wrote", read_unwritten},
      {"leaves a copy", leave_a_copy},
      {"reads beyond", read_beyond},
      {"reads between", read_between},
      {"writes nowhere", write_nowhere},
      {"does not arrive", reverse_by_barriers<kArrival>},
      {"makes no barrier", reverse_by_barriers<kInit>},
      {"ends early", end_early},
      {"meets elsewhere", meet_elsewhere},
      {"right in parts of warps", reverse_a_half<false>},
      {"leaves lanes out", reverse_a_half<true>},
      {"asks an absent lane", ask_an_absent_lane},
  };
  float in[kThreads];
  for (int i = 0; i < kThreads; ++i) in[i] = static_cast<float>(i);
  std::vector<float> out(kThreads, -1.0f);
  cuda::launch("fault", kernels.at(name), dim3(1), kThreads, nullptr, Arrays{in, out.data()});
  return out;
}

}  // namespace gnnsparse::emulator
