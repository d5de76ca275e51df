#include "server/server.h"

#include <random>
#include <utility>

#include "server/api.h"
#include "server/http_server.h"
#include "server/reload_keys.h"
#include "server/tls.h"

namespace kvlink::server {
namespace {

Status CheckOptions(const ServerOptions& options) {
  const auto bad = [](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, what);
  };
  if (options.host.empty()) return bad("--host: is empty");
  if (options.threads < 1 || options.threads > 256) {
    return bad("HTTP threads must be between 1 and 256, got " + std::to_string(options.threads));
  }
  for (const std::string& id : options.model_ids) {
    if (id.empty()) return bad("a model id is empty");
  }
  return Status::Ok();
}

class HttpApiServer : public Server {
 public:
  HttpApiServer(engine::Engine& engine, const ServerOptions& options, ApiKeys keys,
                std::shared_ptr<Log> log)
      : options_(options), log_(log), api_(engine, options, std::move(keys), log) {}

  // `tls` null: plain HTTP.
  Status Listen(HttpServer::TlsContext tls) {
    Result<std::unique_ptr<HttpServer>> http = HttpServer::Create(
        options_.host, options_.port, options_.threads, options_.limits,
        [this](HttpRequest request, std::shared_ptr<Responder> responder) {
          api_.Handle(std::move(request), std::move(responder));
        },
        [this](HttpFailure failure) { return api_.AnswerFailure(std::move(failure)); },
        std::move(tls));
    if (!http.ok()) return http.status();
    http_ = *std::move(http);
    api_.set_http_figures([this] { return http_->figures(); });
    return Status::Ok();
  }

  void Run() override {
    log_->Note("serving " + api_.model_id() + " on " + address());
    api_.WatchMemory();
    http_->Run();
    log_->Note("stopped");
  }
  void Stop() override { http_->Stop(); }
  Status ReadKeys() {
    Result<ApiKeys> keys = options_.api_keys_file.empty()
                               ? Status(StatusCode::kFailedPrecondition, "there are no API keys")
                               : ApiKeys::Load(options_.api_keys_file);
    if (!keys.ok()) {
      log_->Warning(keys.status().message() + "; the keys from before stay");
      return keys.status();
    }
    log_->Note("read " + std::to_string(keys->size()) + " API keys of " +
               std::to_string(keys->num_tenants()) + " tenants");
    api_.ReplaceKeys(*std::move(keys));
    return Status::Ok();
  }
  Status ReadTls() {
    Result<Tls> tls = options_.tls.empty()
                          ? Status(StatusCode::kFailedPrecondition, "TLS is not spoken here")
                          : LoadTls(options_.tls);
    if (!tls.ok()) {
      log_->Warning(tls.status().message() + "; the certificate from before stays");
      return tls.status();
    }
    if (!tls->warning.empty()) log_->Warning(tls->warning);
    log_->Note("read the certificate in " + options_.tls.certificate);
    http_->UseTls(std::move(tls->context));
    return Status::Ok();
  }
  uint16_t port() const override { return http_->port(); }
  std::string address() const override {
    const bool v6 = options_.host.find(':') != std::string::npos;
    return (v6 ? "[" + options_.host + "]" : options_.host) + ":" + std::to_string(port());
  }

 private:
  const ServerOptions options_;
  std::shared_ptr<Log> log_;
  Api api_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::Create(engine::Engine& engine, ServerOptions options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  if (!options.seed_source) {
    options.seed_source = [] {
      std::random_device device;
      return (uint64_t{device()} << 32) | device();
    };
  }
  ApiKeys keys;
  if (!options.api_keys_file.empty()) {
    Result<ApiKeys> loaded = ApiKeys::Load(options.api_keys_file);
    if (!loaded.ok()) return loaded.status();
    keys = *std::move(loaded);
  }
  Tls tls;
  if (!options.tls.empty()) {
    Result<Tls> loaded = LoadTls(options.tls);
    if (!loaded.ok()) return loaded.status();
    tls = *std::move(loaded);
  }
  Result<std::shared_ptr<Log>> log =
      Log::Create(options.log_dir, options.log_to_stderr,
                  options.log_as_json ? LogFormat::kJson : LogFormat::kText);
  if (!log.ok()) return log.status();
  auto server = std::make_unique<HttpApiServer>(engine, options, std::move(keys), *log);
  if (!tls.warning.empty()) (*log)->Warning(tls.warning);
  if (Status status = server->Listen(std::move(tls.context)); !status.ok()) return status;
  return std::unique_ptr<Server>(std::move(server));
}

Status ReloadKeys(Server& server) { return static_cast<HttpApiServer&>(server).ReadKeys(); }
Status ReloadTls(Server& server) { return static_cast<HttpApiServer&>(server).ReadTls(); }

}  // namespace kvlink::server
