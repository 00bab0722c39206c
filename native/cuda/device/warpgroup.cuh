// Tensor Core products of four warps at once, whose operands are in shared memory, and which go on
// while the warps do other things (PTX ISA, "asynchronous warpgroup level matrix instructions").
// For code of sm_90a; the plan sends other GPUs nothing, and the emulator runs the second half.
//
// An operand in shared memory is rows of 128 bytes, 64 elements, whose 16-byte chunks are permuted
// by the row's last three bits. Eight rows begin at a multiple of 1024 bytes.
#pragma once

#include <cstdint>

#include "device/async.cuh"
#include "device/mma.cuh"

namespace gnnsparse::cuda {

// Sums of 64 x 64: of each warp 16 rows, by eight columns as an mma has them.
using GroupSums = float[8][4];

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Makes copies of this lane that have arrived visible to products.
__device__ __forceinline__ void show_copies_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Before the first product after registers of operands or sums were written.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

#define GNNSPARSE_SUMS                                                                          \
  "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),     \
      "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), \
      "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), \
      "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), \
      "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), \
      "+f"(d[7][2]), "+f"(d[7][3])
#define GNNSPARSE_SUM_NAMES                                                                        \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25" \
  ",%26,%27,%28,%29,%30,%31}"

// Waits for all groups of products but the last `kGroups`, of which these sums are not.
template <int kGroups>
__device__ __forceinline__ void wait_products_but(GroupSums& d) {
  asm volatile("wgmma.wait_group.sync.aligned %32;" : GNNSPARSE_SUMS : "n"(kGroups) : "memory");
}

// The operand that begins at an address.
__device__ __forceinline__ uint64_t shared_operand(uint32_t shared) {
  constexpr uint64_t kLayout = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | 1 << 16;
  return kLayout | (shared & 0x3ffff) >> 4;
}

// d = a b^T, or added to it: a and b are rows of 64, of which 16 columns are multiplied.
template <Arithmetic kMath>
__device__ __forceinline__ void multiply_rows(GroupSums& d, uint32_t a, uint32_t b, bool add) {
  static_assert(kMath == Arithmetic::kFp16 || kMath == Arithmetic::kBf16, "of 16 bits");
  if constexpr (kMath == Arithmetic::kFp16) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " GNNSPARSE_SUM_NAMES
        ", %32, %33, p, 1, 1, 0, 0;}"
        : GNNSPARSE_SUMS
        : "l"(shared_operand(a)), "l"(shared_operand(b)), "r"(int{add}));
  } else {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " GNNSPARSE_SUM_NAMES
        ", %32, %33, p, 1, 1, 0, 0;}"
        : GNNSPARSE_SUMS
        : "l"(shared_operand(a)), "l"(shared_operand(b)), "r"(int{add}));
  }
}

// The same with `a` in registers, each warp's 16 rows as an mma has them. kDown: b are 16 rows,
// whose 64 columns are those of d: d += a b.
template <Arithmetic kMath, bool kDown>
__device__ __forceinline__ void multiply_held(GroupSums& d, const uint32_t (&a)[4], uint32_t b,
                                              bool add) {
  static_assert(kMath == Arithmetic::kFp16 || kMath == Arithmetic::kBf16, "of 16 bits");
  if constexpr (kMath == Arithmetic::kFp16) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " GNNSPARSE_SUM_NAMES
        ", {%32,%33,%34,%35}, %36, p, 1, 1, %38;}"
        : GNNSPARSE_SUMS
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(shared_operand(b)), "r"(int{add}),
          "n"(int{kDown}));
  } else {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " GNNSPARSE_SUM_NAMES
        ", {%32,%33,%34,%35}, %36, p, 1, 1, %38;}"
        : GNNSPARSE_SUMS
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(shared_operand(b)), "r"(int{add}),
          "n"(int{kDown}));
  }
}

#undef GNNSPARSE_SUMS
#undef GNNSPARSE_SUM_NAMES

#else  // The same by products of a warp, which are done at once: right, but slow.

inline __device__ void show_copies_to_products() {}
inline __device__ void begin_products() {}
inline __device__ void commit_products() {}
template <int kGroups>
__device__ void wait_products_but(GroupSums&) {}

// Where the chunk that an address would have without the permutation is.
inline __device__ uint32_t permuted(uint32_t shared) { return shared ^ (shared >> 7 & 7) << 4; }

template <Arithmetic kMath, bool kDown>
__device__ void multiply_held(GroupSums& d, const uint32_t (&a)[4], uint32_t b, bool add) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    uint32_t words[4];
    if constexpr (kDown) {
      load_matrices(permuted(b + 128 * (lane % 16) + 16 * (j + lane / 16)), words);
    } else {
      const int row = 8 * j + lane % 8 + lane / 16 * 8;
      load_matrices_plain(permuted(b + 128 * row + 16 * (lane / 8 % 2)), words);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!add) d[j + i][0] = d[j + i][1] = d[j + i][2] = d[j + i][3] = 0.0f;
      const uint32_t columns[2] = {words[2 * i], words[2 * i + 1]};
      mma<kMath>(d[j + i], a, columns);
    }
  }
}

template <Arithmetic kMath>
__device__ void multiply_rows(GroupSums& d, uint32_t a, uint32_t b, bool add) {
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x / 32 % 4 * 16 + lane % 16;
  uint32_t own[4];
  load_matrices_plain(permuted(a + 128 * row + 16 * (lane / 16)), own);
  multiply_held<kMath, false>(d, own, b, add);
}

#endif

}  // namespace gnnsparse::cuda
