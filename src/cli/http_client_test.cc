// URLs, and what a server's certificate must show before a word is said to it.
#include "cli/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace kvlink::cli {
namespace {

using boost::asio::ip::tcp;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace ssl = boost::asio::ssl;

constexpr long kHour = 3600;

TEST(Url, SchemeHostPortAndPrefixAreTakenApart) {
  const Url url = *ParseUrl("http://example.org:8080/llm/v1/");
  EXPECT_EQ(url.host, "example.org");
  EXPECT_EQ(url.port, 8080);
  EXPECT_EQ(url.path, "/llm");
  EXPECT_FALSE(url.tls);
  EXPECT_EQ(ParseUrl("http://h")->port, 80);
  EXPECT_EQ(ParseUrl("http://h/v1")->path, "");
  EXPECT_EQ(ParseUrl("http://[::1]:81")->host, "::1");
  EXPECT_EQ(ParseUrl("http://[::1]:81")->port, 81);
  EXPECT_TRUE(ParseUrl("https://h")->tls);
  EXPECT_EQ(ParseUrl("https://h")->port, 443);
  EXPECT_EQ(ParseUrl("https://h:8443/v1")->port, 8443);
}

TEST(Url, ItsTextReadsBackAndLeavesOutTheSchemesOwnPort) {
  for (const char* text : {"http://h", "http://h:443", "https://h", "https://h:80/llm",
                           "http://[::1]:81", "https://[::1]/x/y"}) {
    EXPECT_EQ(ParseUrl(text)->Text(), text);
  }
  EXPECT_EQ(ParseUrl("https://h:443/v1")->Text(), "https://h");
  EXPECT_EQ(ParseUrl("https://[::1]:8443")->Authority(), "[::1]:8443");
}

TEST(Url, BadOnesAreRefusedWithTheText) {
  for (const char* text : {"", "h:80", "ftp://h", "http://", "https://", "http://:80", "http://h:",
                           "http://h:0", "https://h:99999", "http://h:8o", "HTTPS://h"}) {
    EXPECT_THAT(ParseUrl(text).status().message(), HasSubstr("'" + std::string(text) + "'"))
        << text;
  }
}

// An authority of the test's own, and what it signs.
class Authority {
 public:
  Authority()
      : key_(EVP_EC_gen("P-256"), EVP_PKEY_free),
        certificate_(Make("an authority", key_.get(), key_.get(), nullptr, NID_basic_constraints,
                          "critical,CA:TRUE", -kHour, kHour)) {}

  // For `names` ("DNS:localhost,IP:127.0.0.1"), valid from `from_s` to `to_s` seconds from now.
  std::shared_ptr<ssl::context> Issue(const std::string& names, long from_s = -kHour,
                                      long to_s = kHour) const {
    const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
    const Certificate certificate = Make("a server", key.get(), key_.get(), certificate_.get(),
                                         NID_subject_alt_name, names, from_s, to_s);
    auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
    EXPECT_EQ(SSL_CTX_use_certificate(context->native_handle(), certificate.get()), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey(context->native_handle(), key.get()), 1);
    return context;
  }

  void Write(const std::string& path) const {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(PEM_write_X509(file, certificate_.get()), 1);
    std::fclose(file);
  }

 private:
  using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
  using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

  // `issuer` null: signed by itself.
  static Certificate Make(const char* name, EVP_PKEY* key, EVP_PKEY* signer, X509* issuer,
                          int extension_id, const std::string& value, long from_s, long to_s) {
    Certificate made(X509_new(), X509_free);
    X509* const certificate = made.get();
    if (issuer == nullptr) issuer = certificate;
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), issuer == certificate ? 1 : 2);
    X509_gmtime_adj(X509_getm_notBefore(certificate), from_s);
    X509_gmtime_adj(X509_getm_notAfter(certificate), to_s);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
    X509V3_CTX context{};
    X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
    const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension(
        X509V3_EXT_conf_nid(nullptr, &context, extension_id, value.c_str()), X509_EXTENSION_free);
    EXPECT_NE(extension, nullptr) << value;
    X509_add_ext(certificate, extension.get(), -1);
    EXPECT_GT(X509_sign(certificate, signer, EVP_sha256()), 0);
    return made;
  }

  const Key key_;
  const Certificate certificate_;
};

enum class Manner {
  kPolite,       // ends TLS, then the connection
  kCutsOff,      // ends the connection alone
  kSilent,       // reads the request, and no more
  kNoHandshake,  // reads, and never says a word
};

