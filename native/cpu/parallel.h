// The two shapes of parallel loop this code needs, over OpenMP. An exception inside a body is
// carried out of the parallel region and thrown again, so that it never ends the process.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>

namespace gnnsparse::cpu {

class ExceptionCarrier {
 public:
  template <class Body>
  void run(Body body) noexcept {
    try {
      body();
    } catch (...) {
#pragma omp critical(gnnsparse_exception)
      if (!first_) first_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

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
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(parts))
  for (int64_t part = 0; part < parts; ++part) {
    carrier.run([&] { body(count * part / parts, count * (part + 1) / parts); });
  }
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
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t c = 0; c < chunks; ++c) {
    carrier.run([&] { body(c * chunk, std::min(count, (c + 1) * chunk)); });
  }
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
