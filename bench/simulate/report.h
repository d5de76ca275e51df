// Report: everything that `simulate` measures on a trace, as Markdown and as JSON.
#pragma once

#include <string>
#include <vector>

#include "cluster.h"
#include "kvlink/status.h"
#include "options.h"
#include "replay.h"
#include "trace.h"

namespace kvlink::simulate {

struct ReplayRow {
  Policy policy = Policy::kKvlink;
  TierSizes sizes;
  ReplayResult result;
};

struct ClusterRow {
  std::string name;
  ClusterOptions options;  // with the machines it needs
  bool is_enough = true;   // false: not even as many as the baseline has
  ClusterResult result;
};

struct Report {
  ReplayResult unlimited;            // one cache without a limit
  std::vector<ReplayRow> single;     // one cache
  std::vector<ReplayRow> tiers;      // RAM; with cold; with cold and remote
  double time_scale = 0;             // of arrivals on the machines
  std::vector<ClusterRow> machines;  // the first is the baseline
};

// kInvalidArgument: a size is smaller than the longest prompt.
Result<Report> MakeReport(const Trace& trace, const Options& options);

std::string ToMarkdown(const Report& report, const Trace& trace, const Options& options);
std::string ToJson(const Report& report, const Trace& trace, const Options& options);

}  // namespace kvlink::simulate
