// Matrix products alone: kernel::Multiply by weight type and number of rows, in the shapes of
// SmolLM2-135M and of a model of 1B, beside what this core can multiply at most and beside ggml's
// own product of the same weights. No model file is needed.
//
//   product_bench [--types q4_1,q6_K] [--rows 1,10,512] [--shapes 576x3072] [--ms 60] [--cold]
//
// Everything runs on one thread and is timed by that thread's CPU time; the peak, our product and
// ggml's take turns, five rounds, and medians are printed. The peak is a loop of nothing but the
// dot product that the path uses (vpdpbusd; vpmaddubsw and vpaddw; FMA or vdpbf16ps for floats).
// `--cold` walks through copies of the weights of 256 MiB in all, so that they come from memory, as
// in decoding a model that no cache holds, and prints what a plain loop reads from there.
// KVLINK_ISA=avx2 lowers both sides.
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "kernel/isa.h"
#include "kernel/packed_matmul.h"
#include "model/cpu_backend.h"

namespace kvlink {
namespace {

constexpr int kRounds = 5;
constexpr size_t kColdBytes = size_t{256} << 20;

struct Type {
  const char* name;
  ggml_type ggml;
  kernel::WeightType packed;
};

constexpr Type kTypes[] = {
    {"q4_0", GGML_TYPE_Q4_0, kernel::WeightType::kQ4_0},
    {"q4_1", GGML_TYPE_Q4_1, kernel::WeightType::kQ4_1},
    {"q5_0", GGML_TYPE_Q5_0, kernel::WeightType::kQ5_0},
    {"q5_1", GGML_TYPE_Q5_1, kernel::WeightType::kQ5_1},
    {"q8_0", GGML_TYPE_Q8_0, kernel::WeightType::kQ8_0},
    {"q4_K", GGML_TYPE_Q4_K, kernel::WeightType::kQ4_K},
    {"q5_K", GGML_TYPE_Q5_K, kernel::WeightType::kQ5_K},
    {"q6_K", GGML_TYPE_Q6_K, kernel::WeightType::kQ6_K},
    {"f16", GGML_TYPE_F16, kernel::WeightType::kF16},
    {"bf16", GGML_TYPE_BF16, kernel::WeightType::kBF16},
    {"f32", GGML_TYPE_F32, kernel::WeightType::kF32},
};

struct Shape {
  uint32_t inputs, outputs;
};

double CpuSeconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Products a second of `work`, which does `macs` of them, repeated for about `seconds`.
double Rate(double macs, double seconds, const std::function<void()>& work) {
  int64_t repeats = 0;
  double used = 0;
  const double begin = CpuSeconds();
  for (int64_t batch = 1; used < seconds; batch = std::max<int64_t>(1, repeats / 4)) {
    for (int64_t i = 0; i < batch; ++i) work();
    repeats += batch;
    used = CpuSeconds() - begin;
  }
  return macs * static_cast<double>(repeats) / used;
}

// ---- peaks: nothing but independent accumulators, operands in registers

constexpr int kPeakSteps = 1000, kAccumulators = 12;
struct Peak {
  void (*run)();
  double macs;  // of one run
};
#define KVLINK_UNROLL _Pragma("GCC unroll 16")

__attribute__((target("avx512f,avx512bw,avx512vnni"))) void DotVnni() {
  __m512i acc[kAccumulators] = {};
  const __m512i x = _mm512_set1_epi8(3);
  for (int i = 0; i < kPeakSteps; ++i) {
    KVLINK_UNROLL for (int k = 0; k < kAccumulators;
                       ++k) asm volatile("vpdpbusd %1, %1, %0" : "+v"(acc[k]) : "v"(x));
  }
}

__attribute__((target("avx512f,avx512bw"))) void DotAvx512() {
  __m512i acc[kAccumulators] = {}, product;
  const __m512i x = _mm512_set1_epi8(3);
  for (int i = 0; i < kPeakSteps; ++i) {
    KVLINK_UNROLL for (int k = 0; k < kAccumulators; ++k) asm volatile(
        "vpmaddubsw %2, %2, %1\n vpaddw %1, %0, %0" : "+v"(acc[k]), "=&v"(product) : "v"(x));
  }
}

__attribute__((target("avx512f"))) void FmaAvx512() {
  __m512 acc[kAccumulators] = {};
  const __m512 x = _mm512_set1_ps(1);
  for (int i = 0; i < kPeakSteps; ++i) {
    KVLINK_UNROLL for (int k = 0; k < kAccumulators;
                       ++k) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(acc[k]) : "v"(x));
  }
}

__attribute__((target("avx512f,avx512bf16"))) void DotBF16() {
  __m512 acc[kAccumulators] = {};
  const __m512 x = _mm512_set1_ps(1);
  for (int i = 0; i < kPeakSteps; ++i) {
    KVLINK_UNROLL for (int k = 0; k < kAccumulators;
                       ++k) asm volatile("vdpbf16ps %1, %1, %0" : "+v"(acc[k]) : "v"(x));
  }
}

__attribute__((target("avx2"))) void DotAvx2() {
  __m256i acc[kAccumulators] = {}, product;
  const __m256i x = _mm256_set1_epi8(3);
  for (int i = 0; i < kPeakSteps; ++i) {
    KVLINK_UNROLL for (int k = 0; k < kAccumulators; ++k) asm volatile(
        "vpmaddubsw %2, %2, %1\n vpaddw %1, %0, %0" : "+x"(acc[k]), "=&x"(product) : "x"(x));
  }
}

__attribute__((target("avx2,fma"))) void FmaAvx2() {
  __m256 acc[kAccumulators] = {};
  const __m256 x = _mm256_set1_ps(1);
  for (int i = 0; i < kPeakSteps; ++i) {
    KVLINK_UNROLL for (int k = 0; k < kAccumulators;
                       ++k) asm volatile("vfmadd231ps %1, %1, %0" : "+x"(acc[k]) : "x"(x));
  }
}

Peak PeakOf(kernel::WeightType type) {
  constexpr double kInstructions = double{kPeakSteps} * kAccumulators;
  const bool avx512 = kernel::CurrentIsa() == kernel::Isa::kAvx512;
  const kernel::InputFormat format = kernel::FormatOf(type);
  if (format == kernel::InputFormat::kBF16) return {DotBF16, kInstructions * 32};
  if (format == kernel::InputFormat::kF32)
    return {avx512 ? FmaAvx512 : FmaAvx2, kInstructions * (avx512 ? 16 : 8)};
  if (avx512 && __builtin_cpu_supports("avx512vnni")) return {DotVnni, kInstructions * 64};
  return {avx512 ? DotAvx512 : DotAvx2, kInstructions * (avx512 ? 64 : 32)};
}

// Bytes a second that a core reads from memory: a buffer, in huge pages as packed weights are, that
// no cache holds.
__attribute__((target("avx2"))) double ReadBandwidth() {
  static const char* const buffer = [] {
    constexpr size_t kHugePage = size_t{2} << 20;
    void* memory = std::aligned_alloc(kHugePage, kColdBytes);
    if (memory == nullptr) std::exit(1);
    madvise(memory, kColdBytes, MADV_HUGEPAGE);
    std::memset(memory, 1, kColdBytes);
    return static_cast<const char*>(memory);
  }();
  const double begin = CpuSeconds();
  __m256i value;
  for (size_t at = 0; at < kColdBytes; at += 256) {
    KVLINK_UNROLL for (size_t i = 0; i < 256; i += 32) asm volatile("vmovdqa %1, %0" : "=x"(value) :
                                                                    "m"(*(buffer + at + i)));
  }
  return static_cast<double>(kColdBytes) / (CpuSeconds() - begin);
}

// ---- the two products

// Weights of one matrix in ggml's layout, as often as `copies`; every copy is the same.
std::vector<std::byte> RandomWeights(const Type& type, Shape shape) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(size_t{shape.inputs} * shape.outputs);
  for (float& v : values) v = normal(rng);
  std::vector<std::byte> bytes(ggml_row_size(type.ggml, shape.inputs) * shape.outputs);
  ggml_quantize_chunk(type.ggml, values.data(), bytes.data(), 0, shape.outputs, shape.inputs,
                      nullptr);
  return bytes;
}

