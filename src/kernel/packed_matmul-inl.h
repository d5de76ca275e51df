// The inner loops of PackedMatmul, compiled once per instruction set (Highway's foreach_target
// pattern).
//
// VNNI: a tile of up to 10 activation rows x 16 outputs; for each block of 32 inputs, 8 weight
// vectors are unpacked once and meet every row (u8 x s8 dot product into int32 lanes), then one
// conversion and two fused multiply-adds a row. Without VNNI the same lanes are formed with 16-bit
// multiply-adds, on half panels where vectors have 8 lanes. Integer sums are exact either way.
// Nibbles give the same bits on all of them; bytes without VNNI are multiplied signed, without the
// offset term, and differ in the last bits (the processor's features are part of the fingerprint).
#if defined(KVLINK_KERNEL_PACKED_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_PACKED_MATMUL_INL_H_
#undef KVLINK_KERNEL_PACKED_MATMUL_INL_H_
#else
#define KVLINK_KERNEL_PACKED_MATMUL_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL
// Highway checks VNNI before it picks this target, but does not switch the instructions on.
#pragma GCC push_options
#pragma GCC target("avx512vnni")
#endif
namespace kvlink::kernel {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- activations
// -----------------------------------------------------------------------------------------------------

// One row of `inputs` floats -> int8, scales, scaled sums.
HWY_ATTR inline void QuantizeRow(const float* HWY_RESTRICT x, uint32_t inputs, std::byte* out) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<int8_t, decltype(df)> d8;
  constexpr size_t kLanes = hn::MaxLanes(df);
  int8_t* HWY_RESTRICT q = reinterpret_cast<int8_t*>(out);
  float* HWY_RESTRICT scale = reinterpret_cast<float*>(out + inputs);
  const uint32_t blocks = inputs / kQuantBlock;
  float* HWY_RESTRICT sum = scale + blocks;
  for (uint32_t b = 0; b < blocks; b++, x += kQuantBlock, q += kQuantBlock) {
    auto largest = hn::Zero(df);
    for (size_t i = 0; i < kQuantBlock; i += kLanes)
      largest = hn::Max(largest, hn::Abs(hn::LoadU(df, x + i)));
    const float amax = hn::GetLane(hn::MaxOfLanes(df, largest));
    const auto inverse = hn::Set(df, amax > 0 ? 127.0f / amax : 0.0f);
    auto total = hn::Zero(di);
    for (size_t i = 0; i < kQuantBlock; i += kLanes) {
      const auto v = hn::NearestInt(hn::Mul(hn::LoadU(df, x + i), inverse));
      total = hn::Add(total, v);
      hn::StoreU(hn::DemoteTo(d8, v), d8, q + i);
    }
    const float s = amax / 127.0f;
    scale[b] = s;
    sum[b] = s * static_cast<float>(hn::GetLane(hn::SumOfLanes(di, total)));
  }
}

HWY_ATTR void QuantizeRows(const float* x, size_t x_stride, uint32_t inputs, std::byte* out,
                           uint32_t begin, uint32_t end) {
  const size_t bytes = QuantizedRowBytes(inputs);
  for (uint32_t r = begin; r < end; r++) QuantizeRow(x + r * x_stride, inputs, out + r * bytes);
}

HWY_ATTR void RmsNormQuantizeRows(const float* x, size_t x_stride, uint32_t inputs,
                                  const float* weight, float eps, std::byte* out, uint32_t begin,
                                  uint32_t end) {
  const hn::CappedTag<float, 16> df;
  constexpr size_t kLanes = hn::MaxLanes(df);
  const size_t bytes = QuantizedRowBytes(inputs);
  alignas(64) thread_local std::vector<float> scratch;
  if (scratch.size() < inputs) scratch.resize(inputs);
  for (uint32_t r = begin; r < end; r++) {
    const float* row = x + r * x_stride;
    auto squares = hn::Zero(df);
    for (size_t i = 0; i < inputs; i += kLanes) {
      const auto v = hn::LoadU(df, row + i);
      squares = hn::MulAdd(v, v, squares);
    }
    const float mean = hn::GetLane(hn::SumOfLanes(df, squares)) / static_cast<float>(inputs);
    const auto factor = hn::Set(df, 1.0f / __builtin_sqrtf(mean + eps));
    for (size_t i = 0; i < inputs; i += kLanes) {
      hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(df, row + i), factor), hn::LoadU(df, weight + i)), df,
                 scratch.data() + i);
    }
    QuantizeRow(scratch.data(), inputs, out + r * bytes);
  }
}

