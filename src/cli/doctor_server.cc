#include "cli/doctor_server.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

namespace kvlink::cli {
namespace {

using nlohmann::json;

Status Bad(const std::string& what) { return {StatusCode::kDataLoss, "/kvlink/requests: " + what}; }

Result<std::string> Get(const HttpClient& client, const std::string& path) {
  auto answer = client.Get(path);
  if (!answer.ok()) return Status(answer.status().code(), "--url: " + answer.status().message());
  if (answer->status == 200) return std::move(answer->body);
  if (answer->status == 401) {
    return Status(StatusCode::kFailedPrecondition,
                  "--url: the server wants an API key it knows: give --api-key");
  }
  return Status(StatusCode::kFailedPrecondition,
                "--url: " + path + " answers HTTP " + std::to_string(answer->status) +
                    "; it takes a `kvlink serve` that keeps recent requests (--recent-requests)");
}

// Reads one request; remembers the first field that is not as it should be.
class RequestReader {
 public:
  explicit RequestReader(const json& object) : object_(object) {}
  const std::string& error() const { return error_; }

  uint32_t Count(const char* name, bool may_be_null = false) {
    const json* value = Find(name, may_be_null);
    if (value == nullptr) return 0;
    if (!value->is_number_unsigned()) return Fail(name), 0;
    return value->get<uint32_t>();
  }
  double Number(const char* name) {
    const json* value = Find(name, false);
    if (value == nullptr) return 0;
    if (!value->is_number()) return Fail(name), 0;
    return value->get<double>();
  }
  std::string Text(const char* name) {
    const json* value = Find(name, true);
    if (value == nullptr) return "";
    if (!value->is_string()) return Fail(name), "";
    return value->get<std::string>();
  }
  server::PromptSketch Sketch() {
    server::PromptSketch sketch{};
    const json* value = Find("sketch", false);
    if (value == nullptr) return sketch;
    if (!value->is_array() || value->size() != sketch.size()) return Fail("sketch"), sketch;
    for (size_t i = 0; i < sketch.size(); ++i) {
      if (!(*value)[i].is_number_unsigned()) return Fail("sketch"), sketch;
      sketch[i] = (*value)[i].get<uint32_t>();
    }
    return sketch;
  }
  bool IsNull(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null();
  }

 private:
  const json* Find(const char* name, bool may_be_null) {
    if (!IsNull(name)) return &*object_.find(name);
    if (!may_be_null) Fail(name);
    return nullptr;
  }
  void Fail(const char* name) {
    if (error_.empty()) error_ = std::string("a request's \"") + name + "\" is not as expected";
  }
  const json& object_;
  std::string error_;
};

Result<RequestFacts> ReadRequest(const json& object) {
  if (!object.is_object()) return Bad("an element of \"data\" is no object");
  RequestReader reader(object);
  RequestFacts facts;
  facts.space = reader.Text("salt");
  facts.prompt_tokens = reader.Count("prompt_tokens");
  facts.exact = reader.Count("exact");
  facts.partial = reader.Count("partial");
  facts.similar = reader.Count("similar");
  facts.verdict = reader.Text("verdict");
  facts.edit = reader.Text("edit");
  facts.miss_reason = reader.Text("miss_reason");
  facts.diverged_at = reader.Count("diverged_at", /*may_be_null=*/true);
  if (!reader.IsNull("diverged_message")) facts.message = reader.Count("diverged_message");
  facts.token = reader.Text("diverged_token");
  facts.after = reader.Text("diverged_after");
  facts.match_ms = reader.Number("match_ms");
  facts.first_token_ms = reader.Number("first_token_ms");
  facts.sketch = reader.Sketch();
  if (!reader.error().empty()) return Bad(reader.error());
  return facts;
}

void ReadMetrics(const std::string& text, DoctorFacts* facts) {
  const auto count = [&](const char* name, const char* label = "", const std::string& value = "") {
    return static_cast<uint64_t>(SumOfMetric(text, name, label, value));
  };
  facts->num_requests = count("vllm:request_success_total");
  facts->preemptions = count("kvlink_preemptions_total");
  facts->refused = count("kvlink_requests_refused_total");
  facts->evicted_blocks = count("kvlink_evicted_blocks_total");
  facts->stored_blocks = count("kvlink_stored_blocks_total");
  facts->budget_bytes = count("kvlink_kv_bytes", "state", "budget");
  for (size_t i = 0; i < static_cast<size_t>(EditClass::kCount); ++i) {
    const std::string name = EditClassName(static_cast<EditClass>(i));
    facts->shadows[name] = {count("kvlink_class_shadows_total", "class", name),
                            count("kvlink_class_shadow_failures_total", "class", name)};
  }
}

}  // namespace

double SumOfMetric(const std::string& text, const std::string& name, const std::string& label,
                   const std::string& value) {
  double sum = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool named = line.starts_with(name) && line.size() > name.size() &&
                       (line[name.size()] == '{' || line[name.size()] == ' ');
    if (!named) continue;
    if (!label.empty() && line.find(label + "=\"" + value + "\"") == std::string::npos) continue;
    const size_t blank = line.rfind(' ');
    double number = 0;
    std::from_chars(line.data() + blank + 1, line.data() + line.size(), number);
    sum += number;
  }
  return sum;
}

Result<DoctorFacts> FactsOf(const std::string& requests_json, const std::string& metrics_text) {
  const json object = json::parse(requests_json, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("data") || !object["data"].is_array() ||
      !object.contains("similar") || !object["similar"].is_string()) {
    return Bad("not the answer of a kvlink server");
  }
  DoctorFacts facts;
  facts.is_server = true;
  facts.similar = object["similar"].get<std::string>();
  const json settings = object.value("settings", json::object());
  for (const auto& [name, value] : settings.items()) {
    if (value.is_number()) facts.settings[name] = value.get<double>();
  }
  for (const json& element : object["data"]) {
    auto request = ReadRequest(element);
    if (!request.ok()) return request.status();
    facts.requests.push_back(*std::move(request));
  }
  ReadMetrics(metrics_text, &facts);
  return facts;
}

Result<DoctorFacts> ReadServer(const HttpClient& client) {
  const auto requests = Get(client, "/kvlink/requests");
  if (!requests.ok()) return requests.status();
  const auto metrics = Get(client, "/metrics");
  if (!metrics.ok()) return metrics.status();
  auto facts = FactsOf(*requests, *metrics);
  if (facts.ok()) facts->source = client.url().Text();
  return facts;
}

}  // namespace kvlink::cli
