// bench_match: how well and at what cost a donor is found for a prompt that is similar to earlier
// ones. docs/similar.md has figures and how to read them.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "corpus.h"
#include "cost.h"
#include "kvlink/similar_options.h"
#include "prompts.h"
#include "quality.h"

namespace kvlink::bench {
namespace {

constexpr const char* kUsage =
    "usage: bench_match [--workload FILE.jsonl]... [--model FILE.gguf] [--window N] [--seed N]\n"
    "                   [--prefill-rate TOKENS_PER_S] [--donors N,N,...]\n"
    "Recall, precision and cost of finding donors, on workloads and on generated prompts.\n";

struct Options {
  std::vector<std::string> workloads;
  std::string model;
  SimilarOptions similar;
  uint64_t seed = 1;
  double prefill_rate = 3700;
  std::vector<uint64_t> donors = {1000, 100000, 1000000};
};

bool ParseNumber(const std::string& text, double* value) {
  char* end = nullptr;
  *value = std::strtod(text.c_str(), &end);
  return end != text.c_str() && *end == '\0' && *value >= 0;
}

bool ParseDonors(const std::string& text, std::vector<uint64_t>* donors) {
  donors->clear();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    double value = 0;
    if (!ParseNumber(text.substr(begin, end - begin), &value)) return false;
    if (value >= 1) donors->push_back(static_cast<uint64_t>(value));
    begin = end + 1;
  }
  return true;
}

// False: a message was printed.
bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (i + 1 == argc) {
      std::fprintf(stderr, "%s: %s\n%s", argv[i],
                   name == "--help" ? "" : "unknown, or without a value", kUsage);
      return false;
    }
    const std::string value = argv[++i];
    double number = 0;
    bool ok = true;
    if (name == "--workload") {
      options->workloads.push_back(value);
    } else if (name == "--model") {
      options->model = value;
    } else if (name == "--donors") {
      ok = ParseDonors(value, &options->donors);
    } else if (name == "--window" && (ok = ParseNumber(value, &number) && number >= 1)) {
      options->similar.fingerprint_window = static_cast<uint32_t>(number);
    } else if (name == "--seed" && (ok = ParseNumber(value, &number))) {
      options->seed = static_cast<uint64_t>(number);
    } else if (name == "--prefill-rate" && (ok = ParseNumber(value, &number) && number > 0)) {
      options->prefill_rate = number;
    } else {
      ok = false;
    }
    if (!ok) {
      std::fprintf(stderr, "%s %s: unknown option or bad value\n%s", argv[i - 1], value.c_str(),
                   kUsage);
      return false;
    }
  }
  return true;
}

// Revisions of texts of 150 to 1,500 words, among as many strangers.
Case NearDuplicates(Corpus& corpus, PromptTokenizer& tokenizer) {
  Case result{.name = "near duplicates", .items = {}};
  std::vector<Corpus::Text> originals;
  for (int i = 0; i < 150; ++i) {
    originals.push_back(corpus.Write(10 + corpus.random().Below(90)));
    for (const auto& text : {originals.back(), corpus.Write(10 + corpus.random().Below(90))}) {
      result.items.push_back({.tokens = tokenizer.EncodeChat(
                                  {{"user", Corpus::Join(text) + "\n" + corpus.Question()}}),
                              .is_query = false});
    }
  }
  for (const auto& text : originals) {
    const Corpus::Text revised = corpus.Revise(text);
    result.items.push_back({.tokens = tokenizer.EncodeChat(
                                {{"user", Corpus::Join(revised) + "\n" + corpus.Question()}}),
                            .is_donor = false});
  }
  return result;
}

// A clock, a template of about 300 tokens, and a body of about 100. Donors are strangers to each
// other. A query revises the body of one of them (that one is right), has a body of its own (any is
// right), or has neither (none is).
Case BehindOneTemplate(Corpus& corpus, PromptTokenizer& tokenizer, const char* name, int kind) {
  Case result{.name = name, .items = {}};
  const std::string policy = Corpus::Join(corpus.Write(17));
  std::vector<Corpus::Text> bodies;
  const auto prompt = [&](bool with_policy, const Corpus::Text& body) {
    return tokenizer.EncodeChat(
        {{"system", corpus.ClockLine() + (with_policy ? policy : Corpus::Join(corpus.Write(17)))},
         {"user", Corpus::Join(body)}});
  };
  for (int i = 0; i < 300; ++i) {
    bodies.push_back(corpus.Write(6));
    result.items.push_back({.tokens = prompt(true, bodies.back()), .is_query = false});
  }
  for (int i = 0; i < 150; ++i) {
    Corpus::Text body = corpus.Write(6);
    if (kind == 0) body = corpus.Revise(bodies[static_cast<size_t>(2 * i)]);
    result.items.push_back({.tokens = prompt(kind < 2, body), .is_donor = false});
  }
  return result;
}

