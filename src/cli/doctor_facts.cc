#include "cli/doctor_facts.h"

namespace kvlink::cli {

std::vector<std::pair<std::string, double>> SettingsOf(const CacheOptions& options) {
  const SimilarOptions& similar = options.similar;
  return {{"fingerprint_window", similar.fingerprint_window},
          {"short_window", similar.short_window},
          {"min_run", similar.min_run},
          {"min_reused_rows", similar.min_reused_rows},
          {"mask_similarity", similar.mask_similarity},
          {"max_compute_share", similar.max_compute_share},
          {"max_false_accepts", similar.max_false_accepts},
          {"wasted_compute_share", similar.wasted_compute_share},
          {"budget_bytes", static_cast<double>(options.budget_bytes)}};
}

}  // namespace kvlink::cli
