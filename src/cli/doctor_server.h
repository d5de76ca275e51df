// Facts from a running server: GET /kvlink/requests and GET /metrics.
#pragma once

#include <string>

#include "cli/doctor_facts.h"
#include "cli/http_client.h"
#include "kvlink/status.h"

namespace kvlink::cli {

// kUnavailable: nobody answers, or not in time. kFailedPrecondition: it is no kvlink server, keeps
// no recent requests, or wants a key.
Result<DoctorFacts> ReadServer(const HttpClient& client);

// The two answers as they came; kDataLoss names what is not as it should be.
Result<DoctorFacts> FactsOf(const std::string& requests_json, const std::string& metrics_text);

// Sum of the samples of a metric in Prometheus' text that carry label="value" (label empty: all);
// 0 without any.
double SumOfMetric(const std::string& text, const std::string& name, const std::string& label = "",
                   const std::string& value = "");

}  // namespace kvlink::cli
