// Sparse products on the CPU. One table of kernels for each instruction set; the best one the
// machine has is used unless another is asked for.
#pragma once

#include <cstdint>

#include "gnnsparse/types.h"

namespace gnnsparse::cpu {

// y[row_ids[i]] = row_scale[i] * sum over nonzeros e of row i: weight(e) * x[indices[e]]
// with weight(e) = values[e], or col_scale[indices[e]], or 1.
struct SpmmArgs {
  CsrView a;
  const int32_t* row_ids = nullptr;  // null: i
  const float* values = nullptr;     // [nnz]
  const float* col_scale = nullptr;  // [cols], used where values is null
  const float* row_scale = nullptr;  // [rows], null: 1
  DenseView x;                       // [cols, n]
  MutableDenseView y;                // [rows, n]
  int64_t n = 0;
};

// out[e] = dot(q[row_ids[i]], k[indices[e]]) for every nonzero e of row i.
struct SddmmArgs {
  CsrView a;
  const int32_t* row_ids = nullptr;
  DenseView q;          // [rows, d]
  DenseView k;          // [cols, d]
  void* out = nullptr;  // [nnz]
  DType out_dtype = DType::kFloat32;
  int64_t d = 0;
};

// Softmax over the nonzeros of each row, and its gradient. Rows without nonzeros have no output.
struct SoftmaxArgs {
  CsrView a;
  const float* scores = nullptr;  // forward: input. backward: the softmax
  const float* grad = nullptr;    // backward only: gradient of the softmax
  float* out = nullptr;           // [nnz]
};

struct KernelTable {
  const char* name;
  void (*spmm_rows)(const SpmmArgs& args, int64_t begin, int64_t end);
  void (*sddmm_rows)(const SddmmArgs& args, int64_t begin, int64_t end);
  void (*softmax_rows)(const SoftmaxArgs& args, int64_t begin, int64_t end);
  void (*softmax_grad_rows)(const SoftmaxArgs& args, int64_t begin, int64_t end);
};

extern const KernelTable kPortableKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

// The table of that name, or null where this machine cannot run it. Names: portable, avx2, avx512.
const KernelTable* find_kernels(const char* name);

// The table in use. select_kernels changes it for the process; false if the machine can't run it.
const KernelTable& kernels();
bool select_kernels(const char* name);

void spmm(const SpmmArgs& args, int threads);
void sddmm(const SddmmArgs& args, int threads);
void softmax(const SoftmaxArgs& args, int threads);
void softmax_grad(const SoftmaxArgs& args, int threads);

// out[i] = in[i] rounded to tf32.
void round_to_tf32(const float* in, float* out, int64_t count, int threads);

}  // namespace gnnsparse::cpu
