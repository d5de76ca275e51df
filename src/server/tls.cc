#include "server/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <boost/asio/ssl/context.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace kvlink::server {
namespace {

// The oldest error of OpenSSL's, in words; forgets the others.
std::string OpensslError(unsigned long error) {
  char text[256] = "no reason given";
  if (error != 0) ERR_error_string_n(error, text, sizeof(text));
  ERR_clear_error();
  return text;
}

// Asks nobody at a terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

// Of the protocols that a client offers, the one that is spoken here.
int SelectProtocol(SSL*, const unsigned char** out, unsigned char* out_size,
                   const unsigned char* in, unsigned int in_size, void*) {
  static const unsigned char kHttp11[] = "\x08http/1.1";
  unsigned char* selected = nullptr;
  const int found =
      SSL_select_next_proto(&selected, out_size, kHttp11, sizeof(kHttp11) - 1, in, in_size);
  *out = selected;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

Status CheckReadable(const char* option, const std::string& path) {
  errno = 0;
  if (std::ifstream(path).get() != std::ifstream::traits_type::eof()) return Status::Ok();
  return {StatusCode::kNotFound, std::string(option) + ": cannot read \"" + path +
                                     "\": " + (errno != 0 ? std::strerror(errno) : "it is empty")};
}

Status ReadCertificate(SSL_CTX* context, const std::string& path) {
  if (Status status = CheckReadable("--tls-cert", path); !status.ok()) return status;
  if (SSL_CTX_use_certificate_chain_file(context, path.c_str()) == 1) return Status::Ok();
  return {StatusCode::kInvalidArgument, "--tls-cert: \"" + path + "\" holds no PEM certificate: " +
                                            OpensslError(ERR_peek_error())};
}

Status ReadKey(SSL_CTX* context, const TlsFiles& files) {
  if (Status status = CheckReadable("--tls-key", files.key); !status.ok()) return status;
  const auto bad = [&](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, "--tls-key: \"" + files.key + "\" " + what);
  };
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) == 1 &&
      SSL_CTX_check_private_key(context) == 1) {
    return Status::Ok();
  }
  const unsigned long error = ERR_peek_error();
  const int library = ERR_GET_LIB(error), reason = ERR_GET_REASON(error);
  const bool is_other = library == ERR_LIB_X509 && (reason == X509_R_KEY_VALUES_MISMATCH ||
                                                    reason == X509_R_KEY_TYPE_MISMATCH);
  const std::string words = OpensslError(error);
  std::stringstream text;
  text << std::ifstream(files.key).rdbuf();
  const bool is_encrypted = text.str().find("ENCRYPTED") != std::string::npos;  // in both formats
  if (is_other) return bad("is not the key of the certificate in \"" + files.certificate + "\"");
  if (is_encrypted) return bad("has a passphrase; give a key without one");
  return bad("holds no PEM private key: " + words);
}

std::string Warn(const X509* certificate, const std::string& path) {
  if (certificate == nullptr) return "";
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    return "--tls-cert: the certificate in \"" + path + "\" has expired";
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    return "--tls-cert: the certificate in \"" + path + "\" is not valid yet";
  }
  return "";
}

}  // namespace

Result<Tls> LoadTls(const TlsFiles& files) {
  if (files.certificate.empty() || files.key.empty()) {
    return Status(StatusCode::kInvalidArgument, "--tls-cert and --tls-key need each other");
  }
  ERR_clear_error();
  Tls tls;
  tls.context = std::make_shared<boost::asio::ssl::context>(boost::asio::ssl::context::tls_server);
  SSL_CTX* const context = tls.context->native_handle();
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_default_passwd_cb(context, NoPassphrase);
  SSL_CTX_set_alpn_select_cb(context, SelectProtocol, nullptr);
  if (Status status = ReadCertificate(context, files.certificate); !status.ok()) return status;
  if (Status status = ReadKey(context, files); !status.ok()) return status;
  tls.warning = Warn(SSL_CTX_get0_certificate(context), files.certificate);
  return tls;
}

}  // namespace kvlink::server
