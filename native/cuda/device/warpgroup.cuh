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

inline constexpr int kGroupThreads = 4 * 32;

// Sums of 64 x 64: of each warp 16 rows, by eight columns as an mma has them.
using GroupSums = float[8][4];
// Of 64 x 192.
using WideGroupSums = float[24][4];

// The operand that begins at an address. One that begins 16 bytes behind it is one more.
__device__ __forceinline__ uint32_t shared_operand(uint32_t shared) {
  return 1 << 16 | shared >> 4;
}

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

#define GNNSPARSE_SUM(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define GNNSPARSE_SUMS                                                                      \
  GNNSPARSE_SUM(0), GNNSPARSE_SUM(1), GNNSPARSE_SUM(2), GNNSPARSE_SUM(3), GNNSPARSE_SUM(4), \
      GNNSPARSE_SUM(5), GNNSPARSE_SUM(6), GNNSPARSE_SUM(7)
#define GNNSPARSE_WIDE_SUMS                                                                 \
  GNNSPARSE_SUMS, GNNSPARSE_SUM(8), GNNSPARSE_SUM(9), GNNSPARSE_SUM(10), GNNSPARSE_SUM(11), \
      GNNSPARSE_SUM(12), GNNSPARSE_SUM(13), GNNSPARSE_SUM(14), GNNSPARSE_SUM(15),           \
      GNNSPARSE_SUM(16), GNNSPARSE_SUM(17), GNNSPARSE_SUM(18), GNNSPARSE_SUM(19),           \
      GNNSPARSE_SUM(20), GNNSPARSE_SUM(21), GNNSPARSE_SUM(22), GNNSPARSE_SUM(23)
#define GNNSPARSE_FIRST_NAMES                                                                     \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25" \
  ",%26,%27,%28,%29,%30,%31"
#define GNNSPARSE_SUM_NAMES "{" GNNSPARSE_FIRST_NAMES "}"
#define GNNSPARSE_WIDE_NAMES                                                                 \
  "{" GNNSPARSE_FIRST_NAMES                                                                  \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53" \
  ",%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75" \
  ",%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95}"

// Waits for all groups of products but the last `kGroups`.
template <int kGroups>
__device__ __forceinline__ void wait_products_but() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// The same for sums that only then are used.
__device__ __forceinline__ void wait_products(WideGroupSums& d) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : GNNSPARSE_WIDE_SUMS : : "memory");
}

// Waits for all groups of products but the last `kGroups`, of which these sums are not.
template <int kGroups>
__device__ __forceinline__ void wait_products_but(GroupSums& d) {
  asm volatile("wgmma.wait_group.sync.aligned %32;" : GNNSPARSE_SUMS : "n"(kGroups) : "memory");
}

// What an operand in shared memory is for the hardware.
__device__ __forceinline__ uint64_t descriptor_of(uint32_t operand) {
  constexpr uint64_t kLayout = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32;
  return kLayout | operand;
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
        : "l"(descriptor_of(a)), "l"(descriptor_of(b)), "r"(int{add}));
  } else {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " GNNSPARSE_SUM_NAMES
        ", %32, %33, p, 1, 1, 0, 0;}"
        : GNNSPARSE_SUMS
        : "l"(descriptor_of(a)), "l"(descriptor_of(b)), "r"(int{add}));
  }
}

// d += a b: `a` is in registers, each warp's 16 rows as an mma has them, and b are 16 rows.
template <Arithmetic kMath>
__device__ __forceinline__ void add_rows(GroupSums& d, const uint32_t (&a)[4], uint32_t b) {
  static_assert(kMath == Arithmetic::kFp16 || kMath == Arithmetic::kBf16, "of 16 bits");
  if constexpr (kMath == Arithmetic::kFp16) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " GNNSPARSE_SUM_NAMES
                 ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : GNNSPARSE_SUMS
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor_of(b)));
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " GNNSPARSE_SUM_NAMES
                 ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : GNNSPARSE_SUMS
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor_of(b)));
  }
}

