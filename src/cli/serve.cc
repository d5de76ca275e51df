// `kvlink serve`: an OpenAI-compatible server on one model, with one shared KV cache.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/byte_size.h"
#include "cli/command.h"
#include "cli/doctor_facts.h"
#include "cli/guard.h"
#include "cli/kv_budget.h"
#include "cli/kv_events.h"
#include "cli/machine.h"
#include "cli/model_file.h"
#include "cli/model_options.h"
#include "cli/service.h"
#include "cli/signal_watch.h"
#include "cli/similar_setup.h"
#include "cli/start_log.h"
#include "cli/tier_setup.h"
#include "engine/engine.h"
#include "kernel/paged_attention.h"
#include "kvlink/cache.h"
#include "kvlink/options.h"
#include "server/reload_keys.h"
#include "server/server.h"
#include "server/tenants.h"

namespace kvlink::cli {
namespace {

struct ServeFlags {
  std::string model, host = "127.0.0.1", kv_memory, kv_type = "auto", sharing = "exact",
                     similar = "off", calibration, api_keys, log_dir, log_format = "text";
  std::vector<std::string> model_names;
  int port = 8080, threads = 0, http_threads = 2;
  uint32_t ctx = 0, max_seqs = 16, chunk = 512, max_queue = 1024, recent_requests = 256;
  double cow_copy_threshold = CacheOptions{}.cow_copy_threshold;
  double pin_budget = CacheOptions{}.pin_budget;
  std::string output_memory = "16M";
  int shutdown_grace_s = 10;
  TierFlags tiers;
  KvEventFlags kv_events;
  GuardFlags guard;
  bool sort_tool_keys = false;
  bool quiet = false;
  const CLI::App* app = nullptr;  // whose options these are
};

void AddOptions(CLI::App& app, ServeFlags& flags) {
  AddModelOption(app, flags.model);
  app.add_option("--model-name", flags.model_names,
                 "Name in answers and aliases that requests may use; default: the file's name");
  app.add_option("--host", flags.host, "Address to listen on")->capture_default_str();
  app.add_option("--port", flags.port, "Port; 0 takes a free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  AddThreadsOption(app, flags.threads);
  app.add_option("--http-threads", flags.http_threads, "Threads that serve connections")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  AddContextOption(app, flags.ctx);
  app.add_option("--max-seqs", flags.max_seqs, "Sequences that run at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--max-queue", flags.max_queue, "Requests that may wait; more are refused")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  AddChunkOption(app, flags.chunk);
  app.add_option("--kv-memory", flags.kv_memory,
                 "RAM for KV, such as 4GiB; default: half of what is free")
      ->check(IsByteSize());
  AddKvTypeOption(app, flags.kv_type);
  app.add_option("--sharing", flags.sharing, "off, or exact: equal prefixes share KV blocks")
      ->check(CLI::IsMember({"off", "exact"}))
      ->capture_default_str();
  app.add_option("--similar", flags.similar, kSimilarHelp)
      ->check(CLI::IsMember({"off", "on", "strict"}))
      ->capture_default_str();
  app.add_option("--calibration", flags.calibration, kCalibrationHelp)->type_name("FILE");
  AddTierOptions(app, flags.tiers);
  AddKvEventOptions(app, flags.kv_events);
  app.add_option("--cow-copy-threshold", flags.cow_copy_threshold,
                 "Modified share of a shared block above which it is copied as a whole")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--pin-budget", flags.pin_budget, "Share of the KV memory that pins may hold")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--output-memory", flags.output_memory,
                 "RAM for remembering answers, so that text sent back hits their tokens")
      ->check(IsByteSize())
      ->capture_default_str();
  app.add_option(
         "--api-keys", flags.api_keys,
         "File of API keys and tenants, see docs/security.md; read again on SIGHUP; default: "
         "no keys, one tenant")
      ->type_name("FILE");
  AddGuardOptions(app, flags.guard);
  app.add_option("--log-dir", flags.log_dir, "Folder for kvlink.log; default: stderr only")
      ->type_name("DIR");
  app.add_option("--log-format", flags.log_format,
                 "Lines of the log as text, or as JSON objects (and then no progress on stderr)")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_option("--recent-requests", flags.recent_requests,
                 "Requests that GET /kvlink/requests and kvlink doctor can tell about; 0: none")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  app.add_flag("--sort-tool-keys", flags.sort_tool_keys,
               "Show tools with the keys of their schemas sorted, so that their order does not "
               "keep prompts from being shared");
  app.add_option("--shutdown-grace", flags.shutdown_grace_s,
                 "Seconds that running requests get to finish after SIGINT or SIGTERM")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str();
  app.add_flag("--quiet", flags.quiet, "No progress, and no log on stderr");
  AddConfigOption(app);
}

// What can be said before a model is loaded for a minute.
Status CheckFiles(const ServeFlags& flags) {
  std::error_code error;
  if (!flags.calibration.empty() && flags.similar == "off") {
    return Status(StatusCode::kInvalidArgument, "--calibration has no effect with --similar off");
  }
  const bool wants_tiers = !(flags.tiers.cold_dir.empty() && flags.tiers.cold_size.empty() &&
                             flags.tiers.remote.empty());
  if (wants_tiers && flags.sharing == "off") {
    return Status(StatusCode::kInvalidArgument,
                  "--cold-dir, --cold-size and --remote need --sharing exact");
  }
  if (const auto tiers = ReadTierFlags(flags.tiers, true); !tiers.ok()) return tiers.status();
  if (flags.similar != "off" && flags.sharing == "off") {
    return Status(StatusCode::kInvalidArgument,
                  "--similar " + flags.similar + " needs --sharing exact");
  }
  if (!flags.api_keys.empty() && !std::filesystem::is_regular_file(flags.api_keys, error)) {
    return Status(StatusCode::kNotFound, "--api-keys: no file '" + flags.api_keys + "'");
  }
  if (Status status = CheckGuard(flags.guard); !status.ok()) return status;
  if (!flags.log_dir.empty()) {
    std::filesystem::create_directories(flags.log_dir, error);
    if (error) {
      return Status(StatusCode::kInvalidArgument,
                    "--log-dir: cannot make '" + flags.log_dir + "': " + error.message());
    }
  }
  return Status::Ok();
}

// How long the end may take to write out blocks.
constexpr std::chrono::seconds kDrainPatience{10};

// What is served, built from the bottom up and taken down from the top.
struct Stack {
  std::unique_ptr<model::Model> model;
  std::unique_ptr<events::Publisher> events;  // null: off
  std::unique_ptr<Cache> cache;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<server::Server> server;
  uint64_t kv_bytes = 0;
  int threads = 0;
  TierOptions tiers;
  std::vector<std::pair<std::string, double>> settings;  // for kvlink doctor
};

// To people on stderr, or to whoever reads a log that is JSON there.
StartLog LogOf(const ServeFlags& flags) { return StartLog(flags.log_format == "json", flags.app); }

void Say(const ServeFlags& flags, bool warning, const std::string& message) {
  warning ? LogOf(flags).Warning(message) : LogOf(flags).Note(message);
}

int Fail(const ServeFlags& flags, const Status& status) { return LogOf(flags).Fail(status); }

Status StartEngine(const ServeFlags& flags, Stack& stack) {
  const model::Model& model = *stack.model;
  const model::ModelInfo& info = model.info();
  if (flags.ctx > info.context_train) {
    Say(flags, true,
        "--ctx " + std::to_string(flags.ctx) + " is more than the " +
            std::to_string(info.context_train) +
            " tokens the model was trained for; answers past those may be poor");
  }
  const uint64_t available = AvailableMemory();
  const auto bytes =
      ChooseKvBytes(flags.kv_memory, available, TotalMemory(), info.file_bytes, model.kv_shape());
  if (!bytes.ok()) return bytes.status();
  if (available != 0 && *bytes > available) {
    Say(flags, true,
        "--kv-memory " + flags.kv_memory + " is more than the " + FormatByteSize(available) +
            " that is free now");
  }
  stack.kv_bytes = *bytes;

  CacheOptions cache_options;
  cache_options.shape = model.kv_shape();
  cache_options.sharing = flags.sharing == "off" ? Sharing::kOff : Sharing::kExact;
  cache_options.budget_bytes = *bytes;
  cache_options.model_fingerprint = model.fingerprint();
  cache_options.cow_copy_threshold = flags.cow_copy_threshold;
  cache_options.pin_budget = flags.pin_budget;
  cache_options.output_memory_bytes = *ParseByteSize(flags.output_memory);
  if (const Status status =
          SetUpSimilar(ParseSimilarPolicy(flags.similar), flags.calibration, model, &cache_options);
      !status.ok()) {
    return status;
  }
  stack.settings = SettingsOf(cache_options);
  if (cache_options.sharing != Sharing::kOff) {
    auto tiers = ReadTierFlags(flags.tiers, /*cold_by_default=*/true);
    if (!tiers.ok()) return tiers.status();
    cache_options.tiers = *std::move(tiers);
    cache_options.tiers.may_leave_ram = server::MayLeaveRam;
  }
  cache_options.observer = stack.events.get();
  std::string warning;
  auto cache = CreateTieredCache(flags.tiers, &cache_options, &warning);
  if (!cache.ok()) return cache.status();
  if (!warning.empty()) Say(flags, true, warning);
  stack.cache = *std::move(cache);
  stack.tiers = cache_options.tiers;

  engine::EngineOptions engine_options;
  engine_options.num_threads = stack.threads;
  engine_options.context = flags.ctx;
  engine_options.max_sequences = flags.max_seqs;
  engine_options.chunk_tokens = flags.chunk;
  engine_options.max_queue = flags.max_queue;
  engine_options.shadow_tie_gap = cache_options.similar.tie_gap;
  auto engine = engine::Engine::Create(model, *stack.cache, engine_options);
  if (!engine.ok()) return engine.status();
  stack.engine = *std::move(engine);
  return Status::Ok();
}

Status StartServer(const ServeFlags& flags, Stack& stack) {
  server::ServerOptions options;
  options.host = flags.host;
  options.port = static_cast<uint16_t>(flags.port);
  options.threads = flags.http_threads;
  options.model_ids = flags.model_names;
  options.similar = ParseSimilarPolicy(flags.similar);
  options.recent_requests = flags.recent_requests;
  options.sort_tool_keys = flags.sort_tool_keys;
  options.settings = std::move(stack.settings);
  options.api_keys_file = flags.api_keys;
  options.log_dir = flags.log_dir;
  options.log_to_stderr = !flags.quiet;
  options.log_as_json = flags.log_format == "json";
  options.version = KVLINK_VERSION;
  options.limits.shutdown_grace = std::chrono::seconds(flags.shutdown_grace_s);
  ApplyGuard(flags.guard, &options);
  auto server = server::Server::Create(*stack.engine, std::move(options));
  if (!server.ok()) return server.status();
  stack.server = *std::move(server);
  return Status::Ok();
}

// The address that a client on this machine can use.
std::string LocalUrl(const ServeFlags& flags, const server::Server& server) {
  const std::string port = std::to_string(server.port());
  const std::string scheme = flags.guard.speaks_tls() ? "https://" : "http://";
  if (flags.host == "0.0.0.0") return scheme + "127.0.0.1:" + port;
  if (flags.host == "::") return scheme + "[::1]:" + port;
  return scheme + server.address();
}

void PrintStart(const ServeFlags& flags, const Stack& stack) {
  const model::ModelInfo& info = stack.model->info();
  const uint32_t context = flags.ctx != 0 ? flags.ctx : info.context_train;
  const std::string url = LocalUrl(flags, *stack.server);
  std::printf("kvlink %s\n", KVLINK_VERSION);
  std::printf("  model    %s (%s, %s), %s\n", info.name.c_str(), info.architecture.c_str(),
              info.weight_type.c_str(), info.path.c_str());
  std::printf("  compute  %d %s, %s kernels\n", stack.threads,
              stack.threads == 1 ? "thread" : "threads", kernel::NumericPath().c_str());
  std::printf("  KV       %s; at most %u run at once; sharing %s\n",
              DescribeKvBytes(stack.kv_bytes, stack.model->kv_shape(), context).c_str(),
              flags.max_seqs, flags.sharing.c_str());
  std::printf("  tiers    %s\n", DescribeTiers(stack.tiers).c_str());
  if (stack.events) std::printf("  events   %s\n", DescribeKvEvents(*stack.events).c_str());
  std::printf("  logs     %s\n", flags.log_dir.empty() ? (flags.quiet ? "none" : "stderr")
                                                       : (flags.log_dir + "/kvlink.log").c_str());
  std::printf("  address  %s\n\n", url.c_str());
  std::printf(
      "Try: curl %s/v1/chat/completions -H 'Content-Type: application/json'%s \\\n"
      "  -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Say hello.\"}]}'\n",
      url.c_str(), flags.api_keys.empty() ? "" : " -H 'Authorization: Bearer YOUR_KEY'");
  std::printf("Stop: Ctrl-C\n");
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  // It serves on, and what nobody could read is no failure when it ends.
  Say(flags, true, "standard output cannot be written");
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0) return;
  ::dup2(nowhere, STDOUT_FILENO);
  if (nowhere != STDOUT_FILENO) ::close(nowhere);
  std::fflush(stdout);
  std::clearerr(stdout);
}

// Stops, or on SIGHUP reads files again. One without files to read stops at that, too, if it is the
// terminal that has gone; a service is only told.
void HandleSignal(int number, bool hang_up_ends, const ServeFlags& flags, server::Server& server) {
  const bool has_keys = !flags.api_keys.empty(), has_tls = flags.guard.speaks_tls();
  if (number != SIGHUP || (hang_up_ends && !has_keys && !has_tls)) {
    NotifyService("STOPPING=1");
    return server.Stop();
  }
  if (has_keys) (void)server::ReloadKeys(server);  // the log has what is wrong
  if (has_tls) (void)server::ReloadTls(server);
  if (!has_keys && !has_tls) {
    Say(flags, false, "SIGHUP: without --api-keys and --tls-cert there is nothing to read again");
  }
}

int Serve(const ServeFlags& flags) {
  std::atomic<bool> asked_to_reload{false};
  SignalWatch signals;
  const bool hang_up_ends = HangUpEnds();
  // A start that takes minutes can be interrupted. Files are read at its end.
  signals.OnSignal([&](int number) {
    if (number != SIGHUP || hang_up_ends) _exit(128 + number);
    asked_to_reload = true;
  });
  std::signal(SIGPIPE, SIG_IGN);  // a client that leaves is an error of its socket
  std::signal(SIGXFSZ, SIG_IGN);  // likewise a file that may not grow, as of a cold store or a log
  if (const Status status = CheckFiles(flags); !status.ok()) return Fail(flags, status);
  Stack stack;
  std::string warning;
  stack.threads = ChooseThreads(flags.threads, &warning);
  if (!warning.empty()) Say(flags, true, warning);
  auto kv_events = StartKvEvents(flags.kv_events);
  if (!kv_events.ok()) return Fail(flags, kv_events.status());
  stack.events = *std::move(kv_events);
  auto model =
      OpenModel(flags.model, flags.kv_type, flags.quiet || flags.log_format == "json", flags.ctx);
  if (!model.ok()) return Fail(flags, model.status());
  stack.model = *std::move(model);
  if (const Status status = StartEngine(flags, stack); !status.ok()) return Fail(flags, status);
  if (const Status status = StartServer(flags, stack); !status.ok()) return Fail(flags, status);

  const auto handle = [&](int number) { HandleSignal(number, hang_up_ends, flags, *stack.server); };
  signals.OnSignal(handle);
  if (asked_to_reload) handle(SIGHUP);
  PrintStart(flags, stack);
  NotifyService("READY=1\nSTATUS=Serving at " + LocalUrl(flags, *stack.server));
  stack.server->Run();
  signals.OnSignal([](int) {});  // it ends already; a late signal must not make that a failure
  stack.server.reset();
  stack.engine.reset();  // every sequence is gone: what is resident can be written out
  if (!stack.cache->Drain(kDrainPatience)) {
    Say(flags, true, "not every block was written to its tiers in time");
  }
  const uint64_t lost_events = stack.events ? stack.events->counts().dropped : 0;
  if (lost_events > 0) {
    Say(flags, true, std::to_string(lost_events) + " KV events were dropped");
  }
  Say(flags, false, "stopped");
  return 0;
}

}  // namespace

Command AddServe(CLI::App& kvlink) {
  CLI::App* app = kvlink.add_subcommand("serve", "Serve a model over an OpenAI-compatible API");
  const auto flags = std::make_shared<ServeFlags>();
  AddOptions(*app, *flags);
  flags->app = app;
  return {app, [flags] { return Serve(*flags); }};
}

}  // namespace kvlink::cli
