// X to 8 bits, in two kernels: the largest magnitude of each feature, then the numbers. Magnitudes
// are compared by their bits, as integers, so that the order in which blocks come changes nothing.
//
// Both are to run as fast as memory is read. A thread has eight features, and asks for several of
// its rows before it uses any. The second kernel takes the rows from the last one on: those are
// still in L2.
#include "device/eight_bit.cuh"
#include "device/launch.cuh"
#include "device/vector.cuh"
#include "gnnsparse/quantized_problem.h"

namespace gnnsparse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 3;  // of a multiprocessor: registers for the rows that are on their way
constexpr int kFeatures = 8;
// Rows on their way at once; Philox needs the registers of some.
template <bool kStochastic>
constexpr int kRowsAtOnce = kStochastic ? 2 : 4;

template <DType kStorage>
constexpr int kStoredWords = kFeatures * size_of(kStorage) / 4;

// The features of a thread in the row at `at`, as they are stored; zeros behind the first `left` of
// them. kBytes are read at a time: n, rows and the start of X are multiples of them, or they are
// those of one element, and then columns may have any stride. `last`: X is not read again.
template <DType kStorage, int kBytes, bool kLast>
__device__ __forceinline__ void load_row(const char* at, int64_t column_stride, int left,
                                         uint32_t (&words)[kStoredWords<kStorage>]) {
  constexpr int kSize = size_of(kStorage);
  constexpr int kElements = kBytes / kSize;
  const auto load = [](const auto* from) { return kLast ? __ldcs(from) : __ldg(from); };
#pragma unroll
  for (int i = 0; i < kFeatures / kElements; ++i) {
    const bool real = i * kElements < left;
    if constexpr (kBytes == 16) {
      const auto* from = reinterpret_cast<const uint4*>(at + 16 * i);
      const uint4 four = real ? load(from) : make_uint4(0, 0, 0, 0);
      words[4 * i] = four.x, words[4 * i + 1] = four.y;
      words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
    } else if constexpr (kElements > 1) {
      words[i] = real ? load(reinterpret_cast<const uint32_t*>(at + 4 * i)) : 0u;
    } else if constexpr (kSize == 4) {
      const auto* from = reinterpret_cast<const uint32_t*>(at + 4 * i * column_stride);
      words[i] = real ? load(from) : 0u;
    } else {
      const auto* from = reinterpret_cast<const uint16_t*>(at + 2 * i * column_stride);
      const uint32_t bits = real ? load(from) : uint16_t{0};
      words[i / 2] = i % 2 == 0 ? bits : words[i / 2] | bits << 16;
    }
  }
}

template <DType kStorage>
__device__ __forceinline__ void widen(const uint32_t (&words)[kStoredWords<kStorage>],
                                      float (&v)[kFeatures]) {
  if constexpr (kStorage == DType::kFloat32) {
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) v[i] = bits_float(words[i]);
  } else {
    decode<kStorage>(Vec16{{words[0], words[1], words[2], words[3]}}, v);
  }
}

// Where a thread starts. There are fewer than 2^31 threads.
struct Place {
  uint32_t row;
  uint32_t eight;  // of the features of all groups
  uint32_t group;
  uint32_t column;  // in the group
};
__device__ __forceinline__ uint32_t eights_of(const Quantize& p) {
  return static_cast<uint32_t>(p.groups * p.stride / kFeatures);
}
__device__ __forceinline__ Place place_of(const Quantize& p) {
  const uint32_t item = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t eight = item % eights_of(p);
  const auto of_group = static_cast<uint32_t>(p.stride / kFeatures);
  return {item / eights_of(p), eight, eight / of_group, eight % of_group * kFeatures};
}

