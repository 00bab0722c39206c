#include "block.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace gnnsparse::emulator {
namespace {

Block* running = nullptr;
std::vector<char> stacks;  // of one block after the other
bool copies_late = false;

}  // namespace

Block& Block::current() { return *running; }

void Block::run(unsigned x, unsigned y, int threads, const std::function<void()>& body) {
  Block block(x, y, threads, body);
  running = &block;
  block.take_turns();
  running = nullptr;
  block.require_no_copies();
}

// A copy that nobody waits for may come when its place holds something else.
void Block::require_no_copies() const {
  for (const Thread& thread : threads_) {
    bool some = !thread.open.empty();
    for (const auto& group : thread.groups) some |= !group.empty();
    if (some) throw std::logic_error("a thread ended before its copies to shared memory");
  }
}

Block::Block(unsigned x, unsigned y, int threads, const std::function<void()>& body)
    : x_(x),
      y_(y),
      body_(body),
      threads_(threads),
      warps_((threads + 31) / 32),
      published_(threads * kPublished) {
  if (stacks.size() < threads * kStack) stacks.resize(threads * kStack);
  for (int i = 0; i < threads; ++i) {
    ucontext_t& context = threads_[i].context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks.data() + i * kStack;
    context.uc_stack.ss_size = kStack;
    context.uc_link = nullptr;  // no thread returns: see enter
    makecontext(&context, &Block::enter, 0);
  }
}

void Block::enter() {
  running->body_();
  running->threads_[running->thread_].done = true;
  running->yield();
}

void Block::take_turns() {
  const int count = static_cast<int>(threads_.size());
  int left = count;
  for (int first = 0; left > 0; first = (first + 7) % count) {
    for (int i = 0; i < count; ++i) {
      thread_ = (first + i) % count;
      Thread& thread = threads_[thread_];
      if (thread.done) continue;
      swapcontext(&scheduler_, &thread.context);
      if (thread.done) --left;
    }
  }
}

void Block::yield() { swapcontext(&threads_[thread_].context, &scheduler_); }

void Block::wait(Barrier& barrier, int count) {
  const unsigned round = barrier.round;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.round;
    return;
  }
  while (barrier.round == round) yield();
}

void Block::sync_warp() {
  const int first = thread_ / 32 * 32;
  wait(warps_[thread_ / 32], std::min(32, static_cast<int>(threads_.size()) - first));
}

void Block::set_late(bool late) { copies_late = late; }

void Block::make(const Copy& copy) {
  if (copy.from != nullptr) {
    std::memcpy(shared(copy.to), copy.from, 16);
  } else {
    std::memset(shared(copy.to), 0, 16);
  }
}

void Block::copy(uint32_t to, const void* from, bool real) {
  const Copy copy = {to, real ? from : nullptr};
  if (copies_late) {
    threads_[thread_].open.push_back(copy);
  } else {
    make(copy);
  }
}

void Block::commit() {
  Thread& thread = threads_[thread_];
  thread.groups.push_back(std::move(thread.open));
  thread.open.clear();
}

void Block::wait_for_all_but(size_t groups) {
  auto& pending = threads_[thread_].groups;
  for (; pending.size() > groups; pending.pop_front()) {
    for (const Copy& copy : pending.front()) make(copy);
  }
}

void Block::publish(const void* data, size_t bytes) {
  std::memcpy(published_.data() + thread_ * kPublished, data, bytes);
}

const char* Block::published(int lane) const {
  return published_.data() + (thread_ / 32 * 32 + lane) * kPublished;
}

}  // namespace gnnsparse::emulator
