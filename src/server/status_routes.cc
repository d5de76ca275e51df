// The routes of Api that tell about the server: its state, its figures, its description and its
// page.
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "server/api.h"
#include "server/dashboard.h"
#include "server/dump.h"
#include "server/openapi.h"

namespace kvlink::server {

using Json = nlohmann::ordered_json;

void Api::Health(Call call) { Answer(call, Dump({{"status", "ok"}})); }

void Api::MetricsText(Call call) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_->Text(engine_.Stats(), {http_figures_(), generations_.memory_figures(),
                                                   generations_.memory_refusals()});
  response.headers = calls_.HeadersOf(call);
  call.responder->Send(std::move(response));
  metrics_->CountHttp(call.route, 200);  // not logged: it is asked every few seconds
}

void Api::Version(Call call) {
  Answer(call, Dump({{"name", "kvlink"}, {"version", options_.version}}));
}

void Api::ListRequests(Call call) {
  if (recent_->capacity() == 0) {
    return Refuse(call, {404, "recent requests are not kept here", "", "unknown_path"});
  }
  size_t limit = recent_->capacity();
  if (!call.request.query.empty()) {
    const std::string_view query = call.request.query;
    constexpr std::string_view kLimit = "limit=";
    if (!query.starts_with(kLimit)) {
      return Refuse(call, {400,
                           "only limit=N may stand behind the path, not '" +
                               std::string(query.substr(0, 80)) + "'",
                           "limit", ""});
    }
    const std::string_view value = query.substr(kLimit.size());
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), limit);
    if (value.empty() || error != std::errc() || end != value.data() + value.size()) {
      return Refuse(
          call,
          {400, "limit must be a whole number, not '" + std::string(value.substr(0, 80)) + "'",
           "limit", ""});
    }
  }
  constexpr const char* kPolicies[] = {"off", "on", "strict"};
  Json json = {{"object", "list"},
               {"capacity", recent_->capacity()},
               {"similar", kPolicies[static_cast<size_t>(options_.similar)]},
               {"settings", Json::object()}};
  for (const auto& [name, value] : options_.settings) json["settings"][name] = value;
  recent_->Write(call.caller.tenant, limit, &json);
  Answer(call, Dump(json));
}

void Api::OpenApi(Call call) { Answer(call, OpenApiDocument(options_.version)); }

void Api::Dashboard(Call call) { calls_.Send(call, DashboardPage()); }

}  // namespace kvlink::server