// The rows of a thread: every p.parts-th one from its place on, from the last row on where kLast.
// Several are on their way at once.
template <DType kStorage, int kBytes, bool kLast, int kRows>
class Rows {
 public:
  __device__ Rows(const Quantize& p, const Place& place)
      : p_(p),
        next_(kLast ? p.rows - 1 - place.row : place.row),
        step_(kLast ? -p.parts : p.parts) {
    const int64_t behind = p.n - place.column;
    features_ = static_cast<int>(behind < kFeatures ? behind : kFeatures);
    const int64_t stride = kBytes > size_of(kStorage) ? 1 : p.column_stride;
    x_ = static_cast<const char*>(p.x) +
         (place.group * p.group_stride + place.column * stride) * size_of(kStorage);
    const bool none = place.row >= p.parts || place.row >= p.rows;
    left_ = none ? 0 : static_cast<int>((p.rows - 1 - place.row) / p.parts) + 1;
  }

  // Asks for the next rows, at most kRows, which are there after that; false: there are none left.
  __device__ bool load() {
    if (left_ <= 0) return false;
    count_ = left_ < kRows ? left_ : kRows;
    first_ = next_;
    const char* at = x_ + first_ * p_.row_stride * size_of(kStorage);
    const int64_t bytes = step_ * p_.row_stride * size_of(kStorage);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int features = r < count_ ? features_ : 0;
      load_row<kStorage, kBytes, kLast>(at + r * bytes, p_.column_stride, features, words_[r]);
    }
    if (p_.weights != nullptr) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        weights_[r] = r < count_ ? __ldg(p_.weights + first_ + r * step_) : 0.0f;
      }
    }
    next_ += kRows * step_;
    left_ -= kRows;
    return true;
  }
  __device__ int count() const { return count_; }
  __device__ int64_t row(int r) const { return first_ + r * step_; }

  // Row r of those that are there times its weight.
  __device__ void values(int r, float (&v)[kFeatures]) const {
    widen<kStorage>(words_[r], v);
    if (p_.weights == nullptr) return;
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) v[i] *= weights_[r];
  }

 private:
  const Quantize& p_;
  const char* x_;  // the thread's features in row 0
  int64_t next_;
  int64_t step_;
  int64_t first_ = 0;
  int left_;
  int count_ = 0;
  int features_;  // that exist
  uint32_t words_[kRows][kStoredWords<kStorage>];
  float weights_[kRows];
};

// The largest of what the threads of a block found, to all blocks'. Threads with the same features
// are p.stride / 8 apart.
__device__ __forceinline__ void merge_peaks(const Quantize& p, const int32_t (&peak)[kFeatures]) {
  __shared__ int32_t found[kFeatures][kThreads + 1];
#pragma unroll
  for (int i = 0; i < kFeatures; ++i) found[i][threadIdx.x] = peak[i];
  __syncthreads();
  const uint32_t eights = eights_of(p);
  const uint32_t columns = kFeatures * (eights < kThreads ? eights : kThreads);
  const uint32_t first = blockIdx.x * kThreads % eights;
  for (uint32_t at = threadIdx.x; at < columns; at += kThreads) {
    int32_t most = 0;
    for (uint32_t t = at / kFeatures; t < kThreads; t += eights) {
      most = max(most, found[at % kFeatures][t]);
    }
    const uint32_t eight = (first + at / kFeatures) % eights;
    if (most > 0) atomicMax(p.peaks + int64_t{eight} * kFeatures + at % kFeatures, most);
  }
}

template <DType kStorage, int kBytes>
__global__ void __launch_bounds__(kThreads, kBlocks) peaks_kernel(const Quantize p) {
  constexpr int kRows = kRowsAtOnce<false>;
  Rows<kStorage, kBytes, false, kRows> rows(p, place_of(p));
  int32_t peak[kFeatures] = {};
  while (rows.load()) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float v[kFeatures];
      rows.values(r, v);
#pragma unroll
      for (int i = 0; i < kFeatures; ++i) {
        peak[i] = max(peak[i], static_cast<int32_t>(float_bits(v[i]) & 0x7fffffffu));
      }
    }
  }
  merge_peaks(p, peak);
}

template <EightBit kType, bool kStochastic>
__device__ __forceinline__ uint32_t four_codes(const Quantize& p, int64_t row, int64_t column,
                                               const float (&v)[4]) {
  if constexpr (!kStochastic) {
    return nearest_codes<kType>(v);
  } else {
    const PhiloxWords words = rounding_words(p.key, row, column);
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      codes |= eight_bit_code<kType, true>(v[i], rounding_uniform(words.word[i])) << 8 * i;
    }
    return codes;
  }
}

