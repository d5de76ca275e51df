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

// `inputs` floats, a multiple of 32 -> QuantBlocks.
HWY_ATTR inline void EmitInt8(const float* HWY_RESTRICT x, uint32_t inputs, QuantBlock* out) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<int8_t, decltype(df)> d8;
  constexpr size_t kLanes = hn::MaxLanes(df);
  for (uint32_t b = 0; b < inputs / kQuantBlock; b++, x += kQuantBlock) {
    QuantBlock& block = out[b];
    auto largest = hn::Zero(df);
    for (size_t i = 0; i < kQuantBlock; i += kLanes)
      largest = hn::Max(largest, hn::Abs(hn::LoadU(df, x + i)));
    const float amax = hn::GetLane(hn::MaxOfLanes(df, largest));
    const auto inverse = hn::Set(df, amax > 0 ? 127.0f / amax : 0.0f);
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
