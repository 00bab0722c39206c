#include "gnnsparse/csr.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "parallel.h"

namespace gnnsparse::cpu {
namespace {

// Runs `bad(i)` over [0, count) and returns the smallest i for which it holds, or -1.
template <class Predicate>
int64_t first_where(int64_t count, int threads, Predicate bad) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> first{kNone};
  parallel_ranges(count, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (!bad(i)) continue;
      int64_t seen = first.load(std::memory_order_relaxed);
      while (i < seen && !first.compare_exchange_weak(seen, i)) {
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
  const auto bound = static_cast<uint64_t>(limit);
  return first_where(values.count, threads,
                     [&](int64_t i) { return static_cast<uint64_t>(values[i]) >= bound; });
}

int64_t first_decreasing(IndexArray indptr, int threads) {
  return first_where(indptr.count - 1, threads,
                     [&](int64_t i) { return indptr[i + 1] < indptr[i]; });
}

bool is_canonical(const int64_t* indptr, IndexArray indices, int64_t rows, int threads) {
  return first_where(rows, threads, [&](int64_t row) {
           for (int64_t e = indptr[row] + 1; e < indptr[row + 1]; ++e) {
             if (indices[e] <= indices[e - 1]) return true;
           }
           return false;
         }) < 0;
}

bool is_permutation(IndexArray values, int threads) {
  if (threads <= 2) {
    // A bit for each value stays in a core's cache where a byte does not.
    std::vector<uint64_t> seen(values.count / 64 + 1, 0);
    uint64_t repeated = 0;
    for (int64_t i = 0; i < values.count; ++i) {
      const auto value = static_cast<uint64_t>(values[i]);
      if (value >= static_cast<uint64_t>(values.count)) return false;
      const uint64_t bit = uint64_t{1} << (value % 64);
      repeated |= seen[value / 64] & bit;
      seen[value / 64] |= bit;
    }
    return repeated == 0;
  }
  if (first_out_of_range(values, values.count, threads) >= 0) return false;
  std::vector<uint8_t> seen(values.count, 0);
  parallel_ranges(values.count, threads, [&](int64_t begin, int64_t end) {
    // Two threads write the same byte if a value repeats.
    for (int64_t i = begin; i < end; ++i) {
      __atomic_store_n(&seen[values[i]], uint8_t{1}, __ATOMIC_RELAXED);
    }
  });
  return std::find(seen.begin(), seen.end(), uint8_t{0}) == seen.end();
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

void add_self_loops(const CsrView& a, int64_t* indptr, int32_t* indices, MutableIndexView source,
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
        source.set(out, e);
      }
    };
    copy(a.indptr[r], at);
    if (!has_diagonal(r, at)) {
      indices[out] = static_cast<int32_t>(r);
      source.set(out++, -1);
    }
    copy(at, a.indptr[r + 1]);
  });
}

}  // namespace gnnsparse::cpu