// d += a^T b^T: a are 16 rows of 64, and b 192 rows, of which 16 columns are multiplied.
template <Arithmetic kMath>
__device__ __forceinline__ void add_turned(WideGroupSums& d, uint32_t a, uint32_t b) {
  static_assert(kMath == Arithmetic::kFp16 || kMath == Arithmetic::kBf16, "of 16 bits");
  if constexpr (kMath == Arithmetic::kFp16) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 " GNNSPARSE_WIDE_NAMES
                 ", %96, %97, 1, 1, 1, 1, 0;"
                 : GNNSPARSE_WIDE_SUMS
                 : "l"(descriptor_of(a)), "l"(descriptor_of(b)));
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 " GNNSPARSE_WIDE_NAMES
                 ", %96, %97, 1, 1, 1, 1, 0;"
                 : GNNSPARSE_WIDE_SUMS
                 : "l"(descriptor_of(a)), "l"(descriptor_of(b)));
  }
}

#undef GNNSPARSE_SUM
#undef GNNSPARSE_SUMS
#undef GNNSPARSE_WIDE_SUMS
#undef GNNSPARSE_FIRST_NAMES
#undef GNNSPARSE_SUM_NAMES
#undef GNNSPARSE_WIDE_NAMES

#else  // The same by products of a warp, which are done at once: right, but slow.

inline __device__ void show_copies_to_products() {}
inline __device__ void begin_products() {}
inline __device__ void commit_products() {}
template <int kGroups>
__device__ void wait_products_but() {}
inline __device__ void wait_products(WideGroupSums&) {}
template <int kGroups>
__device__ void wait_products_but(GroupSums&) {}

// The address of a chunk of a row of an operand.
inline __device__ uint32_t chunk_of(uint32_t operand, int row, int chunk) {
  const uint32_t plain = (operand & 0x3fff) * 16 + 128 * row + 16 * chunk;
  return plain ^ (plain >> 7 & 7) << 4;
}

// Eight columns twice: `b` has those of sums j and j + 1.
template <Arithmetic kMath, int kEights>
__device__ void add_columns(float (&d)[kEights][4], int j, const uint32_t (&a)[4],
                            const uint32_t (&b)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t columns[2] = {b[2 * i], b[2 * i + 1]};
    mma<kMath>(d[j + i], a, columns);
  }
}

template <Arithmetic kMath>
__device__ void multiply_rows(GroupSums& d, uint32_t a, uint32_t b, bool add) {
  const int lane = threadIdx.x % 32;
  uint32_t own[4];
  load_matrices_plain(chunk_of(a, threadIdx.x / 32 % 4 * 16 + lane % 16, lane / 16), own);
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    if (!add) {
      for (int i = 0; i < 8; ++i) d[j + i / 4][i % 4] = 0.0f;
    }
    uint32_t words[4];
    load_matrices_plain(chunk_of(b, 8 * j + lane % 8 + lane / 16 * 8, lane / 8 % 2), words);
    add_columns<kMath>(d, j, own, words);
  }
}

template <Arithmetic kMath>
__device__ void add_rows(GroupSums& d, const uint32_t (&a)[4], uint32_t b) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    uint32_t words[4];
    load_matrices(chunk_of(b, lane % 16, j + lane / 16), words);
    add_columns<kMath>(d, j, a, words);
  }
}

template <Arithmetic kMath>
__device__ void add_turned(WideGroupSums& d, uint32_t a, uint32_t b) {
  const int lane = threadIdx.x % 32;
  uint32_t own[4];  // features by rows
  load_matrices(chunk_of(a, lane % 8 + lane / 16 * 8, threadIdx.x / 32 % 4 * 2 + lane / 8 % 2),
                own);
#pragma unroll
  for (int j = 0; j < 24; j += 2) {
    uint32_t words[4];
    load_matrices_plain(chunk_of(b, 8 * j + lane % 8 + lane / 16 * 8, lane / 8 % 2), words);
    add_columns<kMath>(d, j, own, words);
  }
}

#endif

}  // namespace gnnsparse::cuda
