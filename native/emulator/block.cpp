#include "block.h"

#include <csignal>
#include <cstring>
#include <iterator>
#include <mutex>
#include <stdexcept>

namespace gnnsparse::emulator {
namespace {

// Not a power of two: stacks at such distances would share the lines of a cache.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStack = (512 << 10) + 9 * 64;  // with room around every variable
#else
constexpr size_t kStack = (128 << 10) + 9 * 64;
#endif
constexpr size_t kDynamicAlignment = 1024;
constexpr int kPoison = 0xff;  // makes a NaN of every type
// How far the next lane to go on is from the one that waits; odd, so that every lane has its turn.
constexpr unsigned kSteps[] = {1, 31, 11, 7, 21};

bool copies_late = false;
uint64_t copy_count = 0;
int capability_of_gpu = 900;

// While it lives, `handler` gets the signal of a bad address, on a stack of its own.
class AddressSignal {
 public:
  explicit AddressSignal(void (*handler)(int)) {
    static char stack[64 << 10];
    stack_t own = {};
    own.ss_sp = stack;
    own.ss_size = sizeof stack;
    sigaltstack(&own, &stack_before_);
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_ONSTACK | SA_NODEFER;  // the handler does not return
    sigaction(SIGSEGV, &action, &action_before_);
  }
  ~AddressSignal() {
    sigaction(SIGSEGV, &action_before_, nullptr);
    sigaltstack(&stack_before_, nullptr);
  }
  AddressSignal(const AddressSignal&) = delete;
  AddressSignal& operator=(const AddressSignal&) = delete;

 private:
  stack_t stack_before_ = {};
  struct sigaction action_before_ = {};
};

}  // namespace

void Block::run_grid(unsigned columns, unsigned rows, unsigned threads, uint32_t dynamic_bytes,
                     const std::function<void()>& body) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  static Block block;  // its memory serves the next one as well
  const AddressSignal guard(&Block::stop_thread);
  block.body_ = &body;
  for (unsigned y = 0; y < rows; ++y) {
    for (unsigned x = 0; x < columns; ++x) block.run(x, y, threads, dynamic_bytes);
  }
}

void Block::run(unsigned x, unsigned y, unsigned threads, uint32_t dynamic_bytes) {
  start(x, y, threads, dynamic_bytes);
  running_ = this;
  Fiber::change(caller_, next());
  running_ = nullptr;
  finish();
}

// Leaves the handler as it leaves a thread. Outside of one the signal does what it does otherwise.
void Block::stop_thread(int) {
  if (running_ == nullptr) {
    signal(SIGSEGV, SIG_DFL);
    return;
  }
  running_->crashed_ = true;
  Fiber::change(running_->threads_[running_->thread_].fiber, running_->caller_);
}

void Block::start(unsigned x, unsigned y, unsigned threads, uint32_t dynamic_bytes) {
  if (threads % kLanes != 0) throw std::logic_error("a block of parts of warps");
  x_ = x;
  y_ = y;
  count_ = threads;
  ended_ = at_barrier_ = 0;
  failure_ = nullptr;
  crashed_ = false;
  shared_ = nullptr;
  shared_bytes_ = 0;
  dynamic_memory_.assign(dynamic_bytes + kDynamicAlignment, static_cast<char>(kPoison));
  const auto start = reinterpret_cast<uintptr_t>(dynamic_memory_.data());
  dynamic_ = dynamic_memory_.data() + (kDynamicAlignment - start % kDynamicAlignment);
  dynamic_bytes_ = dynamic_bytes;
  threads_.resize(threads);
  warps_.resize(threads / kLanes);
  if (stack_count_ < threads_.size()) {
    stacks_.reset(new char[threads * kStack]);
    stack_count_ = threads_.size();
  }
  for (unsigned i = 0; i < threads; ++i) {
    threads_[i].fiber.prepare(stacks_.get() + i * kStack, kStack, &Block::enter);
    threads_[i].copies.clear();
    threads_[i].groups.clear();
    threads_[i].arrived = threads_[i].groups_arrived = 0;
    threads_[i].waits_at = kNowhere;
  }
  for (Warp& warp : warps_) {
    warp.round = x;
    for (Warp::Meeting& meeting : warp.meetings) meeting.waiting = 0;
    release(warp);
  }
  thread_ = x % warps_.size() * kLanes;  // blocks begin with different warps
}

void Block::finish() {
  if (failure_) std::rethrow_exception(failure_);
  if (crashed_) throw std::logic_error("a thread read or wrote memory that is not there");
  if (ended_ < count_) {
    throw std::logic_error("threads wait for others that have ended or wait elsewhere");
  }
  // A copy that nobody waits for may come when its place holds something else.
  for (const Thread& thread : threads_) {
    if (thread.arrived < thread.copies.size()) {
      throw std::logic_error("a thread ended before its copies to shared memory");
    }
  }
}

void Block::enter() {
  Block& block = *running_;
  block.threads_[block.thread_].fiber.arrived();
  try {
    (*block.body_)();
  } catch (...) {
    block.failure_ = std::current_exception();
  }
  ++block.ended_;
  Fiber& mine = block.threads_[block.thread_].fiber;
  if (block.failure_) Fiber::change(mine, block.caller_);
  block.warps_[block.thread_ / kLanes].ready &= ~(1u << block.lane());
  Fiber::change(mine, block.next());
}

