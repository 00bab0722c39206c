// What the products of other libraries have in common here: each source of this folder puts two C
// functions before one library, which benchmarks/peers.py loads. The library's own files are not
// part of this project.
#pragma once

#include <cuda_runtime.h>

#include <vector>

// An array on the GPU, which is never freed: a rival's matrix lives as long as the process that
// measures it.
template <typename T>
T* device_array(size_t count) {
  T* found = nullptr;
  cudaMalloc(&found, (count + 64) * sizeof(T));
  cudaMemset(found, 0,
             (count + 64) * sizeof(T));  // kernels that read whole vectors read past the end
  return found;
}

template <typename T>
T* to_device(const T* from, size_t count) {
  T* found = device_array<T>(count);
  cudaMemcpy(found, from, count * sizeof(T), cudaMemcpyDefault);
  return found;
}

template <typename T>
std::vector<T> to_host(const T* from, size_t count) {
  std::vector<T> found(count);
  cudaMemcpy(found.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost);
  return found;
}

// Convert a matrix in CSR, whose arrays are on the GPU, to the library's format.
extern "C" void* prepare(int rows, int cols, int nnz, const int* indptr, const int* indices,
                         const float* values, int variant);
// Queue y = A x on the default stream, and return a cudaError_t: x [cols, width], y [rows rounded
// up to 16, width], which is zeros at first.
extern "C" int multiply(void* matrix, const void* x, void* y, int width);
