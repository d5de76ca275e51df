#include "model/cpu_backend.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "model/ggml_log.h"

namespace kvlink::model {
namespace {

// How long idle workers spin before they sleep, in units of 131,072 pauses (ggml's default is 50:
// 0.1 to 0.3 s). Steps of the engine follow one another within microseconds; a few milliseconds
// bridge them without burning a core between requests. Barriers inside a graph always spin.
constexpr uint32_t kPollLevel = 2;

std::filesystem::path ExecutableFolder() {
  std::error_code error;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::current_path(error) : executable.parent_path();
}

template <typename Function>
bool Find(ggml_backend_reg_t registry, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(registry, name));
  return *function != nullptr;
}

std::string FeaturesOf(ggml_backend_reg_t registry) {
  ggml_backend_get_features_t get_features = nullptr;
  std::vector<std::string> features;
  if (Find(registry, "ggml_backend_get_features", &get_features)) {
    for (const ggml_backend_feature* f = get_features(registry); f->name != nullptr; ++f) {
      features.push_back(std::string(f->name) + "=" + f->value);
    }
  }
  std::sort(features.begin(), features.end());
  std::string joined;
  for (const std::string& feature : features) joined += (joined.empty() ? "" : " ") + feature;
  return joined;
}

}  // namespace

Result<CpuBackend> CpuBackend::LoadOnce() {
  RouteLogs();
  LogCapture errors;
  const std::filesystem::path folder = ExecutableFolder();
  const char* isa = std::getenv("KVLINK_ISA");
  if (isa != nullptr && std::string_view(isa) == "avx2") {
    ggml_backend_load((folder / "libggml-cpu-haswell.so").c_str());
  } else {
    ggml_backend_load_all_from_path(folder.c_str());
  }
  CpuBackend cpu;
  cpu.device_ = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (cpu.device_ == nullptr) {
    return Status(StatusCode::kNotFound,
                  "no ggml CPU backend (libggml-cpu-*.so) that this processor can run in " +
                      folder.string() + ": " + errors.text());
  }
  ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(cpu.device_);
  if (!Find(registry, "ggml_backend_set_n_threads", &cpu.set_num_threads_) ||
      !Find(registry, "ggml_threadpool_new", &cpu.new_threadpool_) ||
      !Find(registry, "ggml_threadpool_free", &cpu.free_threadpool_) ||
      !Find(registry, "ggml_backend_cpu_set_threadpool", &cpu.set_threadpool_)) {
    return Status(StatusCode::kInternal,
                  "the ggml CPU backend in " + folder.string() + " has no thread pool functions");
  }
  cpu.features_ = FeaturesOf(registry);
  return cpu;
}

Result<const CpuBackend*> CpuBackend::Load() {
  static const Result<CpuBackend> loaded = LoadOnce();
  if (!loaded.ok()) return loaded.status();
  return &loaded.value();
}

Result<std::unique_ptr<Compute>> Compute::Create(int num_threads) {
  if (num_threads < 1 || num_threads > GGML_MAX_N_THREADS) {
    return Status(StatusCode::kInvalidArgument, "threads: " + std::to_string(num_threads) +
                                                    " is not between 1 and " +
                                                    std::to_string(GGML_MAX_N_THREADS));
  }
  auto cpu = CpuBackend::Load();
  if (!cpu.ok()) return cpu.status();
  std::unique_ptr<Compute> compute(new Compute);
  compute->cpu_ = *cpu;
  compute->num_threads_ = num_threads;
  compute->backend_ = ggml_backend_dev_init((*cpu)->device_, nullptr);
  ggml_threadpool_params params = ggml_threadpool_params_default(num_threads);
  params.poll = kPollLevel;
  compute->threadpool_ = (*cpu)->new_threadpool_(&params);
  if (compute->backend_ == nullptr || compute->threadpool_ == nullptr) {
    return Status(StatusCode::kInternal, "ggml made no CPU backend or thread pool");
  }
  (*cpu)->set_num_threads_(compute->backend_, num_threads);
  (*cpu)->set_threadpool_(compute->backend_, compute->threadpool_);
  return compute;
}

Compute::~Compute() {
  if (backend_ != nullptr) ggml_backend_free(backend_);
  if (threadpool_ != nullptr) cpu_->free_threadpool_(threadpool_);
}

}  // namespace kvlink::model
