// A diagnosis as text for people and as JSON for programs (docs/operations.md has its fields).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/doctor_diagnose.h"

namespace kvlink::cli {

std::string DiagnosisText(const DoctorFacts& facts, const Diagnosis& diagnosis);
nlohmann::ordered_json DiagnosisJson(const DoctorFacts& facts, const Diagnosis& diagnosis);

}  // namespace kvlink::cli
