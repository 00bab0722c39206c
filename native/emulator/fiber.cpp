#include "fiber.h"

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

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

#endif

namespace gnnsparse::emulator {
namespace {

#if defined(__x86_64__)

void* prepared_stack(char* stack, size_t bytes, void (*entry)()) {
  const uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15};
  auto** words = reinterpret_cast<void**>(top);
  *--words = nullptr;  // where a caller's address would be: `entry` finds the stack as after a call
  *--words = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--words = nullptr;  // the saved registers
  return words;
}

#endif

#if defined(__SANITIZE_ADDRESS__)
thread_local Fiber* left = nullptr;  // the fiber that was stopped last
#endif

}  // namespace

void Fiber::prepare(char* stack, size_t bytes, void (*entry)()) {
  bottom_ = stack;
  bytes_ = bytes;
  fake_stack_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack, bytes);  // of frames that were left for good
#endif
#if defined(__x86_64__)
  stack_pointer_ = prepared_stack(stack, bytes, entry);
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
#endif
}

void Fiber::change(Fiber& from, Fiber& to) {
#if defined(__SANITIZE_ADDRESS__)
  left = &from;
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.bottom_, to.bytes_);
#endif
#if defined(__x86_64__)
  gnnsparse_change_stack(&from.stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&from.context_, &to.context_);
#endif
  from.arrived();
}

void Fiber::arrived() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &left->bottom_, &left->bytes_);
#endif
}

}  // namespace gnnsparse::emulator
