#include "device/launch.cuh"
#include "gnnsparse/sampling.h"

namespace gnnsparse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

// One thread a row: what it draws depends on what it has drawn.
__global__ void __launch_bounds__(kThreads)
    draw_rows_kernel(SampleGraph graph, SampleDraw draw, SampleRows rows, SampleDrawn drawn,
                     int64_t* counts) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= rows.most) return;
  if (row >= rows.count()) {
    counts[row] = 0;
    return;
  }
  counts[row] = draw_row(graph, draw, rows, row, drawn) + draw.loops;
}

// Whether an edge is drawn by a rule that asks each edge by itself.
__device__ bool takes(const SampleGraph& graph, const SampleDraw& draw, int64_t edge,
                      int64_t degree) {
  return draw.rule == SampleRule::kAll || labor_takes(draw, graph.a.indices[edge], degree);
}

// One warp a row.
__global__ void __launch_bounds__(kThreads)
    count_rows_kernel(SampleGraph graph, SampleDraw shared, SampleRows rows, int64_t* counts) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows.most) return;
  if (row >= rows.count()) {
    if (lane == 0) counts[row] = 0;
    return;
  }
  const SampleDraw draw = draw_of(shared, rows, row);
  const auto [begin, degree] = window_of(graph, rows, row);
  int64_t count = 0;
  for (int64_t e = 0; e < degree; e += 32) {
    const bool taken = e + lane < degree && takes(graph, draw, begin + e + lane, degree);
    count += __popc(__ballot_sync(kAllLanes, taken));
  }
  if (lane == 0) counts[row] = count + draw.loops;
}

// Where the edges of a row go.
struct RowWriter {
  const SampleEdges& out;
  int64_t at;

  __device__ void write(int64_t offset, int32_t source, int64_t edge, float copies) const {
    out.nodes[at + offset] = source;
    out.edges[at + offset] = edge;
    if (out.copies != nullptr) out.copies[at + offset] = copies;
  }
};

// One warp a row.
__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(SampleGraph graph, SampleDraw shared, SampleRows rows, SampleDrawn drawn,
                       SampleEdges out) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows.count()) return;
  const SampleDraw draw = draw_of(shared, rows, row);
  const auto [begin, degree] = window_of(graph, rows, row);
  RowWriter writer{out, out.indptr[row]};
  if (draw.loops) {
    if (lane == 0) writer.write(0, rows.targets[row], -1, 1.0f);
    ++writer.at;
  }
  if (draw.draws_first()) {
    const int64_t count = out.indptr[row + 1] - writer.at;
    for (int64_t i = lane; i < count; i += 32) {
      const int64_t slot = row * draw.fanout + i;
      const int64_t edge = begin + drawn.places[slot];
      const float copies = draw.replaces() ? static_cast<float>(drawn.copies[slot]) : 1.0f;
      writer.write(i, graph.a.indices[edge], edge, copies);
    }
    return;
  }
  for (int64_t e = 0; e < degree; e += 32) {
    const int64_t edge = begin + e + lane;
    const bool taken = e + lane < degree && takes(graph, draw, edge, degree);
    const uint32_t ballot = __ballot_sync(kAllLanes, taken);
    const uint32_t before = ballot & ((uint32_t{1} << lane) - 1);
    if (taken) writer.write(__popc(before), graph.a.indices[edge], edge, 1.0f);
    writer.at += __popc(ballot);
  }
}

// Nodes that are numbered: targets, and behind them the sources of the edges.
struct Sequence {
  SampleRows rows;
  SampleSources sources;

  __device__ int64_t targets() const { return rows.count(); }
  __device__ int64_t size() const { return rows.count() + sources.count(); }
  __device__ int32_t operator[](int64_t i) const {
    const int64_t first = targets();
    return i < first ? rows.targets[i] : sources.nodes[i - first];
  }
};

// Each node's first place in the sequence.
__global__ void __launch_bounds__(kThreads) place_kernel(Sequence all, int32_t* place) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < all.size()) atomicMin(place + all[i], static_cast<int32_t>(i));
}

__global__ void __launch_bounds__(kThreads)
    first_kernel(Sequence all, int64_t most, const int32_t* place, int32_t* first) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < most) first[i] = i < all.size() && place[all[i]] == i ? 1 : 0;
}

