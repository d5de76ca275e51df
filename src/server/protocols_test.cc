// Messages and responses: what a request becomes, and how answers are told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/anthropic.h"
#include "server/response_store.h"
#include "server/responses.h"

namespace kvlink::server {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Chat(const Json& request) {
  const auto translated = TranslateMessagesRequest(request.dump());
  if (const auto* error = std::get_if<ApiError>(&translated))
    return {{"error", error->param + ": " + error->message}};
  return Json::parse(std::get<ChatTranslation>(translated).body);
}

Json Messages(const Json& more, const Json& messages = {{{"role", "user"}, {"content", "hi"}}}) {
  Json request = {{"max_tokens", 5}, {"messages", messages}};
  request.update(more);
  return request;
}

TEST(MessagesRequest, BecomesTheChatThatMeansTheSame) {
  const Json chat = Chat(Messages(
      {{"system", {{{"type", "text"}, {"text", "Be"}}, {{"type", "text"}, {"text", "brief."}}}},
       {"stop_sequences", {"X"}},
       {"top_k", 3},
       {"stream", true}},
      {{{"role", "user"}, {"content", "Weather?"}},
       {{"role", "assistant"},
        {"content",
         {{{"type", "thinking"}, {"thinking", "hm"}},
          {{"type", "text"}, {"text", "Let me look."}},
          {{"type", "tool_use"}, {"id", "t1"}, {"name", "f"}, {"input", {{"a", {1, "x"}}}}}}}},
       {{"role", "user"},
        {"content",
         {{{"type", "tool_result"},
           {"tool_use_id", "t1"},
           {"content", {{{"type", "text"}, {"text", "rain"}}}}},
          {{"type", "text"}, {"text", "And?"}}}}}}));
  EXPECT_EQ(chat["max_completion_tokens"], 5);
  EXPECT_EQ(chat["stop"], Json::array({"X"}));
  EXPECT_EQ(chat["top_k"], 3);
  EXPECT_EQ(chat["stream"], true);
  const Json& messages = chat["messages"];
  ASSERT_EQ(messages.size(), 5u) << messages;
  EXPECT_EQ(messages[0], Json({{"role", "system"}, {"content", "Be\nbrief."}}));
  EXPECT_EQ(messages[2]["content"], "Let me look.");
  EXPECT_EQ(messages[2]["tool_calls"][0]["function"]["arguments"], R"({"a": [1, "x"]})");
  EXPECT_EQ(messages[3], Json({{"role", "tool"}, {"tool_call_id", "t1"}, {"content", "rain"}}));
  EXPECT_EQ(messages[4], Json({{"role", "user"}, {"content", "And?"}}));
}

TEST(MessagesRequest, ToolsAndChoicesAreTranslated) {
  const Json tool = {{"name", "f"}, {"description", "d"}, {"input_schema", {{"type", "object"}}}};
  const auto choice = [&](const Json& value) {
    return Chat(Messages({{"tools", {tool}}, {"tool_choice", value}}));
  };
  EXPECT_EQ(choice({{"type", "auto"}})["tool_choice"], "auto");
  EXPECT_EQ(choice({{"type", "any"}, {"disable_parallel_tool_use", true}})["tool_choice"],
            "required");
  EXPECT_EQ(choice({{"type", "any"}, {"disable_parallel_tool_use", true}})["parallel_tool_calls"],
            false);
  const Json named = choice({{"type", "tool"}, {"name", "f"}});
  EXPECT_EQ(named["tool_choice"], Json({{"type", "function"}, {"function", {{"name", "f"}}}}));
  EXPECT_EQ(named["tools"][0],
            Json({{"type", "function"},
                  {"function",
                   {{"name", "f"}, {"description", "d"}, {"parameters", {{"type", "object"}}}}}}));
}

TEST(MessagesRequest, WhatIsWrongIsNamed) {
  EXPECT_EQ(Chat({{"messages", {{{"role", "user"}, {"content", "x"}}}}})["error"],
            "max_tokens: max_tokens is missing");
  EXPECT_THAT(Chat({{"max_tokens", 1}})["error"].get<std::string>(), HasSubstr("messages:"));
  EXPECT_THAT(Chat(Messages(Json::object(),
                            {{{"role", "user"}, {"content", {{{"type", "image"}}}}}}))["error"]
                  .get<std::string>(),
              HasSubstr("messages[0].content[0].type"));
  EXPECT_THAT(Chat(Messages(Json::object(), {{{"role", "robot"}, {"content", "x"}}}))["error"]
                  .get<std::string>(),
              HasSubstr("\"robot\""));
  EXPECT_THAT(Chat(Messages({{"tools", {{{"type", "bash"}, {"name", "bash"}}}}}))["error"]
                  .get<std::string>(),
              HasSubstr("tools[0]"));
}

// An answer of one branch.
std::vector<PromptOutcome> Outcome(const std::string& text, engine::FinishReason reason,
                                   MessageSyntax syntax) {
  auto report = std::make_shared<engine::RequestReport>();
  report->prompt_tokens = 10;
  report->cached_tokens = 6;
  report->computed_tokens = 4;
  report->generated_tokens = 3;
  engine::BranchResult branch;
  branch.text = text;
  branch.reason = reason;
  report->branches.push_back(branch);
  PromptOutcome outcome;
  outcome.report = report;
  outcome.messages = {ParseMessage(syntax, text)};
  return {outcome};
}

MessageSyntax Everything() {
  MessageSyntax syntax;
  syntax.reasoning = true;
  syntax.tools = ToolSyntax{};
  return syntax;
}

constexpr const char* kText =
    "<think>hm</think>Wait.<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>"
    "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";

// The data of all events of a stream in which the text comes in pieces of three bytes.
std::vector<Json> Stream(AnswerStyle& style, const std::string& text, engine::FinishReason reason) {
  const auto outcomes = Outcome(text, reason, Everything());
  MessageParser parser(Everything());
  std::string all = style.Begin(0, "", outcomes[0].report.get());
  size_t offset = 0;
  for (size_t at = 0; at < text.size(); at += 3) {
    all += style.Token(0, {}, parser.Append(text.substr(at, 3)), &offset);
  }
  all += style.Token(0, {}, parser.Flush(), &offset);
  all += style.Finish(0, outcomes[0].report->branches[0], parser.num_calls(), &outcomes);
  all += style.End(outcomes);
  std::vector<Json> events;
  for (size_t at = 0; at < all.size();) {
    const size_t end = all.find("\n\n", at);
    const std::string event = all.substr(at, end - at);
    const size_t data = event.find("data: ");
    events.push_back(Json::parse(event.substr(data + 6)));
    EXPECT_EQ(event.substr(0, data), "event: " + events.back()["type"].get<std::string>() + "\n");
    at = end + 2;
  }
  return events;
}

TEST(MessagesAnswer, ShowsBlocksAndCacheUsage) {
  const auto outcomes = Outcome(kText, engine::FinishReason::kStop, Everything());
  const Json plain = Json::parse(MakeMessagesStyle({"msg_1", "m", false})->Whole(outcomes));
  ASSERT_EQ(plain["content"].size(), 4u);
  EXPECT_EQ(plain["content"][0]["thinking"], "hm");
  EXPECT_EQ(plain["content"][1]["text"], "Wait.");
  EXPECT_EQ(plain["content"][2]["input"], Json({{"a", 1}}));
  EXPECT_EQ(plain["content"][3]["name"], "g");
  EXPECT_NE(plain["content"][2]["id"], plain["content"][3]["id"]);
  EXPECT_EQ(plain["stop_reason"], "tool_use");
  EXPECT_EQ(plain["usage"], Json({{"input_tokens", 4},
                                  {"cache_creation_input_tokens", 0},
                                  {"cache_read_input_tokens", 6},
                                  {"output_tokens", 3}}));
  const Json told = Json::parse(MakeMessagesStyle({"msg_1", "m", true})->Whole(outcomes));
  EXPECT_EQ(told["usage"]["input_tokens"], 0);
  EXPECT_EQ(told["usage"]["cache_creation_input_tokens"], 4);
  const auto cut = Outcome("Hel", engine::FinishReason::kLength, Everything());
  EXPECT_EQ(Json::parse(MakeMessagesStyle({"msg_1", "m", false})->Whole(cut))["stop_reason"],
            "max_tokens");
}

TEST(MessagesAnswer, AStreamTellsTheSameBlocks) {
  const auto style = MakeMessagesStyle({"msg_1", "m", false});
  const std::vector<Json> events = Stream(*style, kText, engine::FinishReason::kStop);
  EXPECT_EQ(events.front()["type"], "message_start");
  EXPECT_EQ(events.front()["message"]["usage"]["cache_read_input_tokens"], 6);
  std::vector<Json> blocks;
  bool open = false;
  for (const Json& event : events) {
    if (event["type"] == "content_block_start") {
      EXPECT_FALSE(open);
      open = true;
      EXPECT_EQ(event["index"], blocks.size());
      blocks.push_back(event["content_block"]);
      blocks.back()["told"] = "";
    } else if (event["type"] == "content_block_delta") {
      EXPECT_TRUE(open);
      EXPECT_EQ(event["index"], blocks.size() - 1);
      for (const char* key : {"text", "thinking", "partial_json"}) {
        if (event["delta"].contains(key))
          blocks.back()["told"] =
              blocks.back()["told"].get<std::string>() + event["delta"][key].get<std::string>();
      }
    } else if (event["type"] == "content_block_stop") {
      EXPECT_TRUE(open);
      open = false;
    }
  }
  EXPECT_FALSE(open);
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[0]["told"], "hm");
  EXPECT_EQ(blocks[1]["told"], "Wait.");
  EXPECT_EQ(blocks[2]["told"], "{\"a\": 1}");
  EXPECT_EQ(blocks[3]["told"], "{}");
  const Json& delta = events[events.size() - 2];
  EXPECT_EQ(delta["type"], "message_delta");
  EXPECT_EQ(delta["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(delta["usage"]["output_tokens"], 3);
  EXPECT_EQ(events.back()["type"], "message_stop");
}

// --- responses ---

const StoredConversation kNothingStored = [](const std::string&) { return std::nullopt; };

TEST(ResponsesRequest, BecomesTheChatThatMeansTheSame) {
  const StoredConversation stored = [](const std::string& id) -> std::optional<std::string> {
    if (id != "resp_1") return std::nullopt;
    return R"([{"role":"user","content":"first"},{"role":"assistant","content":"answer"}])";
  };
  const Json request = {
      {"instructions", "Be brief."},
      {"previous_response_id", "resp_1"},
      {"max_output_tokens", 7},
      {"input",
       {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "Weather?"}}}}},
        {{"type", "reasoning"}, {"summary", Json::array()}},
        {{"type", "function_call"}, {"call_id", "c1"}, {"name", "f"}, {"arguments", "{}"}},
        {{"type", "function_call"}, {"call_id", "c2"}, {"name", "g"}, {"arguments", "{}"}},
        {{"type", "function_call_output"}, {"call_id", "c1"}, {"output", "rain"}}}},
      {"tools",
       {{{"type", "function"},
         {"name", "f"},
         {"parameters", {{"type", "object"}}},
         {"strict", true}}}},
      {"tool_choice", {{"type", "function"}, {"name", "f"}}},
      {"text",
       {{"format", {{"type", "json_schema"}, {"name", "n"}, {"schema", {{"type", "object"}}}}}}}};
  const auto translated = TranslateResponsesRequest(request.dump(), stored);
  ASSERT_TRUE(std::holds_alternative<ResponsesTranslation>(translated));
  const auto& out = std::get<ResponsesTranslation>(translated);
  const Json chat = Json::parse(out.body);
  const Json& messages = chat["messages"];
  ASSERT_EQ(messages.size(), 6u) << messages;
  EXPECT_EQ(messages[0]["content"], "Be brief.");
  EXPECT_EQ(messages[1]["content"], "first");
  EXPECT_EQ(messages[3]["content"], "Weather?");
  EXPECT_EQ(messages[4]["tool_calls"].size(), 2u);
  EXPECT_EQ(messages[5]["role"], "tool");
  EXPECT_EQ(Json::parse(out.messages).size(), 5u) << "instructions are not kept";
  EXPECT_EQ(chat["max_completion_tokens"], 7);
  EXPECT_EQ(chat["tools"][0]["function"]["strict"], true);
  EXPECT_EQ(chat["tool_choice"]["function"]["name"], "f");
  EXPECT_EQ(chat["response_format"]["json_schema"]["schema"]["type"], "object");
  EXPECT_EQ(Json::parse(out.echo)["previous_response_id"], "resp_1");
}

