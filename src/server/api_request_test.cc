#include "server/api_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace kvlink::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr uint32_t kVocab = 1000;

Json Chat(Json more = Json::object()) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(more);
  return body;
}

ApiRequest ParseChat(const Json& more) {
  auto parsed = ParseChatRequest(Chat(more).dump(), Limits(), kVocab);
  const ApiError* error = std::get_if<ApiError>(&parsed);
  EXPECT_EQ(error, nullptr) << error->message;
  return error == nullptr ? std::get<ApiRequest>(parsed) : ApiRequest();
}

ApiError ChatError(const Json& more) {
  auto parsed = ParseChatRequest(Chat(more).dump(), Limits(), kVocab);
  const ApiError* error = std::get_if<ApiError>(&parsed);
  EXPECT_NE(error, nullptr) << more.dump() << " was taken";
  return error == nullptr ? ApiError() : *error;
}

ApiError BodyError(const std::string& body) {
  auto parsed = ParseChatRequest(body, Limits(), kVocab);
  const ApiError* error = std::get_if<ApiError>(&parsed);
  EXPECT_NE(error, nullptr) << body.substr(0, 100) << " was taken";
  return error == nullptr ? ApiError() : *error;
}

Parsed<ApiRequest> Completion(const Json& body) {
  return ParseCompletionRequest(body.dump(), Limits(), kVocab);
}

TEST(ApiRequest, AnIntegerIsTakenUpToBothEndsOfItsRange) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t seed : {kLeast, kLeast + 1, kMost - 1, kMost}) {
    EXPECT_EQ(ParseChat({{"seed", seed}}).generation.sampling.seed, static_cast<uint64_t>(seed));
  }
  EXPECT_EQ(ParseChat({{"seed", -0x1p63}}).generation.sampling.seed, static_cast<uint64_t>(kLeast));
  EXPECT_EQ(ChatError({{"seed", uint64_t{1} << 63}}).param, "seed");
  EXPECT_EQ(ChatError({{"seed", 0x1p63}}).param, "seed");
}

