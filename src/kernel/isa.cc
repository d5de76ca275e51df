#include "kernel/isa.h"

#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "kernel/highway_targets.h"

#include "hwy/highway.h"

#include "kernel/paged_attention.h"
#include "kernel/tile_kernels.h"

namespace kvlink::kernel {
namespace {

constexpr std::array<std::pair<Isa, int64_t>, 3> kTargets = {{
    {Isa::kAvx512, HWY_AVX3},
    {Isa::kAvx2, HWY_AVX2},
    {Isa::kNeon, HWY_NEON},
}};

// What Highway may not choose when the limit is `isa`.
int64_t TargetsAbove(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
    case Isa::kNeon:
      return 0;
    case Isa::kAvx2:
      return HWY_AVX3 | HWY_AVX3_DL;
    case Isa::kBaseline:
      break;
  }
  return 0;
}

// Highway's SupportedTargets leaves its process-wide choice at the best of the processor, with
// nothing disabled, and says that its caller will set it right.
int64_t SupportedTargets() {
  const int64_t targets = hwy::SupportedTargets();
  hwy::GetChosenTarget().Update(targets);
  return targets;
}

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kNeon:
      return "neon";
    case Isa::kBaseline:
      break;
  }
  return "baseline";
}

Status ApplyIsaEnvironment() {
  const char* value = std::getenv("KVLINK_ISA");
  if (value == nullptr || *value == '\0') return Status::Ok();
  for (const auto& [isa, target] : kTargets) {
    if (std::string_view(value) != IsaName(isa)) continue;
    if (TargetsAbove(isa) != 0) hwy::DisableTargets(TargetsAbove(isa));
    return Status::Ok();
  }
  return Status(StatusCode::kInvalidArgument,
                "KVLINK_ISA: '" + std::string(value) + "' is none of avx512, avx2, neon");
}

Isa CurrentIsa() {
  for (const auto& [isa, target] : kTargets) {
    if (IsaAvailable(isa)) return isa;
  }
  return Isa::kBaseline;
}

bool IsaAvailable(Isa isa) {
  if (isa == Isa::kBaseline) return true;
  for (const auto& [known, target] : kTargets) {
    if (known == isa) return (SupportedTargets() & HWY_TARGETS & target) != 0;
  }
  return false;
}

bool HasInt8Dot() { return (SupportedTargets() & HWY_AVX3_DL) != 0; }

std::string NumericPath(KvType type) {
  // A bad value is reported by PagedAttention::Create; it limits nothing.
  static_cast<void>(ApplyIsaEnvironment());
  const bool dot = type == KvType::kBF16 && HasBf16Dot(CurrentIsa());
  return std::string(IsaName(CurrentIsa())) + (dot ? "+bf16dot" : "");
}

}  // namespace kvlink::kernel
