#include "cli/cache_report.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "cli/byte_size.h"
#include "cli/doctor_server.h"
#include "server/dump.h"

namespace kvlink::cli {
namespace {

using Json = CacheJson;

std::string Seconds(double s) {
  char text[32];
  if (s < 120) {
    std::snprintf(text, sizeof text, "%.1fs", s);
  } else if (s < 7200) {
    std::snprintf(text, sizeof text, "%.1fm", s / 60);
  } else {
    std::snprintf(text, sizeof text, "%.1fh", s / 3600);
  }
  return text;
}

// Columns as wide as they need to be; the first `left` of each row to the left, the rest to the
// right, the last one as it comes.
std::string Aligned(const std::vector<std::vector<std::string>>& rows, size_t left) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      const bool is_last = i + 1 == row.size();
      line += (i > 0 ? "  " : "") + (i < left || is_last ? row[i] + pad : pad + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

double NumberOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

std::string CountOf(const Json& object, const char* name) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f", NumberOf(object, name));
  return text;
}

std::string IdOf(const Json& block, const char* name) {
  const auto found = block.find(name);
  return found != block.end() && found->is_number() ? CountOf(block, name) : "-";
}

std::string TextOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "-";
}

std::string StateOf(const Json& block) {
  std::string state = TextOf(block, "state") == "in_use" ? "in use" : "cached";
  if (TextOf(block, "kind") != "full") state += ", " + TextOf(block, "kind");
  if (block.value("tainted", false)) state += ", tainted";
  if (IdOf(block, "base") != "-") state += ", differs from " + IdOf(block, "base");
  for (const Json& tier : block.value("tiers", Json::array())) {
    if (tier.is_string()) state += ", also " + tier.get<std::string>();
  }
  return state;
}

// One line, and not too long a one.
std::string ShortText(const Json& text) {
  if (!text.is_string()) return "-";
  std::string out = server::Dump(text);
  constexpr size_t kMost = 60;
  if (out.size() <= kMost) return out;
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xC0) == 0x80) --end;
  return out.substr(0, end) + "...";
}

double ShareOf(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

std::string Percent(double part, double whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", ShareOf(part, whole));
  return text;
}

}  // namespace

bool SortBlocks(const std::string& by, std::vector<Json>* blocks) {
  static const std::set<std::string> kFields = {"id", "uses", "users", "length", "idle", "age"};
  if (!kFields.contains(by)) return false;
  const std::string field = by == "idle" || by == "age" ? by + "_s" : by;
  std::stable_sort(blocks->begin(), blocks->end(), [&](const Json& a, const Json& b) {
    const double x = NumberOf(a, field.c_str()), y = NumberOf(b, field.c_str());
    return by == "id" ? x < y : x > y;
  });
  return true;
}

std::string BlocksTable(const std::vector<Json>& blocks, size_t total) {
  std::set<std::string> tenants;
  bool has_text = false;
  for (const Json& block : blocks) {
    tenants.insert(TextOf(block, "tenant"));
    has_text = has_text || block.contains("text");
  }
  const bool has_tenants = tenants.size() > 1;
  std::vector<std::vector<std::string>> rows = {
      {"BLOCK", "PARENT", "TOKENS", "LENGTH", "USERS", "USES", "PINNED", "AGE", "IDLE", "SIZE"}};
  if (has_tenants) rows.front().push_back("TENANT");
  rows.front().push_back(has_text ? "STATE; TEXT" : "STATE");
  for (const Json& block : blocks) {
    const bool is_pinned = block.contains("pinned_s") && block["pinned_s"].is_number();
    rows.push_back({IdOf(block, "id"), IdOf(block, "parent"), CountOf(block, "tokens"),
                    CountOf(block, "length"), CountOf(block, "users"), CountOf(block, "uses"),
                    is_pinned ? Seconds(NumberOf(block, "pinned_s")) : "-",
                    Seconds(NumberOf(block, "age_s")), Seconds(NumberOf(block, "idle_s")),
                    FormatByteSize(static_cast<uint64_t>(NumberOf(block, "bytes")))});
    if (has_tenants) rows.back().push_back(TextOf(block, "tenant"));
    std::string state = StateOf(block);
    if (block.contains("text")) state += "; " + ShortText(block["text"]);
    rows.back().push_back(std::move(state));
  }
  std::string out = blocks.empty() ? "" : Aligned(rows, 0);
  out += std::to_string(total) + (total == 1 ? " block" : " blocks");
  if (blocks.size() < total) {
    out += ", " + std::to_string(blocks.size()) + " shown (--limit 0 shows all)";
  }
  return out + "\n";
}