// exp(x) for x <= 88: 2^n * p(f) with n = round(x log2 e), a degree-6 polynomial for 2^f on [-0.5,
// 0.5] (relative error about 2e-7).
template <class D, class V>
HWY_ATTR inline V Exp(D df, V x) {
  const hn::RebindToSigned<D> di;
  const V t = hn::Min(hn::Max(hn::Mul(x, hn::Set(df, 1.44269504f)), hn::Set(df, -126.0f)),
                      hn::Set(df, 126.0f));
  const V n = hn::Round(t);
  const V f = hn::Sub(t, n);
  V p = hn::Set(df, 1.5403530e-4f);
  p = hn::MulAdd(p, f, hn::Set(df, 1.3333558e-3f));
  p = hn::MulAdd(p, f, hn::Set(df, 9.6181291e-3f));
  p = hn::MulAdd(p, f, hn::Set(df, 5.5504109e-2f));
  p = hn::MulAdd(p, f, hn::Set(df, 2.4022651e-1f));
  p = hn::MulAdd(p, f, hn::Set(df, 6.9314718e-1f));
  p = hn::MulAdd(p, f, hn::Set(df, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::Mul(p, hn::BitCast(df, exponent));
}

HWY_ATTR void SwiGluQuantizeRows(const float* x, size_t x_stride, uint32_t inputs, std::byte* out,
                                 uint32_t begin, uint32_t end) {
  const hn::CappedTag<float, 16> df;
  constexpr size_t kLanes = hn::MaxLanes(df);
  const size_t bytes = QuantizedRowBytes(inputs);
  alignas(64) thread_local std::vector<float> scratch;
  if (scratch.size() < inputs) scratch.resize(inputs);
  const auto one = hn::Set(df, 1.0f);
  for (uint32_t r = begin; r < end; r++) {
    const float* gate = x + r * x_stride;
    const float* up = gate + inputs;
    for (size_t i = 0; i < inputs; i += kLanes) {
      const auto g = hn::LoadU(df, gate + i);
      const auto silu = hn::Div(g, hn::Add(one, Exp(df, hn::Neg(g))));
      hn::StoreU(hn::Mul(silu, hn::LoadU(df, up + i)), df, scratch.data() + i);
    }
    QuantizeRow(scratch.data(), inputs, out + r * bytes);
  }
}

// ---- products
// --------------------------------------------------------------------------------------------------------

struct TileArgs {
  const uint8_t* w;    // the panel
  const std::byte* x;  // first activation row
  size_t x_bytes;      // between activation rows
  uint32_t inputs;
  float* y;
  size_t y_stride;
  const float* residual;  // or null
  size_t residual_stride;
  uint32_t lanes;  // outputs that exist, 1..16
};

#if HWY_TARGET <= HWY_AVX3

constexpr uint32_t kTileRows = 10;  // 20 accumulators; 12 rows spill

template <uint32_t kRows, bool kWide>
HWY_ATTR void Tile(const TileArgs& a) {
  const uint32_t blocks = a.inputs / kQuantBlock;
  const __mmask16 mask = static_cast<__mmask16>((1u << a.lanes) - 1);
  __m512 acc[kRows];
  for (uint32_t t = 0; t < kRows; t++) {
    acc[t] = a.residual ? _mm512_maskz_loadu_ps(mask, a.residual + t * a.residual_stride)
                        : _mm512_setzero_ps();
  }
  const __m512i low = _mm512_set1_epi8(15);
  const uint8_t* w = a.w;
  for (uint32_t b = 0; b < blocks; b++, w += kWide ? 544 : 320) {
    if constexpr (kRows <= 2) {
      for (uint32_t i = 0; i < (kWide ? 9 : 5); i++)
        _mm_prefetch(reinterpret_cast<const char*>(w) + 2048 + 64 * i, _MM_HINT_T0);
    }
    __m512i sum[kRows];
    for (uint32_t t = 0; t < kRows; t++) sum[t] = _mm512_setzero_si512();
    const std::byte* xb = a.x + b * kQuantBlock;
    for (uint32_t j = 0; j < (kWide ? 8u : 4u); j++) {
      const __m512i v = _mm512_loadu_si512(w + j * 64);
      const __m512i u0 = kWide ? v : _mm512_and_si512(v, low);
#if HWY_TARGET <= HWY_AVX3_DL
      for (uint32_t t = 0; t < kRows; t++) {
        int32_t group;
        std::memcpy(&group, xb + t * a.x_bytes + 4 * j, 4);
        sum[t] = _mm512_dpbusd_epi32(sum[t], u0, _mm512_set1_epi32(group));
      }
      if constexpr (!kWide) {
        const __m512i u1 = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        for (uint32_t t = 0; t < kRows; t++) {
          int32_t group;
          std::memcpy(&group, xb + t * a.x_bytes + 16 + 4 * j, 4);
          sum[t] = _mm512_dpbusd_epi32(sum[t], u1, _mm512_set1_epi32(group));
        }
      }
#else
      const __m512i ones = _mm512_set1_epi16(1);
      for (uint32_t t = 0; t < kRows; t++) {
        int32_t group;
        std::memcpy(&group, xb + t * a.x_bytes + 4 * j, 4);
        if constexpr (kWide) {
          // u - 128 is the signed weight; |w| <= 128 and |x| <= 127, so a pair stays inside int16.
          const __m512i s = _mm512_set1_epi32(group);
          const __m512i x_neg = _mm512_sub_epi8(_mm512_setzero_si512(), s);
          const __m512i signed_w = _mm512_xor_si512(u0, _mm512_set1_epi8(-128));
          const __m512i x_sign = _mm512_mask_blend_epi8(_mm512_movepi8_mask(signed_w), s, x_neg);
          const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(signed_w), x_sign);
          sum[t] = _mm512_add_epi32(sum[t], _mm512_madd_epi16(pairs, ones));
        } else {
          int32_t second;
          std::memcpy(&second, xb + t * a.x_bytes + 16 + 4 * j, 4);
          const __m512i u1 = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
          const __m512i pairs =
              _mm512_add_epi16(_mm512_maddubs_epi16(u0, _mm512_set1_epi32(group)),
                               _mm512_maddubs_epi16(u1, _mm512_set1_epi32(second)));
          sum[t] = _mm512_add_epi32(sum[t], _mm512_madd_epi16(pairs, ones));
        }
      }
#endif
    }
    const __m512 d = _mm512_cvtph_ps(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + (kWide ? 512 : 256))));
    // The wide path without VNNI multiplies signed weights: no offset to take back.
    constexpr bool kOffset = !kWide || HWY_TARGET <= HWY_AVX3_DL;
    const __m512 m =
        kWide ? _mm512_mul_ps(d, _mm512_set1_ps(-128.0f))
              : _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 288)));
    for (uint32_t t = 0; t < kRows; t++) {
      const float* scale = reinterpret_cast<const float*>(a.x + t * a.x_bytes + a.inputs);
      acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[t]),
                               _mm512_mul_ps(d, _mm512_set1_ps(scale[b])), acc[t]);
      if constexpr (kOffset) acc[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(scale[blocks + b]), acc[t]);
    }
  }
  for (uint32_t t = 0; t < kRows; t++) _mm512_mask_storeu_ps(a.y + t * a.y_stride, mask, acc[t]);
}

