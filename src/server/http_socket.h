// HttpSocket: the bytes of one connection, plain or under TLS.
//
// Callbacks run on the strand. Everything else must be called there, or before anything was
// started; a callback must keep the socket alive that it was given to.
#pragma once

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/strand.hpp>
#include <boost/system/error_code.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "server/http.h"
#include "server/server.h"

namespace kvlink::server {

class HttpSocket {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  using Tcp = boost::asio::ip::tcp;

  // Speaks TLS if `tls` is not null.
  HttpSocket(Strand strand, Tcp::socket socket, boost::asio::ssl::context* tls);

  bool speaks_tls() const { return tls_.has_value(); }
  // Sends at once what there is to send; a peer that is gone without a word is noticed, also while
  // it waits for its answer.
  void SetUp(const Limits& limits);

  // Requires: speaks_tls().
  template <typename Callback>  // void(error_code)
  void Handshake(Callback on_done) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server,
                          boost::asio::bind_executor(strand_, std::move(on_done)));
  }
  // Whether a handshake failed because the client does not speak TLS at all.
  static bool IsPlainHttp(boost::system::error_code failure);

  template <typename Callback>  // void(error_code, size_t bytes)
  void ReadSome(boost::asio::mutable_buffer bytes, Callback on_read) {
    auto on_strand = boost::asio::bind_executor(strand_, std::move(on_read));
    if (tls_) {
      tls_->async_read_some(bytes, std::move(on_strand));
    } else {
      socket_.async_read_some(bytes, std::move(on_strand));
    }
  }
  template <typename Callback>  // void(error_code, size_t bytes)
  void WriteSome(boost::asio::const_buffer bytes, Callback on_written) {
    auto on_strand = boost::asio::bind_executor(strand_, std::move(on_written));
    if (tls_) {
      tls_->async_write_some(bytes, std::move(on_strand));
    } else {
      socket_.async_write_some(bytes, std::move(on_strand));
    }
  }

  // Nothing more will be sent; what comes in is still read. `owner` keeps this alive until then.
  void EndSending(std::shared_ptr<void> owner);
  // A plain answer to whom nothing else will be sent.
  void SendLast(const HttpResponse& response);
  // `reset`: what is queued is not sent any more.
  void Close(bool reset);

 private:
  Strand strand_;
  Tcp::socket socket_;
  std::optional<boost::asio::ssl::stream<Tcp::socket&>> tls_;  // nothing: plain HTTP
};

// Sends an answer that ends the connection, without waiting for anything: what does not fit into
// the socket's buffer is not sent.
void SendLastAnswer(boost::asio::ip::tcp::socket& socket, const HttpResponse& response);

}  // namespace kvlink::server
