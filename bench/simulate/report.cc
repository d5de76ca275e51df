#include "report.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace kvlink::simulate {
namespace {

Status CheckSizes(const char* option, const std::vector<uint64_t>& sizes, const Trace& trace) {
  for (const uint64_t size : sizes) {
    if (size >= trace.longest_path()) continue;
    return {StatusCode::kInvalidArgument, std::string(option) + ": " + std::to_string(size) +
                                              " blocks do not hold the longest prompt, " +
                                              std::to_string(trace.longest_path()) +
                                              " blocks; leave it out with --max-input"};
  }
  return Status::Ok();
}

void RunTiers(const Trace& trace, const Options& options, Report* report) {
  for (const uint64_t ram : options.sizes) {
    std::vector<TierSizes> stages = {{.ram = ram}};
    if (options.cold_factor > 0) stages.push_back({.ram = ram, .cold = ram * options.cold_factor});
    if (options.remote_factor > 0) {
      stages.push_back(
          {.ram = ram, .cold = ram * options.cold_factor, .remote = ram * options.remote_factor});
    }
    for (const TierSizes& sizes : stages) {
      for (const Policy policy : kPolicies) {
        ReplayRow row{policy, sizes, Replay(trace, policy, sizes, options.machine)};
        if (sizes.total() == ram) report->single.push_back(row);
        report->tiers.push_back(std::move(row));
      }
    }
  }
}

void RunMachines(const Trace& trace, const Options& options, Report* report) {
  ClusterOptions base{.machines = options.baseline_machines, .machine = options.machine};
  const double span_s = trace.requests().back().arrival_s - trace.requests().front().arrival_s;
  const double busy_s = ColdSeconds(trace, options.machine);
  const double wanted_s = busy_s / (options.baseline_machines * options.baseline_load);
  base.time_scale = span_s > 0 ? wanted_s / span_s : 1;
  report->time_scale = base.time_scale;
  report->machines.push_back({"no reuse", base, true, RunCluster(trace, base)});
  const double target_s = report->machines.front().result.p95_ttft_s;

  const auto add = [&](std::string name, ClusterOptions wanted) {
    wanted.machines = MachinesNeeded(trace, wanted, target_s, options.baseline_machines);
    const bool is_enough = wanted.machines <= options.baseline_machines;
    wanted.machines = std::min(wanted.machines, options.baseline_machines);
    const ClusterResult result = RunCluster(trace, wanted);
    report->machines.push_back({std::move(name), wanted, is_enough, result});
  };
  for (const uint64_t ram : options.machine_sizes) {
    ClusterOptions wanted = base;
    wanted.sizes = {.ram = ram};
    for (const Routing routing :
         {Routing::kRoundRobin, Routing::kLeastWait, Routing::kPrefixAware}) {
      wanted.routing = routing;
      for (const Policy policy : {Policy::kKvlink, Policy::kLru}) {
        wanted.policy = policy;
        add(RoutingName(routing), wanted);
      }
    }
    if (options.remote_factor == 0) continue;
    wanted.routing = Routing::kSharedRemote;
    wanted.sizes.remote = ram * options.remote_factor;
    for (const Policy policy : kPolicies) {
      wanted.policy = policy;
      add(RoutingName(wanted.routing), wanted);
    }
  }
}

std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string Format(const char* format, ...) {
  char line[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(line, sizeof(line), format, values);
  va_end(values);
  return line;
}

double GigabytesOf(double blocks, const Trace& trace, const Options& options) {
  return blocks * trace.block_tokens() * options.machine.kv_bytes_per_token / 1e9;
}

std::string SingleTable(const Report& report, const Trace& trace, const Options& options) {
  std::string out =
      "| blocks | KV, GB | policy | token hit rate | of Belady's | prefill time saved |\n"
      "|---|---|---|---|---|---|\n";
  for (const ReplayRow& row : report.single) {
    const auto best =
        std::find_if(report.single.begin(), report.single.end(), [&](const ReplayRow& other) {
          return other.policy == Policy::kBelady && other.sizes.ram == row.sizes.ram;
        });
    const double bound = best->result.token_hit_rate();
    out += Format("| %llu | %.1f | %s | %.2f %% | %.1f %% | %.2f %% |\n",
                  static_cast<unsigned long long>(row.sizes.ram),
                  GigabytesOf(static_cast<double>(row.sizes.ram), trace, options),
                  PolicyName(row.policy), 100 * row.result.token_hit_rate(),
                  bound > 0 ? 100 * row.result.token_hit_rate() / bound : 100,
                  100 * row.result.saved_prefill());
  }
  return out;
}

std::string TierTable(const Report& report, const Trace& trace, const Options& options) {
  std::string out =
      "| RAM + cold + remote, blocks | policy | token hit rate | from RAM, cold, remote (blocks) | "
      "disk read, written, GB | network in, out, GB |\n|---|---|---|---|---|---|\n";
  for (const ReplayRow& row : report.tiers) {
    const Served& blocks = row.result.blocks;
    const auto gigabytes = [&](uint64_t count) {
      return GigabytesOf(static_cast<double>(count), trace, options);
    };
    out += Format(
        "| %llu + %llu + %llu | %s | %.2f %% | %llu, %llu, %llu | %.0f, %.0f | %.0f, "
        "%.0f |\n",
        static_cast<unsigned long long>(row.sizes.ram),
        static_cast<unsigned long long>(row.sizes.cold),
        static_cast<unsigned long long>(row.sizes.remote), PolicyName(row.policy),
        100 * row.result.token_hit_rate(), static_cast<unsigned long long>(blocks.ram),
        static_cast<unsigned long long>(blocks.cold),
        static_cast<unsigned long long>(blocks.remote), gigabytes(blocks.cold),
        gigabytes(blocks.cold_written), gigabytes(blocks.remote), gigabytes(blocks.remote_written));
  }
  return out;
}

std::string MachineTable(const Report& report, const Trace& trace, const Options& options) {
  std::string out =
      "| RAM a machine, blocks | routing | policy | machines | token hit rate | p50, p95 TTFT, s | "
      "load | KV of all, GB | network, GB |\n|---|---|---|---|---|---|---|---|---|\n";
  for (const ClusterRow& row : report.machines) {
    const ClusterOptions& cluster = row.options;
    const double blocks = static_cast<double>(cluster.sizes.ram * cluster.machines) +
                          static_cast<double>(cluster.sizes.remote);
    const bool is_baseline = cluster.sizes.ram == 0;
    out += Format("| %llu | %s | %s | %s%u | %.1f %% | %.2f, %.2f | %.0f %% | %.0f | %.0f |\n",
                  static_cast<unsigned long long>(cluster.sizes.ram), row.name.c_str(),
                  is_baseline ? "-" : PolicyName(cluster.policy), row.is_enough ? "" : "> ",
                  cluster.machines, 100 * row.result.token_hit_rate, row.result.p50_ttft_s,
                  row.result.p95_ttft_s, 100 * row.result.utilisation,
                  GigabytesOf(blocks, trace, options), row.result.network_bytes / 1e9);
  }
  return out;
}

using Json = nlohmann::ordered_json;

Json ReplayJson(const ReplayRow& row) {
  const Served& blocks = row.result.blocks;
  return {{"policy", PolicyName(row.policy)},
          {"ram_blocks", row.sizes.ram},
          {"cold_blocks", row.sizes.cold},
          {"remote_blocks", row.sizes.remote},
          {"token_hit_rate", row.result.token_hit_rate()},
          {"prefill_saved", row.result.saved_prefill()},
          {"hits", {{"ram", blocks.ram}, {"cold", blocks.cold}, {"remote", blocks.remote}}},
          {"written", {{"cold", blocks.cold_written}, {"remote", blocks.remote_written}}}};
}

Json ClusterJson(const ClusterRow& row) {
  const ClusterOptions& cluster = row.options;
  return {{"routing", row.name},
          {"policy", PolicyName(cluster.policy)},
          {"ram_blocks", cluster.sizes.ram},
          {"remote_blocks", cluster.sizes.remote},
          {"machines", cluster.machines},
          {"meets_baseline", row.is_enough},
          {"token_hit_rate", row.result.token_hit_rate},
          {"p50_ttft_s", row.result.p50_ttft_s},
          {"p95_ttft_s", row.result.p95_ttft_s},
          {"utilisation", row.result.utilisation},
          {"network_bytes", row.result.network_bytes}};
}

}  // namespace

Result<Report> MakeReport(const Trace& trace, const Options& options) {
  if (const Status status = CheckSizes("--sizes", options.sizes, trace); !status.ok()) {
    return status;
  }
  if (options.run_machines) {
    const Status status = CheckSizes("--machine-sizes", options.machine_sizes, trace);
    if (!status.ok()) return status;
  }
  Report report;
  const TierSizes unlimited{.ram = std::max<uint64_t>(trace.num_nodes(), 1)};
  report.unlimited = Replay(trace, Policy::kLru, unlimited, options.machine);
  RunTiers(trace, options, &report);
  if (options.run_machines) RunMachines(trace, options, &report);
  return report;
}

std::string ToMarkdown(const Report& report, const Trace& trace, const Options& options) {
  const Machine& machine = options.machine;
  std::string out = Format(
      "%zu requests, %llu prompt tokens, %zu blocks of %u tokens; without a limit %.2f %% of the "
      "tokens hit.\nA machine: prefill %.0f tokens/s at the start of a prompt, a row at %.0f costs "
      "twice as much, decode %.0f tokens/s, KV %.0f bytes a token, disk %.2f GB/s, network %.2f "
      "GB/s.\n",
      trace.requests().size(), static_cast<unsigned long long>(trace.input_tokens()),
      trace.num_nodes(), trace.block_tokens(), 100 * report.unlimited.token_hit_rate(),
      machine.prefill_rate, machine.dear_position, machine.decode_rate, machine.kv_bytes_per_token,
      machine.disk_bytes_per_s / 1e9, machine.network_bytes_per_s / 1e9);
  out += "\n## One cache\n\n" + SingleTable(report, trace, options);
  out += "\n## Tiers\n\n" + TierTable(report, trace, options);
  if (report.machines.empty()) return out;
  out += Format(
      "\n## Machines at the p95 TTFT of %u without reuse\n\nArrival times are multiplied by %.3f, "
      "so that the %u are busy %.0f %% of the time.\n\n",
      options.baseline_machines, report.time_scale, options.baseline_machines,
      100 * options.baseline_load);
  return out + MachineTable(report, trace, options);
}

std::string ToJson(const Report& report, const Trace& trace, const Options& options) {
  const Machine& machine = options.machine;
  Json json = {{"requests", trace.requests().size()},
               {"input_tokens", trace.input_tokens()},
               {"blocks", trace.num_nodes()},
               {"block_tokens", trace.block_tokens()},
               {"unlimited_token_hit_rate", report.unlimited.token_hit_rate()},
               {"machine",
                {{"prefill_rate", machine.prefill_rate},
                 {"dear_position", machine.dear_position},
                 {"decode_rate", machine.decode_rate},
                 {"kv_bytes_per_token", machine.kv_bytes_per_token},
                 {"disk_bytes_per_s", machine.disk_bytes_per_s},
                 {"network_bytes_per_s", machine.network_bytes_per_s}}}};
  for (const ReplayRow& row : report.single) json["single"].push_back(ReplayJson(row));
  for (const ReplayRow& row : report.tiers) json["tiers"].push_back(ReplayJson(row));
  json["time_scale"] = report.time_scale;
  json["machines"] = Json::array();
  for (const ClusterRow& row : report.machines) json["machines"].push_back(ClusterJson(row));
  return json.dump(2) + "\n";
}

}  // namespace kvlink::simulate