#elif HWY_TARGET == HWY_AVX2

constexpr uint32_t kTileRows = 4;

HWY_ATTR inline __m256i LaneMask(uint32_t lanes) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(lanes)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Half a panel: lanes [8 * half, 8 * half + 8).
template <uint32_t kRows, bool kWide>
HWY_ATTR void HalfTile(const TileArgs& a, uint32_t half, uint32_t lanes) {
  const uint32_t blocks = a.inputs / kQuantBlock;
  const __m256i mask = LaneMask(lanes);
  __m256 acc[kRows];
  for (uint32_t t = 0; t < kRows; t++) {
    acc[t] = a.residual ? _mm256_maskload_ps(a.residual + t * a.residual_stride + half * 8, mask)
                        : _mm256_setzero_ps();
  }
  const __m256i low = _mm256_set1_epi8(15);
  const __m256i ones = _mm256_set1_epi16(1);
  const uint8_t* w = a.w + half * 32;
  for (uint32_t b = 0; b < blocks; b++, w += kWide ? 544 : 320) {
    // Narrow: 8 products of at most 2 * 15 * 127 fit into int16, so lanes are widened once a block.
    __m256i sum[kRows];
    for (uint32_t t = 0; t < kRows; t++) sum[t] = _mm256_setzero_si256();
    const std::byte* xb = a.x + b * kQuantBlock;
    for (uint32_t j = 0; j < (kWide ? 8u : 4u); j++) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + j * 64));
      if constexpr (kWide) {
        const __m256i signed_w = _mm256_xor_si256(v, _mm256_set1_epi8(-128));
        const __m256i magnitude = _mm256_abs_epi8(signed_w);
        for (uint32_t t = 0; t < kRows; t++) {
          int32_t group;
          std::memcpy(&group, xb + t * a.x_bytes + 4 * j, 4);
          const __m256i pairs =
              _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(_mm256_set1_epi32(group), signed_w));
          sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(pairs, ones));
        }
      } else {
        const __m256i u0 = _mm256_and_si256(v, low);
        const __m256i u1 = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
        for (uint32_t t = 0; t < kRows; t++) {
          int32_t first, second;
          std::memcpy(&first, xb + t * a.x_bytes + 4 * j, 4);
          std::memcpy(&second, xb + t * a.x_bytes + 16 + 4 * j, 4);
          sum[t] = _mm256_add_epi16(sum[t], _mm256_maddubs_epi16(u0, _mm256_set1_epi32(first)));
          sum[t] = _mm256_add_epi16(sum[t], _mm256_maddubs_epi16(u1, _mm256_set1_epi32(second)));
        }
      }
    }
    const uint8_t* scales = a.w + b * (kWide ? 544 : 320) + (kWide ? 512 : 256) + half * 16;
    const __m256 d = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
    for (uint32_t t = 0; t < kRows; t++) {
      const float* scale = reinterpret_cast<const float*>(a.x + t * a.x_bytes + a.inputs);
      const __m256i wide_sum = kWide ? sum[t] : _mm256_madd_epi16(sum[t], ones);
      acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide_sum),
                               _mm256_mul_ps(d, _mm256_set1_ps(scale[b])), acc[t]);
      if constexpr (!kWide) {
        const __m256 m =
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 32)));
        acc[t] = _mm256_fmadd_ps(m, _mm256_set1_ps(scale[blocks + b]), acc[t]);
      }
    }
  }
  for (uint32_t t = 0; t < kRows; t++)
    _mm256_maskstore_ps(a.y + t * a.y_stride + half * 8, mask, acc[t]);
}

