// Distance of the engine's steps to what this machine allows, as Markdown tables.
//
//   roofline [--model FILE] [--kv-type f16,bf16,q8_0] [--threads N] [--clock wall|cpu]
//            [--ops LIST] [--rounds N]
//
// Peaks are measured in the same run (bench/peaks.h), before and after the steps; the higher ones
// count. A step must at least read every weight once and the K and V of every token once (of a
// shared token once for all sequences), and must multiply: for each row all weights but the
// embedding (the output's only where logits are wanted) and twice head_dim for every query head,
// layer and token seen. Attention multiplies at the FMA peak with F16, at the BF16 peak with BF16
// where there is one, and with Q8_0 scores at the int8 peak and values at half of it. The bound is
// the larger of reading and multiplying; norms, softmax, rope, quantising and the graph are free in
// it. --clock cpu counts the process's CPU time instead, on one thread, for a machine that has
// other work.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench_ops.h"
#include "cli/machine.h"
#include "cli/model_file.h"
#include "peaks.h"

namespace kvlink {
namespace {

constexpr const char* kOps =
    "prefill:512,prefill:2048,decode:512,decode:2048,decode:7168,shared:10x2048,distinct:10x2048,"
    "shared:32x2048,shared:10x7168";

struct Options {
  std::string model, kv_types = "f16", ops = kOps;
  int threads = 1;
  uint32_t rounds = 5;
  Clock clock = Clock::kWall;
};

// What a step must move and multiply.
struct Work {
  double bytes = 0;
  double products = 0;  // multiply-adds with weights
  double attention = 0;
  double tokens = 0;  // that the step yields
};

class Roofline {
 public:
  Roofline(const model::Model& model, uint32_t decode_tokens)
      : info_(model.info()), kv_(model.kv_shape()), decode_tokens_(decode_tokens) {}

  Work Of(const cli::OpSpec& op) const {
    const double heads = info_.num_heads * double{1} * info_.head_dim * info_.num_layers * 2;
    const double output = double{1} * info_.vocab_size * info_.embedding;
    const double token_bytes = static_cast<double>(kv_.token_bytes());
    const double n = op.context;
    Work work;
    work.bytes = static_cast<double>(info_.file_bytes);
    if (op.kind == cli::OpSpec::Kind::kPrefill) {
      work.tokens = n;
      work.products = n * LayerWeights() + output;
      work.attention = heads * n * (n + 1) / 2;
      work.bytes += n * token_bytes;
      return work;
    }
    // The middle of the tokens that are decoded.
    const double sequences = op.sequences, own = decode_tokens_ / 2.0;
    const bool shared = op.kind == cli::OpSpec::Kind::kShared;
    work.tokens = sequences;
    work.products = sequences * (LayerWeights() + output);
    work.attention = heads * sequences * (n + own);
    work.bytes += token_bytes * (shared ? n + sequences * own : sequences * (n + own));
    return work;
  }

  // Seconds.
  double Multiply(const Work& work, const Peaks& peaks) const {
    const double int8 = peaks.int8_gmac_per_s * 1e9, fma = peaks.fma_gmac_per_s * 1e9;
    const double bf16 = peaks.bf16_gmac_per_s > 0 ? peaks.bf16_gmac_per_s * 1e9 : fma;
    const double half = work.attention / 2;
    double attention = work.attention / fma;
    if (kv_.type == KvType::kBF16) attention = work.attention / bf16;
    if (kv_.type == KvType::kQ8_0) attention = half / int8 + half / (int8 / 2);
    return work.products / int8 + attention;
  }

 private:
  double LayerWeights() const {
    const double e = info_.embedding, q = double{1} * info_.num_heads * info_.head_dim;
    const double kv = double{1} * info_.num_kv_heads * info_.head_dim;
    return info_.num_layers * (e * (2 * q + 2 * kv) + 3 * e * info_.feed_forward);
  }