TEST(ApiRequest, EveryFieldReachesTheEngine) {
  const ApiRequest request = ParseChat({{"temperature", 0.5},
                                        {"top_p", 0.9},
                                        {"top_k", 40},
                                        {"min_p", 0.05},
                                        {"frequency_penalty", -1},
                                        {"presence_penalty", 1.5},
                                        {"repetition_penalty", 1.1},
                                        {"seed", -5},
                                        {"stop", {"a", "b"}},
                                        {"max_completion_tokens", 77},
                                        {"n", 3},
                                        {"best_of", 5},
                                        {"length_penalty", 0.7},
                                        {"logprobs", true},
                                        {"top_logprobs", 4},
                                        {"prompt_logprobs", 2},
                                        {"logit_bias", {{"7", -100}, {"999", 5.5}}},
                                        {"ignore_eos", true},
                                        {"cache_salt", "pepper"},
                                        {"cache_prompt", false},
                                        {"kvlink", {{"store", false}}},
                                        {"deadline_ms", 1500}});
  const engine::GenerationRequest& g = request.generation;
  EXPECT_FLOAT_EQ(g.sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(g.sampling.top_p, 0.9f);
  EXPECT_EQ(g.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(g.sampling.min_p, 0.05f);
  EXPECT_FLOAT_EQ(g.sampling.frequency_penalty, -1);
  EXPECT_FLOAT_EQ(g.sampling.presence_penalty, 1.5f);
  EXPECT_FLOAT_EQ(g.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(g.sampling.seed, static_cast<uint64_t>(-5));
  EXPECT_TRUE(request.has_seed);
  EXPECT_THAT(g.stop, ElementsAre("a", "b"));
  EXPECT_EQ(g.max_tokens, 77u);
  EXPECT_EQ(g.n, 3u);
  EXPECT_EQ(g.best_of, 5u);
  EXPECT_FLOAT_EQ(g.length_penalty, 0.7f);
  EXPECT_EQ(g.logprobs, 4);
  EXPECT_EQ(g.prompt_logprobs, 2);
  EXPECT_FLOAT_EQ(g.sampling.logit_bias.at(7), -100);
  EXPECT_FLOAT_EQ(g.sampling.logit_bias.at(999), 5.5f);
  EXPECT_TRUE(g.sampling.ignore_eos);
  EXPECT_EQ(g.ns.salt, "pepper");
  EXPECT_TRUE(g.ns.tenant.empty());  // never the client's to say
  EXPECT_FALSE(g.reuse);
  EXPECT_FALSE(g.store);
  EXPECT_EQ(g.deadline, std::chrono::milliseconds(1500));
}

TEST(ApiRequest, DefaultsAreOpenAis) {
  const ApiRequest request =
      ParseChat({{"temperature", nullptr}, {"stop", nullptr}, {"n", nullptr}});
  const engine::GenerationRequest& g = request.generation;
  EXPECT_FLOAT_EQ(g.sampling.temperature, 1);
  EXPECT_EQ(g.max_tokens, 0u);  // as many as fit
  EXPECT_EQ(g.n, 1u);
  EXPECT_EQ(g.logprobs, -1);
  EXPECT_FALSE(request.has_seed);
  EXPECT_TRUE(g.reuse && g.store);
  const auto completion = Completion({{"prompt", "x"}});
  EXPECT_EQ(std::get<ApiRequest>(completion).generation.max_tokens, 16u);
}

TEST(ApiRequest, NamesOfOtherServersAreTaken) {
  EXPECT_FLOAT_EQ(ParseChat({{"repeat_penalty", 1.3}}).generation.sampling.repetition_penalty,
                  1.3f);
  EXPECT_EQ(ParseChat({{"max_tokens", 5}}).generation.max_tokens, 5u);
  EXPECT_EQ(ParseChat({{"n_predict", -1}}).generation.max_tokens, 0u);
  EXPECT_EQ(ParseChat({{"top_k", -1}}).generation.sampling.top_k, 0);
  EXPECT_FALSE(ParseChat({{"seed", -1}}).has_seed);
  EXPECT_EQ(ParseChat({{"timeout", 2.5}}).generation.deadline, std::chrono::milliseconds(2500));
  EXPECT_TRUE(ParseChat({{"use_beam_search", true}, {"best_of", 4}}).generation.beam_search);
  EXPECT_EQ(ParseChat({{"max_tokens", 12.0}}).generation.max_tokens, 12u);
}

// A wrong value: 400 that names the field and shows the value.
TEST(ApiRequest, WrongTypesAndRangesAreRefusedByNameAndValue) {
  const struct {
    Json more;
    const char *param, *seen;
  } cases[] = {
      {{{"temperature", -0.1}}, "temperature", "-0.1"},
      {{{"temperature", "hot"}}, "temperature", "\"hot\""},
      {{{"temperature", true}}, "temperature", "true"},
      {{{"top_p", 1.5}}, "top_p", "1.5"},
      {{{"top_k", -2}}, "top_k", "-2"},
      {{{"top_k", 1.5}}, "top_k", "1.5"},
      {{{"min_p", 2}}, "min_p", "2"},
      {{{"frequency_penalty", 3}}, "frequency_penalty", "3"},
      {{{"presence_penalty", -3}}, "presence_penalty", "-3"},
      {{{"repetition_penalty", 0}}, "repetition_penalty", "0"},
      {{{"seed", 1e30}}, "seed", "1e+30"},
      {{{"seed", "x"}}, "seed", "\"x\""},
      {{{"n", 0}}, "n", "0"},
      {{{"n", 1000000}}, "n", "1000000"},
      {{{"n", 4}, {"best_of", 2}}, "best_of", "2"},
      {{{"max_tokens", -2}}, "max_tokens", "-2"},
      {{{"max_tokens", 0}}, "max_tokens", "0"},
      {{{"stop", ""}}, "stop", "\"\""},
      {{{"stop", {"ok", 5}}}, "stop[1]", "5"},
      {{{"stop", Json(std::vector<std::string>(17, "s"))}}, "stop", "\"s\""},
      {{{"logprobs", 5}}, "logprobs", "5"},
      {{{"logprobs", true}, {"top_logprobs", 21}}, "top_logprobs", "21"},
      {{{"logit_bias", {{"1000", 1}}}}, "logit_bias.1000", "1000"},
      {{{"logit_bias", {{"x", 1}}}}, "logit_bias.x", "x"},
      {{{"logit_bias", {{"1", 101}}}}, "logit_bias.1", "101"},
      {{{"logit_bias", {1}}}, "logit_bias", "[1]"},
      {{{"stream", "yes"}}, "stream", "\"yes\""},
      {{{"stream_options", {{"include_usage", 1}}}}, "stream_options.include_usage", "1"},
      {{{"cache_salt", 5}}, "cache_salt", "5"},
      {{{"cache_prompt", "no"}}, "cache_prompt", "\"no\""},
      {{{"kvlink", {{"store", 0}}}}, "kvlink.store", "0"},
      {{{"deadline_ms", 0}}, "deadline_ms", "0"},
      {{{"response_format", {{"type", "xml"}}}}, "response_format.type", "xml"},
      {{{"tool_choice", "required"}}, "tool_choice", "required"},
      {{{"model", 7}}, "model", "7"},
      {{{"messages", "hi"}}, "messages", "\"hi\""},
      {{{"messages", Json::array()}}, "messages", "0"},
      {{{"messages", {5}}}, "messages[0]", "5"},
      {{{"messages", {{{"role", 5}, {"content", "x"}}}}}, "messages[0].role", "5"},
      {{{"messages", {{{"role", "user"}, {"content", 5}}}}}, "messages[0].content", "5"},
  };
  for (const auto& test : cases) {
    const ApiError error = ChatError(test.more);
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, test.param) << test.more.dump();
    EXPECT_THAT(error.message, HasSubstr(test.seen)) << test.more.dump();
  }
}

TEST(ApiRequest, MissingFieldsAreNamed) {
  EXPECT_EQ(BodyError("{}").param, "messages");
  EXPECT_EQ(BodyError(R"({"messages":[{"content":"x"}]})").param, "messages[0].role");
  EXPECT_EQ(BodyError(R"({"messages":[{"role":"user"}]})").param, "messages[0].content");
  EXPECT_EQ(std::get<ApiError>(Completion(Json::object())).param, "prompt");
}

TEST(ApiRequest, BodiesThatAreNoJsonObjectAreRefused) {
  EXPECT_THAT(BodyError("").message, HasSubstr("empty"));
  EXPECT_THAT(BodyError("{\"a\": }").message,
              AllOf(HasSubstr("not valid JSON"), HasSubstr("column")));
  EXPECT_THAT(BodyError("[1]").message, HasSubstr("object"));
  EXPECT_THAT(BodyError("{\"messages\": \"\xff\"}").message, HasSubstr("not valid JSON"));
  EXPECT_THAT(BodyError("{\"a\":1e999}").message, HasSubstr("not valid JSON"));
  const std::string deep = std::string(1000000, '[') + std::string(1000000, ']');
  EXPECT_THAT(BodyError("{\"a\":" + deep + "}").message, HasSubstr("1000001 deep"));
}

TEST(ApiRequest, TextPartsAreJoinedAndOthersRefused) {
  const auto with_parts = [](const Json& parts) {
    return Json{{"messages", {{{"role", "user"}, {"content", parts}}}}};
  };
  const Json text = {{"type", "text"}, {"text", "one "}};
  EXPECT_EQ(ParseChat(with_parts(Json::array({text, text}))).messages[0].content, "one one ");
  const Json image = {{"type", "image_url"}, {"image_url", {{"url", "data:"}}}};
  const ApiError error = ChatError(with_parts(Json::array({text, image})));
  EXPECT_EQ(error.param, "messages[0].content[1].type");
  EXPECT_THAT(error.message, HasSubstr("image_url"));
  EXPECT_EQ(ChatError(with_parts(Json::array({Json{{"type", "text"}}}))).param,
            "messages[0].content[0].text");
  EXPECT_EQ(ChatError(with_parts(Json::array({"x"}))).param, "messages[0].content[0]");
}

TEST(ApiRequest, MessagesKeepWhatTheTemplateMayNeedInTheClientsOrder) {
  const std::string body =
      R"({"messages":[{"role":"developer","content":"be brief"},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"z":1,"function":{"name":"f","arguments":"{}"}}]}],)"
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"z":{},"a":{}}}}]})";
  auto parsed = ParseChatRequest(body, Limits(), kVocab);
  ASSERT_TRUE(std::holds_alternative<ApiRequest>(parsed)) << std::get<ApiError>(parsed).message;
  const ApiRequest& request = std::get<ApiRequest>(parsed);
  EXPECT_EQ(request.messages[0].role, "system");
  EXPECT_EQ(request.messages[0].extra_json, "");
  EXPECT_EQ(request.messages[1].content, "");
  EXPECT_EQ(
      request.messages[1].extra_json,
      R"({"role":"assistant","content":"","tool_calls":[{"z":1,"function":{"name":"f","arguments":"{}"}}]})");
  EXPECT_EQ(request.tools_json,
            R"([{"type":"function","function":{"name":"f","parameters":{"z":{},"a":{}}}}])");
  EXPECT_EQ(ParseChat({{"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}},
                       {"tool_choice", "none"}})
                .tools_json,
            "");
}