template <uint32_t kRows, bool kWide>
HWY_ATTR void Tile(const TileArgs& a) {
  HalfTile<kRows, kWide>(a, 0, std::min<uint32_t>(a.lanes, 8));
  if (a.lanes > 8) HalfTile<kRows, kWide>(a, 1, a.lanes - 8);
}

#else  // plain C++: every other target

constexpr uint32_t kTileRows = 1;

template <uint32_t kRows, bool kWide>
void Tile(const TileArgs& a) {
  const uint32_t blocks = a.inputs / kQuantBlock;
  for (uint32_t t = 0; t < kRows; t++) {
    const int8_t* q = reinterpret_cast<const int8_t*>(a.x + t * a.x_bytes);
    const float* scale = reinterpret_cast<const float*>(a.x + t * a.x_bytes + a.inputs);
    for (uint32_t lane = 0; lane < a.lanes; lane++) {
      float acc = a.residual ? a.residual[t * a.residual_stride + lane] : 0.0f;
      for (uint32_t b = 0; b < blocks; b++) {
        const uint8_t* w = a.w + b * (kWide ? 544 : 320);
        int32_t sum = 0;
        for (uint32_t i = 0; i < kQuantBlock; i++) {
          const uint8_t byte = w[(kWide ? i / 4 : i % 16 / 4) * 64 + lane * 4 + i % 4];
          const int32_t u = kWide ? byte : (i < 16 ? byte & 15 : byte >> 4);
          sum += u * q[b * kQuantBlock + i];
        }
        uint16_t bits[2] = {0, 0};
        std::memcpy(&bits[0], w + (kWide ? 512 : 256) + lane * 2, 2);
        if (!kWide) std::memcpy(&bits[1], w + 288 + lane * 2, 2);
        const float d = F16ToF32(bits[0]);
        const float m = kWide ? d * -128.0f : F16ToF32(bits[1]);
        acc = __builtin_fmaf(static_cast<float>(sum), d * scale[b], acc);
        acc = __builtin_fmaf(m, scale[blocks + b], acc);
      }
      a.y[t * a.y_stride + lane] = acc;
    }
  }
}