size_t CopiesOf(const Type& type, Shape shape, bool cold) {
  const size_t bytes = ggml_row_size(type.ggml, shape.inputs) * shape.outputs;
  return cold ? (kColdBytes + bytes - 1) / bytes : 1;
}

class Ours {
 public:
  Ours(const Type& type, Shape shape, size_t copies, const std::vector<std::byte>& weights) {
    const kernel::PackedMatrix::Source source{type.packed, weights.data(), shape.outputs, nullptr};
    for (size_t i = 0; i < copies; ++i) {
      auto packed = kernel::PackedMatrix::Pack(shape.inputs, {&source, 1}, 1);
      if (!packed.ok()) std::fprintf(stderr, "%s\n", packed.status().message().c_str());
      if (!packed.ok()) std::exit(1);
      matrices_.push_back(*std::move(packed));
    }
  }
  void SetRows(const std::vector<float>& x, uint32_t rows) {
    const kernel::PackedMatrix& w = matrices_[0];
    const size_t bytes = kernel::InputRowBytes(w.format(), w.inputs());
    x_.resize(rows * bytes);
    kernel::Quantize(w.format(), x.data(), w.inputs(), w.inputs(), x_.data(), 0, rows);
    input_ = {x_.data(), bytes, rows};
    y_.resize(size_t{rows} * w.rows());
  }
  void Multiply() {
    const kernel::PackedMatrix& w = matrices_[next_++ % matrices_.size()];
    kernel::Multiply(w, input_, y_.data(), w.rows(), nullptr, 0, 0, w.panels());
  }
  size_t bytes() const { return matrices_[0].bytes(); }

