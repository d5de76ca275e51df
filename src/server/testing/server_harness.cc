#include "server/testing/server_harness.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <utility>

#include "server/api_keys.h"

namespace kvlink::server {

ServerHarness::ServerHarness() {
  options_.port = 0;
  options_.log_to_stderr = false;
  options_.seed_source = [seed = std::make_shared<std::atomic<uint64_t>>(1)] { return (*seed)++; };
  engine_options_.context = 4096;
}

void ServerHarness::TearDown() {
  StopServer();
  engine_.reset();
  if (!options_.api_keys_file.empty()) std::remove(options_.api_keys_file.c_str());
}

void ServerHarness::Start() {
  engine_ = std::make_unique<FakeEngine>(model_, engine_options_);
  Restart();
}

void ServerHarness::Restart() {
  StopServer();
  Result<std::unique_ptr<Server>> server = Server::Create(*engine_, options_);
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  server_ = *std::move(server);
  thread_ = std::thread([this] { server_->Run(); });
}

void ServerHarness::StopServer() {
  if (!server_) return;
  server_->Stop();
  server_->Stop();  // the second ends what still runs
  thread_.join();
  server_.reset();
}

HttpReply ServerHarness::Post(const std::string& path, const Json& body, const std::string& key) {
  return HttpClient(port()).Post(path, body, key);
}

HttpReply ServerHarness::Get(const std::string& path, const std::string& key) {
  return HttpClient(port()).Get(path, key);
}

nlohmann::json ServerHarness::ChatBody(const std::string& text, const Json& more) {
  Json body = {{"messages", {{{"role", "user"}, {"content", text}}}}};
  body.update(more);
  return body;
}

std::string ServerHarness::ChatText(const std::string& text, const Json& more) {
  return HttpClient::PostText(kChat, ChatBody(text, more).dump());
}

std::vector<nlohmann::json> ServerHarness::Events(const std::string& body) {
  std::vector<Json> events;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("data: ") && line != "data: [DONE]")
      events.push_back(Json::parse(line.substr(6)));
  }
  return events;
}

std::string ServerHarness::StreamedText(const std::vector<Json>& events, int index) {
  std::string text;
  for (const Json& event : events) {
    for (const Json& choice : event["choices"]) {
      if (choice["index"] != index) continue;
      text += choice.contains("delta") ? choice["delta"].value("content", "")
                                       : choice.value("text", "");
    }
  }
  return text;
}

double ServerHarness::MetricOf(const std::string& text, const std::string& name,
                               const std::string& labels) {
  double sum = 0;
  bool found = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool named = line.starts_with(name + "{") || line.starts_with(name + " ");
    if (!named || line.find(labels) == std::string::npos) continue;
    sum += std::stod(line.substr(line.rfind(' ') + 1));
    found = true;
  }
  EXPECT_TRUE(found) << name << " " << labels << " is not in\n" << text;
  return sum;
}

void ServerHarness::Say(const std::string& text) {
  engine_->set_script([text](const engine::GenerationRequest&, uint32_t) { return text; });
}

void ServerHarness::WriteKeyFile(const std::string& lines) {
  options_.api_keys_file = ::testing::TempDir() + "keys-" + std::to_string(getpid());
  std::ofstream(options_.api_keys_file) << lines;
}

std::string ServerHarness::KeyLine(const std::string& key, const std::string& tenant,
                                   const std::string& rights) {
  std::string hash;
  for (const uint8_t byte : Sha256(key)) {
    char hex[3];
    std::snprintf(hex, sizeof(hex), "%02x", byte);
    hash += hex;
  }
  return R"({"name": ")" + key + R"(-name", "hash": ")" + hash + R"(", "tenant": ")" + tenant +
         R"(", "rights": )" + rights + "}\n";
}

}  // namespace kvlink::server