TEST(ResponsesRequest, WhatIsWrongIsNamed) {
  const auto error = [](const Json& request) {
    const auto translated = TranslateResponsesRequest(request.dump(), kNothingStored);
    return std::holds_alternative<ApiError>(translated) ? std::get<ApiError>(translated)
                                                        : ApiError{};
  };
  EXPECT_EQ(error(Json::object()).param, "input");
  EXPECT_EQ(error({{"input", "x"}, {"background", true}}).param, "background");
  EXPECT_EQ(error({{"input", "x"}, {"tools", {{{"type", "web_search"}}}}}).param, "tools[0]");
  EXPECT_EQ(error({{"input", {{{"type", "item_reference"}}}}}).param, "input[0].type");
  const ApiError missing = error({{"input", "x"}, {"previous_response_id", "resp_9"}});
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.code, "previous_response_not_found");
}

ResponsesHead Head() {
  ResponsesHead head;
  head.id = "resp_1";
  head.model = "m";
  head.messages = R"([{"role":"user","content":"hi"}])";
  head.echo = "{}";
  return head;
}

TEST(ResponsesAnswer, AStreamTellsTheSameItemsAndKeepsTheConversation) {
  ResponsesHead head = Head();
  Json kept;
  head.keep = [&](std::string, std::string messages) { kept = Json::parse(messages); };
  const auto style = MakeResponsesStyle(head);
  const std::vector<Json> events = Stream(*style, kText, engine::FinishReason::kStop);
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
  EXPECT_EQ(events[0]["type"], "response.created");
  EXPECT_EQ(events.back()["type"], "response.completed");
  std::string arguments, text;
  int added = 0, done = 0;
  for (const Json& event : events) {
    added += event["type"] == "response.output_item.added" ? 1 : 0;
    done += event["type"] == "response.output_item.done" ? 1 : 0;
    if (event["type"] == "response.function_call_arguments.delta")
      arguments += event["delta"].get<std::string>();
    if (event["type"] == "response.output_text.delta") text += event["delta"].get<std::string>();
  }
  EXPECT_EQ(added, 4);
  EXPECT_EQ(done, 4);
  EXPECT_EQ(arguments, "{\"a\": 1}{}");
  EXPECT_EQ(text, "Wait.");
  const Json& response = events.back()["response"];
  ASSERT_EQ(response["output"].size(), 4u);
  EXPECT_EQ(response["usage"]["input_tokens_details"]["cached_tokens"], 6);
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[1]["content"], "Wait.");
  EXPECT_EQ(kept[1]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}");

  const auto whole = MakeResponsesStyle(Head());
  const Json same =
      Json::parse(whole->Whole(Outcome(kText, engine::FinishReason::kStop, Everything())));
  EXPECT_EQ(same["output"], response["output"]);
}

