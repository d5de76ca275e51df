// Activations of PackedMatmul: from floats to the format that a product reads, alone or fused with
// what comes before the product. Compiled once per instruction set (Highway's foreach_target
// pattern).
#if defined(KVLINK_KERNEL_PACKED_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_PACKED_QUANTIZE_INL_H_
#undef KVLINK_KERNEL_PACKED_QUANTIZE_INL_H_
#else
#define KVLINK_KERNEL_PACKED_QUANTIZE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kvlink::kernel {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Blocks without a larger value become zeros: 127 divided by it would be no number.
constexpr float kLeastMax = 1e-36f;

// 32 floats -> one block.
HWY_INLINE void EmitBlock(const float* HWY_RESTRICT x, QuantBlock& block) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<int8_t, decltype(df)> d8;
  constexpr size_t kLanes = hn::MaxLanes(df);
  auto largest = hn::Zero(df);
  for (size_t i = 0; i < kQuantBlock; i += kLanes)
    largest = hn::Max(largest, hn::Abs(hn::LoadU(df, x + i)));
  const float amax = hn::GetLane(hn::MaxOfLanes(df, largest));
  const auto inverse = hn::Set(df, amax > kLeastMax ? 127.0f / amax : 0.0f);
  auto first = hn::Zero(di), last = hn::Zero(di);
  for (size_t i = 0; i < kQuantBlock; i += kLanes) {
    const auto v = hn::NearestInt(hn::Mul(hn::LoadU(df, x + i), inverse));
    (i < kQuantBlock / 2 ? first : last) = hn::Add(i < kQuantBlock / 2 ? first : last, v);
    hn::StoreU(hn::DemoteTo(d8, v), d8, block.q + i);
  }
  const int32_t end_sum = hn::GetLane(hn::SumOfLanes(di, last));
  const int32_t sum = hn::GetLane(hn::SumOfLanes(di, first)) + end_sum;
  block.scale = amax / 127.0f;
  block.scaled_sum = block.scale * static_cast<float>(sum);
  block.minus_sum = -sum;
  block.minus_sum_end = -end_sum;
}

#if HWY_TARGET <= HWY_AVX3
// Two blocks at once, to the same bits: they share the steps of their reductions, which take longer
// than all the rest. Lanes 0 to 7 are of `a`, 8 to 15 of `b`; from the quantised bytes on, the
// quarters of a vector are the halves of blocks, {a, a, b, b}.
HWY_INLINE void EmitTwoBlocks(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                              QuantBlock& to_a, QuantBlock& to_b) {
  static_assert(offsetof(QuantBlock, scale) == 32 && offsetof(QuantBlock, minus_sum_end) == 44);
  const __m512 a0 = _mm512_loadu_ps(a), a1 = _mm512_loadu_ps(a + 16);
  const __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
  const __m512 of_a = _mm512_max_ps(_mm512_abs_ps(a0), _mm512_abs_ps(a1));
  const __m512 of_b = _mm512_max_ps(_mm512_abs_ps(b0), _mm512_abs_ps(b1));
  __m512 amax =
      _mm512_max_ps(_mm512_shuffle_f32x4(of_a, of_b, 0x44), _mm512_shuffle_f32x4(of_a, of_b, 0xee));
  amax = _mm512_max_ps(amax, _mm512_shuffle_f32x4(amax, amax, 0xb1));
  amax = _mm512_max_ps(amax, _mm512_permute_ps(amax, 0x4e));
  amax = _mm512_max_ps(amax, _mm512_permute_ps(amax, 0xb1));

  // {127 / amax of a, of b, amax / 127 of a, of b}: one division for all.
  const __m128 most =
      _mm_unpacklo_ps(_mm512_castps512_ps128(amax), _mm512_extractf32x4_ps(amax, 2));
  const __m128 full = _mm_set1_ps(127.0f);
  const __m128 divisor = _mm_blend_ps(most, full, 0xc);
  const __mmask8 positive = _mm_cmp_ps_mask(divisor, _mm_set1_ps(kLeastMax), _CMP_GT_OQ);
  const __m128 factors = _mm_maskz_div_ps(positive, _mm_blend_ps(most, full, 0x3), divisor);
  const __m512 inverse_a = _mm512_broadcastss_ps(factors);
  const __m512 inverse_b = _mm512_broadcastss_ps(_mm_permute_ps(factors, 0x55));
  const __m512 scale =
      _mm512_permutexvar_ps(_mm512_setr_epi32(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3),
                            _mm512_castps128_ps512(factors));

  const __m512i words_a = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(a0, inverse_a)),
                                             _mm512_cvtps_epi32(_mm512_mul_ps(a1, inverse_a)));
  const __m512i words_b = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(b0, inverse_b)),
                                             _mm512_cvtps_epi32(_mm512_mul_ps(b1, inverse_b)));
  const __m512i q = _mm512_permutexvar_epi32(
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
      _mm512_packs_epi16(words_a, words_b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to_a.q), _mm512_castsi512_si256(q));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to_b.q), _mm512_extracti64x4_epi64(q, 1));

  __m512i half =
      _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi8(1), q), _mm512_set1_epi16(1));
  half = _mm512_add_epi32(half, _mm512_shuffle_epi32(half, _MM_PERM_BADC));
  half = _mm512_add_epi32(half, _mm512_shuffle_epi32(half, _MM_PERM_CDAB));
  const __m512i sum = _mm512_add_epi32(half, _mm512_shuffle_i32x4(half, half, 0xb1));
  // {scale, scaled_sum, minus_sum, minus_sum_end} in every quarter; right in those of the ends.
  const __m512i zero = _mm512_setzero_si512();
  const __m512 floats = _mm512_mask_mul_ps(scale, 0x2222, scale, _mm512_cvtepi32_ps(sum));
  const __m512i minus_sums = _mm512_mask_sub_epi32(_mm512_castps_si512(floats), 0x4444, zero, sum);
  const __m512i all = _mm512_mask_sub_epi32(minus_sums, 0x8888, zero, half);
  constexpr size_t kBehindBytes = offsetof(QuantBlock, scale) / sizeof(__m128i);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(&to_a) + kBehindBytes,
                   _mm512_extracti32x4_epi32(all, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(&to_b) + kBehindBytes,
                   _mm512_extracti32x4_epi32(all, 3));
}
#else
HWY_INLINE void EmitTwoBlocks(const float* a, const float* b, QuantBlock& to_a, QuantBlock& to_b) {
  EmitBlock(a, to_a);
  EmitBlock(b, to_b);
}
#endif

