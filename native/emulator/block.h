// The threads of a block on the CPU. Each is a context with a stack of its own; they take turns
// where they wait for one another, beginning with another one each time.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace gnnsparse::emulator {

class Block {
 public:
  // The block that runs now.
  static Block& current();

  // Runs `body` on `threads` threads.
  static void run(unsigned x, unsigned y, int threads, const std::function<void()>& body);

  int thread() const { return thread_; }
  int lane() const { return thread_ % 32; }
  unsigned x() const { return x_; }
  unsigned y() const { return y_; }

  void sync() { wait(whole_, static_cast<int>(threads_.size())); }
  void sync_warp();

  // What a lane shows the others of its warp.
  void publish(const void* data, size_t bytes);
  const char* published(int lane) const;

  // Copies to shared memory: done at once, or, where `late` was set, when their thread waits for
  // them.
  static void set_late(bool late);
  void copy(uint32_t to, const void* from, bool real);
  void commit();
  void wait_for_all_but(size_t groups);

  void use_shared(char* memory) { shared_ = memory; }
  char* shared(uint32_t address) const { return shared_ + address; }

 private:
  struct Copy {
    uint32_t to;
    const void* from;  // null: zeros
  };
  struct Thread {
    ucontext_t context;
    bool done = false;
    std::vector<Copy> open;                // not a group yet
    std::deque<std::vector<Copy>> groups;  // on their way
  };
  struct Barrier {
    int arrived = 0;
    unsigned round = 0;
  };
  static constexpr size_t kStack = 256 << 10;
  static constexpr size_t kPublished = 32;  // bytes of a lane

  Block(unsigned x, unsigned y, int threads, const std::function<void()>& body);
  static void enter();
  void take_turns();
  void yield();
  void wait(Barrier& barrier, int count);
  void make(const Copy& copy);
  void require_no_copies() const;

  unsigned x_;
  unsigned y_;
  const std::function<void()>& body_;
  std::vector<Thread> threads_;
  std::vector<Barrier> warps_;
  std::vector<char> published_;
  Barrier whole_;
  ucontext_t scheduler_;
  int thread_ = 0;
  char* shared_ = nullptr;
};

}  // namespace gnnsparse::emulator
