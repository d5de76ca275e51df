// Between Python and the library: errors become exceptions, arrays become spans, and nothing is
// converted silently: a wrong dtype, shape or value is an exception that says what, where and
// which. Everything here needs the GIL.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvlink/kv_shape.h"
#include "kvlink/status.h"

namespace kvlink::python {

namespace py = pybind11;

// Raises the exception of kvlink._errors that stands for the code, with the message.
[[noreturn]] void Throw(const Status& status);
[[noreturn]] void Throw(StatusCode code, const std::string& message);

inline void Check(const Status& status) {
  if (!status.ok()) Throw(status);
}

template <typename T>
T Take(Result<T> result) {
  if (!result.ok()) Throw(result.status());
  return std::move(result).value();
}

// Token ids from any one-dimensional sequence of integers in [0, 2^31). `what` is the argument's
// name.
std::vector<TokenId> TokensFrom(const py::handle& tokens, const char* what);
py::array_t<TokenId> ToArray(const std::vector<TokenId>& tokens);

// A C-contiguous buffer of exactly `size` bytes, or of any size. Holds it until destroyed.
class Bytes {
 public:
  enum class Access { kRead, kWrite };
  Bytes(const py::handle& object, const char* what, Access access);
  ~Bytes();
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  void RequireSize(size_t size) const;
  std::byte* data() const { return static_cast<std::byte*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }
  std::string_view text() const { return {static_cast<const char*>(view_.buf), size()}; }

 private:
  Py_buffer view_{};
  const char* what_;
};

// Other Python threads run while it lives. A thread that comes back to an interpreter that has
// ended stays here until the process is gone, as Python 3.14 has it: the Pythons before unwind the
// thread's stack, which ends the process in std::terminate.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  ~Released();
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

 private:
  PyThreadState* state_;
};

// {name: counter} of an array that is indexed by an enumeration.
template <typename Enum, size_t N>
py::dict ByName(const std::array<uint64_t, N>& counters, const char* (*name)(Enum)) {
  py::dict result;
  for (size_t i = 0; i < N; ++i) result[name(static_cast<Enum>(i))] = counters[i];
  return result;
}

void BindOptions(py::module_& module);
void BindCache(py::module_& module);
void BindSequence(py::module_& module);
void BindStore(py::module_& module);

}  // namespace kvlink::python