TEST(ResponsesAnswer, ACutAnswerIsIncomplete) {
  const auto style = MakeResponsesStyle(Head());
  const Json last = Stream(*style, "Hel", engine::FinishReason::kLength).back();
  EXPECT_EQ(last["type"], "response.incomplete");
  EXPECT_EQ(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
  const auto empty = MakeResponsesStyle(Head());
  EXPECT_EQ(Stream(*empty, "", engine::FinishReason::kStop).back()["response"]["output"].size(),
            1u);
}

TEST(ResponseStore, IsBoundedAndKeepsTenantsApart) {
  ResponseStore::Limits limits;
  limits.entries = 2;
  limits.bytes = 2000;
  ResponseStore store(limits);
  store.Put("1", {"a", "[]", "{}"});
  EXPECT_TRUE(store.Get("a", "1"));
  EXPECT_FALSE(store.Get("b", "1"));
  EXPECT_FALSE(store.Remove("b", "1"));
  store.Put("2", {"a", "[]", "{}"});
  store.Put("3", {"a", "[]", "{}"});
  EXPECT_FALSE(store.Get("a", "1"));
  store.Put("4", {"a", std::string(1500, 'x'), "{}"});
  EXPECT_EQ(store.size(), 1u) << "bytes count, too";
  store.Put("5", {"a", std::string(5000, 'x'), "{}"});
  EXPECT_EQ(store.size(), 0u);
  store.Put("6", {"a", "[]", "{}"});
  EXPECT_TRUE(store.Remove("a", "6"));
  EXPECT_EQ(store.size(), 0u);
}

}  // namespace
}  // namespace kvlink::server
