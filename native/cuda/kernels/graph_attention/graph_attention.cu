#include "device/launch.cuh"
#include "gnnsparse/precision.h"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {
namespace {

template <Precision P>
void run(const GraphAttentionPass& p, AttentionPass pass, Stream stream) {
  switch (pass) {
    case AttentionPass::kForward:
      return GraphForwardUnit<P>::run(p, stream);
    case AttentionPass::kRows:
      return GraphRowGradUnit<P>::run(p, stream);
    case AttentionPass::kColumns:
      return GraphColumnGradUnit<P>::run(p, stream);
    case AttentionPass::kFused:
      throw std::invalid_argument("pass: graph attention has no fused backward pass");
  }
}

}  // namespace

void graph_attention(const GraphAttentionPass& p, AttentionPass pass, Stream stream) {
  dispatch_precision<EveryPrecision>(p.problem.base.precision, "graph attention",
                                     [&](auto precision) { run<precision>(p, pass, stream); });
}

void graph_mapped_grad(const GraphAttentionPass& p, Stream stream) {
  dispatch_precision<EveryPrecision>(
      p.problem.base.precision, "graph attention",
      [&](auto precision) { GraphMappedGradUnit<precision>::run(p, stream); });
}

void graph_map_grad(const GraphMapGrad& p, Precision precision, Stream stream) {
  if (!current_architecture().async_copies) {
    throw std::invalid_argument("map_grad: needs compute capability 8.0");
  }
  dispatch_precision<OperandsOf16Bits>(precision, "the gradient of a linear map of edge features",
                                       [&](auto of) { GraphMapGradUnit<of>::run(p, stream); });
}

}  // namespace gnnsparse::cuda