void Print(const char* name, const Counts& counts) {
  std::printf("  %-16s %9u %7u %8.2f %9.2f\n", name, counts.returned, counts.right,
              100 * counts.recall(), 100 * counts.precision());
}

void Print(const Case& prompts, const Quality& quality) {
  std::printf(
      "%s: %u queries of %.0f tokens (mean; %.0f of them exact), %u have a donor with %.0f rows\n",
      prompts.name.c_str(), quality.index.queries, quality.mean_tokens, quality.mean_exact,
      quality.index.have_donor, quality.mean_best);
  Print("index", quality.index);
  Print("one minimum", quality.single_minimum);
}

int Run(const Options& options) {
  std::unique_ptr<PromptTokenizer> tokenizer = MakeWordTokenizer();
  if (!options.model.empty()) {
    auto loaded = LoadModelTokenizer(options.model);
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", loaded.status().ToString().c_str());
      return 2;
    }
    tokenizer = std::move(loaded.value());
  }
  std::vector<Case> cases;
  for (const std::string& path : options.workloads) {
    auto prompts = ReadPrompts(path, *tokenizer);
    if (!prompts.ok()) {
      std::fprintf(stderr, "%s\n", prompts.status().ToString().c_str());
      return 2;
    }
    Case workload{.name = path.substr(path.find_last_of('/') + 1), .items = {}};
    for (Tokens& tokens : *prompts) workload.items.push_back({.tokens = std::move(tokens)});
    cases.push_back(std::move(workload));
  }
  Corpus corpus(options.seed);
  cases.push_back(NearDuplicates(corpus, *tokenizer));
  cases.push_back(BehindOneTemplate(corpus, *tokenizer, "template, body revised", 0));
  cases.push_back(BehindOneTemplate(corpus, *tokenizer, "template, strangers", 1));
  cases.push_back(BehindOneTemplate(corpus, *tokenizer, "strangers", 2));
  const match::NormalTokens classes(tokenizer->Texts());
  const std::vector<uint8_t> special = tokenizer->Special();

  std::printf("tokenizer %s, window %u, seed %llu\n\n", tokenizer->name().c_str(),
              options.similar.fingerprint_window, static_cast<unsigned long long>(options.seed));
  std::printf("  %-16s %9s %7s %8s %9s\n", "found by", "returned", "right", "recall %",
              "precis. %");
  Quality all;
  for (const Case& prompts : cases) {
    const Quality quality = Measure(prompts, classes, special, options.similar);
    Print(prompts, quality);
    all.index += quality.index;
    all.single_minimum += quality.single_minimum;
  }
  std::printf("all:\n");
  Print("index", all.index);
  Print("one minimum", all.single_minimum);

  const double us_per_token = 1e6 / options.prefill_rate;
  std::printf("\nus per 1k tokens (CPU); %% of a prefill at %.0f tokens/s\n", options.prefill_rate);
  std::printf("%-28s %8s %8s %8s %8s %8s %9s %9s\n", "prompts", "tokens", "sketch", "find", "align",
              "lookup", "% prefill", "add");
  for (const Case& prompts : cases) {
    const PromptCost cost =
        MeasurePrompts(prompts, classes, special, us_per_token, options.similar);
    std::printf("%-28s %8.0f %8.1f %8.1f %8.1f %8.1f %9.4f %9.1f\n", prompts.name.c_str(),
                cost.tokens, cost.sketch_us, cost.find_us, cost.align_us, cost.lookup_us(),
                100 * cost.lookup_us() / (1000 * us_per_token), cost.add_us);
  }

  std::printf("\nlookup of 1,024 tokens, by donors in the store (us of CPU)\n");
  std::printf("%10s %10s %8s %10s %10s %10s %8s\n", "donors", "find", "vs first", "add", "erase",
              "bytes each", "found");
  double first = 0;
  for (const uint64_t num_donors : options.donors) {
    const StoreCost cost = MeasureStore(num_donors, options.seed, options.similar);
    if (first == 0) first = cost.find_us;
    std::printf("%10llu %10.1f %8.2f %10.1f %10.1f %10.0f %7.1f%%\n",
                static_cast<unsigned long long>(cost.num_donors), cost.find_us,
                cost.find_us / first, cost.add_us, cost.erase_us, cost.bytes_per_donor,
                100 * cost.found);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace kvlink::bench

int main(int argc, char** argv) {
  kvlink::bench::Options options;
  if (!kvlink::bench::Parse(argc, argv, &options)) return 2;
  return kvlink::bench::Run(options);
}