// `rank` [places] counts first places from 1 on.
__global__ void __launch_bounds__(kThreads)
    number_kernel(Sequence all, int64_t most, const int32_t* place, const int32_t* rank,
                  SampleNumbers out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= all.size()) return;
  const int64_t targets = all.targets();
  if (i == 0 && out.sizes != nullptr) {
    out.sizes->edges = all.sources.count();
    out.sizes->sources = rank[most - 1];
    out.sizes->distinct = targets > 0 ? rank[targets - 1] : 0;
  }
  const int32_t node = all[i];
  const int32_t first = place[node];
  const int32_t number = rank[first] - 1;
  if (first == i) out.sources[number] = node;
  if (i < targets) return;
  out.numbers[i - targets] = number;
  if (out.uses != nullptr) atomicAdd(out.uses + number, 1);
}

// Also finds how often the node is a source that is one most often.
__global__ void __launch_bounds__(kThreads)
    forget_kernel(Sequence all, int32_t* place, SampleNumbers out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= all.size()) return;
  place[all[i]] = kNoPlace;
  if (out.sizes == nullptr || out.uses == nullptr || i >= out.sizes->sources) return;
  // Most threads see that another one has found more.
  if (out.uses[i] > out.sizes->longest) atomicMax(&out.sizes->longest, out.uses[i]);
}

// `found` is lowered to the first pair for which none was found.
__global__ void __launch_bounds__(kThreads)
    negatives_kernel(CsrView a, SampleDraw draw, SampleNegatives of, int64_t count, int64_t* pairs,
                     int32_t* missing) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const auto number = static_cast<uint32_t>(i);
  if (!draw_negative(a, draw, of, number, pairs + 2 * i, pairs + 2 * i + 1)) {
    atomicMin(missing, static_cast<int32_t>(i));
  }
}

}  // namespace

void draw_neighbors(const SampleGraph& graph, const SampleDraw& draw, const SampleRows& rows,
                    const SampleDrawn& drawn, int64_t* counts, Stream stream) {
  if (draw.draws_first()) {
    launch("draw_neighbors", draw_rows_kernel, grid_of(rows.most, kThreads, 1, "draw_neighbors"),
           kThreads, stream, graph, draw, rows, drawn, counts);
  } else {
    launch("draw_neighbors", count_rows_kernel, grid_of(rows.most, kWarps, 1, "draw_neighbors"),
           kThreads, stream, graph, draw, rows, counts);
  }
}

void gather_neighbors(const SampleGraph& graph, const SampleDraw& draw, const SampleRows& rows,
                      const SampleDrawn& drawn, const SampleEdges& out, Stream stream) {
  launch("gather_neighbors", gather_rows_kernel, grid_of(rows.most, kWarps, 1, "gather_neighbors"),
         kThreads, stream, graph, draw, rows, drawn, out);
}

void mark_first(const SampleRows& rows, const SampleSources& sources, int32_t* place,
                int32_t* first, Stream stream) {
  const Sequence all{rows, sources};
  const int64_t most = rows.most + sources.most;
  const dim3 grid = grid_of(most, kThreads, 1, "mark_first");
  launch("mark_first", place_kernel, grid, kThreads, stream, all, place);
  launch("mark_first", first_kernel, grid, kThreads, stream, all, most, place, first);
}

void number_nodes(const SampleRows& rows, const SampleSources& sources, const int32_t* rank,
                  int32_t* place, const SampleNumbers& out, Stream stream) {
  const Sequence all{rows, sources};
  const int64_t most = rows.most + sources.most;
  const dim3 grid = grid_of(most, kThreads, 1, "number_nodes");
  launch("number_nodes", number_kernel, grid, kThreads, stream, all, most, place, rank, out);
  launch("number_nodes", forget_kernel, grid, kThreads, stream, all, place, out);
}

void draw_negatives(const CsrView& a, const SampleDraw& draw, const SampleNegatives& of,
                    int64_t count, int64_t* pairs, int32_t* missing, Stream stream) {
  launch("draw_negatives", negatives_kernel, grid_of(count, kThreads, 1, "draw_negatives"),
         kThreads, stream, a, draw, of, count, pairs, missing);
}

}  // namespace gnnsparse::cuda
