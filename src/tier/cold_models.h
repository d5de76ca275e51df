// ColdModels: whose blocks a cold folder has held besides those of the model that is served, so
// that a miss can be told from one that another model file, KV type or processor would have hit.
//
//   MODELS    model fingerprints (CacheOptions) in hexadecimal, one a line, the last served first
//
// A hint and no more: the file is replaced as a whole, and what cannot be read of it counts as
// absent.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kvlink::tier {

inline constexpr size_t kMostOtherModels = 3;

// Puts `fingerprint` first; gives the others, the last served first. Requires: the folder is the
// caller's (its cold tier is open).
std::vector<std::string> NoteColdModel(const std::string& directory,
                                       const std::string& fingerprint);

}  // namespace kvlink::tier
