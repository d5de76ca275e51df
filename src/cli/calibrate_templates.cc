// Reads the texts of the corpus: domains with their sections and questions, and passages.
#include <sstream>
#include <utility>

#include "cli/calibrate_corpus.h"

namespace kvlink::cli {

Result<Corpus> Corpus::Parse(const std::string& templates, uint64_t seed) {
  Corpus corpus;
  corpus.random_ = base::Random(seed);
  std::istringstream in(templates);
  std::string paragraph;
  bool is_common = false, starts_domain = false;
  size_t number = 0;
  const auto end_paragraph = [&] {
    if (paragraph.empty()) return;
    if (is_common) {
      corpus.passages_.push_back(std::move(paragraph));
    } else if (starts_domain) {
      corpus.domains_.back().introduction = std::move(paragraph);
    } else {
      corpus.domains_.back().sections.push_back(std::move(paragraph));
    }
    paragraph.clear();
    starts_domain = false;
  };
  for (std::string line; std::getline(in, line);) {
    ++number;
    const auto bad = [&](const std::string& why) {
      return Status(StatusCode::kInvalidArgument,
                    "templates, line " + std::to_string(number) + ": " + why);
    };
    if (line.starts_with("= ")) {
      end_paragraph();
      is_common = line == "= +";
      starts_domain = !is_common;
      if (starts_domain) corpus.domains_.push_back({line.substr(2), "", {}, {}, {}});
      continue;
    }
    if (!line.empty() && corpus.domains_.empty()) return bad("text before the first domain");
    if (line.starts_with("? ")) {
      const size_t colon = line.find(": ");
      if (colon == std::string::npos) return bad("a question that decides names its slot");
      corpus.domains_.back().deciding.push_back(
          {line.substr(2, colon - 2), line.substr(colon + 2)});
    } else if (line.starts_with("* ")) {
      corpus.domains_.back().others.push_back({"", line.substr(2)});
    } else if (line.empty()) {
      end_paragraph();
    } else {
      paragraph += (paragraph.empty() ? "" : " ") + line;
    }
  }
  end_paragraph();
  for (const Domain& domain : corpus.domains_) {
    if (domain.sections.size() < 4 || domain.others.empty()) {
      return Status(StatusCode::kInvalidArgument, "templates: '" + domain.name +
                                                      "' has fewer than four sections, or no "
                                                      "question that decides nothing");
    }
  }
  if (corpus.domains_.empty() || corpus.passages_.empty()) {
    return Status(StatusCode::kInvalidArgument, "templates: no domain, or no passages");
  }
  return corpus;
}

}  // namespace kvlink::cli
