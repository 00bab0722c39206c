#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "gnnsparse/cpu_kernels.h"
#include "gnnsparse/rounding.h"
#include "pages.h"
#include "parallel.h"

namespace gnnsparse::cpu {
namespace {

// From the instruction set that every machine has to the largest.
constexpr const char* kNames[] = {"portable", "avx2", "avx512"};
constexpr int kCount = sizeof kNames / sizeof kNames[0];

// Index of a name; -1: there is none.
int index_of(const char* name) {
  for (int i = 0; i < kCount; ++i) {
    if (std::strcmp(name, kNames[i]) == 0) return i;
  }
  return -1;
}

// Index of the largest instruction set that may be used, which the environment may lower.
int cap() {
  static const int index = [] {
    const char* given = std::getenv("GNNSPARSE_ISA");
    if (given == nullptr || *given == '\0') return kCount - 1;
    const int found = index_of(given);
    if (found < 0) {
      throw std::invalid_argument(std::string("GNNSPARSE_ISA: got ") + given +
                                  "; accepted: portable, avx2, avx512");
    }
    return found;
  }();
  return index;
}

const KernelTable* best_kernels() {
  for (int i = cap(); i > 0; --i) {
    if (const KernelTable* table = find_kernels(kNames[i])) return table;
  }
  return &kPortableKernels;
}

std::atomic<const KernelTable*>& current() {
  static std::atomic<const KernelTable*> table{best_kernels()};
  return table;
}

// Multiply-adds a thread takes at a time: enough that small matrices stay on one thread.
constexpr int64_t kWork = 1 << 15;

// Rows of about so many.
int64_t row_chunk(const CsrView& a, int64_t width) {
  const int64_t per_row =
      std::max<int64_t>(1, a.nnz / std::max<int64_t>(a.rows, 1)) * std::max<int64_t>(width, 1);
  return std::clamp<int64_t>(kWork / per_row, 1, 256);
}

// The first row of a chunk, where all have about as many nonzeros, and begin at multiples of
// `together`.
int64_t first_row(const CsrView& a, int64_t chunk, int64_t chunks, int64_t together = 1) {
  const int64_t total = a.nnz + a.rows;  // a row without nonzeros is work as well
  const int64_t goal = total / chunks * chunk + total % chunks * chunk / chunks;
  int64_t low = 0, high = a.rows;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (a.indptr[middle] + middle < goal) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return std::min(ceil_div(low, together) * together, a.rows);
}

// body(begin, end) on rows of about as many nonzeros each, so that hub rows do not hold others
// back. A kernel asks for no row of X past its last nonzero: in large matrices it has many before
// that. `together`: all but the last range begin and end at multiples of it.
template <class Body>
void parallel_rows(const CsrView& a, int64_t width, int threads, Body body, int64_t together = 1) {
  constexpr int64_t kMostWork = 1 << 19;
  constexpr int64_t kChunksAThread = 16;
  const int64_t total = a.nnz + a.rows;
  width = std::max<int64_t>(width, 1);
  const int64_t work = std::clamp(total * width / (kChunksAThread * threads), kWork, kMostWork);
  const int64_t chunks = std::clamp<int64_t>(total * width / work, 1, std::max<int64_t>(a.rows, 1));
  parallel_dynamic(chunks, 1, threads, [&](int64_t chunk) {
    const int64_t begin = first_row(a, chunk, chunks, together);
    const int64_t end = first_row(a, chunk + 1, chunks, together);
    if (begin < end) body(begin, end);
  });
}

}  // namespace

const KernelTable* find_kernels(const char* name) {
  const int index = index_of(name);
  if (index < 0 || index > cap()) return nullptr;
  if (index == 0) return &kPortableKernels;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (index == 1 && avx2) return &kAvx2Kernels;
  if (index == 2 && avx2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return &kAvx512Kernels;
  }
#endif
  return nullptr;
}

const KernelTable& kernels() { return *current().load(std::memory_order_relaxed); }

bool select_kernels(const char* name) {
  const KernelTable* table = std::strcmp(name, "auto") == 0 ? best_kernels() : find_kernels(name);
  if (table == nullptr) return false;
  current().store(table);
  return true;
}

void spmm(const SpmmArgs& args, int threads) {
  advise_huge_pages(args.y.data, args.a.rows * args.y.stride * size_of(args.y.dtype));
  const auto run = kernels().spmm_rows;
  parallel_rows(args.a, args.n, threads,
                [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

void sddmm(const SddmmArgs& args, int threads) {
  advise_huge_pages(args.out, args.a.nnz * size_of(args.out_dtype));
  const auto run = kernels().sddmm_rows;
  parallel_rows(args.a, args.d, threads,
                [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

void quantize(QuantizeArgs args, int threads) {
  const auto peaks_of = kernels().quantize_peaks;
  const auto round = kernels().quantize_rows;
  const int64_t padded = ceil_div<int64_t>(args.n, kQuantizedTile) * kQuantizedTile;
  const int64_t chunk = std::max<int64_t>(1, kWork / std::max<int64_t>(padded, 1));
  std::vector<uint32_t> peaks(padded, 0);
  std::mutex lock;
  parallel_ranges(args.rows * padded, threads, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> own(padded, 0);
    peaks_of(args, begin / padded, end / padded, own.data());
    const std::lock_guard<std::mutex> guard(lock);
    for (int64_t f = 0; f < padded; ++f) peaks[f] = std::max(peaks[f], own[f]);
  });
  std::vector<float> inverse(padded, 0.0f);
  for (int64_t f = 0; f < args.stride; ++f) {
    const FeatureScale found = feature_scale(peaks[f], args.type);
    if (f < args.n) inverse[f] = found.inverse;
    args.scale[f] = f < args.n ? found.scale : 0.0f;
  }
  args.inverse = inverse.data();
  advise_huge_pages(args.out, args.rows * args.stride);
  parallel_chunks(args.rows, chunk, threads,
                  [&](int64_t begin, int64_t end) { round(args, begin, end); });
}

void quantized_spmm(const QuantizedSpmmArgs& args, int threads) {
  advise_huge_pages(args.y.data, args.a.rows * args.y.stride * size_of(args.y.dtype));
  const auto run = kernels().quantized_spmm_rows;
  parallel_rows(args.a, args.n, threads,
                [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

void softmax(const SoftmaxArgs& args, int threads) {
  const auto run = kernels().softmax_rows;
  parallel_rows(args.a, 4, threads, [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

void softmax_grad(const SoftmaxArgs& args, int threads) {
  const auto run = kernels().softmax_grad_rows;
  parallel_rows(args.a, 4, threads, [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

namespace {

// The head of each feature; past the last one, the last head.
std::vector<int32_t> heads_of_features(const HeadShape& shape) {
  std::vector<int32_t> head_of(static_cast<size_t>(shape.features()) + kHeadMapPadding);
  for (size_t f = 0; f < head_of.size(); ++f) {
    head_of[f] = std::min(static_cast<int>(f / shape.width), shape.heads - 1);
  }
  return head_of;
}

template <class Args>
void run_heads(Args args, void (*run)(const Args&, int64_t, int64_t), int64_t width, int threads) {
  advise_huge_pages(args.y.data, args.a.rows * args.y.stride * size_of(args.y.dtype));
  std::vector<int32_t> head_of;
  if (args.values != nullptr && args.shape.heads > 1) {
    head_of = heads_of_features(args.shape);
    args.head_of = head_of.data();
  }
  parallel_rows(args.a, width, threads, [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

}  // namespace

void spmm_heads(const HeadsSpmmArgs& args, int threads) {
  run_heads(args, kernels().heads_spmm_rows, args.shape.features(), threads);
}

void spmm_extreme(const ExtremeSpmmArgs& args, int threads) {
  run_heads(args, kernels().extreme_spmm_rows, 2 * int64_t{args.shape.features()}, threads);
}

void sddmm_heads(const HeadsSddmmArgs& args, int threads) {
  advise_huge_pages(args.out, args.a.nnz * args.shape.heads * size_of(args.out_dtype));
  const auto run = kernels().heads_sddmm_rows;
  parallel_rows(args.a, args.shape.features(), threads,
                [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

void softmax_heads(const HeadsSoftmaxArgs& args, int threads) {
  const auto run = kernels().softmax_heads_rows;
  parallel_rows(args.a, 4 * args.heads, threads,
                [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

void softmax_heads_grad(const HeadsSoftmaxArgs& args, int threads) {
  const auto run = kernels().softmax_heads_grad_rows;
  parallel_rows(args.a, 4 * args.heads, threads,
                [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

namespace {

using ItemKernel = void (*)(const AttentionArgs& args, int64_t begin, int64_t end);

void run_items(AttentionArgs args, ItemKernel run, int64_t width, int threads) {
  for (int64_t i = 0; i < args.a.rows; ++i) {
    args.longest_row = std::max(args.longest_row, args.a.indptr[i + 1] - args.a.indptr[i]);
  }
  const int64_t heads = args.problem.batches * args.problem.heads / args.groups();
  parallel_chunks(args.groups() * args.a.rows, row_chunk(args.a, width * heads), threads,
                  [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

}  // namespace

void attention(const AttentionArgs& args, int threads) {
  run_items(args, kernels().attention_items, args.problem.d + args.problem.dv, threads);
}

void attention_row_grads(const AttentionArgs& args, int threads) {
  const int64_t width = 2 * args.problem.d + args.problem.dv;
  run_items(args, kernels().attention_row_grads, width, threads);
}

void attention_column_grads(const AttentionArgs& args, int threads) {
  const int64_t width = 2 * (args.problem.d + args.problem.dv);
  run_items(args, kernels().attention_column_grads, width, threads);
}

void graph_attention(const GraphAttentionArgs& args, int threads) {
  const int64_t width = args.problem.base.d + args.problem.base.dv + args.problem.terms.de;
  const auto run = kernels().graph_attention_rows;
  parallel_rows(args.a, args.heads() * width, threads,
                [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

void graph_attention_row_grads(const GraphAttentionArgs& args, int threads) {
  const int64_t width = 2 * args.problem.base.d + args.problem.base.dv + args.problem.terms.de;
  const auto run = kernels().graph_attention_row_grads;
  const HeadsView& edges = args.grads.edges;
  // All heads of an edge lie together.
  if (edges.data != nullptr && edges.row >= args.heads() * 2) {
    advise_huge_pages(const_cast<void*>(edges.data),
                      args.a.nnz * args.heads() * 2 * size_of(edges.dtype));
  }
  parallel_rows(
      args.a, args.heads() * width, threads,
      [&](int64_t begin, int64_t end) { run(args, begin, end); },
      args.grads.att.data == nullptr ? 1 : kAttGroupRows);
}

void graph_attention_column_grads(const GraphAttentionArgs& args, int threads) {
  const auto run = kernels().graph_attention_column_grads;
  parallel_rows(args.a, args.heads() * (args.problem.base.d + args.problem.base.dv), threads,
                [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

void run_edges(const EdgeArgs& args, int threads) {
  const EdgeProgram& program = *args.program;
  const auto outputs = static_cast<int64_t>(program.outputs.size());
  for (int64_t k = 0; k < outputs; ++k) {
    const MutableDenseView& y = args.outputs[k];
    const int64_t rows = program.outputs[k] == EdgeOutput::kEdge  ? args.a.nnz
                         : program.outputs[k] == EdgeOutput::kSum ? args.a.rows
                                                                  : 0;
    if (rows > 0) advise_huge_pages(y.data, rows * y.stride * size_of(y.dtype));
  }
  // How rows are divided depends on the sizes alone: so do the bits of sums over all edges.
  constexpr int64_t kMostChunks = 512;
  const int64_t instructions = static_cast<int64_t>(program.edge.size()) + program.size;
  const int64_t work = (args.a.nnz + args.a.rows) * args.width * instructions;
  const int64_t chunks =
      std::clamp<int64_t>(work / (4 * kWork), 1, std::clamp<int64_t>(args.a.rows, 1, kMostChunks));
  const int64_t own = args.partials_before(outputs);
  std::vector<float> partials(chunks * own);
  const auto run = kernels().edge_rows;
  parallel_dynamic(chunks, 1, threads, [&](int64_t chunk) {
    const int64_t begin = first_row(args.a, chunk, chunks);
    const int64_t end = first_row(args.a, chunk + 1, chunks);
    if (begin < end) run(args, begin, end, partials.data() + chunk * own);
  });
  for (int64_t k = 0; k < outputs; ++k) {
    const bool is_map = program.outputs[k] == EdgeOutput::kMappedWeight;
    if (!is_map && program.outputs[k] != EdgeOutput::kVector) continue;
    auto* out = static_cast<float*>(args.outputs[k].data);
    for (int64_t i = 0; i < (is_map ? program.size : 1); ++i) {
      const float* from = partials.data() + args.partials_before(k) + i * args.padded();
      for (int64_t f = 0; f < args.width; ++f) {
        double total = 0.0;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) total += from[chunk * own + f];
        out[i * args.width + f] = static_cast<float>(total);
      }
    }
  }
}

void round_to_tf32(const float* in, float* out, int64_t count, int threads) {
  advise_huge_pages(out, count * static_cast<int64_t>(sizeof(float)));
  parallel_ranges(count, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = round_tf32(in[i]);
  });
}

}  // namespace gnnsparse::cpu
