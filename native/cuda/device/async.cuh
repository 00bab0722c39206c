// Copies from global to shared memory that registers do not wait for, and reads of mma operands
// from there. For compute capability 8.0 and later; the plan sends nothing else to their users.
#pragma once

#include <cstdint>

#include "gnnsparse/architecture.h"

namespace gnnsparse::cuda {

// The same value, which the compiler keeps instead of making it anew from where it came from.
template <class T>
__device__ __forceinline__ T pin_register(T value) {
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
  return value;
}

// 16 bytes, past L1.
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global) {
  if constexpr (kArchitecture.async_copies) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
  }
}

// The first `bytes` of 16, and zeros for the rest.
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global, int bytes) {
  if constexpr (kArchitecture.async_copies) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(bytes)
                 : "memory");
  }
}

// 16 bytes where `real`, otherwise zeros: then the address need not exist.
__device__ __forceinline__ void copy_async_or_zero(uint32_t shared, const void* global, bool real) {
  copy_async(shared, global, real ? 16 : 0);
}

// 4, 8 or 16 bytes where `real`, otherwise zeros: then the address need not exist.
template <int kBytes>
__device__ __forceinline__ void copy_number_async(uint32_t shared, const void* global, bool real) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "what cp.async takes through L1");
  if constexpr (kArchitecture.async_copies) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global),
                 "n"(kBytes), "r"(real ? kBytes : 0)
                 : "memory");
  }
}

// Waits for all copies of this lane.
__device__ __forceinline__ void wait_copies() {
  if constexpr (kArchitecture.async_copies) {
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
}

// Asks for a line of L2; an address that does not exist does nothing.
__device__ __forceinline__ void prefetch(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// Ends a group of copies, and waits for all groups but the last `kGroups`.
__device__ __forceinline__ void commit_copies() {
  if constexpr (kArchitecture.async_copies) {
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
}
template <int kGroups>
__device__ __forceinline__ void wait_copies_but() {
  if constexpr (kArchitecture.async_copies) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
  }
}

// A barrier in shared memory, eight bytes, for which some threads wait and others arrive:
// `arrivals` of them end a phase. Phases have the parities 0, 1, 0 and so on.
__device__ __forceinline__ void make_barrier(uint32_t shared, uint32_t arrivals) {
  if constexpr (kArchitecture.async_copies) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared), "r"(arrivals) : "memory");
  }
}
__device__ __forceinline__ void arrive_at(uint32_t barrier) {
  if constexpr (kArchitecture.async_copies) {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barrier)
                 : "memory");
  }
}
// Waits until the phase of this parity has ended: that which goes on, or the one before it.
__device__ __forceinline__ void wait_at(uint32_t barrier, uint32_t parity) {
  uint32_t ended = !kArchitecture.async_copies;
  while (ended == 0) {
    if constexpr (kArchitecture.early_launch) {  // Hopper's, which sleeps for a while
      asm volatile(
          "{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
          : "=r"(ended)
          : "r"(barrier), "r"(parity)
          : "memory");
    } else if constexpr (kArchitecture.async_copies) {
      asm volatile(
          "{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
          : "=r"(ended)
          : "r"(barrier), "r"(parity)
          : "memory");
    }
  }
}

// Four 8 x 8 matrices of 16-bit elements.
__device__ __forceinline__ void load_matrices_plain(uint32_t shared, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared)
               : "memory");
}

// The same, each transposed.
__device__ __forceinline__ void load_matrices(uint32_t shared, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared)
               : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t shared, uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(word) : "memory");
}
__device__ __forceinline__ uint32_t load_shared_word(uint32_t shared) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(shared) : "memory");
  return word;
}
__device__ __forceinline__ uint32_t load_shared_half(uint32_t shared) {
  uint16_t half;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(shared) : "memory");
  return half;
}
__device__ __forceinline__ void load_shared(uint32_t shared, uint32_t (&words)[4]) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared)
               : "memory");
}
// The first two words.
__device__ __forceinline__ void load_shared_pair(uint32_t shared, uint32_t (&words)[4]) {
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
               : "=r"(words[0]), "=r"(words[1])
               : "r"(shared)
               : "memory");
}

template <int kWords>
__device__ __forceinline__ void load_shared_words(uint32_t shared, uint32_t (&words)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; i += 4) {
    uint32_t four[4];
    load_shared(shared + 4 * i, four);
#pragma unroll
    for (int j = 0; j < 4; ++j) words[i + j] = four[j];
  }
}

__device__ __forceinline__ void store_shared(uint32_t shared, uint16_t value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(shared), "h"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t shared, uint2 value) {
  asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(shared), "r"(value.x), "r"(value.y)
               : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t shared, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(shared), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

}  // namespace gnnsparse::cuda
