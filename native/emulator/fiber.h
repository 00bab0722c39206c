// A fiber: a stack of its own and the registers that a function call preserves. A change of fibers
// is a function call here, where swapcontext would make a system call for the signal mask.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace gnnsparse::emulator {

class Fiber {
 public:
  // The next change to this fiber calls `entry`, which must not return, on the stack
  // [stack, stack + bytes).
  void prepare(char* stack, size_t bytes, void (*entry)());

  // Stops `from`, which is running, where it is and goes on with `to`.
  static void change(Fiber& from, Fiber& to);

  // To be called first of all by `entry`, and by `change` when it goes on: tells AddressSanitizer,
  // where there is one, which stack this is.
  void arrived();

 private:
  // What AddressSanitizer has to know of a stack.
  const void* bottom_ = nullptr;
  size_t bytes_ = 0;
  void* fake_stack_ = nullptr;
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace gnnsparse::emulator