TEST(ApiRequest, PromptsComeInFourForms) {
  const auto prompts = [](const Json& prompt) {
    auto parsed = Completion({{"prompt", prompt}});
    EXPECT_TRUE(std::holds_alternative<ApiRequest>(parsed));
    return std::get<ApiRequest>(parsed).prompts;
  };
  using Tokens = std::vector<TokenId>;
  EXPECT_THAT(prompts("a"), ElementsAre(PromptInput("a")));
  EXPECT_THAT(prompts(Json::array({"a", "b"})), ElementsAre(PromptInput("a"), PromptInput("b")));
  EXPECT_THAT(prompts(Json::array({1, 2})), ElementsAre(PromptInput(Tokens{1, 2})));
  EXPECT_THAT(prompts(Json::array({Json::array({1}), Json::array({2, 3})})),
              ElementsAre(PromptInput(Tokens{1}), PromptInput(Tokens{2, 3})));
}

TEST(ApiRequest, WrongPromptsAreRefused) {
  const auto error = [](const Json& prompt) {
    auto parsed = Completion({{"prompt", prompt}});
    EXPECT_TRUE(std::holds_alternative<ApiError>(parsed)) << prompt.dump();
    return std::get<ApiError>(parsed);
  };
  EXPECT_EQ(error(5).param, "prompt");
  EXPECT_EQ(error(Json::array()).param, "prompt");
  EXPECT_EQ(error({1, "a"}).param, "prompt[1]");
  EXPECT_EQ(error({"a", 1}).param, "prompt[1]");
  EXPECT_EQ(error({1000}).param, "prompt[0]");
  EXPECT_EQ(error({-1}).param, "prompt[0]");
  EXPECT_EQ(error({{1}, {1, 1e18}}).param, "prompt[1][1]");
  EXPECT_EQ(error(Json(std::vector<std::string>(257, "x"))).param, "prompt");
}

