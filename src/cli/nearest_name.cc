#include "cli/nearest_name.h"

#include <algorithm>

namespace kvlink::cli {

size_t EditDistance(std::string_view a, std::string_view b) {
  // Rows i - 2, i - 1 and i of the table.
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

std::string NearestName(std::string_view name, const std::vector<std::string>& names) {
  std::string nearest;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : names) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  if (!nearest.empty() || name.empty()) return nearest;
  // "--kv" is far from "--kv-memory", and yet meant.
  const auto longer = std::ranges::find_if(
      names, [&](const std::string& candidate) { return candidate.starts_with(name); });
  return longer == names.end() ? "" : *longer;
}

std::string DidYouMean(std::string_view name, const std::vector<std::string>& names) {
  const std::string nearest = NearestName(name, names);
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

}  // namespace kvlink::cli
