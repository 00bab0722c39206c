// Sparse products on the CPU. One table of kernels for each instruction set; the best one the
// machine has is used unless another is asked for.
#pragma once

#include <cstdint>

#include "gnnsparse/attention_problem.h"
#include "gnnsparse/blocked.h"
#include "gnnsparse/edge_program.h"
#include "gnnsparse/graph_attention.h"
#include "gnnsparse/heads_problem.h"
#include "gnnsparse/quantize.h"
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

// X to 8 bits (gnnsparse/quantize.h): weights[j] * x[j, f] = scale[f] * number, of which `out` gets
// the byte.
struct QuantizeArgs {
  DenseView x;                     // [rows, n]
  const float* weights = nullptr;  // [rows], null: 1
  int64_t rows = 0;
  int64_t n = 0;
  EightBit type = EightBit::kInt8;
  bool stochastic = false;
  PhiloxKey key;                   // of stochastic rounding
  uint8_t* out = nullptr;          // [rows, stride], zeros behind n
  int64_t stride = 0;              // n, padded to kEightBitPadding
  float* scale = nullptr;          // [stride]
  const float* inverse = nullptr;  // [n, padded to kQuantizedTile], zeros behind n
};
constexpr int kQuantizedTile = 64;

// y[row_ids[i], f] = scale[f] * row_scale[i] * sum over nonzeros e of row i: values[e] *
// x[indices[e], f]
struct QuantizedSpmmArgs {
  CsrView a;
  const int32_t* row_ids = nullptr;  // null: i
  const float* values = nullptr;     // [nnz], null: 1
  const float* row_scale = nullptr;  // [rows], null: 1
  EightBit type = EightBit::kInt8;
  const uint8_t* x = nullptr;    // [cols, stride]
  const float* scale = nullptr;  // [stride]
  int64_t stride = 0;            // a multiple of kEightBitPadding
  MutableDenseView y;            // [rows, n]
  int64_t n = 0;
};

// A blocked matrix with the lengths of its arrays, which bound what is read.
struct BlockedArrays {
  BlockedView view;
  DType values_dtype = DType::kFloat32;
  int64_t slots = 0;
  int64_t bricks = 0;   // in the bitmap
  int64_t values = 0;   // elements of `values`
  int64_t zeros = 0;    // in the Zero Index
  RecordsView records;  // where there are, `values` are all their bytes
};

// Softmax over the nonzeros of each row, and its gradient. Rows without nonzeros have no output.
struct SoftmaxArgs {
  CsrView a;
  const float* scores = nullptr;  // forward: input. backward: the softmax
  const float* grad = nullptr;    // backward only: gradient of the softmax
  float* out = nullptr;           // [nnz]
};

// As HeadsSpmm, ExtremeSpmm and HeadsSddmm of gnnsparse/heads_problem.h: heads of operands and of
// results lie without gaps.
constexpr int kHeadMapPadding = 16;  // a vector may reach past the last feature
struct HeadsSpmmArgs {
  CsrView a;
  HeadShape shape;
  const int32_t* row_ids = nullptr;  // null: i
  const float* values = nullptr;     // [nnz, heads], null: 1 each
  const int32_t* head_of = nullptr;  // [features + kHeadMapPadding] where there are values
  const float* row_scale = nullptr;  // [rows], null: 1
  DenseView x;                       // [cols, features]
  MutableDenseView y;                // [rows, features]
  const int32_t* winners = nullptr;  // [cols, features], null: every nonzero takes part
};
struct ExtremeSpmmArgs {
  CsrView a;
  HeadShape shape;
  const int32_t* row_ids = nullptr;  // null: i
  const float* values = nullptr;     // [nnz, heads], null: 1 each
  const int32_t* head_of = nullptr;  // [features + kHeadMapPadding] where there are values
  const float* row_scale = nullptr;  // not used
  float sign = 1.0f;
  DenseView x;                 // [cols, features]
  MutableDenseView y;          // [rows, features]
  int32_t* winners = nullptr;  // [rows, features]
};
struct HeadsSddmmArgs {
  CsrView a;
  HeadShape shape;
  const int32_t* row_ids = nullptr;  // null: i
  DenseView q;                       // [rows, features]
  DenseView k;                       // [cols, features]
  const int32_t* winners = nullptr;  // [rows, features], null: every feature takes part
  void* out = nullptr;               // [nnz, heads]
  DType out_dtype = DType::kFloat32;
};

// SoftmaxArgs of each head by itself.
struct HeadsSoftmaxArgs : SoftmaxArgs {
  int64_t heads = 1;  // scores, grad and out are [nnz, heads]
};

// One pass of attention over the rows of the pattern, or of its transpose. An item is a row in one
// group of heads: groups are what threads share out, the heads of a group follow one another.
struct AttentionArgs {
  AttentionProblem problem;
  CsrView a;                         // `transposed`: rows are columns of the pattern
  const int32_t* row_ids = nullptr;  // null: i
  bool transposed = false;
  int64_t longest_row = 0;        // nonzeros of it
  int64_t batch_groups = 1;       // batches, or 1: all batches in one group
  int64_t head_groups = 1;        // heads, or 1
  SoftmaxStats* stats = nullptr;  // [batches, heads, L], forward: written

  HeadsView out;  // [.., L, dv], forward: written

  // Backward.
  HeadsView grad;  // gradient of out, in the dtype of q
  // [batches, heads, L] sum over a row of its weights times their gradients: the pass over rows
  // writes it, the pass over columns reads it.
  float* delta = nullptr;
  HeadsView dq;             // null: not needed. Pass over rows
  HeadsView dk;             // Pass over columns
  HeadsView dv;             // Pass over columns
  EdgeValuesView dbias;     // null: not needed. Zeros that the pass over rows adds to
  IndexView nnz_index_map;  // transposed: index in A of each nonzero of A^T