TEST(ApiRequest, CombinationsThatCannotBeAnsweredAreRefused) {
  EXPECT_EQ(ChatError({{"stream", true}, {"use_beam_search", true}}).param, "stream");
  EXPECT_EQ(ChatError({{"stream", true}, {"best_of", 2}}).param, "stream");
  EXPECT_EQ(ChatError({{"top_logprobs", 2}}).param, "top_logprobs");
  const auto param = [](const Json& body) { return std::get<ApiError>(Completion(body)).param; };
  EXPECT_EQ(param({{"prompt", "x"}, {"suffix", "y"}, {"echo", true}}), "echo");
  EXPECT_EQ(param({{"prompt", "x"}, {"max_tokens", 0}}), "max_tokens");
  EXPECT_EQ(param({{"prompt", "x"}, {"max_tokens", 0}, {"echo", true}, {"stream", true}}),
            "stream");
  EXPECT_EQ(param({{"prompt", "x"}, {"logprobs", 1}, {"echo", true}, {"stream", true}}), "echo");
}

TEST(ApiRequest, ResponseFormatsBecomeGrammars) {
  EXPECT_EQ(ParseChat({{"response_format", {{"type", "text"}}}}).generation.sampling.grammar, "");
  EXPECT_THAT(
      ParseChat({{"response_format", {{"type", "json_object"}}}}).generation.sampling.grammar,
      HasSubstr("root ::= object"));
  const Json schema = {{"type", "object"}, {"properties", {{"x", {{"type", "integer"}}}}}};
  EXPECT_THAT(ParseChat({{"response_format",
                          {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}}}})
                  .generation.sampling.grammar,
              HasSubstr("\\\"x\\\""));
  const Json bad = {{"type", "string"}, {"pattern", "a+"}};
  EXPECT_THAT(ChatError({{"response_format",
                          {{"type", "json_schema"}, {"json_schema", {{"schema", bad}}}}}})
                  .message,
              HasSubstr("pattern"));
  EXPECT_EQ(ChatError({{"response_format", {{"type", "json_schema"}}}}).param,
            "response_format.json_schema");
}

// Objects of very many keys must not cost the square of their number.
TEST(ApiRequest, ManyKeysAreCheap) {
  std::string body =
      R"({"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"f","parameters":{)";
  for (int i = 0; i < 300000; ++i) body += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
  body += "}}}]}";
  EXPECT_TRUE(std::holds_alternative<ApiRequest>(ParseChatRequest(body, Limits(), kVocab)));
}

TEST(ApiRequest, DeterministicSwitchesSimilarReuseOffWhateverElseIsAskedFor) {
  EXPECT_EQ(ParseChat(Json::object()).similar, std::nullopt);
  EXPECT_EQ(ParseChat({{"kvlink", {{"similar", "strict"}}}}).similar, SimilarPolicy::kStrict);
  EXPECT_EQ(ParseChat({{"deterministic", true}}).similar, SimilarPolicy::kOff);
  EXPECT_EQ(ParseChat({{"deterministic", true}, {"kvlink", {{"similar", "on"}}}}).similar,
            SimilarPolicy::kOff);
  EXPECT_THAT(ChatError({{"kvlink", {{"similar", "maybe"}}}}).message,
              HasSubstr("kvlink.similar must be off, on or strict, not 'maybe'"));
}

}  // namespace
}  // namespace kvlink::server