  const model::ModelInfo& info_;
  const KvShape& kv_;
  const uint32_t decode_tokens_;
};

Peaks Higher(const Peaks& a, const Peaks& b) {
  return {std::max(a.read_gb_per_s, b.read_gb_per_s), std::max(a.fma_gmac_per_s, b.fma_gmac_per_s),
          std::max(a.int8_gmac_per_s, b.int8_gmac_per_s),
          std::max(a.bf16_gmac_per_s, b.bf16_gmac_per_s)};
}

void PrintPeaks(const Options& options, const Peaks& peaks) {
  std::printf("%s, %d thread%s, %s time; %s.\n\n", cli::CpuName().c_str(), options.threads,
              options.threads == 1 ? "" : "s", options.clock == Clock::kWall ? "wall" : "CPU",
              PeakInstructions().c_str());
  std::printf("| read | FMA | BF16 | int8 |\n|---|---|---|---|\n");
  std::printf("| %.1f GB/s | %.0f GMAC/s | %.0f GMAC/s | %.0f GMAC/s |\n\n", peaks.read_gb_per_s,
              peaks.fma_gmac_per_s, peaks.bf16_gmac_per_s, peaks.int8_gmac_per_s);
}

double Best(const Options& options, const cli::OpFigures& figures) {
  if (options.clock == Clock::kWall)
    return 1 / *std::max_element(figures.tok_per_s.begin(), figures.tok_per_s.end());
  return *std::min_element(figures.cpu_us_per_tok.begin(), figures.cpu_us_per_tok.end()) * 1e-6;
}

struct Measured {
  std::string kv_type;
  std::unique_ptr<model::Model> model;
  std::vector<cli::OpSpec> ops;
  std::vector<cli::OpFigures> figures;
};

void PrintSteps(const Options& options, const Measured& m, const Peaks& peaks,
                uint32_t decode_tokens) {
  const Roofline roofline(*m.model, decode_tokens);
  std::printf(
      "| %s | tok/s | step | MB | GMAC | reading alone | multiplying alone | share of the bound | "
      "products of int8 peak |\n|---|---|---|---|---|---|---|---|---|\n",
      m.kv_type.c_str());
  for (size_t i = 0; i < m.ops.size(); i++) {
    const Work work = roofline.Of(m.ops[i]);
    const double seconds = Best(options, m.figures[i]) * work.tokens;
    const double read = work.bytes / (peaks.read_gb_per_s * 1e9);
    const double multiply = roofline.Multiply(work, peaks);
    std::printf("| %s | %.0f | %.2f ms | %.0f | %.2f | %.2f ms | %.2f ms | %.0f %% | %.0f %% |\n",
                m.ops[i].name.c_str(), work.tokens / seconds, seconds * 1e3, work.bytes / 1e6,
                (work.products + work.attention) / 1e9, read * 1e3, multiply * 1e3,
                100 * std::max(read, multiply) / seconds,
                100 * work.products / seconds / (peaks.int8_gmac_per_s * 1e9));
  }
  std::printf("\n");
}

int Run(const Options& options) {
  const auto fail = [](const Status& status) {
    std::fprintf(stderr, "roofline: %s\n", status.ToString().c_str());
    return 1;
  };
  cli::OpsOptions ops_options;
  ops_options.threads = options.threads;
  ops_options.rounds = options.rounds;
  const auto ops = cli::ParseOps(options.ops);
  if (!ops.ok()) return fail(ops.status());
  Peaks peaks = MeasurePeaks(options.threads, options.clock, 5);
  std::vector<Measured> all;
  for (size_t begin = 0; begin < options.kv_types.size();) {
    const size_t end = std::min(options.kv_types.find(',', begin), options.kv_types.size());
    Measured m;
    m.kv_type = options.kv_types.substr(begin, end - begin);
    auto model = cli::OpenModel(options.model, m.kv_type, /*quiet=*/true);
    if (!model.ok()) return fail(model.status());
    m.model = *std::move(model);
    m.ops = *ops;
    auto figures = cli::MeasureOps(*m.model, *ops, ops_options, [](size_t) {});
    if (!figures.ok()) return fail(figures.status());
    m.figures = *std::move(figures);
    all.push_back(std::move(m));
    begin = end + 1;
  }
  peaks = Higher(peaks, MeasurePeaks(options.threads, options.clock, 5));
  PrintPeaks(options, peaks);
  for (const Measured& m : all) PrintSteps(options, m, peaks, ops_options.decode_tokens);
  return 0;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--model") {
      options.model = value;
    } else if (name == "--kv-type") {
      options.kv_types = value;
    } else if (name == "--threads") {
      options.threads = std::max(1, std::atoi(value.c_str()));
    } else if (name == "--rounds") {
      options.rounds = static_cast<uint32_t>(std::max(1, std::atoi(value.c_str())));
    } else if (name == "--ops") {
      options.ops = value;
    } else if (name == "--clock" && (value == "wall" || value == "cpu")) {
      options.clock = value == "wall" ? Clock::kWall : Clock::kCpu;
    } else {
      std::fprintf(stderr, "roofline: '%s %s' is no option\n", name.c_str(), value.c_str());
      return 2;
    }
  }
  if (options.clock == Clock::kCpu && options.threads != 1) {
    std::fprintf(stderr, "roofline: --clock cpu counts one thread, not %d\n", options.threads);
    return 2;
  }
  return Run(options);
}

}  // namespace
}  // namespace kvlink

int main(int argc, char** argv) { return kvlink::Main(argc, argv); }
