// The words of CUDA that attention and SpMM use, on the CPU. Their sources are compiled as C++
// with this file in front and this folder's headers in place of those that reach the hardware, and
// run by block.h: for tests on machines without a GPU. Copies to
// shared memory are done at once, and what is overwritten too soon shows, or as late as they may
// be, and what is read too soon shows.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "block.h"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static  // blocks run one after another
#define __align__(bytes) __attribute__((aligned(bytes)))

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
struct int2 {
  int x, y;
};
struct int4 {
  int x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

struct dim3 {
  unsigned x, y;
  dim3(unsigned x = 1, unsigned y = 1) : x(x), y(y) {}
};

namespace gnnsparse::emulator {

struct ThreadIdx {
  struct {
    operator unsigned() const { return static_cast<unsigned>(Block::current().thread()); }
  } x;
};
struct BlockIdx {
  struct {
    operator unsigned() const { return Block::current().x(); }
  } x;
  struct {
    operator unsigned() const { return Block::current().y(); }
  } y;
};

// Bits of another type of the same size.
template <class To, class From>
To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &value, sizeof to);
  return to;
}

}  // namespace gnnsparse::emulator

static const gnnsparse::emulator::ThreadIdx threadIdx;
static const gnnsparse::emulator::BlockIdx blockIdx;

inline void __syncwarp() { gnnsparse::emulator::Block::current().sync_warp(); }
inline void __syncthreads() { gnnsparse::emulator::Block::current().sync(); }

// Every lane of a warp calls these, as the kernels do.
template <class T>
T shuffle(T value, int from) {
  auto& block = gnnsparse::emulator::Block::current();
  block.publish(&value, sizeof value);
  block.sync_warp();
  T result;
  std::memcpy(&result, block.published(from), sizeof result);
  block.sync_warp();
  return result;
}
inline int this_lane() { return gnnsparse::emulator::Block::current().lane(); }
template <class T>
T __shfl_xor_sync(uint32_t, T value, int mask) {
  return shuffle(value, this_lane() ^ mask);
}
template <class T>
T __shfl_up_sync(uint32_t, T value, int delta, int width) {
  const int lane = this_lane();
  return shuffle(value, lane % width >= delta ? lane - delta : lane);
}
template <class T>
T __shfl_sync(uint32_t, T value, int from, int width = 32) {
  return shuffle(value, this_lane() / width * width + from % width);
}
inline bool __any_sync(uint32_t, bool predicate) {
  for (int step = 1; step < 32; step *= 2) {
    const bool other = shuffle(predicate, this_lane() ^ step);
    predicate = predicate || other;
  }
  return predicate;
}

template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, T value) {
  *to = value;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
inline float __uint_as_float(uint32_t bits) { return gnnsparse::emulator::bits_as<float>(bits); }
inline uint32_t __float_as_uint(float x) { return gnnsparse::emulator::bits_as<uint32_t>(x); }
// Shared memory is addressed from the kernel's one array.
inline size_t __cvta_generic_to_shared(void* memory) {
  gnnsparse::emulator::Block::current().use_shared(static_cast<char*>(memory));
  return 0;
}

template <class A, class B>
std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) > static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
template <class A, class B>
std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
using std::fmaxf;
using std::isinf;
