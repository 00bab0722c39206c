// The two shapes of parallel loop this code needs. An exception inside a body is carried out of the
// loop and thrown again, so that it never ends the process.
//
// Loops run over OpenMP. With GNNSPARSE_STD_THREADS, which builds for ThreadSanitizer set, they run
// over std::thread: ThreadSanitizer does not see how the threads of libgomp wait for one another,
// and would report every array that one loop writes and the next one reads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

#ifdef GNNSPARSE_STD_THREADS
#include <thread>
#include <vector>
#endif

namespace gnnsparse::cpu {

class ExceptionCarrier {
 public:
  template <class Body>
  void run(Body body) noexcept {
    try {
      body();
    } catch (...) {
      const std::lock_guard<std::mutex> guard(lock_);
      if (!first_) first_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex lock_;
  std::exception_ptr first_;
};

#ifdef GNNSPARSE_STD_THREADS

// body(i) for every i below `count`, handed out as threads get free.
template <class Body>
void for_each_index(int64_t count, int threads, Body body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::thread> helpers;
  const auto wanted = std::min<int64_t>(threads, count);
  for (int64_t t = 1; t < wanted; ++t) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

#else

template <class Body>
void for_each_index(int64_t count, int threads, Body body) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < count; ++i) body(i);
}

#endif

// body(begin, end) on one contiguous range a thread.
template <class Body>
void parallel_ranges(int64_t count, int threads, Body body) {
  constexpr int64_t kWorthAThread = 1 << 14;
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, count / kWorthAThread));
  if (parts == 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  ExceptionCarrier carrier;
  for_each_index(parts, static_cast<int>(parts), [&](int64_t part) {
    carrier.run([&] { body(count * part / parts, count * (part + 1) / parts); });
  });
  carrier.rethrow();
}

// body(begin, end) on chunks of at most `chunk` items, handed out as threads get free.
template <class Body>
void parallel_chunks(int64_t count, int64_t chunk, int threads, Body body) {
  const int64_t chunks = (count + chunk - 1) / chunk;
  if (threads <= 1 || chunks <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  ExceptionCarrier carrier;
  for_each_index(chunks, threads, [&](int64_t c) {
    carrier.run([&] { body(c * chunk, std::min(count, (c + 1) * chunk)); });
  });
  carrier.rethrow();
}

// body(i) on every item, in chunks handed out as threads get free.
template <class Body>
void parallel_dynamic(int64_t count, int64_t chunk, int threads, Body body) {
  parallel_chunks(count, chunk, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace gnnsparse::cpu