 private:
  std::vector<kernel::PackedMatrix> matrices_;
  std::vector<std::byte> x_;
  std::vector<float> y_;
  kernel::InputRows input_;
  size_t next_ = 0;
};

// ggml_mul_mat as its CPU backend computes it where neither repacking nor llamafile's products are
// built in, which is how kvlink uses it.
class Ggml {
 public:
  Ggml(const Type& type, Shape shape, size_t copies, const std::vector<std::byte>& weights)
      : type_(type), shape_(shape), copies_(copies), weights_(weights) {
    auto compute = model::Compute::Create(1);
    if (!compute.ok()) std::fprintf(stderr, "%s\n", compute.status().message().c_str());
    if (!compute.ok()) std::exit(1);
    compute_ = *std::move(compute);
    for (size_t i = 1; i < copies; ++i)
      weights_.insert(weights_.end(), weights.begin(), weights.end());
  }
  ~Ggml() { Clear(); }
  Ggml(const Ggml&) = delete;
  Ggml& operator=(const Ggml&) = delete;

  void SetRows(const std::vector<float>& x, uint32_t rows) {
    Clear();
    const size_t overhead = ggml_tensor_overhead() * 8 + ggml_graph_overhead_custom(4, false);
    const size_t floats = size_t{rows} * (shape_.inputs + shape_.outputs) * sizeof(float);
    context_ = ggml_init({overhead * copies_ + floats + 4096, nullptr, /*no_alloc=*/false});
    ggml_tensor* input = ggml_new_tensor_2d(context_, GGML_TYPE_F32, shape_.inputs, rows);
    ggml_tensor* output = ggml_new_tensor_2d(context_, GGML_TYPE_F32, shape_.outputs, rows);
    std::memcpy(input->data, x.data(), ggml_nbytes(input));
    ggml_set_no_alloc(context_, true);
    for (size_t i = 0; i < copies_; ++i) {
      ggml_tensor* w = ggml_new_tensor_2d(context_, type_.ggml, shape_.inputs, shape_.outputs);
      w->data = weights_.data() + i * (weights_.size() / copies_);
      ggml_tensor* product = ggml_mul_mat(context_, w, input);
      product->data = output->data;
      graphs_.push_back(ggml_new_graph_custom(context_, 4, false));
      ggml_build_forward_expand(graphs_.back(), product);
    }
  }
  void Multiply() {
    ggml_backend_graph_compute(compute_->backend(), graphs_[next_++ % graphs_.size()]);
  }

 private:
  void Clear() {
    if (context_ != nullptr) ggml_free(context_);
    graphs_.clear();
    next_ = 0;
  }

  const Type& type_;
  const Shape shape_;
  const size_t copies_;
  std::vector<std::byte> weights_;
  std::unique_ptr<model::Compute> compute_;
  ggml_context* context_ = nullptr;
  std::vector<ggml_cgraph*> graphs_;
  size_t next_ = 0;
};

