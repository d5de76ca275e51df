// grammar_bench MODEL.gguf: what it costs to hold a model to a grammar, beside libllama's grammar
// sampler, over the model's own vocabulary. CPU time of this thread; medians over the steps of a
// text.
//
//   first   a mask of a state that was not seen before (a walk of the vocabulary's trie)
//   again   the same masks asked for again, by another request
//   check   whether one token is allowed: all that a greedy step needs, most of the time
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "grammar/library.h"
#include "llama.h"
#include "model/llama_tokenizer.h"

namespace kvlink::bench {
namespace {

constexpr const char* kJson = R"(root ::= object
value ::= object | array | string | number | boolean | null
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
char ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})
string ::= "\"" char* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})? ws
boolean ::= ("true" | "false") ws
null ::= "null" ws
ws ::= | " " | "\n" [ \t]{0,20}
)";
constexpr const char* kJsonText =
    R"({"name": "Ann Lee", "age": 42, "tags": ["red", "green"], "home": {"city": "Oslo", "zip": null}})";

constexpr const char* kBounded = "root ::= \"\\\"\" [^\"\\\\]{0,200} \"\\\"\"";
constexpr const char* kBoundedText =
    R"("The quick brown fox jumps over the lazy dog, and then some.")";

constexpr const char* kChoice = R"(root ::= "\"" ("positive" | "negative" | "neutral") "\"")";
constexpr const char* kChoiceText = R"("neutral")";

double ThreadMicroseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

template <typename Work>
double Time(const Work& work) {
  const double begin = ThreadMicroseconds();
  work();
  return ThreadMicroseconds() - begin;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Figures {
  std::vector<double> first, again, check, llama;
};

void Walk(const std::shared_ptr<grammar::Grammar>& compiled, const std::vector<TokenId>& tokens,
          std::vector<double>* masks, std::vector<double>* checks) {
  grammar::Matcher matcher(compiled);
  grammar::TokenMask mask;
  for (const TokenId token : tokens) {
    masks->push_back(Time([&] { matcher.FillMask(&mask); }));
    if (checks != nullptr) checks->push_back(Time([&] { (void)matcher.Allows(token); }));
    if (!matcher.Accept(token)) std::printf("token %d was refused\n", token);
  }
}

void WalkLlama(const llama_vocab* vocabulary, const char* text, const std::vector<TokenId>& tokens,
               std::vector<double>* times) {
  llama_sampler* sampler = llama_sampler_init_grammar(vocabulary, text, "root");
  if (sampler == nullptr) return;
  std::vector<llama_token_data> data(static_cast<size_t>(llama_vocab_n_tokens(vocabulary)));
  for (const TokenId token : tokens) {
    for (size_t i = 0; i < data.size(); ++i) data[i] = {static_cast<TokenId>(i), 1.0f, 0.0f};
    llama_token_data_array array = {data.data(), data.size(), -1, false};
    times->push_back(Time([&] { llama_sampler_apply(sampler, &array); }));
    llama_sampler_accept(sampler, token);
  }
  llama_sampler_free(sampler);
}

int Run(const char* path) {
  model::LoadOptions options;
  options.path = path;
  const auto loaded = model::Model::Load(options);
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", loaded.status().message().c_str());
    return 1;
  }
  const auto& tokenizer = dynamic_cast<const model::LlamaTokenizer&>((*loaded)->tokenizer());
  grammar::Library& library = *tokenizer.grammars();
  const double trie_us = Time([&] { (void)library.Get("root ::= \"a\""); });
  std::printf("vocabulary: %u tokens, trie made in %.1f ms\n", tokenizer.vocab_size(),
              trie_us / 1e3);
  std::printf("us a step (median, largest)      first            again     check   libllama\n");
  const std::vector<std::vector<const char*>> cases = {{"json object", kJson, kJsonText},
                                                       {"200 characters", kBounded, kBoundedText},
                                                       {"one of three", kChoice, kChoiceText}};
  for (const auto& one : cases) {
    const std::vector<TokenId> tokens = tokenizer.Encode(one[2], false, false);
    Figures figures;
    const double compile_us = Time([&] { (void)library.Get(one[1]); });
    const auto compiled = library.Get(one[1]);
    if (!compiled.ok()) return 1;
    Walk(*compiled, tokens, &figures.first, &figures.check);
    for (int i = 0; i < 5; ++i) Walk(*compiled, tokens, &figures.again, nullptr);
    WalkLlama(tokenizer.vocabulary(), one[1], tokens, &figures.llama);
    std::printf(
        "%-15s compile %6.0f   %7.1f %8.1f   %7.2f %8.2f  %6.2f  %8.0f\n", one[0], compile_us,
        Median(figures.first), *std::max_element(figures.first.begin(), figures.first.end()),
        Median(figures.again), *std::max_element(figures.again.begin(), figures.again.end()),
        Median(figures.check), Median(figures.llama));
  }
  return 0;
}

}  // namespace
}  // namespace kvlink::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: grammar_bench MODEL.gguf\n");
    return 2;
  }
  return kvlink::bench::Run(argv[1]);
}
