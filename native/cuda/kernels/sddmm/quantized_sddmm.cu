// SDDMM whose K has 8 bits.
#include "kernels/sddmm/panel_sddmm.cuh"

namespace gnnsparse::cuda {
namespace {

template <EightBit kType>
void run(const QuantizedSddmm& p, Stream stream) {
  using Keys = ByteKeys<kType>;
  const auto slices = static_cast<int>(ceil_div<int64_t>(p.d, PanelTile<Keys::P>::kFeatures));
  const auto launch = slices == 1   ? launch_panel_sddmm<Keys, 1>
                      : slices == 2 ? launch_panel_sddmm<Keys, 2>
                                    : launch_panel_sddmm<Keys, 0>;
  launch(p, slices, stream);
}

}  // namespace

void sddmm_quantized(const QuantizedSddmm& p, Stream stream) {
  (p.type == EightBit::kInt8 ? run<EightBit::kInt8> : run<EightBit::kE4m3>)(p, stream);
}

}  // namespace gnnsparse::cuda
