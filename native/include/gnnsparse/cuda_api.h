// The CUDA part, as plain functions. All queue work on `stream` and return without waiting; a
// failed launch throws CudaError. Nothing allocates device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "gnnsparse/block_attention.h"
#include "gnnsparse/blocked.h"
#include "gnnsparse/csr_problem.h"
#include "gnnsparse/edge_network.h"
#include "gnnsparse/edge_rows.h"
#include "gnnsparse/gathered_rows.h"
#include "gnnsparse/graph_attention.h"
#include "gnnsparse/heads_problem.h"
#include "gnnsparse/packed_problem.h"
#include "gnnsparse/panel_attention.h"
#include "gnnsparse/panel_problem.h"
#include "gnnsparse/policy_problem.h"
#include "gnnsparse/quantized_problem.h"
#include "gnnsparse/sampling.h"
#include "gnnsparse/types.h"
#include "gnnsparse/window_problem.h"

struct CUstream_st;

namespace gnnsparse::cuda {

using Stream = CUstream_st*;

class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Width of a row of partial sums.
inline constexpr int64_t kPartialColumns = 64;
GNNSPARSE_HD constexpr int64_t partial_stride(int64_t n) {
  return ceil_div<int64_t>(n, kPartialColumns) * kPartialColumns;
}

// out[i] = scale[i] * x[i], in the type and with the row stride of `out`: whole 16-byte vectors,
// zero from column n on.
struct Pack {
  const void* x = nullptr;
  DType x_dtype = DType::kFloat32;
  int64_t row_stride = 0;
  int64_t column_stride = 0;
  const float* scale = nullptr;  // [rows], null: 1
  int64_t rows = 0;
  int64_t n = 0;
  MutableDenseView out;
};

void pack(const Pack& problem, Stream stream);
void quantize(const Quantize& problem, Stream stream);
void spmm_quantized(const QuantizedSpmm& problem, Stream stream);
void spmm_csr(const CsrSpmm& problem, Precision precision, Stream stream);
// With `lanes.narrow`, for at most kMostNarrowNnz nonzeros.
void spmm_narrow(const CsrSpmm& problem, Precision precision, Stream stream);
void spmm_heads(const HeadsSpmm& problem, Precision precision, Stream stream);
void spmm_extreme(const ExtremeSpmm& problem, Precision precision, Stream stream);
void sddmm_csr(const CsrSddmm& problem, Precision precision, Stream stream);
void spmm_window(const WindowSpmm& problem, Precision precision, Stream stream);
void spmm_policy(const PolicySpmm& problem, Precision precision, Stream stream);
// HRPB, and RS-Tile.
void spmm_records(const PackedSpmm& problem, Precision precision, Stream stream);
void spmm_tiles(const PackedSpmm& problem, Precision precision, Stream stream);
void spmm_panel(const PanelSpmm& problem, Precision precision, Stream stream);
void sddmm_heads(const HeadsSddmm& problem, Precision precision, Stream stream);
void sddmm_panel(const PanelSddmm& problem, Precision precision, Stream stream);
void sddmm_blocks(const BlockSddmm& problem, Precision precision, Stream stream);
void sddmm_window(const WindowSddmm& problem, Precision precision, Stream stream);
// The backward pass is kRows, which gives dQ and the row statistics, and then kColumns, which reads
// the row statistics and gives dK and dV; or kFused, which does the work of both.
enum class AttentionPass : int { kForward = 0, kRows = 1, kColumns = 2, kFused = 3 };
void attention_panel(const PanelAttention& problem, AttentionPass pass, Stream stream);
void attention_quantized(const QuantizedAttention& problem, Stream stream);
// Forward; its statistics serve the backward passes over panels, too.
void attention_blocks(const BlockAttention& problem, Stream stream);
// Of compute capability 9.0.
void attention_blocks_backward(const BlockAttentionGrad& problem, Stream stream);
// kRows reads result.stats and writes grads.edges, which kColumns reads; there is no kFused.
void graph_attention(const GraphAttentionPass& problem, AttentionPass pass, Stream stream);
// Writes grads.of_mapped, after kRows.
void graph_mapped_grad(const GraphAttentionPass& problem, Stream stream);
void graph_map_grad(const GraphMapGrad& problem, Precision precision, Stream stream);
// Kernels of a function over edges, which were compiled at run time (kernels/edges/edge_rows.cuh).
struct LoadedEdgeKernel;
// Of machine code; on any GPU that it is for.
std::shared_ptr<LoadedEdgeKernel> load_edge_kernel(const std::string& code);
// `blocks` along the items and `parts` along the features, with `ring_bytes` of shared memory.
void edge_rows(LoadedEdgeKernel& kernel, const EdgeLaunch& launch, int64_t blocks, int64_t parts,
               int ring_bytes, Stream stream);
void edge_network(const EdgeNetwork& problem, Precision precision, Stream stream);
// Of some tiles; `sources` are of their edges. Tiles come in order, and those of all before the
// sums of targets are complete.
void edge_network_grad(const EdgeNetworkGrad& problem, const NetworkColumnSums& sources,
                       Precision precision, Stream stream);
void softmax(const Softmax& problem, Stream stream);
void softmax_grad(const Softmax& problem, Stream stream);

// Words of a row of what gather_floor writes.
constexpr int kGatherFloorWords = 1024;

// Loads the rows of x that `columns` [count] lists, negative ones left out, as fast as the device
// does. The 32-bit words of a row (whole 16-byte vectors, which must be there) are added up modulo
// 2^32, word w to word w % kGatherFloorWords. out [out_rows][kGatherFloorWords] are the sums of
// each multiprocessor, for which there has to be a row. Rows of x are 16-byte aligned.
void gather_floor(const int32_t* columns, int64_t count, const DenseView& x, int64_t n,
                  uint32_t* out, int64_t out_rows, Stream stream);

// Sampling, as the functions of the same names in gnnsparse/sampling.h, but `counts` [rows] are not
// summed up; those of rows that are not used are 0.
void draw_neighbors(const SampleGraph& graph, const SampleDraw& draw, const SampleRows& rows,
                    const SampleDrawn& drawn, int64_t* counts, Stream stream);
void gather_neighbors(const SampleGraph& graph, const SampleDraw& draw, const SampleRows& rows,
                      const SampleDrawn& drawn, const SampleEdges& out, Stream stream);
// first [rows + edges] is 1 where a node of the sequence of targets and nodes appears for the first
// time, and 0 elsewhere; number_nodes wants its inclusive sums as `rank`. `place` [all nodes] is
// kNoPlace everywhere before mark_first and after number_nodes, which have to follow one another.
void mark_first(const SampleRows& rows, const SampleSources& sources, int32_t* place,
                int32_t* first, Stream stream);
void number_nodes(const SampleRows& rows, const SampleSources& sources, const int32_t* rank,
                  int32_t* place, const SampleNumbers& out, Stream stream);
// `missing` is lowered to the first pair, counted from 0, for which none was found.
void draw_negatives(const CsrView& a, const SampleDraw& draw, const SampleNegatives& of,
                    int64_t count, int64_t* pairs, int32_t* missing, Stream stream);
void gather_rows(const GatherRows& problem, Stream stream);

// Preprocessing. Called with scratch = null a function returns the bytes it needs and does nothing.
struct Scratch {
  void* data = nullptr;
  size_t bytes = 0;
};

// As the functions of the same names in gnnsparse/csr.h.
size_t coo_to_csr(IndexView row, IndexView col, int64_t edges, int64_t rows, int64_t cols,
                  int64_t* indptr, int32_t* indices, MutableIndexView nnz_index, Scratch scratch,
                  Stream stream);
size_t transpose(const CsrView& a, int64_t* indptr, int32_t* indices, MutableIndexView source,
                 Scratch scratch, Stream stream);

// Distinct columns of each panel of `height` rows, and the place of each nonzero's column among
// those of its panel.
size_t count_panels(const CsrView& a, int64_t height, int64_t* columns, int32_t* position,
                    Scratch scratch, Stream stream);

// Fills columns (-1 in every slot before), bitmap (zeroed before) or value_index, from `position`.
void fill_blocked(const CsrView& a, const BlockedView& format, const int32_t* position,
                  int32_t* columns, uint8_t* bitmap, int64_t* value_index, Stream stream);

// As the functions of the same names in gnnsparse/blocked.h.
void count_entries(const uint32_t* banks, int64_t k_tiles, int64_t* counts, Stream stream);
void fill_entries(const CsrView& a, const BlockedView& format, const int32_t* position,
                  const uint32_t* banks, const void* values, void* entries, Stream stream);

}  // namespace gnnsparse::cuda
