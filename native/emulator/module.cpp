#include "block.h"
#include "checks.h"

// The attention kernels of the GPU, run on the CPU. Arguments are objects of `_native`.
PYBIND11_MODULE(_emulated, m) {
  gnnsparse::bindings::bind_cuda_attention(m);
  m.def("set_late", &gnnsparse::emulator::Block::set_late);
}