// Who goes on: a lane of the same warp as long as one can, then another warp.
Fiber& Block::next() {
  const auto warps = static_cast<unsigned>(warps_.size());
  unsigned w = thread_ / kLanes;
  for (unsigned i = 0; i < warps; ++i, w = w + 1 < warps ? w + 1 : 0) {
    const Warp& warp = warps_[w];
    if (warp.ready == 0) continue;
    unsigned lane = this->lane();
    do lane = (lane + warp.step) % kLanes;
    while ((warp.ready >> lane & 1u) == 0);
    thread_ = kLanes * w + lane;
    return threads_[thread_].fiber;
  }
  return caller_;
}

void Block::wait() {
  warps_[thread_ / kLanes].ready &= ~(1u << lane());
  Fiber& mine = threads_[thread_].fiber;
  Fiber::change(mine, next());
}

bool Block::is_last(Warp& warp, void (*function)(), uint32_t mask) {
  if ((mask >> lane() & 1u) == 0) throw std::logic_error("a lane meets others that leave it out");
  Warp::Meeting& meeting = warp.meetings[__builtin_ctz(mask)];
  if (meeting.waiting == 0) meeting = {mask, 0, function};
  if (meeting.function != function || meeting.mask != mask) {
    throw std::logic_error("lanes of a warp wait for one another in different functions");
  }
  meeting.waiting |= 1u << lane();
  return meeting.waiting == mask;
}

void Block::release(Warp& warp, uint32_t mask) {
  warp.meetings[__builtin_ctz(mask)].waiting = 0;
  warp.ready |= mask;
  warp.step = kSteps[++warp.round % std::size(kSteps)];
}

void Block::sync() {
  if (++at_barrier_ < count_) return wait();
  at_barrier_ = 0;
  for (Warp& warp : warps_) release(warp);
}

Block::Barrier& Block::barrier(uint32_t address) const {
  auto& found = *reinterpret_cast<Barrier*>(shared(address, sizeof(Barrier)));
  if (found.missing > kMostThreads) throw std::logic_error("there is no barrier");
  return found;
}

void Block::make_barrier(uint32_t address, uint32_t arrivals) {
  const auto count = static_cast<uint16_t>(arrivals);
  *reinterpret_cast<Barrier*>(shared(address, sizeof(Barrier))) = {count, count, 0};
}

void Block::arrive_at(uint32_t address) {
  Barrier& to = barrier(address);
  if (--to.missing > 0) return;
  to.missing = to.arrivals;
  ++to.phase;
  for (unsigned i = 0; i < count_; ++i) {
    if (threads_[i].waits_at != address) continue;
    threads_[i].waits_at = kNowhere;
    warps_[i / kLanes].ready |= 1u << i % kLanes;
  }
}

void Block::wait_at(uint32_t address, uint32_t parity) {
  if (barrier(address).phase % 2 != parity) return;  // the phase has ended
  threads_[thread_].waits_at = address;
  wait();
}

void Block::set_late(bool late) { copies_late = late; }
uint64_t Block::copies_started() { return copy_count; }
void Block::set_capability(int capability) { capability_of_gpu = capability; }
int Block::capability() { return capability_of_gpu; }

void Block::make(const Copy& copy) const {
  char* to = shared(copy.to, copy.size);
  if (copy.bytes > 0) std::memcpy(to, copy.from, copy.bytes);
  std::memset(to + copy.bytes, 0, copy.size - copy.bytes);
}

void Block::copy(uint32_t to, const void* from, uint32_t bytes, uint32_t size) {
  if (bytes > size || size > 16) throw std::logic_error("a copy of more than it has room for");
  if (reinterpret_cast<uintptr_t>(from) % size != 0 && bytes > 0) bad_address();
  ++copy_count;
  const Copy copy = {to, bytes, size, from};
  if (copies_late) {
    std::memset(shared(to, size), kPoison, size);
    threads_[thread_].copies.push_back(copy);
  } else {
    make(copy);
  }
}

void Block::commit() {
  Thread& thread = threads_[thread_];
  thread.groups.push_back(thread.copies.size());
}

void Block::wait_for_all_but(size_t groups) {
  Thread& thread = threads_[thread_];
  while (thread.groups.size() - thread.groups_arrived > groups) {
    const size_t end = thread.groups[thread.groups_arrived++];
    for (; thread.arrived < end; ++thread.arrived) make(thread.copies[thread.arrived]);
  }
}

void Block::use_shared(char* memory, size_t bytes) {
  if (shared_ == nullptr) {
    shared_ = memory;
    shared_bytes_ = bytes;
    std::memset(memory, kPoison, bytes);
  }
  if (shared_ != memory) throw std::logic_error("a block addresses two arrays of shared memory");
}

void Block::bad_address() {
  throw std::logic_error("an address beyond memory, or no multiple of what is read or written");
}

}  // namespace gnnsparse::emulator
