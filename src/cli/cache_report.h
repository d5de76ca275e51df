// What `kvlink cache` prints: tables for people. Pure functions of the server's answers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvlink::cli {

using CacheJson = nlohmann::ordered_json;

// Sorts a list's blocks by "id", or with the largest first by "uses", "users", "length", "idle",
// "age". Returns false for another word.
bool SortBlocks(const std::string& by, std::vector<CacheJson>* blocks);

// A line a block; a column for the tenant where there are several, one for the text where blocks
// have a "text". `total`: of the whole list.
std::string BlocksTable(const std::vector<CacheJson>& blocks, size_t total);

// The figures of /metrics that tell how the cache does, as an object and as text.
CacheJson CacheFigures(const std::string& metrics_text);
std::string FiguresTable(const CacheJson& figures);

}  // namespace kvlink::cli
