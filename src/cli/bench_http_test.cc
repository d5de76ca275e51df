#include "cli/bench_http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio.hpp>
#include <memory>
#include <thread>
#include <vector>

namespace kvlink::cli {
namespace {

using boost::asio::ip::tcp;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(EventStream, EventsSurviveAnyCut) {
  const std::string stream = "data: {\"a\":1}\r\n\r\n: comment\ndata:[DONE]\n\n";
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    EventStream events;
    std::vector<std::string> seen;
    const auto note = [&](std::string_view data) { seen.emplace_back(data); };
    events.Feed(std::string_view(stream).substr(0, cut), note);
    events.Feed(std::string_view(stream).substr(cut), note);
    EXPECT_THAT(seen, ElementsAre("{\"a\":1}", "[DONE]")) << cut;
  }
}

// A server that gives one canned answer a connection and keeps what it was asked.
class CannedServer {
 public:
  explicit CannedServer(std::vector<std::string> answers)
      : acceptor_(context_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)),
        thread_([this, answers = std::move(answers)] {
          for (const std::string& answer : answers) Serve(answer);
        }) {}
  ~CannedServer() { thread_.join(); }
  Url url() const { return {"127.0.0.1", acceptor_.local_endpoint().port(), ""}; }
  const std::vector<std::string>& asked() const { return asked_; }

 private:
  void Serve(const std::string& answer) {
    tcp::socket socket = acceptor_.accept();
    boost::asio::streambuf head;
    boost::asio::read_until(socket, head, "\r\n\r\n");
    std::string text(boost::asio::buffers_begin(head.data()),
                     boost::asio::buffers_end(head.data()));
    const size_t length_at = text.find("Content-Length: ");
    if (length_at != std::string::npos) {
      const size_t total = text.find("\r\n\r\n") + 4 + std::stoul(text.substr(length_at + 16));
      std::string rest(total - text.size(), '\0');
      boost::asio::read(socket, boost::asio::buffer(rest));
      text += rest;
    }
    asked_.push_back(text);
    boost::asio::write(socket, boost::asio::buffer(answer));
  }

  boost::asio::io_context context_;
  tcp::acceptor acceptor_;
  std::vector<std::string> asked_;
  std::thread thread_;
};

std::string Plain(const std::string& status, const std::string& body) {
  return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

TurnRequest Ask(uint32_t n = 1) {
  TurnRequest request;
  request.messages = {{"user", "hi", ""}};
  request.max_tokens = 8;
  request.n = n;
  if (n > 1) request.seeds.assign(n, 5);
  return request;
}

TEST(HttpTarget, AStreamGivesTextTimesAndUsage) {
  const std::string chunk1 =
      "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
      "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"}}]}\n\n";
  const std::string chunk2 =
      "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"}}]}\n\n"
      "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n"
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":2,"
      "\"prompt_tokens_details\":{\"cached_tokens\":16}}}\n\ndata: [DONE]\n\n";
  char size1[16], size2[16];
  std::snprintf(size1, sizeof size1, "%zx", chunk1.size());
  std::snprintf(size2, sizeof size2, "%zx", chunk2.size());
  CannedServer server({Plain("200 OK", R"({"data":[{"id":"tiny"}]})"),
                       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" +
                           std::string(size1) + "\r\n" + chunk1 + "\r\n" + size2 + "\r\n" + chunk2 +
                           "\r\n0\r\n\r\n"});
  HttpTargetOptions options;
  options.url = server.url();
  options.api_key = "secret";
  auto target = HttpTarget::Create(options);
  ASSERT_TRUE(target.ok()) << target.status().message();
  EXPECT_EQ((*target)->model(), "tiny");
  const TurnOutcome outcome = (*target)->Answer(Ask());
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.answer, "Hello");
  EXPECT_EQ(outcome.prompt_tokens, 20u);
  EXPECT_EQ(outcome.cached_tokens, 16u);
  EXPECT_EQ(outcome.computed_tokens, 4u);
  EXPECT_EQ(outcome.generated_tokens, 2u);
  EXPECT_EQ(outcome.itl_s.size(), 1u);
  EXPECT_GT(outcome.latency_s, 0);
  EXPECT_THAT(server.asked()[1], HasSubstr("Authorization: Bearer secret"));
  EXPECT_THAT(server.asked()[1], HasSubstr("\"include_usage\":true"));
}

