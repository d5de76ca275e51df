// `kvlink cache`: lists, pins, warms and flushes the cache of a running `kvlink serve`.
//
// Exit codes: command.h's; what the server refuses is 1, unless it says that a value is wrong.
#include "cli/cache.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/cache_client.h"
#include "cli/cache_report.h"

namespace kvlink::cli {
namespace {

using Json = CacheJson;

constexpr const char* kDefaultUrl = "http://127.0.0.1:8080";

struct CacheFlags {
  std::string url = kDefaultUrl, api_key, tls_ca;
  double timeout_s = 600;
  bool json = false;
  // list
  size_t limit = 50;
  std::string sort = "id";
  bool text = false;
  // pin, unpin, warm
  std::string prompt, prompt_file, messages_file, system, salt;
  bool no_generation_prompt = false;
  double ttl_s = 3600;
};

Status Bad(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

Result<CacheClient> ClientOf(const CacheFlags& flags) {
  const auto url = ParseUrl(flags.url);
  if (!url.ok()) return url.status();
  auto client = HttpClient::Create({*url, flags.api_key, flags.tls_ca, flags.timeout_s});
  if (!client.ok()) return client.status();
  return CacheClient(*std::move(client));
}

// "-" is standard input.
Result<std::string> ReadText(const std::string& path, const char* option) {
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  if (path != "-" && !file) return Bad(std::string(option) + ": cannot read '" + path + "'");
  std::istream& in = path == "-" ? std::cin : file;
  std::ostringstream text;
  // Copying nothing counts as a failure.
  if (in.peek() != std::istream::traits_type::eof()) text << in.rdbuf();
  if (in.bad() || !text) return Bad(std::string(option) + ": cannot read '" + path + "'");
  return std::move(text).str();
}

// An array of messages, or an object with "messages" and perhaps "tools", as of a chat request.
Status ReadMessages(const CacheFlags& flags, Json* body) {
  const auto text = ReadText(flags.messages_file, "--messages");
  if (!text.ok()) return text.status();
  Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (json.is_array()) json = Json{{"messages", std::move(json)}};
  if (!json.is_object() || !json.contains("messages")) {
    return Bad("--messages: '" + flags.messages_file +
               "' is neither a JSON array of messages nor an object with \"messages\"");
  }
  for (const char* name : {"messages", "tools"}) {
    if (json.contains(name)) (*body)[name] = json[name];
  }
  return Status::Ok();
}

// The request's body: which prompt is meant.
Result<Json> BodyOf(const CacheFlags& flags) {
  const int given = !flags.prompt.empty() + !flags.prompt_file.empty() +
                    !flags.messages_file.empty() + !flags.system.empty();
  if (given != 1) {
    return Bad("give one of --prompt, --prompt-file, --messages and --system, not " +
               std::to_string(given));
  }
  Json body = Json::object();
  if (!flags.prompt.empty()) body["prompt"] = flags.prompt;
  if (!flags.prompt_file.empty()) {
    auto text = ReadText(flags.prompt_file, "--prompt-file");
    if (!text.ok()) return text.status();
    body["prompt"] = *std::move(text);
  }
  if (!flags.messages_file.empty()) {
    if (const Status read = ReadMessages(flags, &body); !read.ok()) return read;
  }
  if (!flags.system.empty()) {
    body["messages"] = Json::array({{{"role", "system"}, {"content", flags.system}}});
  }
  // Behind a system message anything may follow.
  if (body.contains("messages") && (flags.no_generation_prompt || !flags.system.empty())) {
    body["add_generation_prompt"] = false;
  }
  if (!flags.salt.empty()) body["cache_salt"] = flags.salt;
  return body;
}

void Print(const Json& json) {
  std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

uint64_t Count(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

unsigned long long Shown(const Json& json, const char* name) { return Count(json, name); }

// Text of each block, where the key may see it.
Status AddTexts(const CacheClient& client, std::vector<Json>* blocks) {
  for (Json& block : *blocks) {
    const auto shown = client.GetJson("/kvlink/blocks/" + std::to_string(Count(block, "id")));
    if (!shown.ok()) {  // evicted since the list was made
      block["text"] = nullptr;
      continue;
    }
    if (shown->contains("text_withheld") && (*shown)["text_withheld"].is_string()) {
      return {StatusCode::kFailedPrecondition,
              "--text: " + (*shown)["text_withheld"].get<std::string>()};
    }
    block["text"] = shown->value("text", Json(nullptr));
  }
  return Status::Ok();
}

int List(const CacheFlags& flags, const CacheClient& client) {
  auto list = client.AllBlocks();
  if (!list.ok()) return Fail(list.status());
  std::vector<Json> blocks;
  for (Json& block : (*list)["data"]) blocks.push_back(std::move(block));
  const size_t total = blocks.size();
  SortBlocks(flags.sort, &blocks);
  if (flags.limit > 0 && blocks.size() > flags.limit) blocks.resize(flags.limit);
  if (flags.text) {
    if (const Status added = AddTexts(client, &blocks); !added.ok()) return Fail(added);
  }
  if (!flags.json) {
    std::fputs(BlocksTable(blocks, total).c_str(), stdout);
    return 0;
  }
  (*list)["data"] = std::move(blocks);
  list->erase("first");
  list->erase("next");
  Print(*list);
  return 0;
}

// `say` prints the answer for people.
template <typename Say>
int Post(const CacheFlags& flags, const CacheClient& client, const char* path,
         const Result<Json>& body, Say say) {
  if (!body.ok()) return Fail(body.status());
  const auto answer = client.PostJson(path, *body);
  if (!answer.ok()) return Fail(answer.status());
  if (flags.json) {
    Print(*answer);
  } else {
    say(*answer);
  }
  return 0;
}

int Pin(const CacheFlags& flags, const CacheClient& client) {
  auto body = BodyOf(flags);
  if (body.ok()) (*body)["ttl_s"] = flags.ttl_s;
  return Post(flags, client, "/kvlink/pin", body, [](const Json& answer) {
    std::printf("pinned %llu of %llu tokens for %.0f s; pins hold %llu bytes\n",
                Shown(answer, "pinned_tokens"), Shown(answer, "prompt_tokens"),
                answer.value("ttl_s", 0.0), Shown(answer, "pinned_bytes"));
  });
}

int Unpin(const CacheFlags& flags, const CacheClient& client) {
  return Post(flags, client, "/kvlink/unpin", BodyOf(flags), [](const Json& answer) {
    std::printf("%llu of %llu tokens are pinned no longer; pins hold %llu bytes\n",
                Shown(answer, "unpinned_tokens"), Shown(answer, "prompt_tokens"),
                Shown(answer, "pinned_bytes"));
  });
}

int Warm(const CacheFlags& flags, const CacheClient& client) {
  return Post(flags, client, "/kvlink/warm", BodyOf(flags), [](const Json& answer) {
    std::printf("%llu tokens are in the cache: %llu were, %llu were computed\n",
                Shown(answer, "prompt_tokens"), Shown(answer, "cached_tokens"),
                Shown(answer, "computed_tokens"));
  });
}

int Flush(const CacheFlags& flags, const CacheClient& client) {
  return Post(flags, client, "/kvlink/flush", Json::object(), [](const Json& answer) {
    std::printf("dropped %llu pages, %llu bytes; %llu pages are in use and stay\n",
                Shown(answer, "dropped_pages"), Shown(answer, "dropped_bytes"),
                Shown(answer, "in_use_pages"));
  });
}

int Stats(const CacheFlags& flags, const CacheClient& client) {
  const auto metrics = client.Get("/metrics");
  if (!metrics.ok()) return Fail(metrics.status());
  const Json figures = CacheFigures(*metrics);
  if (flags.json) {
    Print(figures);
  } else {
    std::fputs(FiguresTable(figures).c_str(), stdout);
  }
  return 0;
}

void AddPromptOptions(CLI::App& app, CacheFlags& flags) {
  app.add_option("--prompt", flags.prompt, "The prompt, as of /v1/completions")->type_name("TEXT");
  app.add_option("--prompt-file", flags.prompt_file, "Likewise, from a file; -: standard input")
      ->type_name("FILE");
  app.add_option("--messages", flags.messages_file,
                 "JSON: a chat's messages, or an object with them and tools; -: standard input")
      ->type_name("FILE");
  app.add_option("--system", flags.system, "A system message, with nothing behind it")
      ->type_name("TEXT");
  app.add_flag("--no-generation-prompt", flags.no_generation_prompt,
               "With --messages: more of them may follow");
  app.add_option("--salt", flags.salt, "cache_salt of the requests that are to hit");
}

void AddListOptions(CLI::App& app, CacheFlags& flags) {
  app.add_option("--limit", flags.limit, "Blocks to show; 0: all")->capture_default_str();
  app.add_option("--sort", flags.sort, "By id (the oldest first), or the largest first")
      ->check(CLI::IsMember({"id", "uses", "users", "length", "idle", "age"}))
      ->capture_default_str();
  app.add_flag("--text", flags.text, "With the text of those shown; needs the right admin");
}

using Action = int (*)(const CacheFlags&, const CacheClient&);

// Each action has flags of its own, so that one's defaults are not another's.
std::function<int()> AddAction(CLI::App& cache, const char* name, const char* what, Action action,
                               void (*add_options)(CLI::App&, CacheFlags&), CLI::App** added) {
  const auto flags = std::make_shared<CacheFlags>();
  CLI::App* app = *added = cache.add_subcommand(name, what);
  app->add_option("--url", flags->url, "The server")->type_name("URL")->capture_default_str();
  app->add_option("--api-key", flags->api_key, "Key of a server that has keys")
      ->envname("KVLINK_API_KEY");
  app->add_option("--tls-ca", flags->tls_ca, kTlsCaHelp)->type_name("FILE");
  app->add_option("--timeout", flags->timeout_s, "Seconds the answer may take")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  app->add_flag("--json", flags->json, "Print JSON");
  if (add_options != nullptr) add_options(*app, *flags);
  if (action == Pin) {
    app->add_option("--ttl", flags->ttl_s, "Seconds that the blocks stay")
        ->check(CLI::Range(0.001, 30.0 * 24 * 3600))
        ->capture_default_str();
  }
  return [flags, action] {
    const auto client = ClientOf(*flags);
    return client.ok() ? action(*flags, *client) : Fail(client.status());
  };
}

}  // namespace

Command AddCache(CLI::App& kvlink) {
  CLI::App* app =
      kvlink.add_subcommand("cache", "Look into a running server's cache, or change it");
  app->require_subcommand(0, 1);  // so that a word that is none of them is named
  const auto actions = std::make_shared<std::vector<std::pair<CLI::App*, std::function<int()>>>>();
  const auto add = [&](const char* name, const char* what, Action action,
                       void (*add_options)(CLI::App&, CacheFlags&)) {
    CLI::App* added = nullptr;
    auto run = AddAction(*app, name, what, action, add_options, &added);
    actions->emplace_back(added, std::move(run));
  };
  add("list", "List the blocks in memory", List, AddListOptions);
  add("pin", "Keep a prompt's blocks in memory for a time", Pin, AddPromptOptions);
  add("unpin", "End that", Unpin, AddPromptOptions);
  add("warm", "Compute a prompt, so that whoever asks next hits", Warm, AddPromptOptions);
  add("flush", "Drop every block that no request uses, of all tenants", Flush, nullptr);
  add("stats", "How much is held, shared and reused", Stats, nullptr);
  return {app, [actions] {
            for (const auto& [action, run] : *actions) {
              if (action->parsed()) return run();
            }
            return Fail(Bad("cache: give one of list, pin, unpin, warm, flush and stats"));
          }};
}

}  // namespace kvlink::cli
