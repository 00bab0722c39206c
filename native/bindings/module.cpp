#include "checks.h"

PYBIND11_MODULE(_native, m) {
  m.doc() =
      "Native kernels of gnnsparse. Arrays are torch tensors, sizes and streams plain integers.";
#ifdef GNNSPARSE_WITH_CUDA
  m.attr("has_cuda") = true;
#else
  m.attr("has_cuda") = false;
#endif
  m.attr("cuda_architectures") = GNNSPARSE_CUDA_ARCHITECTURES;
  gnnsparse::bindings::bind_constants(m);
  gnnsparse::bindings::bind_views(m);
  gnnsparse::bindings::bind_preprocess(m);
  gnnsparse::bindings::bind_cpu(m);
  gnnsparse::bindings::bind_cpu_heads(m);
  gnnsparse::bindings::bind_cpu_edges(m);
  gnnsparse::bindings::bind_attention(m);
  gnnsparse::bindings::bind_graph_attention_args(m);
  gnnsparse::bindings::bind_graph_attention(m);
  gnnsparse::bindings::bind_sampling_args(m);
  gnnsparse::bindings::bind_sampling(m);
#ifdef GNNSPARSE_WITH_CUDA
  gnnsparse::bindings::bind_cuda(m);
#endif
}