// Takes one connection and gives a canned answer, over TLS where there is a context.
class OneAnswer {
 public:
  OneAnswer(std::shared_ptr<ssl::context> tls, const std::string& answer,
            Manner manner = Manner::kPolite)
      : tls_(std::move(tls)),
        acceptor_(context_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)),
        thread_([this, answer, manner] { Serve(answer, manner); }) {}
  ~OneAnswer() {
    boost::system::error_code ignored;
    tcp::socket(context_).connect(acceptor_.local_endpoint(), ignored);  // if nobody has
    thread_.join();
  }
  uint16_t port() const { return acceptor_.local_endpoint().port(); }
  std::string asked() {  // over TLS; once the answer has come
    const std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  void Serve(const std::string& answer, Manner manner) {
    tcp::socket socket = acceptor_.accept();
    boost::system::error_code ignored;
    std::array<char, 4096> bytes;
    if (tls_ == nullptr) {
      socket.read_some(boost::asio::buffer(bytes), ignored);
      boost::asio::write(socket, boost::asio::buffer(answer), ignored);
      socket.shutdown(tcp::socket::shutdown_send, ignored);
    } else if (manner != Manner::kNoHandshake) {
      ServeTls(socket, answer, manner);
    }
    // A connection that is closed with something unread is reset.
    for (boost::system::error_code end; !end;) socket.read_some(boost::asio::buffer(bytes), end);
  }

  void ServeTls(tcp::socket& socket, const std::string& answer, Manner manner) {
    ssl::stream<tcp::socket&> stream(socket, *tls_);
    boost::system::error_code error, ignored;
    stream.handshake(ssl::stream_base::server, error);
    if (error) return;
    boost::asio::streambuf head;
    boost::asio::read_until(stream, head, "\r\n\r\n", error);
    if (error || manner == Manner::kSilent) return;
    {
      const std::lock_guard lock(mutex_);
      asked_.assign(boost::asio::buffers_begin(head.data()), boost::asio::buffers_end(head.data()));
    }
    boost::asio::write(stream, boost::asio::buffer(answer), ignored);
    if (manner == Manner::kPolite) stream.shutdown(ignored);
    socket.shutdown(tcp::socket::shutdown_send, ignored);
  }

  const std::shared_ptr<ssl::context> tls_;
  boost::asio::io_context context_;
  tcp::acceptor acceptor_;
  std::mutex mutex_;
  std::string asked_;
  std::thread thread_;
};

constexpr const char* kByLength = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
constexpr const char* kToTheEnd = "HTTP/1.1 200 OK\r\n\r\nhello";

class Https : public ::testing::Test {
 protected:
  Https() : dir_(::testing::TempDir() + "kvlink_https_" + std::to_string(getpid())) {
    std::filesystem::create_directories(dir_);
    ca_ = dir_ + "/ca.pem";
    authority_.Write(ca_);
  }
  ~Https() override { std::filesystem::remove_all(dir_); }

  Result<HttpAnswer> Ask(const OneAnswer& server, const std::string& ca,
                         const std::string& host = "127.0.0.1", double timeout_s = 60) {
    auto client = HttpClient::Create({{host, server.port(), "", true}, "", ca, timeout_s});
    if (!client.ok()) return client.status();
    return client->Get("/health");
  }
  // What is wrong with a server that shows this certificate.
  std::string ErrorOf(std::shared_ptr<ssl::context> certificate, const std::string& ca,
                      const std::string& host = "127.0.0.1") {
    OneAnswer server(std::move(certificate), kByLength);
    const auto answer = Ask(server, ca, host);
    return answer.ok() ? "answered " + answer->body : answer.status().message();
  }

  const std::string dir_;
  std::string ca_;
  const Authority authority_;
};

TEST_F(Https, AServerOfAKnownAuthorityIsAskedByItsNameAndByItsAddress) {
  const char* const names = "DNS:localhost,IP:127.0.0.1";
  EXPECT_EQ(ErrorOf(authority_.Issue(names), ca_), "answered hello");
  EXPECT_EQ(ErrorOf(authority_.Issue(names), ca_, "localhost"), "answered hello");
}

TEST_F(Https, AStreamComesInPiecesAndSendsTheKey) {
  OneAnswer server(
      authority_.Issue("IP:127.0.0.1"),
      "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n"
      "0\r\n\r\n");
  const auto client = HttpClient::Create({{"127.0.0.1", server.port(), "", true}, "key", ca_, 60});
  ASSERT_TRUE(client.ok()) << client.status().message();
  std::string body;
  const auto status =
      client->PostAndStream("/v1/x", "{}", [&](std::string_view piece) { body += piece; });
  ASSERT_TRUE(status.ok()) << status.status().message();
  EXPECT_EQ(*status, 201);
  EXPECT_EQ(body, "abcde");
  EXPECT_THAT(
      server.asked(),
      AllOf(HasSubstr("POST /v1/x HTTP/1.1\r\n"), HasSubstr("Authorization: Bearer key\r\n"),
            HasSubstr("Host: 127.0.0.1:" + std::to_string(server.port()) + "\r\n")));
}

TEST_F(Https, AnUnknownAuthorityIsNotTrusted) {
  const std::string other = dir_ + "/other.pem";
  Authority().Write(other);
  for (const std::string& ca : {std::string(), other}) {
    EXPECT_THAT(ErrorOf(authority_.Issue("IP:127.0.0.1"), ca),
                AllOf(HasSubstr("the certificate of 127.0.0.1:"), HasSubstr("is not trusted"),
                      HasSubstr("--tls-ca FILE")))
        << ca;
  }
}

