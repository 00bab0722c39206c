// The kernel families that are compiled in units of their own, one for each precision: units.txt
// lists them, instantiate.cu.in is what a unit consists of. Host code calls them through these.
#pragma once

#include "gnnsparse/cuda_api.h"

namespace gnnsparse::cuda {

template <Precision P>
struct PanelSpmmUnit {
  static void run(const PanelSpmm& p, Stream stream);
};

template <Precision P>
struct WindowSpmmUnit {
  static void run(const WindowSpmm& p, Stream stream);
};

template <Precision P>
struct PolicySpmmUnit {
  static void run(const PolicySpmm& p, Stream stream);
};

template <Precision P>
struct RecordSpmmUnit {
  static void run(const PackedSpmm& p, Stream stream);
};

template <Precision P>
struct TileSpmmUnit {
  static void run(const PackedSpmm& p, Stream stream);
};

template <Precision P>
struct PanelSddmmUnit {
  static void run(const PanelSddmm& p, Stream stream);
};

template <Precision P>
struct AttentionForwardUnit {
  static void run(const PanelAttention& p, Stream stream);
};

template <Precision P>
struct AttentionGradUnit {
  static void rows(const PanelAttention& p, Stream stream);
  static void columns(const PanelAttention& p, Stream stream);
  // The pass over rows, which also writes the weights of column slots, for the heads that p.dkv has
  // room for; and then dK and dV from those.
  static void fused_pass(const PanelAttention& p, Stream stream);
  static void sum_dkv(const PanelAttention& p, Stream stream);
};

template <Precision P>
struct GraphForwardUnit {
  static void run(const GraphAttentionPass& p, Stream stream);
};

template <Precision P>
struct GraphRowGradUnit {
  static void run(const GraphAttentionPass& p, Stream stream);
};

template <Precision P>
struct GraphMappedGradUnit {
  static void run(const GraphAttentionPass& p, Stream stream);
};

template <Precision P>
struct GraphMapGradUnit {
  static void run(const GraphMapGrad& p, Stream stream);
};

template <Precision P>
struct GraphColumnGradUnit {
  static void run(const GraphAttentionPass& p, Stream stream);
};

template <Precision P>
struct EdgeNetworkUnit {
  static void run(const EdgeNetwork& p, Stream stream);
};

template <Precision P>
struct EdgeNetworkGradUnit {
  static void run(const EdgeNetworkGrad& p, Stream stream);
  // Targets whose edges are in several tiles, after all tiles.
  static void add_targets(const EdgeNetworkGrad& p, Stream stream);
  static void add_columns(const NetworkColumnSums& p, Stream stream);
};

}  // namespace gnnsparse::cuda
