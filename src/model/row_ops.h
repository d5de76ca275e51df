// Row operations that only some families need, on rows of floats. Plain loops that the compiler
// turns into vectors; each result depends on its own row only, and the order of every sum on the
// number of columns only.
#pragma once

#include <cstdint>

namespace kvlink::model {

// out = x / sqrt(mean(x^2) + epsilon) * weight, all [n]; out may be x.
void RmsNormRow(const float* x, const float* weight, float epsilon, uint32_t n, float* out);

// out = gelu(gate) * up, all [n]; gelu by its tanh approximation,
// gelu(x) = x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3)))
void GeGluRow(const float* gate, const float* up, uint32_t n, float* out);

// out = cap * tanh(x / cap), [n]; out may be x.
void SoftCapRow(const float* x, float cap, uint32_t n, float* out);

// The `num_used` largest of softmax(logits [n]), largest first (of equal ones the lower index), and
// their weights: these softmax values divided by their sum, that by no less than the smallest
// normal F16 (as llama.cpp does).
void ChooseExperts(const float* logits, uint32_t n, uint32_t num_used, int32_t* experts,
                   float* weights);

}  // namespace kvlink::model