TEST_F(Https, ACertificateForAnotherNameIsRefused) {
  EXPECT_THAT(ErrorOf(authority_.Issue("DNS:localhost,IP:10.0.0.1"), ca_),
              HasSubstr("is not for '127.0.0.1'"));
  EXPECT_THAT(ErrorOf(authority_.Issue("DNS:example.org,IP:127.0.0.1"), ca_, "localhost"),
              HasSubstr("is not for 'localhost'"));
}

TEST_F(Https, ACertificateOutOfItsTimeIsRefused) {
  EXPECT_THAT(ErrorOf(authority_.Issue("IP:127.0.0.1", -2 * kHour, -kHour), ca_),
              HasSubstr("has expired"));
  EXPECT_THAT(ErrorOf(authority_.Issue("IP:127.0.0.1", kHour, 2 * kHour), ca_),
              HasSubstr("is not valid yet"));
}

TEST_F(Https, APlainServerIsToldFromOneThatSpeaksTls) {
  EXPECT_THAT(ErrorOf(nullptr, ca_), HasSubstr("does not speak TLS; is it http:// there?"));
  {
    OneAnswer mute(nullptr, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    EXPECT_THAT(Ask(mute, ca_).status().message(), HasSubstr("does not speak TLS"));
  }
  OneAnswer closes(nullptr, "");
  EXPECT_THAT(Ask(closes, ca_).status().message(),
              AllOf(HasSubstr("the connection was closed"), HasSubstr("is it http:// there?")));
}

TEST_F(Https, WhoNeverShakesHandsIsGivenUpAtTheTimeout) {
  OneAnswer server(authority_.Issue("IP:127.0.0.1"), "", Manner::kNoHandshake);
  const auto answer = Ask(server, ca_, "127.0.0.1", 0.05);
  EXPECT_EQ(answer.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(answer.status().message(),
              AllOf(HasSubstr("no answer in time"), HasSubstr("is it http:// there?")));
}

TEST_F(Https, WhoNeverAnswersIsGivenUpAtTheTimeoutAndWhenTheUserStops) {
  const auto certificate = authority_.Issue("IP:127.0.0.1");
  OneAnswer server(certificate, "", Manner::kSilent);
  const auto late = Ask(server, ca_, "127.0.0.1", 0.3);
  EXPECT_THAT(late.status().message(), HasSubstr("no answer in time"));

  OneAnswer other(certificate, "", Manner::kSilent);
  const auto client = HttpClient::Create({{"127.0.0.1", other.port(), "", true}, "", ca_, 600});
  ASSERT_TRUE(client.ok()) << client.status().message();
  std::atomic<bool> stop{false};
  std::thread user([&] { stop = true; });
  const auto stopped = client->PostAndStream(
      "/", "{}", [](std::string_view) {}, &stop);
  user.join();
  EXPECT_EQ(stopped.status().code(), StatusCode::kCancelled);
}

// Where only the connection's end ends the answer, somebody else may have ended it.
TEST_F(Https, AnAnswerThatIsCutIsToldFromOneThatHasEnded) {
  const auto certificate = authority_.Issue("IP:127.0.0.1");
  {
    OneAnswer polite(certificate, kToTheEnd);
    const auto whole = Ask(polite, ca_);
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    EXPECT_EQ(whole->body, "hello");
  }
  OneAnswer cut(certificate, kToTheEnd, Manner::kCutsOff);
  EXPECT_THAT(Ask(cut, ca_).status().message(),
              AllOf(HasSubstr("broken answer from 127.0.0.1:"), HasSubstr("was cut")));
  OneAnswer complete(certificate, kByLength, Manner::kCutsOff);
  EXPECT_TRUE(Ask(complete, ca_).ok()) << "its length said where it ends";
}

TEST_F(Https, WhatIsWrongWithTheFileOfAuthoritiesIsToldBeforeAnybodyIsAsked) {
  const auto error_of = [](bool tls, const std::string& ca) {
    return HttpClient::Create({{"127.0.0.1", 9, "", tls}, "", ca, 1}).status().message();
  };
  EXPECT_THAT(error_of(true, dir_ + "/none.pem"),
              AllOf(HasSubstr("--tls-ca"), HasSubstr("none.pem"), HasSubstr("No such file")));
  std::ofstream(dir_ + "/text.pem") << "no certificate\n";
  EXPECT_THAT(error_of(true, dir_ + "/text.pem"),
              AllOf(HasSubstr("--tls-ca"), HasSubstr("text.pem"), HasSubstr("no PEM certificate")));
  EXPECT_THAT(error_of(false, ca_), HasSubstr("only with an https:// --url"));
}

}  // namespace
}  // namespace kvlink::cli
