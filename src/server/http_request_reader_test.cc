#include "server/http_request_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace kvlink::server {
namespace {

using Step = HttpRequestReader::Step;

const std::string kPost =
    "POST /a%20b?c=d HTTP/1.1\r\nHost: x\r\nx-api-key: k\r\nX-Request-Id: id-1\r\n"
    "Content-Length: 5\r\n\r\nhello";
const std::string kChunked =
    "POST /chunks HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";

class HttpRequestReaderTest : public ::testing::Test {
 protected:
  HttpRequestReaderTest() {
    limits_.max_header_bytes = 256;
    limits_.max_body_bytes = 64;
  }
  // As a connection does, until there is nothing more to read or nothing more is to be.
  Step ReadAll(HttpRequestReader& reader, std::vector<HttpRequestReader::Received>* received) {
    Step step = Step::kNeedsMore;
    while (reader.CanRead()) {
      if (!reader.reading()) reader.Begin();
      step = reader.Read();
      if (step == Step::kComplete) received->push_back(reader.Take());
      if (step == Step::kRefused || step == Step::kNeedsMore) break;
    }
    return step;
  }
  std::vector<HttpRequestReader::Received> RequestsOf(std::string_view bytes, size_t piece) {
    HttpRequestReader reader(limits_);
    std::vector<HttpRequestReader::Received> received;
    while (!bytes.empty()) {
      reader.Append(bytes.substr(0, piece));
      EXPECT_NE(ReadAll(reader, &received), Step::kRefused) << reader.failure().message;
      bytes.remove_prefix(std::min(piece, bytes.size()));
    }
    EXPECT_FALSE(reader.reading());
    return received;
  }
  HttpFailure FailureOf(const std::string& bytes) {
    HttpRequestReader reader(limits_);
    std::vector<HttpRequestReader::Received> received;
    reader.Append(bytes);
    EXPECT_EQ(ReadAll(reader, &received), Step::kRefused) << bytes;
    EXPECT_TRUE(received.empty());
    return reader.failure();
  }

  Limits limits_;
};

TEST_F(HttpRequestReaderTest, RequestsComeOneByOneHoweverTheirBytesAreCut) {
  const std::string all = kPost + kChunked + "HEAD / HTTP/1.0\r\n\r\n" + kPost;
  for (size_t piece = 1; piece <= all.size(); ++piece) {
    const auto received = RequestsOf(all, piece);
    ASSERT_EQ(received.size(), 4u) << "pieces of " << piece;
    const HttpRequest& first = received[0].request;
    EXPECT_EQ(first.method, "POST");
    EXPECT_EQ(first.path, "/a b");
    EXPECT_EQ(first.query, "c=d");
    EXPECT_EQ(first.authorization, "Bearer k");
    EXPECT_EQ(first.request_id, "id-1");
    EXPECT_EQ(first.body, "hello");
    EXPECT_TRUE(received[0].http_11 && received[0].keep_alive && !received[0].head_only);
    EXPECT_EQ(received[1].request.body, "hello");
    EXPECT_TRUE(!received[2].http_11 && !received[2].keep_alive && received[2].head_only);
    EXPECT_EQ(received[3].request.body, "hello");
  }
}

TEST_F(HttpRequestReaderTest, WhatIsBeyondTheLimitsOrNoHttpIsRefused) {
  EXPECT_EQ(FailureOf("GET / HTTP/1.1\r\nX: " + std::string(300, 'x')).code, "header_too_large");
  EXPECT_EQ(FailureOf("POST / HTTP/1.1\r\nContent-Length: 65\r\n\r\n").code, "body_too_large");
  EXPECT_EQ(
      FailureOf("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(300, 'x'))
          .code,
      "header_too_large");
  const HttpFailure garbage = FailureOf("this is no HTTP\r\n\r\n");
  EXPECT_EQ(garbage.code, "malformed_request");
  EXPECT_EQ(garbage.status, 400);
}

TEST_F(HttpRequestReaderTest, AnExpectationIsToldOnceAndNotWhenTheBodyIsThere) {
  const std::string head = "POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
  HttpRequestReader waiting(limits_);
  std::vector<HttpRequestReader::Received> received;
  waiting.Append(head);
  ReadAll(waiting, &received);
  EXPECT_TRUE(waiting.TakeExpectation());
  EXPECT_FALSE(waiting.TakeExpectation());
  waiting.Append("ok");
  EXPECT_EQ(ReadAll(waiting, &received), Step::kComplete);

  HttpRequestReader sending(limits_);
  sending.Append(head + "ok");
  sending.Begin();
  EXPECT_EQ(sending.Read(), Step::kGoesOn);
  EXPECT_FALSE(sending.TakeExpectation());
}

TEST_F(HttpRequestReaderTest, ARequestThatIsGivenUpLeavesItsHead) {
  HttpRequestReader reader(limits_);
  std::vector<HttpRequestReader::Received> received;
  reader.Append("POST /long HTTP/1.1\r\nContent-Length: 60\r\n\r\nhalf");
  ReadAll(reader, &received);
  EXPECT_TRUE(reader.reading());
  EXPECT_EQ(reader.body_bytes(), 4u);
  EXPECT_EQ(reader.Drop().path, "/long");
  EXPECT_FALSE(reader.reading());
  EXPECT_EQ(reader.body_bytes(), 0u);
}

}  // namespace
}  // namespace kvlink::server
