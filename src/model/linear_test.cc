// The packed product beside ggml's own, type by type: how far each is from the product in double
// precision of the same weights with inputs that were not rounded. Prints the table that
// docs/performance.md has.
#include "model/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"
#include "kernel/isa.h"
#include "model/cpu_backend.h"

namespace kvlink::model {
namespace {

constexpr int64_t kInputs = 2048, kOutputs = 96, kRows = 12;

struct FreeContext {
  void operator()(ggml_context* context) const { ggml_free(context); }
};

std::vector<float> RandomFloats(size_t n, float deviation, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

// One product, W [outputs, inputs] of `type`, both ways.
class Products {
 public:
  explicit Products(ggml_type type) : type_(type) {
    context_.reset(ggml_init({size_t{64} << 20, nullptr, /*no_alloc=*/false}));
    weight_ = ggml_new_tensor_2d(context_.get(), type, kInputs, kOutputs);
    input_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, kInputs, kRows);
    const auto w = RandomFloats(kInputs * kOutputs, 0.02f, 1);
    ggml_quantize_chunk(type, w.data(), weight_->data, 0, kOutputs, kInputs, nullptr);
    // As activations behave: most are small, a few are thirty times larger.
    auto x = RandomFloats(kInputs * kRows, 1.0f, 2);
    std::mt19937 rng(3);
    for (int i = 0; i < 200; ++i) x[rng() % x.size()] *= 30.0f;
    std::memcpy(input_->data, x.data(), x.size() * sizeof(float));
  }

  std::vector<double> Exact() const {
    std::vector<float> w(kInputs * kOutputs);
    if (type_ == GGML_TYPE_F32) {
      std::memcpy(w.data(), weight_->data, w.size() * sizeof(float));
    } else {
      ggml_get_type_traits(type_)->to_float(weight_->data, w.data(), kInputs * kOutputs);
    }
    const auto* x = static_cast<const float*>(input_->data);
    std::vector<double> y(kRows * kOutputs);
    for (int64_t t = 0; t < kRows; ++t)
      for (int64_t r = 0; r < kOutputs; ++r)
        for (int64_t i = 0; i < kInputs; ++i)
          y[t * kOutputs + r] += double{w[r * kInputs + i]} * double{x[t * kInputs + i]};
    return y;
  }

  std::vector<float> Packed() const {
    Stack stack = {Linear{weight_, nullptr}};
    EXPECT_TRUE(stack.Pack(1).ok());
    EXPECT_TRUE(stack.packed());
    const kernel::PackedMatrix& matrix = stack.groups().front().matrix;
    const size_t bytes = kernel::InputRowBytes(matrix.format(), kInputs);
    std::vector<std::byte> x(bytes * kRows);
    kernel::Quantize(matrix.format(), static_cast<const float*>(input_->data), kInputs, kInputs,
                     x.data(), 0, kRows);
    std::vector<float> y(kRows * kOutputs);
    kernel::Multiply(matrix, {x.data(), bytes, kRows}, y.data(), kOutputs, nullptr, 0, 0,
                     matrix.panels());
    return y;
  }

  // One row at a time, as GraphBuilder::Product computes layers that are not packed.
  std::vector<float> Ggml() const {
    auto compute = Compute::Create(1);
    EXPECT_TRUE(compute.ok());
    ggml_tensor* rows = ggml_reshape_3d(context_.get(), input_, kInputs, 1, kRows);
    ggml_tensor* product = ggml_mul_mat(context_.get(), weight_, rows);
    ggml_cgraph* graph = ggml_new_graph(context_.get());
    ggml_build_forward_expand(graph, product);
    EXPECT_EQ(ggml_backend_graph_compute((*compute)->backend(), graph), GGML_STATUS_SUCCESS);
    const auto* y = static_cast<const float*>(product->data);
    return {y, y + kRows * kOutputs};
  }

 private:
  ggml_type type_;
  std::unique_ptr<ggml_context, FreeContext> context_;
  ggml_tensor *weight_ = nullptr, *input_ = nullptr;
};

// Root of the mean square, relative to that of the exact product.
double ErrorOf(const std::vector<float>& y, const std::vector<double>& exact) {
  double error = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    error += (y[i] - exact[i]) * (y[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  return std::sqrt(error / size);
}

class PackedError : public ::testing::TestWithParam<ggml_type> {};

TEST_P(PackedError, IsNoLargerThanGgmls) {
  ASSERT_TRUE(kernel::ApplyIsaEnvironment().ok());
  const Products products(GetParam());
  const auto exact = products.Exact();
  const double ours = ErrorOf(products.Packed(), exact), ggmls = ErrorOf(products.Ggml(), exact);
  std::printf("| %-5s | %.2e | %.2e | %.2f |\n", ggml_type_name(GetParam()), ours, ggmls,
              ours / ggmls);
  EXPECT_GT(ours, 0.0);
  // Where both quantise alike the last bits of the sums decide.
  EXPECT_LE(ours, ggmls * 1.02);
}

const auto kName = [](const auto& test) { return std::string(ggml_type_name(test.param)); };
INSTANTIATE_TEST_SUITE_P(Types, PackedError,
                         ::testing::Values(GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0,
                                           GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K,
                                           GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_F16,
                                           GGML_TYPE_BF16, GGML_TYPE_F32),
                         kName);

}  // namespace
}  // namespace kvlink::model