TEST(HttpTarget, SampledTurnsSendTheirNumberAndSeed) {
  CannedServer server({Plain("200 OK", "data: [DONE]\n\n")});
  HttpTargetOptions options;
  options.url = server.url();
  options.model = "m";
  options.ignore_eos = true;
  (*HttpTarget::Create(options))->Answer(Ask(4));
  EXPECT_THAT(server.asked()[0], HasSubstr("\"n\":4"));
  EXPECT_THAT(server.asked()[0], HasSubstr("\"seed\":5"));
  EXPECT_THAT(server.asked()[0], HasSubstr("\"temperature\":0.8"));
  EXPECT_THAT(server.asked()[0], HasSubstr("\"ignore_eos\":true"));
}

std::string Stream(const std::vector<std::string>& events) {
  std::string body;
  for (const std::string& event : events) body += "data: " + event + "\n\n";
  return Plain("200 OK", body + "data: [DONE]\n\n");
}

TEST(HttpTarget, ACompletionStreamsItsTextAndSendsThePromptAsText) {
  CannedServer server(
      {Stream({R"({"choices":[{"index":0,"text":"a"}]})",
               R"({"choices":[{"index":0,"text":"b","finish_reason":"length"}]})"})});
  HttpTargetOptions options;
  options.url = server.url();
  options.model = "m";
  options.endpoint = Endpoint::kCompletions;
  const TurnOutcome outcome = (*HttpTarget::Create(options))->Answer(Ask());
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.answer, "ab");
  EXPECT_THAT(server.asked()[0], HasSubstr("POST /v1/completions "));
  EXPECT_THAT(server.asked()[0], HasSubstr(R"("prompt":"hi\n")"));
}

TEST(HttpTarget, TokensAreTheUsageOrThePiecesWhicheverIsMore) {
  const std::string branches = R"({"choices":[{"index":0,"text":"a","finish_reason":"length"},)"
                               R"({"index":1,"text":"b","finish_reason":"length"}]})";
  const std::string few = R"({"choices":[],"usage":{"completion_tokens":1}})";
  const std::string many = R"({"choices":[],"usage":{"completion_tokens":9}})";
  CannedServer server({Stream({branches, few}), Stream({branches, many}), Stream({branches})});
  HttpTargetOptions options;
  options.url = server.url();
  options.model = "m";
  auto created = HttpTarget::Create(options);
  ASSERT_TRUE(created.ok());
  HttpTarget& target = **created;
  EXPECT_EQ(target.Answer(Ask(2)).generated_tokens, 2u);
  EXPECT_EQ(target.Answer(Ask(2)).generated_tokens, 9u);
  EXPECT_EQ(target.Answer(Ask(2)).generated_tokens, 2u);
}

TEST(HttpTarget, ABranchThatNeverEndsIsAnError) {
  CannedServer server({Stream({R"({"choices":[{"index":0,"text":"a","finish_reason":"stop"}]})"})});
  HttpTargetOptions options;
  options.url = server.url();
  options.model = "m";
  EXPECT_EQ((*HttpTarget::Create(options))->Answer(Ask(4)).error,
            "1 of 4 branches were answered to their end");
}

TEST(HttpTarget, ASilentServerIsGivenUpAtTheTimeout) {
  boost::asio::io_context context;
  tcp::acceptor silent(context, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
  HttpTargetOptions options;
  options.url = {"127.0.0.1", silent.local_endpoint().port(), ""};
  options.model = "m";
  options.timeout_s = 0.05;
  EXPECT_THAT((*HttpTarget::Create(options))->Answer(Ask()).error, HasSubstr("no answer in time"));
}

TEST(HttpTarget, AnErrorAnswerIsReportedInItsOwnWords) {
  CannedServer server({Plain("400 Bad Request", R"({"error":{"message":"too long"}})")});
  HttpTargetOptions options;
  options.url = server.url();
  options.model = "m";
  EXPECT_EQ((*HttpTarget::Create(options))->Answer(Ask()).error, "HTTP 400: too long");
}

TEST(HttpTarget, ACutStreamIsAnError) {
  CannedServer server({"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nda"});
  HttpTargetOptions options;
  options.url = server.url();
  options.model = "m";
  EXPECT_THAT((*HttpTarget::Create(options))->Answer(Ask()).error, HasSubstr("broken answer"));
}

TEST(HttpTarget, NobodyThereIsAnErrorThatNamesTheAddress) {
  uint16_t port = 0;
  {
    boost::asio::io_context context;
    tcp::acceptor free(context, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
    port = free.local_endpoint().port();
  }
  HttpTargetOptions options;
  options.url = {"127.0.0.1", port, ""};
  EXPECT_THAT(HttpTarget::Create(options).status().message(),
              HasSubstr("cannot connect to 127.0.0.1:" + std::to_string(port)));
}

}  // namespace
}  // namespace kvlink::cli
