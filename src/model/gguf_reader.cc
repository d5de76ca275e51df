#include "model/gguf_reader.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "gguf.h"

namespace kvlink::model {
namespace {

std::string ShapeOf(const ggml_tensor* tensor) {
  std::string shape = "[" + std::to_string(tensor->ne[0]);
  for (int i = 1; i < ggml_n_dims(tensor); ++i) shape += ", " + std::to_string(tensor->ne[i]);
  return shape + "]";
}

// Types that ggml's CPU products and row look-ups read. Q8_1 and Q8_K are for activations only.
bool IsWeightType(ggml_type type) {
  switch (type) {
    case GGML_TYPE_F32:
    case GGML_TYPE_F16:
    case GGML_TYPE_BF16:
      return true;
    case GGML_TYPE_Q8_1:
    case GGML_TYPE_Q8_K:
      return false;
    default:
      return ggml_is_quantized(type);
  }
}

double NumberAt(gguf_type type, const void* data, size_t i) {
  switch (type) {
    case GGUF_TYPE_UINT8:
      return static_cast<const uint8_t*>(data)[i];
    case GGUF_TYPE_INT8:
      return static_cast<const int8_t*>(data)[i];
    case GGUF_TYPE_UINT16:
      return static_cast<const uint16_t*>(data)[i];
    case GGUF_TYPE_INT16:
      return static_cast<const int16_t*>(data)[i];
    case GGUF_TYPE_UINT32:
      return static_cast<const uint32_t*>(data)[i];
    case GGUF_TYPE_INT32:
      return static_cast<const int32_t*>(data)[i];
    case GGUF_TYPE_UINT64:
      return static_cast<double>(static_cast<const uint64_t*>(data)[i]);
    case GGUF_TYPE_INT64:
      return static_cast<double>(static_cast<const int64_t*>(data)[i]);
    case GGUF_TYPE_FLOAT32:
      return static_cast<const float*>(data)[i];
    case GGUF_TYPE_FLOAT64:
      return static_cast<const double*>(data)[i];
    default:
      return std::nan("");
  }
}

bool IsNumber(gguf_type type, bool integer) {
  if (type == GGUF_TYPE_STRING || type == GGUF_TYPE_BOOL || type == GGUF_TYPE_ARRAY) return false;
  return !integer || (type != GGUF_TYPE_FLOAT32 && type != GGUF_TYPE_FLOAT64);
}

std::string Format(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

}  // namespace

GgufReader::GgufReader(const GgufFile& file, std::string architecture)
    : file_(file), architecture_(std::move(architecture)) {}

void GgufReader::Fail(StatusCode code, const std::string& message) {
  if (status_.ok()) status_ = Status(code, file_.path() + ": " + message);
}

void GgufReader::Refuse(StatusCode code, const std::string& key, const std::string& value,
                        const std::string& words) {
  Fail(code, "'" + FullKey(key) + "': " + value + " " + words);
}

bool GgufReader::Has(const std::string& key) {
  asked_keys_.insert(key);
  return gguf_find_key(file_.keys(), FullKey(key).c_str()) >= 0;
}

std::optional<double> GgufReader::Number(const std::string& key, bool integer) {
  asked_keys_.insert(key);
  const std::string full = FullKey(key);
  const int64_t id = gguf_find_key(file_.keys(), full.c_str());
  if (id < 0) {
    Fail(StatusCode::kDataLoss, "the key '" + full + "' is missing");
    return std::nullopt;
  }
  gguf_type type = gguf_get_kv_type(file_.keys(), id);
  size_t count = 1;
  const void* data = nullptr;
  if (type == GGUF_TYPE_ARRAY) {
    type = gguf_get_arr_type(file_.keys(), id);
    count = gguf_get_arr_n(file_.keys(), id);
    if (IsNumber(type, integer) && count > 0) data = gguf_get_arr_data(file_.keys(), id);
  } else if (IsNumber(type, integer)) {
    data = gguf_get_val_data(file_.keys(), id);
  }
  if (data == nullptr) {
    Fail(StatusCode::kDataLoss,
         "the key '" + full + "' is not a number but " + gguf_type_name(type));
    return std::nullopt;
  }
  const double value = NumberAt(type, data, 0);
  for (size_t i = 1; i < count; ++i) {
    if (NumberAt(type, data, i) != value) {
      Fail(StatusCode::kUnimplemented,
           "'" + full + "' differs from layer to layer, which is not supported");
      return std::nullopt;
    }
  }
  return value;
}

uint32_t GgufReader::Uint(const std::string& key, uint32_t min, uint32_t max) {
  const std::optional<double> value = Number(key, /*integer=*/true);
  if (!value) return 0;
  if (!(*value >= min && *value <= max)) {
    Fail(StatusCode::kDataLoss, "'" + FullKey(key) + "': " + Format(*value) + " is not between " +
                                    std::to_string(min) + " and " + std::to_string(max));
    return 0;
  }
  return static_cast<uint32_t>(*value);
}

uint32_t GgufReader::UintOr(const std::string& key, uint32_t fallback, uint32_t min, uint32_t max) {
  return Has(key) ? Uint(key, min, max) : fallback;
}

float GgufReader::Float(const std::string& key, float min, float max) {
  const std::optional<double> value = Number(key, /*integer=*/false);
  if (!value) return 0;
  if (!(*value >= min && *value <= max)) {
    Fail(StatusCode::kDataLoss, "'" + FullKey(key) + "': " + Format(*value) + " is not between " +
                                    Format(min) + " and " + Format(max));
    return 0;
  }
  return static_cast<float>(*value);
}

float GgufReader::FloatOr(const std::string& key, float fallback, float min, float max) {
  return Has(key) ? Float(key, min, max) : fallback;
}

bool GgufReader::BoolOr(const std::string& key, bool fallback) {
  if (!Has(key)) return fallback;
  const int64_t id = gguf_find_key(file_.keys(), FullKey(key).c_str());
  if (gguf_get_kv_type(file_.keys(), id) != GGUF_TYPE_BOOL) {
    Fail(StatusCode::kDataLoss, "the key '" + FullKey(key) + "' is not a bool");
    return fallback;
  }
  return gguf_get_val_bool(file_.keys(), id);
}

std::string GgufReader::TextOr(const std::string& key, const std::string& fallback) {
  if (!Has(key)) return fallback;
  const int64_t id = gguf_find_key(file_.keys(), FullKey(key).c_str());
  if (gguf_get_kv_type(file_.keys(), id) != GGUF_TYPE_STRING) {
    Fail(StatusCode::kDataLoss, "the key '" + FullKey(key) + "' is not a string");
    return fallback;
  }
  return gguf_get_val_str(file_.keys(), id);
}

std::vector<bool> GgufReader::LayerPattern(const std::string& key, uint32_t num_layers,
                                           uint32_t fallback) {
  const int64_t id = gguf_find_key(file_.keys(), FullKey(key).c_str());
  std::vector<bool> layers(num_layers);
  if (id < 0 || gguf_get_kv_type(file_.keys(), id) != GGUF_TYPE_ARRAY) {
    const uint32_t group = UintOr(key, fallback, 0, 1u << 20);
    for (uint32_t i = 0; i < num_layers; ++i) layers[i] = group == 0 || i % group + 1 < group;
    return layers;
  }
  asked_keys_.insert(key);
  const gguf_type type = gguf_get_arr_type(file_.keys(), id);
  const size_t count = gguf_get_arr_n(file_.keys(), id);
  const bool flags = type == GGUF_TYPE_BOOL;
  if (count < num_layers || (!flags && !IsNumber(type, /*integer=*/true))) {
    Refuse(StatusCode::kDataLoss, key, "an array of " + std::to_string(count),
           "is not one flag for each of " + std::to_string(num_layers) + " layers");
    return layers;
  }
  const void* data = gguf_get_arr_data(file_.keys(), id);
  for (uint32_t i = 0; i < num_layers; ++i)
    layers[i] = NumberAt(flags ? GGUF_TYPE_UINT8 : type, data, i) != 0;
  return layers;
}

void GgufReader::RefuseIgnoredKeys() {
  // With the one or two values that change nothing.
  constexpr struct {
    const char* key;
    double neutral, neutral_too;
  } kKeys[] = {
      {"attention.sliding_window", 0, 0},
      {"attention.scale", 0, 0},
      {"attention.clamp_kqv", 0, 0},
      {"attention.max_alibi_bias", 0, 0},
      {"attention.temperature_scale", 0, 0},
      {"attn_logit_softcapping", 0, 0},
      {"final_logit_softcapping", 0, 0},
      {"router_logit_softcapping", 0, 0},
      {"embedding_scale", 0, 1},
      {"residual_scale", 0, 1},
      {"logit_scale", 0, 1},
      {"expert_count", 0, 0},
      {"expert_group_count", 0, 1},
      {"expert_shared_count", 0, 0},
      {"expert_shared_feed_forward_length", 0, 0},
      {"expert_weights_scale", 0, 1},
      {"nextn_predict_layers", 0, 0},
      {"rope.scaling.alpha", 0, 0},
      {"rope.scaling.yarn_log_multiplier", 0, 0},
  };
  for (const auto& [key, neutral, neutral_too] : kKeys) {
    if (asked_keys_.contains(key) || !Has(key)) continue;
    const std::optional<double> value = Number(key, /*integer=*/false);
    if (value && *value != neutral && *value != neutral_too) {
      Refuse(StatusCode::kUnimplemented, key, Format(*value),
             "is not supported for the architecture '" + architecture_ + "'");
    }
  }
  if (!BoolOr("attention.causal", true)) {
    Refuse(StatusCode::kUnimplemented, "attention.causal", "false", "is not supported");
  }
}

bool GgufReader::HasTensor(const std::string& name) const {
  return ggml_get_tensor(file_.tensors(), name.c_str()) != nullptr;
}

ggml_tensor* GgufReader::Find(const std::string& name) {
  ggml_tensor* tensor = ggml_get_tensor(file_.tensors(), name.c_str());
  if (tensor != nullptr) used_tensors_.insert(name);
  return tensor;
}

bool GgufReader::CheckShape(const ggml_tensor* tensor, int64_t columns, int64_t rows,
                            int64_t count) {
  if (tensor->ne[0] == columns && tensor->ne[1] == rows && tensor->ne[2] == count &&
      tensor->ne[3] == 1) {
    return true;
  }
  std::string expected = std::to_string(columns);
  if (rows != 1 || count != 1) expected += ", " + std::to_string(rows);
  if (count != 1) expected += ", " + std::to_string(count);
  Fail(StatusCode::kDataLoss, std::string("tensor '") + tensor->name + "' has the shape " +
                                  ShapeOf(tensor) + ", expected [" + expected + "]");
  return false;
}

bool GgufReader::CheckWeightType(const ggml_tensor* tensor) {
  if (IsWeightType(tensor->type)) return true;
  Fail(StatusCode::kUnimplemented, std::string("tensor '") + tensor->name + "' has the type " +
                                       ggml_type_name(tensor->type) +
                                       ", which is not one for weights");
  return false;
}

ggml_tensor* GgufReader::MatrixIfPresent(const std::string& name, uint32_t columns, uint32_t rows) {
  ggml_tensor* tensor = Find(name);
  if (tensor == nullptr || !CheckShape(tensor, columns, rows) || !CheckWeightType(tensor))
    return nullptr;
  return tensor;
}

ggml_tensor* GgufReader::Matrices(const std::string& name, uint32_t columns, uint32_t rows,
                                  uint32_t count) {
  ggml_tensor* tensor = Find(name);
  if (tensor == nullptr) {
    Fail(StatusCode::kDataLoss, "tensor '" + name + "' is missing");
  } else if (CheckShape(tensor, columns, rows, count) && CheckWeightType(tensor)) {
    return tensor;
  }
  return nullptr;
}

ggml_tensor* GgufReader::Matrix(const std::string& name, uint32_t columns, uint32_t rows) {
  ggml_tensor* tensor = MatrixIfPresent(name, columns, rows);
  if (tensor == nullptr) Fail(StatusCode::kDataLoss, "tensor '" + name + "' is missing");
  return tensor;
}

ggml_tensor* GgufReader::VectorIfPresent(const std::string& name, uint32_t size) {
  ggml_tensor* tensor = Find(name);
  if (tensor == nullptr || !CheckShape(tensor, size, 1)) return nullptr;
  if (tensor->type != GGML_TYPE_F32) {
    Fail(StatusCode::kUnimplemented,
         "tensor '" + name + "' has the type " + ggml_type_name(tensor->type) + ", expected f32");
    return nullptr;
  }
  return tensor;
}

ggml_tensor* GgufReader::Vector(const std::string& name, uint32_t size) {
  ggml_tensor* tensor = VectorIfPresent(name, size);
  if (tensor == nullptr) Fail(StatusCode::kDataLoss, "tensor '" + name + "' is missing");
  return tensor;
}

uint32_t GgufReader::RowsOf(const std::string& name, uint32_t columns) {
  const ggml_tensor* tensor = Find(name);
  if (tensor == nullptr) {
    Fail(StatusCode::kDataLoss, "tensor '" + name + "' is missing");
    return 0;
  }
  if (tensor->ne[1] > INT32_MAX || !CheckShape(tensor, columns, tensor->ne[1])) return 0;
  return static_cast<uint32_t>(tensor->ne[1]);
}

void GgufReader::RequireAllTensorsUsed() {
  for (ggml_tensor* t = ggml_get_first_tensor(file_.tensors()); t;
       t = ggml_get_next_tensor(file_.tensors(), t)) {
    if (!used_tensors_.contains(std::string_view(t->name))) {
      Fail(StatusCode::kUnimplemented, std::string("tensor '") + t->name +
                                           "' is not known to the architecture '" + architecture_ +
                                           "' here; leaving it out would give wrong answers");
      return;
    }
  }
}

}  // namespace kvlink::model
