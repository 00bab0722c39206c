// The words of CUDA that the kernels use, on the CPU. Their sources are compiled as C++ with this
// file in front and this folder's headers in place of those that reach the hardware, and run by
// block.h: for tests on machines without a GPU. Copies to shared memory are done at once, and what
// is overwritten too soon shows, or as late as they may be, and what is read too soon shows. No
// part of the wheel: tests/emulator_build.py compiles it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
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
inline float2 make_float2(float x, float y) { return {x, y}; }
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
    operator unsigned() const { return Block::current().thread(); }
  } x;
};
struct BlockDim {
  struct {
    operator unsigned() const { return Block::current().threads(); }
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
static const gnnsparse::emulator::BlockDim blockDim;
static const gnnsparse::emulator::BlockIdx blockIdx;

namespace gnnsparse::emulator {

struct Nothing {};
inline void meet_without_exchange(const Nothing (&)[kLanes], Nothing (&)[kLanes]) {}

template <class T>
struct Shown {
  T value;
  int from;  // the lane whose value is wanted
  uint32_t mask;
};
// What a lane that takes no part would show is NaN, or a large number.
template <class T>
void exchange(const Shown<T> (&shown)[kLanes], T (&taken)[kLanes]) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const auto& mine = shown[lane];
    const unsigned from = static_cast<unsigned>(mine.from) % kLanes;
    if (mine.mask >> from & 1u) {
      taken[lane] = shown[from].value;
    } else {
      std::memset(&taken[lane], 0xff, sizeof(T));
    }
  }
}
template <class T>
T shuffle(uint32_t mask, T value, int from) {
  return Block::current().meet(Shown<T>{value, from, mask}, &exchange<T>, mask);
}

inline void find_ballot(const bool (&predicates)[kLanes], uint32_t (&taken)[kLanes]) {
  uint32_t ballot = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) ballot |= uint32_t{predicates[lane]} << lane;
  for (uint32_t& result : taken) result = ballot;
}
inline void find_any(const bool (&predicates)[kLanes], bool (&taken)[kLanes]) {
  bool any = false;
  for (const bool predicate : predicates) any |= predicate;
  for (bool& result : taken) result = any;
}

}  // namespace gnnsparse::emulator

inline void __syncwarp() {
  using namespace gnnsparse::emulator;
  Block::current().meet(Nothing{}, &meet_without_exchange);
}
inline void __syncthreads() { gnnsparse::emulator::Block::current().sync(); }

// Every lane of a warp calls these, as the kernels do; of a shuffle, every lane of its mask.
inline int this_lane() { return gnnsparse::emulator::Block::current().lane(); }
template <class T>
T __shfl_xor_sync(uint32_t lanes, T value, int mask) {
  return gnnsparse::emulator::shuffle(lanes, value, this_lane() ^ mask);
}
template <class T>
T __shfl_up_sync(uint32_t lanes, T value, int delta, int width = 32) {
  const int lane = this_lane();
  return gnnsparse::emulator::shuffle(lanes, value, lane % width >= delta ? lane - delta : lane);
}
template <class T>
T __shfl_down_sync(uint32_t lanes, T value, int delta) {
  return gnnsparse::emulator::shuffle(lanes, value, std::min(this_lane() + delta, 31));
}
template <class T>
T __shfl_sync(uint32_t lanes, T value, int from, int width = 32) {
  return gnnsparse::emulator::shuffle(lanes, value, this_lane() / width * width + from % width);
}
inline bool __any_sync(uint32_t, bool predicate) {
  return gnnsparse::emulator::Block::current().meet(predicate, &gnnsparse::emulator::find_any);
}

inline uint32_t __ballot_sync(uint32_t, bool predicate) {
  return gnnsparse::emulator::Block::current().meet(predicate, &gnnsparse::emulator::find_ballot);
}

template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, T value) {
  *to = value;
}
// Threads run one at a time.
inline int atomicMin(int* to, int value) {
  const int before = *to;
  if (value < before) *to = value;
  return before;
}
inline int32_t atomicAdd(int32_t* at, int32_t value) {
  const int32_t before = *at;
  *at += value;
  return before;
}
inline int32_t atomicMax(int32_t* at, int32_t value) {
  const int32_t before = *at;
  *at = before > value ? before : value;
  return before;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
// Of zero: 32, as on a GPU.
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }
// A product that nothing is added to: kernels look at its bits first.
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __uint_as_float(uint32_t bits) { return gnnsparse::emulator::bits_as<float>(bits); }
inline uint32_t __float_as_uint(float x) { return gnnsparse::emulator::bits_as<uint32_t>(x); }
// Shared memory is addressed from the kernel's one array: a static one, or the dynamic one.
template <class T, size_t kCount>
size_t __cvta_generic_to_shared(T (&array)[kCount]) {
  gnnsparse::emulator::Block::current().use_shared(reinterpret_cast<char*>(array), sizeof array);
  return 0;
}
inline size_t __cvta_generic_to_shared(char*& memory) {
  auto& block = gnnsparse::emulator::Block::current();
  if (memory != block.dynamic_shared()) throw std::logic_error("an address inside shared memory");
  block.use_shared(memory, block.dynamic_bytes());
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
