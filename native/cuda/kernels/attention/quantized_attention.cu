// The forward pass of attention whose K and V have 8 bits.
#include "kernels/attention/panel_attention_forward.cuh"

namespace gnnsparse::cuda {
namespace {

template <EightBit kType>
void run(const QuantizedAttention& p, Stream stream) {
  using Tile = ByteAttentionTile<kType>;
  AttentionLaunch now(p);
  now.own[0] = ChunkedHeads(p.problem.q, p.problem.d);
  now.gathered[0] = ChunkedHeads(p.keys, p.problem.d);
  now.gathered[1] = ChunkedHeads(p.values, p.problem.dv);
  now.results[0] = ResultHeads(p.out, p.problem.dv, PrecisionTraits<Tile::P>::kStorage);
  now.value_scale = p.value_scale;
  const auto launch = p.problem.has_extras() ? launch_attention<AttentionWarp<Tile, true>>
                                             : launch_attention<AttentionWarp<Tile, false>>;
  launch(now, "attention_quantized", stream);
  combine_attention(p, p.out, p.problem.dv, 1.0f, p.partial, true, stream);
}

}  // namespace

void attention_quantized(const QuantizedAttention& p, Stream stream) {
  (p.type == EightBit::kInt8 ? run<EightBit::kInt8> : run<EightBit::kE4m3>)(p, stream);
}

}  // namespace gnnsparse::cuda
