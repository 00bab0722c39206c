#include "fiber.h"

#include <cstdint>

#if defined(__x86_64__)

// Saves what the System V ABI lets a callee not change, the stack pointer to *from, and returns on
// the other stack.
extern "C" __attribute__((visibility("hidden"))) void gnnsparse_change_stack(void** from, void* to);
asm(R"(
.text
.globl gnnsparse_change_stack
.hidden gnnsparse_change_stack
.type gnnsparse_change_stack, @function
.p2align 4
gnnsparse_change_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gnnsparse_change_stack, .-gnnsparse_change_stack
)");

namespace gnnsparse::emulator {

void Fiber::prepare(char* stack, size_t bytes, void (*entry)()) {
  const uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15};
  auto** words = reinterpret_cast<void**>(top);
  *--words = nullptr;  // where a caller's address would be: `entry` finds the stack as after a call
  *--words = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--words = nullptr;  // the saved registers
  stack_pointer_ = words;
}

void Fiber::change(Fiber& from, Fiber& to) {
  gnnsparse_change_stack(&from.stack_pointer_, to.stack_pointer_);
}

}  // namespace gnnsparse::emulator

#else

namespace gnnsparse::emulator {

void Fiber::prepare(char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}

void Fiber::change(Fiber& from, Fiber& to) { swapcontext(&from.context_, &to.context_); }

}  // namespace gnnsparse::emulator

#endif
