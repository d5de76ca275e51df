// Cache, LookupRequest, Plan and CacheStats.
#include <chrono>
#include <cmath>

#include "handles.h"
#include "kvlink/options.h"

namespace kvlink::python {
namespace {

using CachePointer = std::shared_ptr<CacheHandle>;

std::shared_ptr<RequestHandle> MakeRequest(const py::object& tokens, std::string tenant,
                                           std::string salt, bool reuse, bool store,
                                           uint32_t min_compute, uint32_t max_new_tokens,
                                           SimilarPolicy similar, bool trial) {
  auto handle = std::make_shared<RequestHandle>();
  handle->tokens = TokensFrom(tokens, "tokens");
  const size_t size = handle->tokens.size();
  if (size == 0) Throw(StatusCode::kInvalidArgument, "tokens is empty");
  if (min_compute < 1 || min_compute > size) {
    Throw(StatusCode::kInvalidArgument, "min_compute is " + std::to_string(min_compute) +
                                            ", but must be 1 to the " + std::to_string(size) +
                                            " tokens");
  }
  handle->request = {.tokens = handle->tokens,
                     .ns = {std::move(tenant), std::move(salt)},
                     .reuse = reuse,
                     .store = store,
                     .min_compute = min_compute,
                     .max_new_tokens = max_new_tokens,
                     .similar = similar,
                     .trial = trial};
  return handle;
}

void BindPlan(py::module_& module) {
  py::class_<InFlight>(module, "InFlight")
      .def_readonly("leader", &InFlight::leader)
      .def_readonly("num_tokens", &InFlight::num_tokens);
  py::class_<ReuseSpan>(module, "ReuseSpan")
      .def_readonly("position", &ReuseSpan::position)
      .def_readonly("donor_position", &ReuseSpan::donor_position)
      .def_readonly("num_rows", &ReuseSpan::num_rows)
      .def_property_readonly("shift", &ReuseSpan::shift);
  py::class_<SimilarPlan>(module, "SimilarPlan")
      .def_readonly("donor", &SimilarPlan::donor)
      .def_readonly("spans", &SimilarPlan::spans)
      .def_readonly("mask_similarity", &SimilarPlan::mask_similarity)
      .def_readonly("matrix_similarity", &SimilarPlan::matrix_similarity)
      .def_readonly("reused_rows", &SimilarPlan::reused_rows)
      .def_property_readonly("edit",
                             [](const SimilarPlan& plan) { return EditClassName(plan.edit); })
      .def_property_readonly("num_computed",
                             [](const SimilarPlan& plan) { return plan.selection.num_computed; });
  py::class_<Plan>(module, "Plan")
      .def_readonly("num_tokens", &Plan::num_tokens)
      .def_readonly("exact_tokens", &Plan::exact_tokens)
      .def_readonly("partial_tokens", &Plan::partial_tokens)
      .def_readonly("compute_from", &Plan::compute_from)
      .def_readonly("diverged_at", &Plan::diverged_at)
      .def_readonly("in_flight", &Plan::in_flight)
      .def_readonly("similar", &Plan::similar)
      .def_readonly("match_us", &Plan::match_us)
      .def_property_readonly("miss_reason",
                             [](const Plan& plan) { return MissReasonName(plan.miss_reason); })
      .def_property_readonly("similar_reason", [](const Plan& plan) {
        return SimilarReasonName(plan.similar_reason);
      });
}

// Every counter by its name in cache.h.
py::dict StatsOf(const CachePointer& self) {
  const CacheStats stats = self->get().Stats();
  py::dict result;
  const std::pair<const char*, uint64_t> counters[] = {
      {"total_pages", stats.total_pages},
      {"free_pages", stats.free_pages},
      {"cached_pages", stats.cached_pages},
      {"in_use_pages", stats.in_use_pages},
      {"page_bytes", stats.page_bytes},
      {"in_use_bytes", stats.in_use_bytes},
      {"peak_in_use_bytes", stats.peak_in_use_bytes},
      {"cached_bytes", stats.cached_bytes},
      {"budget_bytes", stats.budget_bytes},
      {"pinned_bytes", stats.pinned_bytes},
      {"without_sharing_bytes", stats.without_sharing_bytes},
      {"shared_bytes", stats.shared_bytes},
      {"tracking_bytes", stats.tracking_bytes},
      {"lookups", stats.lookups},
      {"queried_tokens", stats.queried_tokens},
      {"exact_tokens", stats.exact_tokens},
      {"partial_tokens", stats.partial_tokens},
      {"similar_tokens", stats.similar_tokens},
      {"collisions", stats.collisions},
      {"stored_blocks", stats.stored_blocks},
      {"evicted_blocks", stats.evicted_blocks},
      {"cow_full_copies", stats.cow_full_copies},
      {"cow_difference_blocks", stats.cow_difference_blocks},
      {"single_flight_waits", stats.single_flight_waits},
      {"single_flight_takeovers", stats.single_flight_takeovers},
      {"fallbacks", stats.fallbacks},
      {"output_splices", stats.output_splices},
      {"similar_attempts", stats.similar_attempts},
      {"similar_enlarged", stats.similar_enlarged},
      {"similar_waits", stats.similar_waits},
      {"shadows", stats.shadows},
      {"shadow_failures", stats.shadow_failures},
      {"donors", stats.donors},
      {"similar_match_ns", stats.similar_match_ns},
      {"match_ns", stats.match_ns}};
  for (const auto& [name, value] : counters) result[name] = value;
  result["misses"] = ByName(stats.misses, &MissReasonName);
  result["similar_outcomes"] = ByName(stats.similar_outcomes, &SimilarReasonName);
  return result;
}

Plan Lookup(const CachePointer& self, const RequestHandle& handle) {
  const std::shared_ptr<Cache> cache = self->share();
  const Released released;
  return cache->Lookup(handle.request);
}

std::shared_ptr<SequenceHandle> Begin(const CachePointer& self, const RequestHandle& handle,
                                      const Plan& plan) {
  if (plan.num_tokens != handle.tokens.size()) {
    Throw(StatusCode::kInvalidArgument, "the plan is for " + std::to_string(plan.num_tokens) +
                                            " tokens, the request has " +
                                            std::to_string(handle.tokens.size()));
  }
  auto sequence = Take(self->get().Begin(handle.request, plan));
  return std::make_shared<SequenceHandle>(self, std::move(sequence),
                                          static_cast<uint32_t>(handle.tokens.size()));
}

uint32_t Pin(const CachePointer& self, const RequestHandle& handle, double ttl_s) {
  if (!std::isfinite(ttl_s) || ttl_s <= 0 || ttl_s > 1e9) {
    Throw(StatusCode::kInvalidArgument, "ttl_s is " + std::to_string(ttl_s) + ", no time to live");
  }
  const auto ttl = std::chrono::milliseconds(static_cast<int64_t>(std::ceil(ttl_s * 1e3)));
  return Take(self->get().Pin(handle.request, ttl));
}

void BindTexts(py::class_<CacheHandle, CachePointer>& cache) {
  cache
      .def(
          "remember",
          [](const CachePointer& self, const std::string& text, const py::object& tokens,
             const std::string& tenant, const std::string& salt) {
            self->get().Remember({tenant, salt}, text, TokensFrom(tokens, "tokens"));
          },
          py::arg("text"), py::arg("tokens"), py::kw_only(), py::arg("tenant") = "",
          py::arg("salt") = "")
      .def(
          "recall",
          [](const CachePointer& self, const std::string& text, const std::string& tenant,
             const std::string& salt) -> py::object {
            const auto tokens = self->get().Recall({tenant, salt}, text);
            if (!tokens) return py::none();
            return ToArray(*tokens);
          },
          py::arg("text"), py::kw_only(), py::arg("tenant") = "", py::arg("salt") = "")
      .def(
          "recall_prefix",
          [](const CachePointer& self, const std::string& text, const std::string& tenant,
             const std::string& salt) -> py::object {
            const auto recalled = self->get().RecallPrefix({tenant, salt}, text);
            if (!recalled) return py::none();
            return py::make_tuple(recalled->text_bytes, ToArray(recalled->tokens));
          },
          py::arg("text"), py::kw_only(), py::arg("tenant") = "", py::arg("salt") = "");
}

}  // namespace

void BindCache(py::module_& module) {
  BindPlan(module);
  py::class_<RequestHandle, std::shared_ptr<RequestHandle>>(module, "LookupRequest")
      .def(py::init(&MakeRequest), py::arg("tokens"), py::kw_only(), py::arg("tenant") = "",
           py::arg("salt") = "", py::arg("reuse") = true, py::arg("store") = true,
           py::arg("min_compute") = 1, py::arg("max_new_tokens") = 0,
           py::arg("similar") = SimilarPolicy::kOff, py::arg("trial") = false)
      .def_property_readonly("tokens",
                             [](const RequestHandle& self) { return ToArray(self.tokens); })
      .def_property_readonly("tenant",
                             [](const RequestHandle& self) { return self.request.ns.tenant; })
      .def_property_readonly("salt",
                             [](const RequestHandle& self) { return self.request.ns.salt; });
  py::class_<CacheHandle, CachePointer> cache(module, "Cache");
  cache
      .def(py::init([](const CacheOptions& options) {
             return std::make_shared<CacheHandle>(Take(CreateCache(options)));
           }),
           py::arg("options"))
      .def_property_readonly("shape", [](const CachePointer& self) { return self->get().shape(); })
      .def("lookup", &Lookup, py::arg("request"))
      .def("begin", &Begin, py::arg("request"), py::arg("plan"))
      .def(
          "still_computing",
          [](const CachePointer& self, const InFlight& wait) {
            return self->get().StillComputing(wait);
          },
          py::arg("in_flight"))
      .def("count_wait", [](const CachePointer& self) { self->get().CountWait(); })
      .def("count_takeover", [](const CachePointer& self) { self->get().CountTakeover(); })
      .def(
          "record_shadow",
          [](const CachePointer& self, uint64_t shadow, bool agreed) {
            self->get().RecordShadow(shadow, agreed);
          },
          py::arg("shadow"), py::arg("agreed"))
      .def("pin", &Pin, py::arg("request"), py::arg("ttl_s"))
      .def("clear", [](const CachePointer& self) { self->get().Clear(); })
      .def("stats", &StatsOf)
      .def("close", [](const CachePointer& self) { self->Close(); })
      .def_property_readonly("closed", [](const CachePointer& self) { return self->is_closed(); })
      .def("__enter__", [](const CachePointer& self) { return self; })
      .def("__exit__", [](const CachePointer& self, const py::args&) { self->Close(); });
  BindTexts(cache);
}

}  // namespace kvlink::python