template <DType kStorage, int kBytes, EightBit kType, bool kStochastic>
__global__ void __launch_bounds__(kThreads, kBlocks) numbers_kernel(const Quantize p) {
  const Place place = place_of(p);
  if (place.row >= p.parts) return;
  const int64_t column = place.column;
  constexpr int kRows = kRowsAtOnce<kStochastic>;
  Rows<kStorage, kBytes, true, kRows> rows(p, place);
  wait_for_previous();
  float inverse[kFeatures];
#pragma unroll
  for (int i = 0; i < kFeatures; ++i) {
    const int64_t at = int64_t{place.eight} * kFeatures + i;
    const FeatureScale found = feature_scale(static_cast<uint32_t>(p.peaks[at]), kType);
    inverse[i] = column + i < p.n ? found.inverse : 0.0f;
    if (place.row == 0) p.scale[at] = column + i < p.n ? found.scale : 0.0f;
  }
  uint8_t* const out = p.out + place.group * p.out_group + column;
  while (rows.load()) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows.count()) break;
      float v[kFeatures];
      rows.values(r, v);
      const int64_t row = rows.row(r);
      uint32_t codes[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float four[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          // Not one operation with what rounding adds: the CPU rounds twice, too.
          four[i] = __fmul_rn(v[4 * half + i], inverse[4 * half + i]);
        }
        codes[half] = four_codes<kType, kStochastic>(p, row, column + 4 * half, four) ^ p.change;
      }
      *reinterpret_cast<uint2*>(out + row * p.out_row) = make_uint2(codes[0], codes[1]);
    }
  }
}

template <DType kStorage, int kBytes>
void run(const Quantize& p, Stream stream) {
  const int64_t items = p.parts * (p.groups * p.stride / kFeatures);
  const dim3 grid = grid_of(items, kThreads, 1, "quantize");
  launch("quantize_peaks", peaks_kernel<kStorage, kBytes>, grid, kThreads, stream, p);
  const auto numbers = [&](auto kernel) {
    launch_early("quantize", kernel, grid, kThreads, stream, p);
  };
  const bool integers = p.type == EightBit::kInt8;
  if (integers && p.stochastic) {
    numbers(numbers_kernel<kStorage, kBytes, EightBit::kInt8, true>);
  } else if (integers) {
    numbers(numbers_kernel<kStorage, kBytes, EightBit::kInt8, false>);
  } else if (p.stochastic) {
    numbers(numbers_kernel<kStorage, kBytes, EightBit::kE4m3, true>);
  } else {
    numbers(numbers_kernel<kStorage, kBytes, EightBit::kE4m3, false>);
  }
}

// Whether rows can be read so many bytes at a time.
bool whole_vectors(const Quantize& p, int bytes) {
  const int64_t size = size_of(p.x_dtype);
  const auto start = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p.x) % bytes);
  const bool rows = p.row_stride * size % bytes == 0 || p.rows <= 1;
  const bool groups = p.group_stride * size % bytes == 0 || p.groups <= 1;
  return p.column_stride == 1 && start == 0 && rows && groups && p.n * size % bytes == 0;
}

template <DType kStorage>
void run_dtype(const Quantize& p, Stream stream) {
  if (whole_vectors(p, 16)) return run<kStorage, 16>(p, stream);
  if (whole_vectors(p, 4)) return run<kStorage, 4>(p, stream);
  run<kStorage, size_of(kStorage)>(p, stream);
}

}  // namespace

void quantize(const Quantize& problem, Stream stream) {
  Quantize p = problem;
  if (p.stride == 0 || p.groups == 0) return;
  const int64_t most = INT32_MAX / (p.groups * p.stride / kFeatures);
  if (p.parts > most) p.parts = most > 0 ? most : 1;
  if (p.x_dtype == DType::kFloat16) return run_dtype<DType::kFloat16>(p, stream);
  if (p.x_dtype == DType::kBFloat16) return run_dtype<DType::kBFloat16>(p, stream);
  run_dtype<DType::kFloat32>(p, stream);
}

}  // namespace gnnsparse::cuda