// ---- the table

struct Options {
  std::vector<std::string> types;
  std::vector<uint32_t> rows = {1, 4, 10, 32, 512};
  std::vector<Shape> shapes = {{576, 960}, {576, 3072}, {1536, 576}, {2048, 8192}};
  double seconds = 0.03;
  bool cold = false;
};

void RunCase(const Options& options, const Type& type, Shape shape) {
  const size_t copies = CopiesOf(type, shape, options.cold);
  const auto weights = RandomWeights(type, shape);
  Ours ours(type, shape, copies, weights);
  Ggml ggml(type, shape, copies, weights);
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  for (const uint32_t rows : options.rows) {
    std::vector<float> x(size_t{rows} * shape.inputs);
    for (float& v : x) v = normal(rng);
    ours.SetRows(x, rows);
    ggml.SetRows(x, rows);
    const Peak peak = PeakOf(type.packed);
    const double macs = static_cast<double>(rows) * shape.inputs * shape.outputs;
    std::vector<double> peaks, our_rates, ggml_rates, shares, ratios, bandwidths;
    for (int round = 0; round < kRounds; ++round) {
      peaks.push_back(Rate(peak.macs, options.seconds / 4, peak.run));
      bandwidths.push_back(options.cold ? ReadBandwidth() : 0);
      our_rates.push_back(Rate(macs, options.seconds, [&] { ours.Multiply(); }));
      ggml_rates.push_back(Rate(macs, options.seconds, [&] { ggml.Multiply(); }));
      shares.push_back(our_rates.back() / peaks.back());
      ratios.push_back(our_rates.back() / ggml_rates.back());
    }
    const double gbytes = Median(our_rates) / macs * static_cast<double>(ours.bytes()) * 1e-9;
    std::printf("| %-5s | %4ux%-5u | %4u | %7.1f | %5.0f | %3.0f %% | %6.1f | %7.1f | %5.2f |\n",
                type.name, shape.inputs, shape.outputs, rows, Median(our_rates) * 1e-9,
                Median(peaks) * 1e-9, 100 * Median(shares), gbytes, Median(ggml_rates) * 1e-9,
                Median(ratios));
    if (options.cold) {
      std::printf("  memory %.1f GB/s, of which our product takes %.0f %%\n",
                  Median(bandwidths) * 1e-9, 100e9 * gbytes / Median(bandwidths));
    }
    std::fflush(stdout);
  }
}

std::vector<std::string> Split(const char* text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--cold") {
      options->cold = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const auto values = Split(argv[++i]);
    if (flag == "--types") {
      options->types = values;
    } else if (flag == "--ms") {
      options->seconds = std::atof(argv[i]) * 1e-3;
    } else if (flag == "--rows") {
      options->rows.clear();
      for (const auto& v : values) options->rows.push_back(static_cast<uint32_t>(std::stoul(v)));
    } else if (flag == "--shapes") {
      options->shapes.clear();
      for (const auto& v : values) {
        Shape shape = {};
        if (std::sscanf(v.c_str(), "%ux%u", &shape.inputs, &shape.outputs) != 2) return false;
        options->shapes.push_back(shape);
      }
    } else {
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(
        stderr,
        "usage: product_bench [--types q4_1,...] [--rows 1,10,...] [--shapes 576x3072,...] "
        "[--ms 30] [--cold]\n");
    return 2;
  }
  if (const Status status = kernel::ApplyIsaEnvironment(); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  std::printf("kernels: %s; rates in GMAC/s of one core, GB/s of weights\n\n",
              kernel::IsaName(kernel::CurrentIsa()));
  std::printf(
      "| type  | in x out   | rows |    ours |  peak | share |   GB/s |    ggml | ratio |\n");
  std::printf(
      "|-------|------------|-----:|--------:|------:|------:|-------:|--------:|------:|\n");
  for (const Type& type : kTypes) {
    const auto& wanted = options.types;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), type.name) == wanted.end())
      continue;
    for (const Shape shape : options.shapes) {
      if (shape.inputs % ggml_blck_size(type.ggml) == 0) RunCase(options, type, shape);
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvlink

int main(int argc, char** argv) { return kvlink::Main(argc, argv); }