#endif

using TileFn = void (*)(const TileArgs&);

template <bool kWide, uint32_t... kRows>
constexpr auto TileTable(std::integer_sequence<uint32_t, kRows...>) {
  return std::array<TileFn, sizeof...(kRows)>{&Tile<kRows + 1, kWide>...};
}

template <bool kWide>
HWY_ATTR void MultiplyTyped(const PackedMatrix& w, const std::byte* x, uint32_t num, float* y,
                            size_t y_stride, const float* residual, size_t residual_stride,
                            uint32_t panel_begin, uint32_t panel_end) {
  static constexpr auto kTiles =
      TileTable<kWide>(std::make_integer_sequence<uint32_t, kTileRows>{});
  const size_t x_bytes = QuantizedRowBytes(w.inputs());
  // Activations are walked in slices that stay in the second-level cache while all panels pass by.
  constexpr uint32_t kSlice = 120;
  for (uint32_t first = 0; first < num; first += kSlice) {
    const uint32_t last = std::min(num, first + kSlice);
    for (uint32_t p = panel_begin; p < panel_end; p++) {
      TileArgs a;
      a.w = reinterpret_cast<const uint8_t*>(w.panel(p));
      a.x_bytes = x_bytes;
      a.inputs = w.inputs();
      a.y_stride = y_stride;
      a.residual_stride = residual_stride;
      a.lanes = std::min(kPanelRows, w.rows() - p * kPanelRows);
      for (uint32_t t = first; t < last;) {
        // The last rows are split evenly instead of leaving a short tile behind full ones.
        const uint32_t left = last - t;
        const uint32_t rows = left <= kTileRows      ? left
                              : left < 2 * kTileRows ? (left + 1) / 2
                                                     : kTileRows;
        a.x = x + t * x_bytes;
        a.y = y + t * y_stride + p * kPanelRows;
        a.residual = residual ? residual + t * residual_stride + p * kPanelRows : nullptr;
        kTiles[rows - 1](a);
        t += rows;
      }
    }
  }
}

HWY_ATTR void MultiplyPanels(const PackedMatrix& w, const std::byte* x, uint32_t num, float* y,
                             size_t y_stride, const float* residual, size_t residual_stride,
                             uint32_t panel_begin, uint32_t panel_end) {
  if (w.wide()) {
    MultiplyTyped<true>(w, x, num, y, y_stride, residual, residual_stride, panel_begin, panel_end);
  } else {
    MultiplyTyped<false>(w, x, num, y, y_stride, residual, residual_stride, panel_begin, panel_end);
  }
}

inline Isa TargetIsa() {
#if HWY_TARGET <= HWY_AVX3
  return Isa::kAvx512;
#elif HWY_TARGET == HWY_AVX2
  return Isa::kAvx2;
#elif HWY_TARGET == HWY_NEON
  return Isa::kNeon;
#else
  return Isa::kBaseline;
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace kvlink::kernel
#if HWY_TARGET == HWY_AVX3_DL
#pragma GCC pop_options
#endif
HWY_AFTER_NAMESPACE();
#endif
