// X of 8 bits: rounding to it, and products with it. Include it after kernels.inl.

namespace gnnsparse::cpu::GNNSPARSE_ISA {
namespace {

// The first n <= kQuantizedTile elements as float32, zeros behind them.
template <class X>
inline void widen(const X* x, int64_t n, float (&out)[kQuantizedTile]) {
  for (int64_t f = 0; f < kQuantizedTile; f += kWidth) {
    if (f + kWidth <= n) {
      store(out + f, load(x + f));
    } else {
      store(out + f, f < n ? load(x + f, n - f) : Vec{});
    }
  }
}

template <class X>
void peaks_typed(const QuantizeArgs& args, int64_t begin, int64_t end, uint32_t* peaks) {
  for (int64_t j = begin; j < end; ++j) {
    const float weight = args.weights != nullptr ? args.weights[j] : 1.0f;
    for (int64_t f = 0; f < args.n; f += kQuantizedTile) {
      float x[kQuantizedTile];
      widen(row_of<X>(args.x, j) + f, std::min<int64_t>(kQuantizedTile, args.n - f), x);
      for (int i = 0; i < kQuantizedTile; ++i) {
        const uint32_t bits = float_bits(weight * x[i]) & 0x7fffffffu;
        peaks[f + i] = std::max(peaks[f + i], bits);
      }
    }
  }
}

void quantize_peaks(const QuantizeArgs& args, int64_t begin, int64_t end, uint32_t* peaks) {
  with_type(args.x.dtype, [&](auto type) {
    using X = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    peaks_typed<X>(args, begin, end, peaks);
  });
}

template <class X, EightBit kType, bool kStochastic>
void quantize_rows_typed(const QuantizeArgs& args, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j) {
    const float weight = args.weights != nullptr ? args.weights[j] : 1.0f;
    for (int64_t f = 0; f < args.n; f += kQuantizedTile) {
      float x[kQuantizedTile];
      float uniform[kQuantizedTile] = {};
      uint8_t codes[kQuantizedTile];
      widen(row_of<X>(args.x, j) + f, std::min<int64_t>(kQuantizedTile, args.n - f), x);
      if constexpr (kStochastic) {
        for (int i = 0; i < kQuantizedTile; ++i) uniform[i] = rounding_uniform(args.key, j, f + i);
      }
      for (int i = 0; i < kQuantizedTile; ++i) {
        const float scaled = (weight * x[i]) * args.inverse[f + i];
        codes[i] = static_cast<uint8_t>(eight_bit_code<kType, kStochastic>(scaled, uniform[i]));
      }
      // Behind n numbers and scales are zeros, and so are their codes.
      const int64_t bytes = std::min<int64_t>(kQuantizedTile, args.stride - f);
      memcpy(args.out + j * args.stride + f, codes, bytes);
    }
  }
}

void quantize_rows(const QuantizeArgs& args, int64_t begin, int64_t end) {
  with_type(args.x.dtype, [&](auto type) {
    using X = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    const bool integers = args.type == EightBit::kInt8;
    if (integers && args.stochastic) {
      quantize_rows_typed<X, EightBit::kInt8, true>(args, begin, end);
    } else if (integers) {
      quantize_rows_typed<X, EightBit::kInt8, false>(args, begin, end);
    } else if (args.stochastic) {
      quantize_rows_typed<X, EightBit::kE4m3, true>(args, begin, end);
    } else {
      quantize_rows_typed<X, EightBit::kE4m3, false>(args, begin, end);
    }
  });
}

template <EightBit kType>
inline Vec load_numbers(const uint8_t* x) {
  if constexpr (kType == EightBit::kInt8) {
    return __builtin_convertvector(load_integers(reinterpret_cast<const int8_t*>(x)), Vec);
  } else {
    const IntVec byte = load_integers(x);
    // As e4m3_to_float.
    const IntVec magnitude = (byte & 0x7f) << 20;
    const IntVec small = magnitude < (1 << 23);
    const Vec value = (Vec)(magnitude + (120 << 23) + (small & (1 << 23)));
    const Vec least = (Vec)(small & (121 << 23));
    return (Vec)((IntVec)(value - least) | (byte & 0x80) << 24);
  }
}

struct QuantizedRow {
  const QuantizedSpmmArgs& args;
  int64_t begin;
  int64_t end;
  int64_t prefetch_end;
  float scale;
  int64_t out_row;
};

// So many numbers of a row add up to less than 2^31.
constexpr int64_t kExactTerms = int64_t{1} << 24;

// Features [f, f + kVectors * kWidth) of one row, of which `width` exist.
template <int kVectors, EightBit kType, bool kWeighted>
inline void quantized_tile(const QuantizedRow& row, int64_t f, int64_t width) {
  const QuantizedSpmmArgs& args = row.args;
  constexpr bool kExact = kType == EightBit::kInt8 && !kWeighted;
  constexpr int64_t kAhead = prefetch_ahead(kVectors * kWidth);
  Vec total[kVectors] = {};
  for (int64_t first = row.begin; first < row.end; first += kExactTerms) {
    const int64_t last = std::min(row.end, first + kExactTerms);
    IntVec sums[kVectors] = {};
    for (int64_t e = first; e < last; ++e) {
      if (e + kAhead < row.prefetch_end) {
        __builtin_prefetch(args.x + args.a.indices[e + kAhead] * args.stride + f);
        if (kVectors * kWidth > 64) {
          __builtin_prefetch(args.x + args.a.indices[e + kAhead] * args.stride + f + 64);
        }
      }
      const uint8_t* x = args.x + args.a.indices[e] * args.stride + f;
      if constexpr (kExact) {
        for (int v = 0; v < kVectors; ++v) {
          sums[v] += load_integers(reinterpret_cast<const int8_t*>(x) + v * kWidth);
        }
      } else {
        const float w = kWeighted ? args.values[e] : 1.0f;
        for (int v = 0; v < kVectors; ++v) total[v] += w * load_numbers<kType>(x + v * kWidth);
      }
    }
    if constexpr (kExact) {
      for (int v = 0; v < kVectors; ++v) total[v] += __builtin_convertvector(sums[v], Vec);
    }
  }
  with_type(args.y.dtype, [&](auto type) {
    using Y = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    Y* y = static_cast<Y*>(args.y.data) + row.out_row * args.y.stride + f;
    for (int v = 0; v < kVectors; ++v) {
      const Vec result = total[v] * load(args.scale + f + v * kWidth) * row.scale;
      const int64_t rest = width - v * kWidth;
      if (rest >= kWidth) {
        store(y + v * kWidth, result);
      } else if (rest > 0) {
        store(y + v * kWidth, result, rest);
      }
    }
  });
}

template <EightBit kType, bool kWeighted>
void quantized_spmm_typed(const QuantizedSpmmArgs& args, int64_t begin, int64_t end) {
  const CsrView& a = args.a;
  const int64_t prefetch_end = a.indptr[end];
  for (int64_t i = begin; i < end; ++i) {
    const QuantizedRow row{args,
                           a.indptr[i],
                           a.indptr[i + 1],
                           prefetch_end,
                           args.row_scale != nullptr ? args.row_scale[i] : 1.0f,
                           args.row_ids != nullptr ? args.row_ids[i] : i};
    // Rows of X are padded to a multiple of every kWidth, so that whole vectors can be read.
    static_assert(kEightBitPadding % kWidth == 0, "");
    int64_t f = 0;
    for (; f + 8 * kWidth <= args.n; f += 8 * kWidth) {
      quantized_tile<8, kType, kWeighted>(row, f, 8 * kWidth);
    }
    for (; f + 2 * kWidth <= args.n; f += 2 * kWidth) {
      quantized_tile<2, kType, kWeighted>(row, f, 2 * kWidth);
    }
    for (; f < args.n; f += kWidth) {
      quantized_tile<1, kType, kWeighted>(row, f, std::min<int64_t>(kWidth, args.n - f));
    }
  }
}

void quantized_spmm_rows(const QuantizedSpmmArgs& args, int64_t begin, int64_t end) {
  const bool weighted = args.values != nullptr;
  if (args.type == EightBit::kInt8) {
    (weighted ? quantized_spmm_typed<EightBit::kInt8, true>
              : quantized_spmm_typed<EightBit::kInt8, false>)(args, begin, end);
  } else {
    (weighted ? quantized_spmm_typed<EightBit::kE4m3, true>
              : quantized_spmm_typed<EightBit::kE4m3, false>)(args, begin, end);
  }
}

}  // namespace
}  // namespace gnnsparse::cpu::GNNSPARSE_ISA
