// KvShape, CacheOptions and what they are made of. Every option has the name and the default that
// it has in C++; an unknown keyword is a TypeError.
#include <chrono>
#include <limits>

#include "convert.h"
#include "kvlink/options.h"

namespace kvlink::python {
namespace {

// Sets attributes by keyword, so that a constructor takes every property and no other.
template <typename T>
auto FromKeywords(const char* type) {
  return [type](const py::kwargs& values) {
    const py::object self = py::cast(T{});
    for (const auto& [name, value] : values) {
      if (!py::hasattr(py::type::of(self), name)) {
        throw py::type_error(std::string(type) + " has no option '" +
                             name.template cast<std::string>() + "'");
      }
      self.attr(name) = value;
    }
    return self.cast<T>();
  };
}

void BindShape(py::module_& module) {
  py::enum_<KvType>(module, "KvType")
      .value("F16", KvType::kF16)
      .value("BF16", KvType::kBF16)
      .value("Q8_0", KvType::kQ8_0);
  py::class_<KvShape>(module, "KvShape")
      .def(py::init([](uint32_t num_layers, uint32_t num_kv_heads, uint32_t head_dim,
                       uint32_t tokens_per_block, KvType type) {
             return KvShape{num_layers, num_kv_heads, head_dim, tokens_per_block, type};
           }),
           py::kw_only(), py::arg("num_layers"), py::arg("num_kv_heads"), py::arg("head_dim"),
           py::arg("tokens_per_block") = KvShape{}.tokens_per_block,
           py::arg("type") = KvShape{}.type)
      .def_readonly("num_layers", &KvShape::num_layers)
      .def_readonly("num_kv_heads", &KvShape::num_kv_heads)
      .def_readonly("head_dim", &KvShape::head_dim)
      .def_readonly("tokens_per_block", &KvShape::tokens_per_block)
      .def_readonly("type", &KvShape::type)
      .def_property_readonly("page_bytes", &KvShape::page_bytes)
      .def_property_readonly("token_bytes", &KvShape::token_bytes)
      .def_property_readonly("k_group", &KvShape::k_group)
      .def("__eq__", &KvShape::operator==, py::is_operator())
      .def("__repr__", [](const KvShape& shape) {
        return "KvShape(num_layers=" + std::to_string(shape.num_layers) +
               ", num_kv_heads=" + std::to_string(shape.num_kv_heads) +
               ", head_dim=" + std::to_string(shape.head_dim) +
               ", tokens_per_block=" + std::to_string(shape.tokens_per_block) +
               ", type=" + KvTypeName(shape.type) + ")";
      });
}

void BindSimilarOptions(py::module_& module) {
  py::enum_<SimilarPolicy>(module, "SimilarPolicy")
      .value("OFF", SimilarPolicy::kOff)
      .value("ON", SimilarPolicy::kOn)
      .value("STRICT", SimilarPolicy::kStrict);
  using Options = SimilarOptions;
  py::class_<Options>(module, "SimilarOptions")
      .def(py::init(FromKeywords<Options>("SimilarOptions")))
      .def_readwrite("policy", &Options::policy)
      .def_readwrite("fingerprint_window", &Options::fingerprint_window)
      .def_readwrite("short_window", &Options::short_window)
      .def_readwrite("short_prompt_tokens", &Options::short_prompt_tokens)
      .def_readwrite("max_anchors", &Options::max_anchors)
      .def_readwrite("frequent_share", &Options::frequent_share)
      .def_readwrite("min_run", &Options::min_run)
      .def_readwrite("max_edit_share", &Options::max_edit_share)
      .def_readwrite("lookup_cost_share", &Options::lookup_cost_share)
      .def_readwrite("mask_similarity", &Options::mask_similarity)
      .def_readwrite("span_similarity", &Options::span_similarity)
      .def_readwrite("max_moved_share", &Options::max_moved_share)
      .def_readwrite("min_reused_rows", &Options::min_reused_rows)
      .def_readwrite("max_compute_share", &Options::max_compute_share)
      .def_readwrite("max_reuse_distance", &Options::max_reuse_distance)
      .def_readwrite("wasted_compute_share", &Options::wasted_compute_share);
  using Traits = AttentionTraits;
  py::class_<Traits>(module, "AttentionTraits")
      .def(py::init(FromKeywords<Traits>("AttentionTraits")))
      .def_readwrite("causal", &Traits::causal)
      .def_readwrite("rotary", &Traits::rotary)
      .def_readwrite("linear_angles", &Traits::linear_angles)
      .def_readwrite("several_axes", &Traits::several_axes)
      .def_readwrite("sliding_window", &Traits::sliding_window)
      .def_readwrite("recurrent", &Traits::recurrent);
  using Model = SimilarModel;
  py::class_<Model>(module, "SimilarModel")
      .def(py::init(FromKeywords<Model>("SimilarModel")))
      .def_readwrite("attention", &Model::attention)
      .def_readwrite("token_texts", &Model::token_texts)
      .def_readwrite("special_tokens", &Model::special_tokens)
      .def_readwrite("prefill_us_per_row", &Model::prefill_us_per_row);
}

}  // namespace

void BindOptions(py::module_& module) {
  BindShape(module);
  BindSimilarOptions(module);
  py::enum_<Sharing>(module, "Sharing").value("OFF", Sharing::kOff).value("EXACT", Sharing::kExact);
  using Options = CacheOptions;
  py::class_<Options>(module, "CacheOptions")
      .def(py::init(FromKeywords<Options>("CacheOptions")))
      .def_readwrite("shape", &Options::shape)
      .def_readwrite("sharing", &Options::sharing)
      .def_readwrite("budget_bytes", &Options::budget_bytes)
      .def_readwrite("model_fingerprint", &Options::model_fingerprint)
      .def_readwrite("cow_copy_threshold", &Options::cow_copy_threshold)
      .def_readwrite("pin_budget", &Options::pin_budget)
      .def_readwrite("output_memory_bytes", &Options::output_memory_bytes)
      .def_readwrite("similar", &Options::similar)
      .def_readwrite("similar_model", &Options::similar_model);
}

}  // namespace kvlink::python