// `inputs` floats, a multiple of 32 -> QuantBlocks.
HWY_ATTR inline void EmitInt8(const float* HWY_RESTRICT x, uint32_t inputs, QuantBlock* out) {
  const uint32_t blocks = inputs / kQuantBlock;
  uint32_t b = 0;
  for (; b + 1 < blocks; b += 2, x += 2 * kQuantBlock)
    EmitTwoBlocks(x, x + kQuantBlock, out[b], out[b + 1]);
  if (b < blocks) EmitBlock(x, out[b]);
}

HWY_ATTR inline void EmitBF16(const float* HWY_RESTRICT x, uint32_t inputs,
                              uint16_t* HWY_RESTRICT out) {
  for (uint32_t i = 0; i < inputs; i++) out[i] = F32ToBF16(x[i]);
  if (inputs % 2 != 0) out[inputs] = 0;
}

HWY_ATTR inline void Emit(InputFormat format, const float* x, uint32_t inputs, std::byte* out) {
  switch (format) {
    case InputFormat::kInt8:
      return EmitInt8(x, inputs, reinterpret_cast<QuantBlock*>(out));
    case InputFormat::kBF16:
      return EmitBF16(x, inputs, reinterpret_cast<uint16_t*>(out));
    case InputFormat::kF32:
      std::memcpy(out, x, inputs * sizeof(float));
  }
}

// Where a row of floats is made before it is emitted: `out` itself where the format is float.
inline float* RowOfFloats(InputFormat format, uint32_t inputs, std::byte* out) {
  if (format == InputFormat::kF32) return reinterpret_cast<float*>(out);
  thread_local std::vector<float> scratch;
  if (scratch.size() < inputs) scratch.resize(inputs);
  return scratch.data();
}

HWY_ATTR void QuantizeRows(InputFormat format, const float* x, size_t x_stride, uint32_t inputs,
                           std::byte* out, uint32_t begin, uint32_t end) {
  const size_t bytes = InputRowBytes(format, inputs);
  for (uint32_t r = begin; r < end; r++) Emit(format, x + r * x_stride, inputs, out + r * bytes);
}

