// The threads of a block on the CPU. Each is a fiber; it runs until it waits for others, then
// another one goes on. The order in which they do changes from one wait to the next, so that a
// missing barrier shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "fiber.h"

namespace gnnsparse::emulator {

inline constexpr unsigned kLanes = 32;

class Block {
 public:
  // The block that runs now.
  static Block& current() { return *running_; }

  // Runs `body` on `threads` threads, whole warps, of every block of a grid, one block after the
  // other. Throws what a thread throws, and std::logic_error where threads wait for one another for
  // ever, or one reads or writes memory that is not there.
  static void run_grid(unsigned columns, unsigned rows, unsigned threads, uint32_t dynamic_bytes,
                       const std::function<void()>& body);

  unsigned thread() const { return thread_; }
  unsigned lane() const { return thread_ % kLanes; }
  unsigned threads() const { return count_; }
  unsigned x() const { return x_; }
  unsigned y() const { return y_; }

  void sync();  // __syncthreads

  // Barriers in shared memory (mbarrier).
  void make_barrier(uint32_t address, uint32_t arrivals);
  void arrive_at(uint32_t address);
  void wait_at(uint32_t address, uint32_t parity);

  // What lanes of a warp do together: each brings an `In` and takes an `Out`, and the last one to
  // come computes those of all. The lanes of `mask` have to come, to the same function.
  template <class In, class Out>
  Out meet(const In& mine, void (*together)(const In (&)[kLanes], Out (&)[kLanes]),
           uint32_t mask = ~0u) {
    static_assert(sizeof(In) <= kRoom && sizeof(Out) <= kRoom, "a lane's room");
    static_assert(std::is_trivially_copyable_v<In> && std::is_trivially_copyable_v<Out>);
    Warp& warp = warps_[thread_ / kLanes];
    auto& brought = reinterpret_cast<In(&)[kLanes]>(warp.brought);
    auto& taken = reinterpret_cast<Out(&)[kLanes]>(warp.taken);
    brought[lane()] = mine;
    if (is_last(warp, reinterpret_cast<void (*)()>(together), mask)) {
      if (mask == ~0u) {
        together(brought, taken);
      } else {
        Out of_all[kLanes] = {};  // other lanes have not taken theirs yet, perhaps
        together(brought, of_all);
        for (unsigned i = 0; i < kLanes; ++i) {
          if (mask >> i & 1u) taken[i] = of_all[i];
        }
      }
      release(warp, mask);
    } else {
      wait();
    }
    return taken[lane()];
  }

  // Asynchronous copies of `size` bytes to shared memory, of which `bytes` come from `from` and the
  // others are zero. They are done at once, or, where `late` was set, when their thread waits for
  // them; until then their place holds NaN.
  static void set_late(bool late);
  static uint64_t copies_started();
  // Which GPU's kernels host code launches, as __CUDA_ARCH__ has it; they run as the newest GPU's.
  static void set_capability(int capability);
  static int capability();
  void copy(uint32_t to, const void* from, uint32_t bytes, uint32_t size = 16);
  void commit();
  void wait_for_all_but(size_t groups);

  // The array that addresses of shared memory count from; the same one for all threads.
  void use_shared(char* memory, size_t bytes);
  char* dynamic_shared() { return dynamic_; }
  size_t dynamic_bytes() const { return dynamic_bytes_; }
  // `bytes` at an address, which has to be a multiple of their number.
  char* shared(uint32_t address, uint32_t bytes) const {
    if (address % bytes != 0 || size_t{address} + bytes > shared_bytes_) bad_address();
    return shared_ + address;
  }

 private:
  struct Copy {
    uint32_t to;
    uint32_t bytes;
    uint32_t size;
    const void* from;
  };
  struct Barrier {
    uint16_t arrivals;  // of a phase
    uint16_t missing;   // in the one that goes on
    uint32_t phase;
  };
  static constexpr uint16_t kMostThreads = 1024;
  static constexpr uint32_t kNowhere = ~0u;
  struct Thread {
    Fiber fiber;
    uint32_t waits_at = kNowhere;  // address of a barrier
    std::vector<Copy> copies;      // in the order of their start
    std::vector<size_t> groups;    // where each group of them ends
    size_t arrived = 0;            // copies that are done, and groups
    size_t groups_arrived = 0;
  };
  static constexpr size_t kRoom = 48;  // bytes a lane brings or takes
  struct Warp {
    struct Meeting {
      uint32_t mask = 0;
      uint32_t waiting = 0;  // lanes that have come; 0: there is no such meeting
      void (*function)() = nullptr;
    };
    uint32_t ready = 0;        // a bit for each lane that can go on
    unsigned round = 0;        // meetings so far
    unsigned step = 1;         // from the lane that waits to the one that goes on
    Meeting meetings[kLanes];  // by the lowest lane that takes part
    alignas(16) char brought[kLanes * kRoom];
    alignas(16) char taken[kLanes * kRoom];
  };

  void run(unsigned x, unsigned y, unsigned threads, uint32_t dynamic_bytes);
  static void stop_thread(int);
  void start(unsigned x, unsigned y, unsigned threads, uint32_t dynamic_bytes);
  void finish();
  static void enter();
  bool is_last(Warp& warp, void (*function)(), uint32_t mask);
  static void release(Warp& warp, uint32_t mask = ~0u);
  void wait();
  Barrier& barrier(uint32_t address) const;
  Fiber& next();
  void make(const Copy& copy) const;
  [[noreturn]] static void bad_address();

  static inline Block* running_ = nullptr;

  unsigned x_ = 0;
  unsigned y_ = 0;
  unsigned thread_ = 0;
  unsigned count_ = 0;
  unsigned ended_ = 0;
  unsigned at_barrier_ = 0;
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr failure_;
  bool crashed_ = false;
  Fiber caller_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::unique_ptr<char[]> stacks_;
  size_t stack_count_ = 0;
  char* shared_ = nullptr;
  size_t shared_bytes_ = 0;
  std::vector<char> dynamic_memory_;
  char* dynamic_ = nullptr;
  size_t dynamic_bytes_ = 0;
};

}  // namespace gnnsparse::emulator
