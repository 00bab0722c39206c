#include "gnnsparse/csr.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "parallel.h"

namespace gnnsparse::cpu {
namespace {

// Calls `body` with the elements behind their type, so that the compiler makes vectors of its
// loops.
template <class Body>
auto with_elements(IndexArray values, Body body) {
  return values.wide ? body(static_cast<const int64_t*>(values.data))
                     : body(static_cast<const int32_t*>(values.data));
}

// The threads of a check that looks at each element once, which takes one thread a few milliseconds
// at most below this count: others would not be awake, or wait for a core, before it is done.
int threads_to_read(int64_t count, int threads) { return count < (1 << 22) ? 1 : threads; }

// Runs `bad(i)` over [0, count) and returns the smallest i for which it holds, or -1.
template <class Predicate>
int64_t first_where(int64_t count, int threads, Predicate bad) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  constexpr int64_t kBlock = 4096;  // is looked at without a branch for each element
  std::atomic<int64_t> first{kNone};
  parallel_ranges(count, threads_to_read(count, threads), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t stop = std::min(end, at + kBlock);
      int any = 0;  // no bool, of which gcc makes no vectors
      for (int64_t i = at; i < stop; ++i) any |= bad(i);
      if (any == 0) continue;
      while (!bad(at)) ++at;
      int64_t seen = first.load(std::memory_order_relaxed);
      while (at < seen && !first.compare_exchange_weak(seen, at)) {
      }
      return;
    }
  });
  const int64_t found = first.load();
  return found == kNone ? -1 : found;
}

void exclusive_scan(int64_t* counts, int64_t n) {
  int64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t count = counts[i];
    counts[i] = sum;
    sum += count;
  }
}

inline int64_t fetch_increment(int64_t* counter) {
  return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

}  // namespace

int64_t first_out_of_range(IndexArray values, int64_t limit, int threads) {
  return with_elements(values, [&](const auto* elements) {
    using Unsigned = std::make_unsigned_t<std::decay_t<decltype(*elements)>>;
    const auto largest = std::numeric_limits<std::decay_t<decltype(*elements)>>::max();
    if (limit > largest) {  // of 32 bits, so that negative values alone are out of range
      return first_where(values.count, threads, [=](int64_t i) { return elements[i] < 0; });
    }
    const auto bound = static_cast<Unsigned>(limit);
    return first_where(values.count, threads,
                       [=](int64_t i) { return static_cast<Unsigned>(elements[i]) >= bound; });
  });
}

int64_t first_decreasing(IndexArray indptr, int threads) {
  return with_elements(indptr, [&](const auto* offsets) {
    return first_where(indptr.count - 1, threads,
                       [=](int64_t i) { return offsets[i + 1] < offsets[i]; });
  });
}

bool is_canonical(const int64_t* indptr, IndexArray indices, int64_t rows, int threads) {
  // Of all neighbours that do not ascend, none but those with a row's beginning between them are
  // right: counting both takes no branch for each nonzero, and no loop for each row.
  std::atomic<int64_t> inside{0};
  threads = threads_to_read(indices.count, threads);
  with_elements(indices, [&](const auto* columns) {
    parallel_ranges(indices.count - 1, threads, [&](int64_t begin, int64_t end) {
      int64_t found = 0;
      for (int64_t e = begin; e < end; ++e) found += columns[e + 1] <= columns[e];
      inside += found;
    });
    parallel_ranges(rows, threads, [&](int64_t begin, int64_t end) {
      int64_t found = 0;
      for (int64_t row = begin; row < end; ++row) {
        const int64_t e = indptr[row];
        found += e > 0 && e < indptr[row + 1] && columns[e] <= columns[e - 1];
      }
      inside -= found;
    });
  });
  return inside == 0;
}

bool is_permutation(IndexArray values, int threads) {
  constexpr int kMostThreads = 8;  // each has a bit for every value, which stay in a core's cache
  const auto count = static_cast<uint64_t>(values.count);
  const int parts = threads_to_read(values.count, std::min(threads, kMostThreads));
  std::vector<uint64_t> seen(count / 64 + 1, 0);
  std::mutex lock;
  std::atomic<bool> right{true};
  with_elements(values, [&](const auto* elements) {
    parallel_ranges(values.count, parts, [&](int64_t begin, int64_t end) {
      std::vector<uint64_t> own(seen.size(), 0);
      uint64_t repeated = 0;
      for (int64_t i = begin; i < end; ++i) {
        const auto value = static_cast<uint64_t>(static_cast<int64_t>(elements[i]));
        if (value >= count) {
          right = false;
          return;
        }
        const uint64_t bit = uint64_t{1} << (value % 64);
        repeated |= own[value / 64] & bit;
        own[value / 64] |= bit;
      }
      const std::lock_guard<std::mutex> guard(lock);
      for (size_t word = 0; word < own.size(); ++word) {
        repeated |= seen[word] & own[word];
        seen[word] |= own[word];
      }
      if (repeated != 0) right = false;
    });
  });
  return right;
}