HWY_ATTR void RmsNormQuantizeRows(InputFormat format, const float* x, size_t x_stride,
                                  uint32_t inputs, const float* weight, float eps, std::byte* out,
                                  uint32_t begin, uint32_t end) {
  const hn::CappedTag<float, 16> df;
  constexpr size_t kLanes = hn::MaxLanes(df);
  const size_t whole = inputs / kLanes * kLanes;
  const size_t bytes = InputRowBytes(format, inputs);
  for (uint32_t r = begin; r < end; r++) {
    const float* row = x + r * x_stride;
    auto squares = hn::Zero(df);
    for (size_t i = 0; i < whole; i += kLanes) {
      const auto v = hn::LoadU(df, row + i);
      squares = hn::MulAdd(v, v, squares);
    }
    float sum = hn::GetLane(hn::SumOfLanes(df, squares));
    for (size_t i = whole; i < inputs; i++) sum += row[i] * row[i];
    const float factor = 1.0f / __builtin_sqrtf(sum / static_cast<float>(inputs) + eps);
    float* y = RowOfFloats(format, inputs, out + r * bytes);
    const auto factors = hn::Set(df, factor);
    for (size_t i = 0; i < whole; i += kLanes) {
      hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(df, row + i), factors), hn::LoadU(df, weight + i)), df,
                 y + i);
    }
    for (size_t i = whole; i < inputs; i++) y[i] = row[i] * factor * weight[i];
    if (format != InputFormat::kF32) Emit(format, y, inputs, out + r * bytes);
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
#if HWY_TARGET <= HWY_AVX3
  if constexpr (hn::MaxLanes(D()) == 16) return V{_mm512_scalef_ps(p.raw, n.raw)};
#endif
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::Mul(p, hn::BitCast(df, exponent));
}

// silu(gate) * up
template <class D>
HWY_ATTR inline void SwiGlu(D df, const float* gate, const float* up, float* y) {
  const auto g = hn::LoadU(df, gate);
  const auto silu = hn::Div(g, hn::Add(hn::Set(df, 1.0f), Exp(df, hn::Neg(g))));
  hn::StoreU(hn::Mul(silu, hn::LoadU(df, up)), df, y);
}

// Blocks of silu(gate) * up, one of each of `rows` rows: gates and ups [rows, kQuantBlock]. Gates
// are overwritten.
HWY_ATTR inline void EmitGated(float* gates, const float* ups, uint32_t rows, std::byte* out,
                               size_t stride) {
  const hn::CappedTag<float, 16> df;
  constexpr size_t kLanes = hn::MaxLanes(df);
  const auto gated = [&](uint32_t r) HWY_ATTR {
    float* gate = gates + r * kQuantBlock;
    const float* up = ups + r * kQuantBlock;
    for (size_t i = 0; i < kQuantBlock; i += kLanes) SwiGlu(df, gate + i, up + i, gate + i);
    return gate;
  };
  const auto block = [&](uint32_t r) -> QuantBlock& {
    return *reinterpret_cast<QuantBlock*>(out + r * stride);
  };
  uint32_t r = 0;
  for (; r + 1 < rows; r += 2) {
    const float *a = gated(r), *b = gated(r + 1);
    EmitTwoBlocks(a, b, block(r), block(r + 1));
  }
  if (r < rows) EmitBlock(gated(r), block(r));
}

HWY_ATTR void SwiGluQuantizeRows(InputFormat format, const float* x, size_t x_stride,
                                 uint32_t inputs, std::byte* out, uint32_t begin, uint32_t end) {
  const hn::CappedTag<float, 16> df;
  const hn::CappedTag<float, 1> d1;
  constexpr size_t kLanes = hn::MaxLanes(df);
  const size_t whole = inputs / kLanes * kLanes;
  const size_t bytes = InputRowBytes(format, inputs);
  for (uint32_t r = begin; r < end; r++) {
    const float* gate = x + r * x_stride;
    const float* up = gate + inputs;
    float* y = RowOfFloats(format, inputs, out + r * bytes);
    for (size_t i = 0; i < whole; i += kLanes) SwiGlu(df, gate + i, up + i, y + i);
    for (size_t i = whole; i < inputs; i++) SwiGlu(d1, gate + i, up + i, y + i);
    if (format != InputFormat::kF32) Emit(format, y, inputs, out + r * bytes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvlink::kernel
HWY_AFTER_NAMESPACE();
#endif
