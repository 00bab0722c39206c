#include "block.h"
#include "checks.h"

// Attention and SpMM as on a GPU, run on the CPU. Arguments are objects of `_native`.
PYBIND11_MODULE(_emulated, m) {
  gnnsparse::bindings::bind_cuda_attention(m);
  gnnsparse::bindings::bind_cuda_spmm(m);
  m.def("set_late", &gnnsparse::emulator::Block::set_late);
}
