// Sequence and the views of its rows.
//
// A row is one position's K and V of one (layer, KV head). Where it lies depends on the block (a
// page or a difference block's cell) and on the KV type; KvRowOf finds it, so that Python needs no
// layout.
#include <cstring>
#include <limits>

#include "handles.h"
#include "kvlink/view.h"

namespace kvlink::python {
namespace {

using SequencePointer = std::shared_ptr<SequenceHandle>;

// NumPy's name of an element. NumPy has no BF16: its bits come as uint16.
py::dtype ElementType(const KvShape& shape) {
  if (shape.type == KvType::kF16) return py::dtype("float16");
  return shape.type == KvType::kBF16 ? py::dtype("uint16") : py::dtype("int8");
}

// Keeps the sequence alive, and unchanged, while an array over its memory is.
py::capsule Guard(const SequencePointer& self) {
  self->CountView(1);
  return py::capsule(new SequencePointer(self), [](void* held) {
    auto* sequence = static_cast<SequencePointer*>(held);
    (*sequence)->CountView(-1);
    delete sequence;
  });
}

py::array ArrayOver(const py::dtype& type, std::vector<py::ssize_t> shape,
                    std::vector<py::ssize_t> strides, std::byte* memory, const py::capsule& guard,
                    bool writable) {
  py::array array(type, std::move(shape), std::move(strides), memory, guard);
  if (!writable) array.attr("setflags")(py::arg("write") = false);
  return array;
}

struct Place {
  const BlockView* block = nullptr;
  uint32_t row = 0;  // in the block
};

// The block and row in which `position` lies, through the span table.
Place PlaceOf(const Sequence& sequence, const KvShape& shape, uint32_t position) {
  const SpanTable& table = sequence.table();
  for (const Span& span : table.spans) {
    if (position < span.position || position - span.position >= span.num_rows) continue;
    const uint32_t row = span.first_row + (position - span.position);
    return {&table.blocks[span.first_block + row / shape.tokens_per_block],
            row % shape.tokens_per_block};
  }
  Throw(StatusCode::kInvalidArgument, "position " + std::to_string(position) +
                                          " has no row: the capacity is " +
                                          std::to_string(sequence.capacity()));
}

void CheckTile(const KvShape& shape, uint32_t layer, uint32_t kv_head) {
  if (layer >= shape.num_layers) {
    Throw(StatusCode::kInvalidArgument,
          "layer is " + std::to_string(layer) + ", there are " + std::to_string(shape.num_layers));
  }
  if (kv_head >= shape.num_kv_heads) {
    Throw(StatusCode::kInvalidArgument, "kv_head is " + std::to_string(kv_head) + ", there are " +
                                            std::to_string(shape.num_kv_heads));
  }
}

KvRowView<std::byte> RowOf(const SequenceHandle& self, uint32_t layer, uint32_t kv_head,
                           uint32_t position) {
  const KvShape& shape = self.shape();
  CheckTile(shape, layer, kv_head);
  const Place place = PlaceOf(self.get(), shape, position);
  return KvRowOf(shape, *place.block, layer, kv_head, place.row);
}

// (k, v), and with Q8_0 (k, v, k_scale, v_scale): arrays over the sequence's own memory. K is
// [head_dim / k_group][k_group].
py::tuple RowView(const SequencePointer& self, uint32_t layer, uint32_t kv_head,
                  uint32_t position) {
  const KvShape& shape = self->shape();
  const KvRowView<std::byte> row = RowOf(*self, layer, kv_head, position);
  const bool writable = position >= self->get().num_ready();
  const py::capsule guard = Guard(self);
  const auto element = static_cast<py::ssize_t>(shape.element_bytes());
  const auto group = static_cast<py::ssize_t>(shape.k_group());
  const auto dim = static_cast<py::ssize_t>(shape.head_dim);
  const py::array k =
      ArrayOver(ElementType(shape), {dim / group, group},
                {static_cast<py::ssize_t>(row.k_stride), element}, row.k, guard, writable);
  const py::array v = ArrayOver(ElementType(shape), {dim}, {element}, row.v, guard, writable);
  if (row.k_scale == nullptr) return py::make_tuple(k, v);
  const py::dtype half("float16");
  return py::make_tuple(k, v, ArrayOver(half, {1}, {2}, row.k_scale, guard, writable),
                        ArrayOver(half, {1}, {2}, row.v_scale, guard, writable));
}

// A page as it lies in memory, read-only: for whoever moves whole pages.
py::array PageView(const SequencePointer& self, uint32_t index) {
  const SpanTable& table = self->get().table();
  if (index >= table.blocks.size()) {
    Throw(StatusCode::kInvalidArgument, "block is " + std::to_string(index) + ", there are " +
                                            std::to_string(table.blocks.size()));
  }
  return ArrayOver(py::dtype("uint8"), {static_cast<py::ssize_t>(self->shape().page_bytes())}, {1},
                   table.blocks[index].page, Guard(self), false);
}

enum class Way { kRead, kWrite };

// Copies one row between the cache and the contiguous rows that Python holds.
void CopyRow(const KvShape& shape, const KvRowView<std::byte>& row, std::byte* k, std::byte* v,
             Way way) {
  const size_t group_bytes = shape.k_group() * shape.element_bytes();
  const uint32_t groups = shape.head_dim / shape.k_group();
  for (uint32_t i = 0; i < groups; ++i) {
    std::byte* in_page = row.k + i * row.k_stride;
    std::byte* outside = k + i * group_bytes;
    if (way == Way::kRead) {
      std::memcpy(outside, in_page, group_bytes);
    } else {
      std::memcpy(in_page, outside, group_bytes);
    }
  }
  if (way == Way::kRead) {
    std::memcpy(v, row.v, shape.vector_bytes());
  } else {
    std::memcpy(row.v, v, shape.vector_bytes());
  }
}

void RequireUnscaled(const KvShape& shape, const char* what) {
  if (shape.scale_bytes() == 0) return;
  Throw(StatusCode::kUnimplemented,
        std::string(what) + " has no place for the scales of q8_0: use row()");
}

py::tuple ReadRows(const SequenceHandle& self, uint32_t layer, uint32_t kv_head, uint32_t begin,
                   uint32_t end) {
  const KvShape& shape = self.shape();
  RequireUnscaled(shape, "read_rows");
  CheckTile(shape, layer, kv_head);
  if (begin > end || end > self.get().num_ready()) {
    Throw(StatusCode::kInvalidArgument, "rows [" + std::to_string(begin) + ", " +
                                            std::to_string(end) + ") of " +
                                            std::to_string(self.get().num_ready()) + " ready ones");
  }
  const std::vector<py::ssize_t> size = {end - begin, shape.head_dim};
  py::array k(ElementType(shape), size), v(ElementType(shape), size);
  auto* k_bytes = static_cast<std::byte*>(k.mutable_data());
  auto* v_bytes = static_cast<std::byte*>(v.mutable_data());
  for (uint32_t p = begin; p < end; ++p) {
    const size_t at = (p - begin) * shape.vector_bytes();
    CopyRow(shape, RowOf(self, layer, kv_head, p), k_bytes + at, v_bytes + at, Way::kRead);
  }
  return py::make_tuple(k, v);
}

py::array RowsFrom(const py::object& rows, const char* what, const KvShape& shape) {
  const py::array array = py::array::ensure(rows);
  const py::dtype wanted = ElementType(shape);
  if (!array || !array.dtype().equal(wanted)) {
    PyErr_Clear();
    Throw(StatusCode::kInvalidArgument,
          std::string(what) + " has the dtype " +
              (array ? py::str(array.dtype()).cast<std::string>() : "of no array") + ", not " +
              py::str(wanted).cast<std::string>());
  }
  if (array.ndim() != 2 || array.shape(1) != static_cast<py::ssize_t>(shape.head_dim)) {
    Throw(StatusCode::kInvalidArgument, std::string(what) + " has the shape " +
                                            py::str(array.attr("shape")).cast<std::string>() +
                                            ", not (rows, " + std::to_string(shape.head_dim) + ")");
  }
  return py::module_::import("numpy").attr("ascontiguousarray")(array);
}

void WriteRows(const SequenceHandle& self, uint32_t layer, uint32_t kv_head, uint32_t begin,
               const py::object& k_rows, const py::object& v_rows) {
  const KvShape& shape = self.shape();
  RequireUnscaled(shape, "write_rows");
  CheckTile(shape, layer, kv_head);
  py::array k = RowsFrom(k_rows, "k", shape);
  py::array v = RowsFrom(v_rows, "v", shape);
  if (k.shape(0) != v.shape(0)) {
    Throw(StatusCode::kInvalidArgument,
          "k has " + std::to_string(k.shape(0)) + " rows, v has " + std::to_string(v.shape(0)));
  }
  const Sequence& sequence = self.get();
  const auto rows = static_cast<uint64_t>(k.shape(0));
  if (begin < sequence.num_ready() || begin + rows > sequence.capacity()) {
    Throw(StatusCode::kInvalidArgument,
          "rows [" + std::to_string(begin) + ", " + std::to_string(begin + rows) +
              ") cannot be written: rows below " + std::to_string(sequence.num_ready()) +
              " are shared, and there is room up to " + std::to_string(sequence.capacity()));
  }
  auto* k_bytes = static_cast<std::byte*>(const_cast<void*>(k.data()));
  auto* v_bytes = static_cast<std::byte*>(const_cast<void*>(v.data()));
  for (uint32_t i = 0; i < rows; ++i) {
    const size_t at = i * shape.vector_bytes();
    CopyRow(shape, RowOf(self, layer, kv_head, begin + i), k_bytes + at, v_bytes + at, Way::kWrite);
  }
}

py::list SpansOf(const SequenceHandle& self) {
  py::list spans;
  for (const Span& span : self.get().table().spans) spans.append(span);
  return spans;
}

py::list ComputedRows(const SequenceHandle& self) {
  py::list ranges;
  for (const Selection::Range& range : self.get().computed_rows()) {
    ranges.append(py::make_tuple(range.position, range.position + range.num_rows));
  }
  return ranges;
}

py::dict CheckFirst(SequenceHandle& self, const py::object& logits) {
  const auto array = py::array_t<float, py::array::c_style | py::array::forcecast>::ensure(logits);
  if (!array || array.ndim() != 1 || array.size() == 0) {
    PyErr_Clear();
    Throw(StatusCode::kInvalidArgument, "logits is no vector of numbers");
  }
  const Verdict verdict =
      self.CheckFirstToken(std::span(array.data(), static_cast<size_t>(array.size())));
  const char* action = verdict.action == Verdict::Action::kAccept    ? "accept"
                       : verdict.action == Verdict::Action::kEnlarge ? "enlarge"
                                                                     : "fall_back";
  return py::dict(py::arg("action") = action, py::arg("reason") = SimilarReasonName(verdict.reason),
                  py::arg("score") = verdict.score, py::arg("shadow") = verdict.shadow);
}

}  // namespace

Sequence& SequenceHandle::change(const char* what) const {
  Sequence& sequence = get();
  if (views_ > 0) {
    Throw(StatusCode::kFailedPrecondition, std::string(what) + ": " + std::to_string(views_) +
                                               " views of sequence " +
                                               std::to_string(sequence.id()) + " are alive");
  }
  return sequence;
}

void SequenceHandle::Close() {
  if (sequence_ == nullptr) return;
  change("close");
  Release();
}

void SequenceHandle::Commit(const std::vector<TokenId>& tokens) {
  Sequence& sequence = change("commit");
  if (sequence.num_ready() + tokens.size() > sequence.capacity()) {
    Throw(StatusCode::kInvalidArgument, "commit of " + std::to_string(tokens.size()) +
                                            " rows after " + std::to_string(sequence.num_ready()) +
                                            ": the capacity is " +
                                            std::to_string(sequence.capacity()));
  }
  sequence.Commit(tokens);
}

Verdict SequenceHandle::CheckFirstToken(std::span<const float> logits) {
  Sequence& sequence = change("check_first_token");
  if (!unchecked_) {
    Throw(StatusCode::kFailedPrecondition,
          "sequence " + std::to_string(sequence.id()) + " borrows no rows, or has its verdict");
  }
  if (sequence.num_ready() < prompt_tokens_) {
    Throw(StatusCode::kFailedPrecondition, std::to_string(sequence.num_ready()) + " of " +
                                               std::to_string(prompt_tokens_) +
                                               " rows are committed");
  }
  const Verdict verdict = sequence.CheckFirstToken(logits);
  unchecked_ = verdict.action == Verdict::Action::kEnlarge;
  return verdict;
}

SequencePointer SequenceHandle::Fork(uint32_t num_tokens, uint32_t max_new_tokens) {
  return std::make_shared<SequenceHandle>(owner_, Take(get().Fork(num_tokens, max_new_tokens)),
                                          num_tokens);
}

void BindSequence(py::module_& module) {
  py::class_<Span>(module, "Span")
      .def_readonly("first_block", &Span::first_block)
      .def_readonly("first_row", &Span::first_row)
      .def_readonly("num_rows", &Span::num_rows)
      .def_readonly("position", &Span::position)
      .def_readonly("shift", &Span::shift);
  using Handle = SequenceHandle;
  py::class_<Handle, SequencePointer>(module, "Sequence")
      .def_property_readonly("id", [](const Handle& self) { return self.get().id(); })
      .def_property_readonly("num_ready", [](const Handle& self) { return self.get().num_ready(); })
      .def_property_readonly("capacity", [](const Handle& self) { return self.get().capacity(); })
      .def_property_readonly("num_blocks",
                             [](const Handle& self) { return self.get().table().blocks.size(); })
      .def_property_readonly("spans", &SpansOf)
      .def_property_readonly("computed_rows", &ComputedRows)
      .def("page", &PageView, py::arg("block"))
      .def("row", &RowView, py::arg("layer"), py::arg("kv_head"), py::arg("position"))
      .def("read_rows", &ReadRows, py::arg("layer"), py::arg("kv_head"), py::arg("begin"),
           py::arg("end"))
      .def("write_rows", &WriteRows, py::arg("layer"), py::arg("kv_head"), py::arg("begin"),
           py::arg("k"), py::arg("v"))
      .def(
          "reserve",
          [](Handle& self, uint32_t num_tokens) {
            Check(self.change("reserve").Reserve(num_tokens));
          },
          py::arg("num_tokens"))
      .def(
          "commit",
          [](Handle& self, const py::object& tokens) { self.Commit(TokensFrom(tokens, "tokens")); },
          py::arg("tokens"))
      .def("check_first_token", &CheckFirst, py::arg("logits"))
      .def("fork", &Handle::Fork, py::arg("num_tokens"), py::arg("max_new_tokens") = 0)
      .def("close", &Handle::Close)
      .def_property_readonly("closed", [](const Handle& self) { return self.is_closed(); })
      .def("__enter__", [](const SequencePointer& self) { return self; })
      .def("__exit__", [](Handle& self, const py::args&) { self.Close(); });
}

}  // namespace kvlink::python
