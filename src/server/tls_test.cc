#include "server/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

namespace kvlink::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TlsTest : public ::testing::Test {
 protected:
  TlsTest() : dir_(::testing::TempDir() + "kvlink_tls_" + std::to_string(getpid())) {
    std::filesystem::create_directories(dir_);
  }
  ~TlsTest() override { std::filesystem::remove_all(dir_); }

  using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
  static Key NewKey() { return {EVP_EC_gen("P-256"), EVP_PKEY_free}; }

  // A self-signed certificate that is valid from `from_s` to `to_s` seconds from now.
  std::string WriteCertificate(const char* name, EVP_PKEY* key, long from_s, long to_s) {
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
    X509_set_version(certificate.get(), 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), from_s);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), to_s);
    X509_set_pubkey(certificate.get(), key);
    X509_NAME* const subject = X509_get_subject_name(certificate.get());
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
    X509_set_issuer_name(certificate.get(), subject);
    X509_sign(certificate.get(), key, EVP_sha256());
    return Write(name, [&](std::FILE* file) { return PEM_write_X509(file, certificate.get()); });
  }
  std::string WriteKey(const char* name, EVP_PKEY* key, const char* passphrase = nullptr) {
    return Write(name, [&](std::FILE* file) {
      const EVP_CIPHER* const cipher = passphrase != nullptr ? EVP_aes_128_cbc() : nullptr;
      return PEM_write_PKCS8PrivateKey(file, key, cipher, passphrase, passphrase != nullptr ? 6 : 0,
                                       nullptr, nullptr);
    });
  }
  std::string WriteText(const char* name, const std::string& text) {
    std::ofstream(dir_ + "/" + name) << text;
    return dir_ + "/" + name;
  }
  static std::string ErrorOf(const TlsFiles& files) {
    const Result<Tls> tls = LoadTls(files);
    return tls.ok() ? "taken" : tls.status().message();
  }

  const std::string dir_;

 private:
  template <typename Writer>
  std::string Write(const char* name, Writer writer) {
    const std::string path = dir_ + "/" + name;
    std::FILE* const file = std::fopen(path.c_str(), "w");
    EXPECT_NE(file, nullptr);
    EXPECT_EQ(writer(file), 1);
    std::fclose(file);
    return path;
  }
};

TEST_F(TlsTest, ACertificateAndItsKeyAreTaken) {
  const Key key = NewKey();
  const auto tls =
      LoadTls({WriteCertificate("c.pem", key.get(), 0, 3600), WriteKey("k.pem", key.get())});
  ASSERT_TRUE(tls.ok()) << tls.status().message();
  EXPECT_NE(tls->context, nullptr);
  EXPECT_EQ(tls->warning, "");
}

TEST_F(TlsTest, WhatIsWrongIsToldWithTheOptionAndTheFile) {
  const Key key = NewKey(), other = NewKey();
  const std::string certificate = WriteCertificate("c.pem", key.get(), 0, 3600);
  const std::string right = WriteKey("k.pem", key.get());
  EXPECT_THAT(ErrorOf({certificate, ""}), HasSubstr("need each other"));
  EXPECT_THAT(ErrorOf({"", right}), HasSubstr("need each other"));
  EXPECT_THAT(ErrorOf({dir_ + "/none", right}),
              AllOf(HasSubstr("--tls-cert"), HasSubstr("/none"), HasSubstr("No such file")));
  EXPECT_THAT(ErrorOf({certificate, dir_ + "/none"}),
              AllOf(HasSubstr("--tls-key"), HasSubstr("/none"), HasSubstr("No such file")));
  EXPECT_THAT(ErrorOf({WriteText("text", "no certificate\n"), right}),
              AllOf(HasSubstr("--tls-cert"), HasSubstr("/text"), HasSubstr("no PEM certificate")));
  EXPECT_THAT(ErrorOf({right, right}), HasSubstr("no PEM certificate"));
  EXPECT_THAT(ErrorOf({certificate, WriteText("text", "no key\n")}),
              AllOf(HasSubstr("--tls-key"), HasSubstr("/text"), HasSubstr("no PEM private key")));
  EXPECT_THAT(ErrorOf({certificate, WriteKey("other.pem", other.get())}),
              AllOf(HasSubstr("other.pem"), HasSubstr("not the key of the certificate"),
                    HasSubstr("c.pem")));
  EXPECT_THAT(ErrorOf({certificate, WriteKey("secret.pem", key.get(), "secret")}),
              AllOf(HasSubstr("secret.pem"), HasSubstr("has a passphrase")));
  EXPECT_EQ(ErrorOf({certificate, right}), "taken");  // no error stays behind
}

TEST_F(TlsTest, ACertificateOutOfItsTimeIsTakenWithAWarning) {
  const Key key = NewKey();
  const std::string path = WriteKey("k.pem", key.get());
  const auto old = LoadTls({WriteCertificate("old.pem", key.get(), -7200, -3600), path});
  ASSERT_TRUE(old.ok()) << old.status().message();
  EXPECT_THAT(old->warning, AllOf(HasSubstr("old.pem"), HasSubstr("has expired")));
  const auto young = LoadTls({WriteCertificate("young.pem", key.get(), 3600, 7200), path});
  ASSERT_TRUE(young.ok()) << young.status().message();
  EXPECT_THAT(young->warning, HasSubstr("not valid yet"));
}

}  // namespace
}  // namespace kvlink::server