  int64_t groups() const { return batch_groups * head_groups; }
};

// One pass of graph attention over the rows of the pattern, or of its transpose.
struct GraphAttentionArgs {
  GraphAttentionProblem problem;
  CsrView a;                         // in the pass over columns the transpose
  const int32_t* row_ids = nullptr;  // null: i
  GraphAttentionResult result;       // forward: written. Of the backward passes, rows read stats
  GraphAttentionGrads grads;         // backward only
  IndexView nnz_index_map;           // columns: index in A of each nonzero of A^T

  int64_t heads() const { return problem.base.batches * problem.base.heads; }
};

// Rows of A whose share in the gradient of `att` is added up before that of others is: how many
// rows a thread takes changes no sum.
inline constexpr int64_t kAttGroupRows = 64;

struct KernelTable {
  const char* name;
  void (*spmm_rows)(const SpmmArgs& args, int64_t begin, int64_t end);
  void (*sddmm_rows)(const SddmmArgs& args, int64_t begin, int64_t end);
  // Raises peaks[f], of stride elements, to the bits of the largest |weights[j] * x[j, f]| of rows.
  void (*quantize_peaks)(const QuantizeArgs& args, int64_t begin, int64_t end, uint32_t* peaks);
  void (*quantize_rows)(const QuantizeArgs& args, int64_t begin, int64_t end);
  void (*quantized_spmm_rows)(const QuantizedSpmmArgs& args, int64_t begin, int64_t end);
  void (*softmax_rows)(const SoftmaxArgs& args, int64_t begin, int64_t end);
  void (*softmax_grad_rows)(const SoftmaxArgs& args, int64_t begin, int64_t end);
  void (*heads_spmm_rows)(const HeadsSpmmArgs& args, int64_t begin, int64_t end);
  void (*extreme_spmm_rows)(const ExtremeSpmmArgs& args, int64_t begin, int64_t end);
  void (*heads_sddmm_rows)(const HeadsSddmmArgs& args, int64_t begin, int64_t end);
  void (*softmax_heads_rows)(const HeadsSoftmaxArgs& args, int64_t begin, int64_t end);
  void (*softmax_heads_grad_rows)(const HeadsSoftmaxArgs& args, int64_t begin, int64_t end);
  // Items [begin, end) of groups x rows.
  void (*attention_items)(const AttentionArgs& args, int64_t begin, int64_t end);
  void (*attention_row_grads)(const AttentionArgs& args, int64_t begin, int64_t end);
  void (*attention_column_grads)(const AttentionArgs& args, int64_t begin, int64_t end);
  // Rows [begin, end) of `a`. Where row_grads adds up `att`, begin is a multiple of kAttGroupRows,
  // and so is end unless it is the last row.
  void (*graph_attention_rows)(const GraphAttentionArgs& args, int64_t begin, int64_t end);
  void (*graph_attention_row_grads)(const GraphAttentionArgs& args, int64_t begin, int64_t end);
  void (*graph_attention_column_grads)(const GraphAttentionArgs& args, int64_t begin, int64_t end);
  // Adds to `partials` what is summed over all edges: EdgeArgs::partials_before says where.
  void (*edge_rows)(const EdgeArgs& args, int64_t begin, int64_t end, float* partials);
};

extern const KernelTable kPortableKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

// The table of that name, or null where this machine cannot run it, or the environment variable
// GNNSPARSE_ISA names a smaller instruction set. Names, the smallest first: portable, avx2, avx512.
// The first call throws std::invalid_argument if the variable holds none of them.
const KernelTable* find_kernels(const char* name);

// The table in use. select_kernels changes it for the process; false if the machine can't run it.
const KernelTable& kernels();
bool select_kernels(const char* name);

void spmm(const SpmmArgs& args, int threads);
void sddmm(const SddmmArgs& args, int threads);
// Writes `out` and `scale`; `inverse` is its own.
void quantize(QuantizeArgs args, int threads);
void quantized_spmm(const QuantizedSpmmArgs& args, int threads);
// spmm and sddmm over the arrays of the blocked format, which must be on the host. Of `args.a` the
// sizes count, and where bits go with values in row order its offsets. Rows in no panel are left as
// they are. The scores of SDDMM go where the format has its values: `out` is as long as these.
void spmm_blocked(const BlockedArrays& a, const SpmmArgs& args, int threads);
void sddmm_blocked(const BlockedArrays& a, const SddmmArgs& args, int threads);
void softmax(const SoftmaxArgs& args, int threads);
void softmax_grad(const SoftmaxArgs& args, int threads);
void spmm_heads(const HeadsSpmmArgs& args, int threads);
void spmm_extreme(const ExtremeSpmmArgs& args, int threads);
void sddmm_heads(const HeadsSddmmArgs& args, int threads);
void softmax_heads(const HeadsSoftmaxArgs& args, int threads);
void softmax_heads_grad(const HeadsSoftmaxArgs& args, int threads);
void attention(const AttentionArgs& args, int threads);
void attention_row_grads(const AttentionArgs& args, int threads);
void attention_column_grads(const AttentionArgs& args, int threads);
void graph_attention(const GraphAttentionArgs& args, int threads);
void graph_attention_row_grads(const GraphAttentionArgs& args, int threads);
void graph_attention_column_grads(const GraphAttentionArgs& args, int threads);
void run_edges(const EdgeArgs& args, int threads);

// out[i] = in[i] rounded to tf32.
void round_to_tf32(const float* in, float* out, int64_t count, int threads);

}  // namespace gnnsparse::cpu
