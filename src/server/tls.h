// Tls: the certificate and key that HTTPS is spoken with, read from two PEM files.
//
// TLS 1.2 and 1.3 with OpenSSL's default ciphers; no renegotiation, no client certificates. Files
// that are read again make another context: connections keep the one that they began with.
#pragma once

#include <memory>
#include <string>

#include "kvlink/status.h"

namespace boost::asio::ssl {
class context;
}

namespace kvlink::server {

struct TlsFiles {
  std::string certificate;  // and those of the authorities between it and the root, in that order
  std::string key;          // without a passphrase
  bool empty() const { return certificate.empty() && key.empty(); }
};

struct Tls {
  std::shared_ptr<boost::asio::ssl::context> context;
  std::string warning;  // the certificate has expired, or is not valid yet; empty: neither
};

// kNotFound: a file cannot be read; kInvalidArgument: it holds no certificate or key, the key has a
// passphrase, or is another certificate's. The message names the option and the file.
Result<Tls> LoadTls(const TlsFiles& files);

}  // namespace kvlink::server