Json CacheFigures(const std::string& text) {
  Json figures;
  for (const char* state :
       {"budget", "in_use", "cached", "pinned", "shared", "without_sharing", "peak_in_use"}) {
    figures["kv_bytes"][state] = SumOfMetric(text, "kvlink_kv_bytes", "state", state);
  }
  figures["kv_bytes"]["saved"] = SumOfMetric(text, "kvlink_kv_saved_bytes");
  for (const char* state : {"free", "cached", "in_use"}) {
    figures["pages"][state] = SumOfMetric(text, "kvlink_blocks", "state", state);
  }
  Json& tokens = figures["prompt_tokens"];
  tokens["all"] = SumOfMetric(text, "vllm:prompt_tokens_total");
  tokens["not_computed"] = SumOfMetric(text, "kvlink_reuse_tokens_total");
  for (const char* kind : {"exact", "partial", "similar"}) {
    tokens[kind] = SumOfMetric(text, "kvlink_reuse_tokens_total", "class", kind);
  }
  for (const char* tier : {"ram", "cold", "remote"}) {
    tokens["from"][tier] = SumOfMetric(text, "kvlink_reuse_tokens_total", "tier", tier);
  }
  figures["requests"]["running"] = SumOfMetric(text, "vllm:num_requests_running");
  figures["requests"]["waiting"] = SumOfMetric(text, "vllm:num_requests_waiting");
  figures["stored_blocks"] = SumOfMetric(text, "kvlink_stored_blocks_total");
  figures["evicted_blocks"] = SumOfMetric(text, "kvlink_evicted_blocks_total");
  for (const char* tier : {"cold", "remote"}) {
    const double blocks = SumOfMetric(text, "kvlink_tier_blocks", "tier", tier);
    if (blocks > 0) figures["tier_blocks"][tier] = blocks;
  }
  return figures;
}

std::string FiguresTable(const Json& figures) {
  const Json& kv = figures["kv_bytes"];
  const Json& tokens = figures["prompt_tokens"];
  const auto bytes = [&](const char* name) {
    return FormatByteSize(static_cast<uint64_t>(std::max(NumberOf(kv, name), 0.0)));
  };
  const double all = NumberOf(tokens, "all"), saved = NumberOf(tokens, "not_computed");
  std::vector<std::vector<std::string>> rows = {
      {"KV budget", bytes("budget")},
      {"  in use", bytes("in_use") + ", of which " + bytes("shared") + " by several requests"},
      {"  cached", bytes("cached")},
      {"  pinned", bytes("pinned")},
      {"without sharing",
       bytes("without_sharing") + ": " + bytes("saved") + " (" +
           Percent(std::max(NumberOf(kv, "saved"), 0.0), NumberOf(kv, "without_sharing")) +
           ") saved now"},
      {"most in use", bytes("peak_in_use")},
      {"prompt tokens", CountOf(tokens, "all") + ", not computed " +
                            CountOf(tokens, "not_computed") + " (" + Percent(saved, all) + ")"}};
  for (const char* kind : {"exact", "partial", "similar"}) {
    rows.push_back({std::string("  ") + kind,
                    CountOf(tokens, kind) + " (" + Percent(NumberOf(tokens, kind), all) + ")"});
  }
  for (const auto& [tier, count] : tokens["from"].items()) {
    if (tier != "ram" && count.get<double>() == 0) continue;
    rows.push_back({"  from " + tier, CountOf(tokens["from"], tier.c_str())});
  }
  rows.push_back({"blocks", CountOf(figures, "stored_blocks") + " stored, " +
                                CountOf(figures, "evicted_blocks") + " evicted so far"});
  const Json tier_blocks = figures.value("tier_blocks", Json::object());
  for (const auto& [tier, count] : tier_blocks.items()) {
    rows.push_back({"  in " + tier, CountOf(tier_blocks, tier.c_str())});
  }
  rows.push_back({"requests", CountOf(figures["requests"], "running") + " running, " +
                                  CountOf(figures["requests"], "waiting") + " waiting"});
  return Aligned(rows, 1);
}

}  // namespace kvlink::cli
