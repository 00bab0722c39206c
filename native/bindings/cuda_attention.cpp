#include <algorithm>
#include <initializer_list>

#include "attention_args.h"
#include "cuda_args.h"
#include "gnnsparse/byte_tile.h"
#include "problem_args.h"

namespace gnnsparse::bindings {
namespace {

// 16-byte vectors of every row of every head.
void require_head_vectors(const HeadsHandle& heads, Precision precision, const char* name) {
  const HeadsView& view = heads.view;
  const auto in_bytes = [&](int64_t stride) { return stride * size_of(view.dtype); };
  if (view.dtype != storage_of(precision)) {
    reject(name, "must be in the storage type of the precision");
  }
  require_aligned(heads, 16, name);
  // torch gives a dimension of one element any stride, which is not used.
  const int64_t used[] = {heads.size[0] > 1 ? in_bytes(view.batch) : 0,
                          heads.size[1] > 1 ? in_bytes(view.head) : 0,
                          heads.size[2] > 1 ? in_bytes(view.row) : 0};
  for (const int64_t stride : used) {
    if (stride % 16 != 0) reject(name, "rows must be 16-byte aligned");
  }
  if (used[2] > UINT32_MAX) reject(name, "rows are 4 GiB long or longer");
  if (used[0] / 16 > UINT32_MAX || used[1] / 16 > UINT32_MAX) {
    reject(name, "heads are 64 GiB or more apart");
  }
}

// Numbers of 8 bits, of which kernels read whole vectors.
ByteHeads byte_heads(const Strided<4>& numbers, const AttentionHandle& call, int64_t width,
                     const char* name) {
  const int64_t wanted[] = {call.problem.batches, call.problem.heads, call.keys, width};
  if (!std::equal(wanted, wanted + 4, numbers.size))
    reject(name, "has another shape than q asks for");
  require_place(numbers, Place::kGpu, name);
  require_aligned(numbers, 16, name);
  ByteHeads heads;
  heads.data = numbers.data;
  int64_t* const strides[] = {&heads.batch, &heads.head, &heads.row};
  for (int i = 0; i < 3; ++i) {
    // torch gives a dimension of one element any stride, which is not used.
    *strides[i] = numbers.size[i] > 1 ? numbers.stride[i] : 0;
    if (*strides[i] % kChunkBytes != 0) reject(name, "rows must be 16-byte aligned");
  }
  if (heads.row > UINT32_MAX) reject(name, "rows are 4 GiB long or longer");
  if (std::max(heads.batch, heads.head) / kChunkBytes > UINT32_MAX) {
    reject(name, "heads are 64 GiB or more apart");
  }
  return heads;
}

FeatureFactors feature_factors(const Strided<3>& factors, const AttentionHandle& call,
                               int64_t width, const char* name) {
  const AttentionProblem& problem = call.problem;
  if (!factors.given || factors.element != Element::kFloat32) reject(name, "accepted: float32");
  if (factors.size[0] != problem.batches || factors.size[1] != problem.heads ||
      factors.size[2] < width || factors.size[2] % kEightBitPadding != 0) {
    reject(name, "accepted: a factor for each feature of a head, padded to 16");
  }
  require_place(factors, Place::kGpu, name);
  require_aligned(factors, 16, name);
  FeatureFactors found;
  found.data = reinterpret_cast<const float*>(factors.data);
  found.batch = factors.size[0] > 1 ? factors.stride[0] : 0;
  found.head = factors.size[1] > 1 ? factors.stride[1] : 0;
  const bool dense = factors.size[2] <= 1 || factors.stride[2] == 1;
  if (!dense || (found.batch | found.head) % 4 != 0) reject(name, "must have contiguous features");
  return found;
}

// What every pass is given. `transposed`: `a` is the pattern's transpose, whose rows are keys.
// `widths`: those of its partial sums.
PanelAttention panel_attention(const AttentionHandle& call, const BlockedHandle& a,
                               const StoredRowsHandle& rows, const WorkListHandle& work,
                               const Memory& partial, bool transposed,
                               std::initializer_list<int64_t> widths) {
  require_head_vectors(call.q, call.problem.precision, "q");
  if (call.k.given) require_head_vectors(call.k, call.problem.precision, "k");
  if (call.v.given) require_head_vectors(call.v, call.problem.precision, "v");
  PanelAttention p = attention_over(call, a, rows, work, transposed);
  int64_t floats = kPartialRowStats;
  for (const int64_t width : widths) floats += cuda::partial_stride(width);
  const int64_t panels = product("partial", call.head_count(), p.work.partials, p.a.shape.panel);
  p.partial = gpu_array<float>(partial, product("partial", panels, floats), "partial");
  return p;
}

void set_output(PanelAttention& p, const AttentionHandle& call, const AttentionRowsHandle& given) {
  p.out = given.out.checked(p.problem.batches, p.problem.heads, p.queries, p.problem.dv,
                            Place::kGpu, "out");
  require_aligned(given.stats, 8, "stats");
  p.stats = reinterpret_cast<SoftmaxStats*>(
      gpu_array<float>(given.stats, product("stats", call.head_count(), p.queries, 2), "stats"));
}

void attention_panel(const AttentionHandle& call, const BlockedHandle& a,
                     const StoredRowsHandle& rows, const WorkListHandle& work,
                     const Memory& partial, const AttentionRowsHandle& given, Address stream) {
  PanelAttention p = panel_attention(call, a, rows, work, partial, false, {call.problem.dv});
  set_output(p, call, given);
  cuda::attention_panel(p, cuda::AttentionPass::kForward, stream_of(stream));
}

// What both passes over tiles are given. `bits` [partial tiles, 128, 4].
template <class Pass>
Pass blocks_pass(const AttentionHandle& call, const Memory& row_ids, const Memory& bits,
                 const AttentionRowsHandle& given) {
  Pass p;
  p.problem = call.checked(call.queries, call.keys, 0, Place::kGpu);
  if (p.problem.has_extras()) reject("problem", "no bias, dropout or causal mask over tiles");
  if (std::max(p.problem.d, p.problem.dv) > kBlockAttentionFeatures) {
    reject("d", "tiles take at most 128 features");
  }
  if (p.problem.dv % 8 != 0) reject("v", "tiles take multiples of 8 features");
  const Precision precision = p.problem.precision;
  require_head_vectors(call.q, precision, "q");
  require_head_vectors(call.k, precision, "k");
  require_head_vectors(call.v, precision, "v");
  require_head_vectors(given.out, precision, "out");
  p.queries = call.queries;
  p.keys = call.keys;
  p.row_ids = optional_gpu_array<const int32_t>(row_ids, p.queries, "row_ids");
  require_aligned(bits, 8, "bits");
  p.bits = reinterpret_cast<const uint32_t*>(gpu_array<const int32_t>(bits, bits.count, "bits"));
  p.out = given.out.checked(p.problem.batches, p.problem.heads, p.queries, p.problem.dv,
                            Place::kGpu, "out");
  require_aligned(given.stats, 8, "stats");
  p.stats = reinterpret_cast<SoftmaxStats*>(
      gpu_array<float>(given.stats, product("stats", call.head_count(), p.queries, 2), "stats"));
  return p;
}

// `starts` [panels of 128 rows + 1], `tiles` [tiles, 2].
BlockTileList tile_list(const Memory& starts, const Memory& tiles, int64_t rows) {
  require_aligned(tiles, 8, "tiles");
  return {gpu_array<const int32_t>(starts, ceil_div<int64_t>(rows, kBlockTile) + 1, "starts"),
          reinterpret_cast<const BlockTileItem*>(
              gpu_array<const int32_t>(tiles, tiles.count, "tiles"))};
}

void attention_blocks(const AttentionHandle& call, const Memory& row_ids, const Memory& starts,
                      const Memory& tiles, const Memory& bits, const AttentionRowsHandle& given,
                      Address stream) {
  auto p = blocks_pass<BlockAttention>(call, row_ids, bits, given);
  p.tiles = tile_list(starts, tiles, p.queries);
  cuda::attention_blocks(p, stream_of(stream));
}

void attention_blocks_backward(const AttentionHandle& call, const Memory& row_ids,
                               const Memory& starts, const Memory& tiles, const Memory& bits,
                               const Memory& column_starts, const Memory& column_tiles,
                               const AttentionRowsHandle& given, const AttentionGradsHandle& grads,
                               Address stream) {
  auto p = blocks_pass<BlockAttentionGrad>(call, row_ids, bits, given);
  p.rows = tile_list(starts, tiles, p.queries);
  p.columns = tile_list(column_starts, column_tiles, p.keys);
  p.grad = grads.checked_out(call, Place::kGpu);
  const auto require_if_given = [&](const HeadsHandle& heads, const char* name) {
    if (heads.given) require_head_vectors(heads, p.problem.precision, name);
  };
  require_head_vectors(grads.out, p.problem.precision, "grad");
  require_if_given(grads.dq, "dq");
  require_if_given(grads.dk, "dk");
  require_if_given(grads.dv, "dv");
  p.dq = call.of_queries(grads.dq, p.problem.d, Place::kGpu, "dq");
  p.dk = call.of_keys(grads.dk, p.problem.d, Place::kGpu, "dk");
  p.dv = call.of_keys(grads.dv, p.problem.dv, Place::kGpu, "dv");
  const int64_t rows = ceil_div<int64_t>(p.queries, kBlockTile) * kBlockTile;
  require_aligned(given.row_stats, 16, "row_stats");
  p.row_stats = gpu_array<float>(given.row_stats, product("row_stats", call.head_count(), rows, 2),
                                 "row_stats");
  cuda::attention_blocks_backward(p, stream_of(stream));
}

void attention_quantized(const QuantizedAttentionHandle& quantized, const BlockedHandle& a,
                         const StoredRowsHandle& rows, const WorkListHandle& work,
                         const Memory& partial, const AttentionRowsHandle& given, Address stream) {
  const AttentionHandle& call = quantized.call;
  QuantizedAttention p;
  static_cast<PanelAttention&>(p) =
      panel_attention(call, a, rows, work, partial, false, {call.problem.dv});
  set_output(p, call, given);
  if (p.a.shape.panel != kQueryRows) reject("format", "panels have 16 rows for numbers of 8 bits");
  if (std::max(p.problem.d, p.problem.dv) > kByteHeadFeatures) {
    reject("k", "heads of 8-bit numbers have at most 64 features");
  }
  p.type = quantized.type;
  p.keys = byte_heads(quantized.k, call, p.problem.d, "k");
  p.values = byte_heads(quantized.v, call, p.problem.dv, "v");
  p.value_scale = feature_factors(quantized.value_scale, call, p.problem.dv, "value_scale");
  cuda::attention_quantized(p, stream_of(stream));
}

void set_grad(PanelAttention& p, const AttentionHandle& call, const AttentionRowsHandle& given,
              const AttentionGradsHandle& grads) {
  p.grad = grads.checked_out(call, Place::kGpu);
  require_head_vectors(grads.out, p.problem.precision, "grad");
  require_aligned(given.row_stats, 16, "row_stats");
  const int64_t floats = product("row_stats", call.head_count(), p.queries, kRowStatsFloats);
  p.row_stats = gpu_array<float>(given.row_stats, floats, "row_stats");
}

// What the pass over rows is given, alone or as part of the fused backward pass.
void set_rows(PanelAttention& p, const AttentionHandle& call, const AttentionRowsHandle& given,
              const AttentionGradsHandle& grads, int64_t nnz) {
  set_grad(p, call, given, grads);
  set_output(p, call, given);
  p.dq = call.of_queries(grads.dq, p.problem.d, Place::kGpu, "dq");
  p.dbias = grads.checked_dbias(call, nnz, Place::kGpu);
}

void set_columns(PanelAttention& p, const AttentionHandle& call,
                 const AttentionGradsHandle& grads) {
  p.dk = call.of_keys(grads.dk, p.problem.d, Place::kGpu, "dk");
  p.dv = call.of_keys(grads.dv, p.problem.dv, Place::kGpu, "dv");
}

void attention_panel_rows(const AttentionHandle& call, const BlockedHandle& a,
                          const StoredRowsHandle& rows, const WorkListHandle& work,
                          const Memory& partial, const AttentionRowsHandle& given,
                          const AttentionGradsHandle& grads, Address stream) {
  PanelAttention p = panel_attention(call, a, rows, work, partial, false, {call.problem.d});
  set_rows(p, call, given, grads, a.nnz);
  cuda::attention_panel(p, cuda::AttentionPass::kRows, stream_of(stream));
}

void attention_panel_columns(const AttentionHandle& call, const BlockedHandle& a,
                             const StoredRowsHandle& rows, const WorkListHandle& work,
                             const Memory& partial, const AttentionRowsHandle& given,
                             const AttentionGradsHandle& grads, const Memory& nnz_index_map,
                             Address stream) {
  PanelAttention p =
      panel_attention(call, a, rows, work, partial, true, {call.problem.d, call.problem.dv});
  set_grad(p, call, given, grads);
  if (nnz_index_map.given || call.bias.given) {
    const MutableIndexView map = index_array(nnz_index_map, a.nnz, Place::kGpu, "nnz_index_map");
    p.nnz_index_map = {map.data, map.wide};
  }
  set_columns(p, call, grads);
  cuda::attention_panel(p, cuda::AttentionPass::kColumns, stream_of(stream));
}

// The weights of the column slots of `a`, and in which order they are summed.
void set_dkv_steps(const DkvWeightsHandle& handle, const BlockedHandle& a, DkvWeights* dkv) {
  require_at_least_one(handle.range, "range");
  require_aligned(handle.columns, 16, "columns");
  const int64_t steps = handle.panels.count;
  const int64_t entries = product("slot_of_entry", steps, DkvWeights::kStepSlots);
  const int64_t ranges = ceil_div<int64_t>(a.view.cols, handle.range);
  dkv->range = handle.range;
  dkv->slot_of_entry = gpu_array<const int32_t>(handle.slot_of_entry, entries, "slot_of_entry");
  dkv->columns =
      gpu_array<const int32_t>(handle.columns, steps * 8 * DkvWeights::kPairWords, "columns");
  dkv->panels = gpu_array<const int32_t>(handle.panels, steps, "panels");
  dkv->range_starts = gpu_array<const int32_t>(handle.range_starts, ranges + 1, "range_starts");
}

DkvTiles dkv_tiles_of(const DkvWeightsHandle& handle, const BlockedHandle& a) {
  require_aligned(handle.tile_entries, 8, "entries");
  const int64_t tiles = ceil_div<int64_t>(a.view.cols, DkvTiles::kColumns) *
                        ceil_div<int64_t>(a.view.rows, DkvTiles::kRows);
  DkvTiles found;
  found.entries =
      gpu_array<const int32_t>(handle.tile_entries, handle.tile_entries.count, "entries");
  found.starts = gpu_array<const int32_t>(handle.tile_starts, tiles + 1, "starts");
  return found;
}

DkvWeights dkv_weights_of(const DkvWeightsHandle& handle, const BlockedHandle& a) {
  require_at_least_one(handle.heads, "heads");
  require_aligned(handle.weights, 16, "weights");
  DkvWeights dkv;
  dkv.heads = handle.heads;
  dkv.slots = a.slots;
  const int64_t bytes = product("weights", handle.heads, a.slots, DkvWeights::kSlotBytes);
  dkv.weights = gpu_array<char>(handle.weights, bytes, "weights");
  if (handle.tile_starts.given) {
    dkv.tiles = dkv_tiles_of(handle, a);
  } else {
    set_dkv_steps(handle, a, &dkv);
  }
  return dkv;
}

void attention_panel_fused_backward(const AttentionHandle& call, const BlockedHandle& a,
                                    const StoredRowsHandle& rows, const WorkListHandle& work,
                                    const Memory& partial, const AttentionRowsHandle& given,
                                    const AttentionGradsHandle& grads, const DkvWeightsHandle& dkv,
                                    Address stream) {
  PanelAttention p = panel_attention(call, a, rows, work, partial, false, {call.problem.d});
  set_rows(p, call, given, grads, a.nnz);
  set_columns(p, call, grads);
  p.dkv = dkv_weights_of(dkv, a);
  cuda::attention_panel(p, cuda::AttentionPass::kFused, stream_of(stream));
}

}  // namespace

void bind_cuda_attention(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cuda_attention_panel", &attention_panel, nogil, py::arg("problem"), py::arg("a"),
        py::arg("rows"), py::arg("work"), py::arg("partial"), py::arg("given"), py::arg("stream"));
  m.def("cuda_attention_blocks", &attention_blocks, nogil, py::arg("problem"), py::arg("row_ids"),
        py::arg("starts"), py::arg("tiles"), py::arg("bits"), py::arg("given"), py::arg("stream"));
  m.def("cuda_attention_blocks_backward", &attention_blocks_backward, nogil, py::arg("problem"),
        py::arg("row_ids"), py::arg("starts"), py::arg("tiles"), py::arg("bits"),
        py::arg("column_starts"), py::arg("column_tiles"), py::arg("given"), py::arg("grads"),
        py::arg("stream"));
  m.def("cuda_attention_quantized", &attention_quantized, nogil, py::arg("problem"), py::arg("a"),
        py::arg("rows"), py::arg("work"), py::arg("partial"), py::arg("given"), py::arg("stream"));
  m.def("cuda_attention_panel_rows", &attention_panel_rows, nogil, py::arg("problem"), py::arg("a"),
        py::arg("rows"), py::arg("work"), py::arg("partial"), py::arg("given"), py::arg("grads"),
        py::arg("stream"));
  m.def("cuda_attention_panel_columns", &attention_panel_columns, nogil, py::arg("problem"),
        py::arg("a"), py::arg("rows"), py::arg("work"), py::arg("partial"), py::arg("given"),
        py::arg("grads"), py::arg("nnz_index_map"), py::arg("stream"));
  m.def("cuda_attention_panel_fused_backward", &attention_panel_fused_backward, nogil,
        py::arg("problem"), py::arg("a"), py::arg("rows"), py::arg("work"), py::arg("partial"),
        py::arg("given"), py::arg("grads"), py::arg("dkv"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
