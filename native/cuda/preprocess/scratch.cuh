// Carves arrays out of the caller's scratch memory. With no memory it only adds up sizes, so that
// the same lines of code tell how much is needed and then use it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gnnsparse/cuda_api.h"

namespace gnnsparse::cuda {

class Carver {
 public:
  explicit Carver(Scratch scratch)
      : base_(static_cast<std::byte*>(scratch.data)), limit_(scratch.bytes) {}

  template <class T>
  T* take(int64_t count) {
    used_ = (used_ + 255) / 256 * 256;
    T* result = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += static_cast<size_t>(count) * sizeof(T);
    return result;
  }
  bool dry() const { return base_ == nullptr; }
  size_t used() const { return used_; }
  void check(const char* call) const {
    if (!dry() && used_ > limit_) throw CudaError(std::string(call) + ": scratch is too small");
  }

 private:
  std::byte* base_;
  size_t limit_;
  size_t used_ = 0;
};

}  // namespace gnnsparse::cuda
