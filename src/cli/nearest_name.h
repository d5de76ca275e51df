// The name that somebody probably meant: for errors about an unknown option, key or subcommand.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvlink::cli {

// Insertions, deletions, replacements and swaps of neighbours that turn one into the other (optimal
// string alignment distance). O(|a| |b|).
size_t EditDistance(std::string_view a, std::string_view b);

// The nearest of `names`, the first of several; empty when none is within a third of the length (at
// least 2) and `name` begins none of them.
std::string NearestName(std::string_view name, const std::vector<std::string>& names);

// "; did you mean '--port'?", or nothing.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& names);

}  // namespace kvlink::cli
