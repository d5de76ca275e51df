// GraphBuilder::MixExperts: each row goes through the experts that the router chooses for it.
//
// A row with an expert is a *slot*. Packed experts take their slots together:
//
//   choice  [rows, 2 * used]     experts of each row, then their weights
//   plan    where slots lie: sorted by expert, and by row within one
//   slots   [slots, n]           the input, a row per slot
//   hidden  [slots, 2 * width]   gate and up of each expert over its run of slots
//   outputs [slots, n]           down, likewise
//   result  [rows, n]            the weighted sum of a row's slots
//
// Experts of other types go through ggml_mul_mat_id; their slots lie by row.
#include <algorithm>
#include <bit>
#include <cstring>

#include "model/graph_builder.h"
#include "model/row_ops.h"

namespace kvlink::model {
namespace {

std::byte* RowBytes(const ggml_tensor* tensor, int64_t row) {
  return static_cast<std::byte*>(tensor->data) + static_cast<size_t>(row) * tensor->nb[1];
}
float* Floats(const ggml_tensor* tensor, int64_t row) {
  return reinterpret_cast<float*>(RowBytes(tensor, row));
}
int32_t* Ints(const ggml_tensor* tensor, int64_t row) {
  return reinterpret_cast<int32_t*>(RowBytes(tensor, row));
}

// The parts of a plan's only row.
struct SlotPlan {
  SlotPlan(const ggml_tensor* plan, uint32_t num_experts, int64_t num_slots)
      : first(Ints(plan, 0)),
        active(first + num_experts + 1),
        row_of_slot(active + num_experts),
        slot_of(row_of_slot + num_slots) {}
  static int64_t Size(uint32_t num_experts, int64_t num_slots) {
    return 2 * num_experts + 1 + 2 * num_slots;
  }
  int32_t* first;        // [experts + 1]: slots of expert e are first[e] to first[e + 1]
  int32_t* active;       // [experts]: those with slots, then -1
  int32_t* row_of_slot;  // [slots]
  int32_t* slot_of;      // [rows * used]: of each row's choices, in their order
};

void ChooseNode(ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  const ggml_tensor* logits = dst->src[0];
  const uint32_t used = static_cast<const Experts*>(userdata)->num_used;
  const int64_t begin = dst->ne[1] * piece / num_pieces;
  const int64_t end = dst->ne[1] * (piece + 1) / num_pieces;
  for (int64_t row = begin; row < end; ++row) {
    ChooseExperts(Floats(logits, row), static_cast<uint32_t>(logits->ne[0]), used, Ints(dst, row),
                  Floats(dst, row) + used);
  }
}

void PlanNode(ggml_tensor* dst, int, int, void* userdata) {
  const ggml_tensor* choice = dst->src[0];
  const auto& experts = *static_cast<const Experts*>(userdata);
  const uint32_t used = experts.num_used, count = experts.num_experts();
  const int64_t rows = choice->ne[1];
  const SlotPlan plan(dst, count, rows * used);
  std::fill_n(plan.first, count + 1, 0);
  for (int64_t row = 0; row < rows; ++row) {
    for (uint32_t k = 0; k < used; ++k) ++plan.first[Ints(choice, row)[k] + 1];
  }
  int32_t* active = plan.active;
  for (uint32_t e = 0; e < count; ++e) {
    if (plan.first[e + 1] > 0) *active++ = static_cast<int32_t>(e);
    plan.first[e + 1] += plan.first[e];
  }
  std::fill(active, plan.active + count, -1);
  // Hands out each expert's slots from its first on, then moves the firsts back.
  for (int64_t row = 0; row < rows; ++row) {
    for (uint32_t k = 0; k < used; ++k) {
      const int32_t slot = plan.first[Ints(choice, row)[k]]++;
      plan.row_of_slot[slot] = static_cast<int32_t>(row);
      plan.slot_of[row * used + k] = slot;
    }
  }
  std::copy_backward(plan.first, plan.first + count, plan.first + count + 1);
  plan.first[0] = 0;
}

void GatherNode(ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  const ggml_tensor *x = dst->src[0], *plan_tensor = dst->src[1];
  const SlotPlan plan(plan_tensor, static_cast<const Experts*>(userdata)->num_experts(),
                      dst->ne[1]);
  const int64_t begin = dst->ne[1] * piece / num_pieces;
  const int64_t end = dst->ne[1] * (piece + 1) / num_pieces;
  for (int64_t slot = begin; slot < end; ++slot)
    std::memcpy(RowBytes(dst, slot), RowBytes(x, plan.row_of_slot[slot]), x->nb[1]);
}

// A piece is a range of the panels of all active experts.
void MultiplySlots(ggml_tensor* dst, std::span<const Stack> matrices, uint32_t piece,
                   uint32_t num_pieces) {
  const ggml_tensor *x = dst->src[0], *plan_tensor = dst->src[1];
  const auto count = static_cast<uint32_t>(matrices.size());
  const SlotPlan plan(plan_tensor, count, dst->ne[1]);
  const auto num_active =
      static_cast<uint64_t>(std::find(plan.active, plan.active + count, -1) - plan.active);
  const uint64_t panels = matrices[0].groups().front().matrix.panels();
  const uint64_t begin = num_active * panels * piece / num_pieces;
  const uint64_t end = num_active * panels * (piece + 1) / num_pieces;
  for (uint64_t i = begin / panels; i * panels < end; ++i) {
    const int32_t expert = plan.active[i], first = plan.first[expert];
    const auto num = static_cast<uint32_t>(plan.first[expert + 1] - first);
    kernel::Multiply(matrices[static_cast<size_t>(expert)].groups().front().matrix,
                     {RowBytes(x, first), x->nb[1], num}, Floats(dst, first),
                     dst->nb[1] / sizeof(float), /*residual=*/nullptr, 0,
                     static_cast<uint32_t>(std::max(begin, i * panels) - i * panels),
                     static_cast<uint32_t>(std::min(end, (i + 1) * panels) - i * panels));
  }
}

void GateUpNode(ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  MultiplySlots(dst, static_cast<const Experts*>(userdata)->gate_up, static_cast<uint32_t>(piece),
                static_cast<uint32_t>(num_pieces));
}

void DownNode(ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  MultiplySlots(dst, static_cast<const Experts*>(userdata)->down, static_cast<uint32_t>(piece),
                static_cast<uint32_t>(num_pieces));
}

// dst [rows, n] = sum of a row's outputs, in the order of its choices, times their weights.
// Without a plan slots lie by row.
void WeightedSumNode(ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  const ggml_tensor *outputs = dst->src[0], *choice = dst->src[1], *plan_tensor = dst->src[2];
  const auto& experts = *static_cast<const Experts*>(userdata);
  const int64_t used = experts.num_used;
  const int64_t begin = dst->ne[1] * piece / num_pieces;
  const int64_t end = dst->ne[1] * (piece + 1) / num_pieces;
  for (int64_t row = begin; row < end; ++row) {
    float* sum = Floats(dst, row);
    const float* weights = Floats(choice, row) + used;
    std::fill_n(sum, dst->ne[0], 0.0f);
    for (int64_t k = 0; k < used; ++k) {
      const int64_t at = row * used + k;
      const float* y =
          Floats(outputs,
                 plan_tensor == nullptr
                     ? at
                     : SlotPlan(plan_tensor, experts.num_experts(), dst->ne[1] * used).slot_of[at]);
      for (int64_t i = 0; i < dst->ne[0]; ++i) sum[i] += weights[k] * y[i];
    }
  }
}

}  // namespace

// Choosing, gathering and adding up work on one row; a product's row depends on that row only
// (kernel::Multiply's first invariant; ggml computes each element as one dot product, as the
// experts' tensors are marked, see DecoderReader).
ggml_tensor* GraphBuilder::MixExperts(const Experts& experts, const Input& input) {
  void* self = const_cast<Experts*>(&experts);
  const int64_t used = experts.num_used;
  const uint32_t count = experts.num_experts();
  ggml_tensor* logits = MatMulAdd(experts.router, input, /*residual=*/nullptr);
  const int64_t rows = logits->ne[1], slots = rows * used, n = experts.down_weights->ne[1];
  ggml_tensor* choice = Custom(GGML_TYPE_I32, 2 * used, rows, {logits}, ChooseNode, self,
                               static_cast<uint32_t>(rows));
  if (!experts.packed()) {
    ggml_tensor* ids = ggml_view_2d(context_, choice, used, rows, choice->nb[1], 0);
    ggml_tensor* x = GraphBuilder::Floats(input);
    x = ggml_reshape_3d(context_, x, x->ne[0], 1, rows);
    ggml_tensor* gate = ggml_mul_mat_id(context_, experts.gate_weights, x, ids);
    ggml_tensor* up = ggml_mul_mat_id(context_, experts.up_weights, x, ids);
    ggml_tensor* outputs =
        ggml_mul_mat_id(context_, experts.down_weights, ggml_swiglu_split(context_, gate, up), ids);
    outputs = ggml_reshape_2d(context_, outputs, n, slots);
    return Custom(GGML_TYPE_F32, n, rows, {outputs, choice}, WeightedSumNode, self,
                  static_cast<uint32_t>(rows));
  }
  ggml_tensor* plan =
      Custom(GGML_TYPE_I32, SlotPlan::Size(count, slots), 1, {choice}, PlanNode, self, /*units=*/1);
  const auto product = [&](ggml_tensor* x, std::span<const Stack> matrices, ggml_custom_op_t op) {
    const kernel::PackedMatrix& matrix = matrices[0].groups().front().matrix;
    const auto most_active = static_cast<uint32_t>(std::min<int64_t>(count, slots));
    return Custom(GGML_TYPE_F32, matrix.rows(), slots, {x, plan}, op, self,
                  most_active * matrix.panels());
  };
  const auto format_of = [](std::span<const Stack> matrices) {
    return matrices[0].groups().front().matrix.format();
  };
  ggml_tensor* prepared = Prepared(input, format_of(experts.gate_up));
  ggml_tensor* x = Custom(prepared->type, prepared->ne[0], slots, {prepared, plan}, GatherNode,
                          self, static_cast<uint32_t>(slots));
  ggml_tensor* hidden = product(x, experts.gate_up, GateUpNode);
  const Input activated = {Input::Kind::kSwiGlu, hidden, hidden, nullptr, hidden};
  ggml_tensor* outputs =
      product(Prepared(activated, format_of(experts.down)), experts.down, DownNode);
  return Custom(GGML_TYPE_F32, n, rows, {outputs, choice, plan}, WeightedSumNode, self,
                static_cast<uint32_t>(rows));
}

}  // namespace kvlink::model
