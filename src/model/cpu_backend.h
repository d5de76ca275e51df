// CpuBackend: ggml's CPU backend, chosen and loaded at run time.
//
// ggml is built with GGML_BACKEND_DL: one shared object per processor level lies beside the
// executable, and the best one that this machine can run is loaded, once per process. Nothing of it
// can be linked; its functions are asked for by name. KVLINK_ISA=avx2 in the environment takes the
// AVX2 one on any machine (as src/kernel does with its own kernels).
#pragma once

#include <memory>
#include <string>

#include "ggml-backend.h"
#include "ggml.h"
#include "kvlink/status.h"

namespace kvlink::model {

class CpuBackend {
 public:
  // kNotFound: no shared object that this processor can run lies beside the executable (the message
  // names the folder).
  static Result<const CpuBackend*> Load();

  // "AVX2=1 AVX512=1 F16C=1 ...": what the loaded shared object was compiled for. Its arithmetic
  // depends on it.
  const std::string& features() const { return features_; }

 private:
  friend class Compute;
  static Result<CpuBackend> LoadOnce();

  ggml_backend_dev_t device_ = nullptr;
  std::string features_;
  ggml_backend_set_n_threads_t set_num_threads_ = nullptr;
  ggml_threadpool_t (*new_threadpool_)(ggml_threadpool_params*) = nullptr;
  void (*free_threadpool_)(ggml_threadpool_t) = nullptr;
  void (*set_threadpool_)(ggml_backend_t, ggml_threadpool_t) = nullptr;
};

// Compute: ggml's own thread pool, which computes graphs. Belongs to one thread, which takes part
// in the work.
class Compute {
 public:
  static Result<std::unique_ptr<Compute>> Create(int num_threads);
  ~Compute();
  Compute(const Compute&) = delete;
  Compute& operator=(const Compute&) = delete;

  ggml_backend_t backend() const { return backend_; }
  int num_threads() const { return num_threads_; }

 private:
  Compute() = default;

  const CpuBackend* cpu_ = nullptr;
  ggml_backend_t backend_ = nullptr;
  ggml_threadpool_t threadpool_ = nullptr;
  int num_threads_ = 0;
};

}  // namespace kvlink::model