int64_t coo_to_csr(IndexArray row, IndexArray col, int64_t rows, int64_t* indptr, int32_t* indices,
                   MutableIndexView nnz_index, int threads) {
  const int64_t edges = row.count;
  if (edges > static_cast<int64_t>(std::numeric_limits<uint32_t>::max())) {
    throw std::invalid_argument("edges: 2^32 or more input edges are not supported");
  }
  // Bucket the edges by row. The atomic cursors fill a bucket in any order; sorting by
  // (column, edge) afterwards makes the result the same for every number of threads.
  std::vector<int64_t> start(rows + 1, 0);
  parallel_ranges(edges, threads, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) fetch_increment(&start[row[e]]);
  });
  exclusive_scan(start.data(), rows + 1);
  std::unique_ptr<uint64_t[]> keys(new uint64_t[std::max<int64_t>(edges, 1)]);
  std::vector<int64_t> cursor(start);
  parallel_ranges(edges, threads, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      keys[fetch_increment(&cursor[row[e]])] =
          (static_cast<uint64_t>(col[e]) << 32) | static_cast<uint64_t>(e);
    }
  });

  indptr[0] = 0;
  parallel_dynamic(rows, 256, threads, [&](int64_t r) {
    uint64_t* first = keys.get() + start[r];
    uint64_t* last = keys.get() + start[r + 1];
    if (!std::is_sorted(first, last)) std::sort(first, last);
    int64_t distinct = 0;
    for (uint64_t* key = first; key < last; ++key) {
      distinct += key == first || (key[0] >> 32) != (key[-1] >> 32);
    }
    indptr[r + 1] = distinct;
  });
  std::partial_sum(indptr, indptr + rows + 1, indptr);

  parallel_dynamic(rows, 256, threads, [&](int64_t r) {
    int64_t out = indptr[r] - 1;
    for (int64_t k = start[r]; k < start[r + 1]; ++k) {
      const auto column = static_cast<int32_t>(keys[k] >> 32);
      if (k == start[r] || column != static_cast<int32_t>(keys[k - 1] >> 32))
        indices[++out] = column;
      nnz_index.set(static_cast<int64_t>(keys[k] & 0xffffffffu), out);
    }
  });
  return indptr[rows];
}

void transpose(const CsrView& a, int64_t* indptr, int32_t* indices, MutableIndexView source,
               int threads) {
  // A stable counting sort: every chunk of rows counts its columns, and writes each column's
  // nonzeros behind those of the chunks before it.
  constexpr int64_t kCounterBytes = int64_t{1} << 30;
  const int64_t affordable =
      std::max<int64_t>(1, kCounterBytes / (8 * std::max<int64_t>(a.cols, 1)));
  const int64_t chunks = a.nnz < (1 << 16) ? 1 : std::min<int64_t>(threads, affordable);
  std::vector<int64_t> counters(chunks * a.cols, 0);
  std::vector<int64_t> bounds(chunks + 1);
  for (int64_t c = 0; c <= chunks; ++c) {
    bounds[c] = std::lower_bound(a.indptr, a.indptr + a.rows, a.nnz / chunks * c) - a.indptr;
  }
  bounds[0] = 0;
  bounds[chunks] = a.rows;

  parallel_dynamic(chunks, 1, threads, [&](int64_t c) {
    int64_t* count = counters.data() + c * a.cols;
    for (int64_t e = a.indptr[bounds[c]]; e < a.indptr[bounds[c + 1]]; ++e) ++count[a.indices[e]];
  });
  int64_t sum = 0;
  for (int64_t j = 0; j < a.cols; ++j) {
    indptr[j] = sum;
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t count = counters[c * a.cols + j];
      counters[c * a.cols + j] = sum;
      sum += count;
    }
  }
  indptr[a.cols] = sum;
  parallel_dynamic(chunks, 1, threads, [&](int64_t c) {
    int64_t* cursor = counters.data() + c * a.cols;
    for (int64_t r = bounds[c]; r < bounds[c + 1]; ++r) {
      for (int64_t e = a.indptr[r]; e < a.indptr[r + 1]; ++e) {
        const int64_t out = cursor[a.indices[e]]++;
        indices[out] = static_cast<int32_t>(r);
        if (source.data != nullptr) source.set(out, e);
      }
    }
  });
}

void permute_rows(const CsrView& a, const int32_t* order, int64_t* indptr, int32_t* indices,
                  MutableIndexView source, int threads) {
  indptr[0] = 0;
  for (int64_t i = 0; i < a.rows; ++i) {
    indptr[i + 1] = indptr[i] + a.indptr[order[i] + 1] - a.indptr[order[i]];
  }
  if (indptr[a.rows] != a.nnz) {
    throw std::invalid_argument("order: is no permutation of the rows");
  }
  parallel_dynamic(a.rows, 256, threads, [&](int64_t i) {
    int64_t out = indptr[i];
    for (int64_t e = a.indptr[order[i]]; e < a.indptr[order[i] + 1]; ++e, ++out) {
      indices[out] = a.indices[e];
      source.set(out, e);
    }
  });
}

void add_self_loops(const CsrView& a, int64_t* indptr, int32_t* indices, MutableIndexView places,
                    int threads) {
  const auto diagonal = [&](int64_t r) {
    return std::lower_bound(a.indices + a.indptr[r], a.indices + a.indptr[r + 1],
                            static_cast<int32_t>(r)) -
           a.indices;
  };
  const auto has_diagonal = [&](int64_t r, int64_t at) {
    return at < a.indptr[r + 1] && a.indices[at] == r;
  };
  if (indices == nullptr) {
    indptr[0] = 0;
    parallel_dynamic(a.rows, 1024, threads, [&](int64_t r) {
      indptr[r + 1] = a.indptr[r + 1] - a.indptr[r] + !has_diagonal(r, diagonal(r));
    });
    std::partial_sum(indptr, indptr + a.rows + 1, indptr);
    return;
  }
  parallel_dynamic(a.rows, 256, threads, [&](int64_t r) {
    const int64_t at = diagonal(r);
    int64_t out = indptr[r];
    const auto copy = [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e, ++out) {
        indices[out] = a.indices[e];
        places.set(e, out);
      }
    };
    copy(a.indptr[r], at);
    if (!has_diagonal(r, at)) indices[out++] = static_cast<int32_t>(r);
    copy(at, a.indptr[r + 1]);
  });
}

}  // namespace gnnsparse::cpu
