#include "cli/bench_flags.h"

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "cli/http_client.h"
#include "cli/model_options.h"
#include "cli/similar_setup.h"

namespace kvlink::cli {

void AddBenchOptions(CLI::App& app, BenchFlags& flags) {
  AddModelOption(app, flags.model);
  app.add_option("--workload", flags.workload, "JSON lines file with conversations to replay")
      ->type_name("FILE");
  app.add_option("--concurrency", flags.concurrency, "Users at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--limit", flags.limit, "Take the first N lines of the workload; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  AddThreadsOption(app, flags.threads);
  app.add_option("--modes", flags.modes,
                 "Modes to run, in this order: off, exact, tiered (exact, with blocks on disk and "
                 "in Redis), similar")
      ->delimiter(',')
      ->check(CLI::IsMember({"off", "exact", "tiered", "similar"}))
      ->capture_default_str();
  app.add_option("--similar-mode", flags.similar_mode, kSimilarModeHelp)
      ->check(CLI::IsMember(SimilarModeNames()));
  app.add_option("--similar", flags.similar,
                 "Policy of mode similar: on, or strict: accepted only when computing more changes "
                 "nothing")
      ->check(CLI::IsMember({"on", "strict"}))
      ->capture_default_str();
  app.add_option("--calibration", flags.calibration, kCalibrationHelp)->type_name("FILE");
  app.add_flag("--foreign-calibration", flags.foreign_calibration,
               "Take --calibration although it is another model's (the same weights in another "
               "type, for one): to measure, not to serve");
  AddTierOptions(app, flags.tiers);
  app.add_option("--json", flags.json, "Write the figures there as JSON")->type_name("FILE");
  AddChunkOption(app, flags.chunk);
  app.add_option("--kv-memory", flags.kv_memory,
                 "RAM for KV; default: enough to run all users at once without sharing")
      ->check(IsByteSize());
  AddKvTypeOption(app, flags.kv_type);
  AddContextOption(app, flags.ctx);
  app.add_flag("--ignore-eos", flags.ignore_eos, "Generate max_tokens always");
  app.add_option("--url", flags.url, "Run against this OpenAI-compatible server instead")
      ->type_name("URL");
  app.add_option("--model-name", flags.model_name, "With --url: default is the server's first");
  app.add_option("--api-key", flags.api_key, "With --url: sent as a bearer token")
      ->envname("KVLINK_API_KEY");
  app.add_option("--tls-ca", flags.tls_ca, kTlsCaHelp)->type_name("FILE");
  app.add_option("--endpoint", flags.endpoint, "With --url: chat, or completions")
      ->check(CLI::IsMember({"chat", "completions"}))
      ->capture_default_str();
  app.add_option("--timeout", flags.timeout_s, "With --url: seconds a request may take")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  app.add_option("--synthetic", flags.synthetic,
                 "Measure raw operations instead: prefill:N,decode:N,shared:BxN,distinct:BxN")
      ->type_name("LIST");
  app.add_option("--rounds", flags.rounds, "With --synthetic: repetitions, of which the median")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--decode-tokens", flags.decode_tokens, "With --synthetic: tokens per sequence")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--shape", flags.shapes,
                 "Measure instead what KV a model of this shape holds, without weights: llama2-7b, "
                 "llama2-13b, llama3-8b, ... or LAYERSxHEADSxDIM; of --workload, or of three "
                 "scenarios")
      ->delimiter(',')
      ->type_name("NAME");
  app.add_flag("--quiet", flags.quiet, "No progress");
  AddConfigOption(app);
}

}  // namespace kvlink::cli
