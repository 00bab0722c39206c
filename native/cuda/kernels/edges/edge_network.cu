#include "device/launch.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

void edge_network(const EdgeNetwork& p, Precision precision, Stream stream) {
  dispatch_precision<OperandsOf16Bits>(precision, "edge network", [&](auto of) {
    EdgeNetworkUnit<decltype(of)::value>::run(p, stream);
  });
}

void edge_network_grad(const EdgeNetworkGrad& p, const NetworkColumnSums& sources,
                       Precision precision, Stream stream) {
  dispatch_precision<OperandsOf16Bits>(precision, "edge network", [&](auto of) {
    using Unit = EdgeNetworkGradUnit<decltype(of)::value>;
    Unit::run(p, stream);
    Unit::add_columns(sources, stream);
    if (p.first_tile + p.tile_count == p.network.tiles()) Unit::add_targets(p, stream);
  });
}

}  // namespace gnnsparse::cuda
