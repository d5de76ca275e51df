#include "convert.h"

#include <unistd.h>

#include <limits>

namespace kvlink::python {
namespace {

const char* ExceptionOf(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return "InvalidArgumentError";
    case StatusCode::kNotFound:
      return "NotFoundError";
    case StatusCode::kResourceExhausted:
    case StatusCode::kQuotaExhausted:
      return "ResourceExhaustedError";
    case StatusCode::kFailedPrecondition:
      return "FailedPreconditionError";
    case StatusCode::kUnimplemented:
      return "UnsupportedError";
    case StatusCode::kUnavailable:
      return "UnavailableError";
    case StatusCode::kDeadlineExceeded:
      return "DeadlineError";
    case StatusCode::kDataLoss:
      return "DataLossError";
    case StatusCode::kOk:
    case StatusCode::kCancelled:
    case StatusCode::kInternal:
      break;
  }
  return "KvlinkError";
}

}  // namespace

void Throw(const Status& status) {
  const py::object type = py::module_::import("kvlink._errors").attr(ExceptionOf(status.code()));
  PyErr_SetString(type.ptr(), status.message().c_str());
  throw py::error_already_set();
}

void Throw(StatusCode code, const std::string& message) { Throw(Status(code, message)); }

Released::~Released() {
  try {
    PyEval_RestoreThread(state_);
  } catch (...) {  // pthread_exit: nothing else is thrown there
    for (;;) pause();
  }
}

std::vector<TokenId> TokensFrom(const py::handle& tokens, const char* what) {
  const py::array array = py::array::ensure(py::reinterpret_borrow<py::object>(tokens));
  if (!array) {
    PyErr_Clear();
    Throw(StatusCode::kInvalidArgument, std::string(what) + " is no sequence of token ids");
  }
  if (array.ndim() != 1) {
    Throw(StatusCode::kInvalidArgument,
          std::string(what) + " has " + std::to_string(array.ndim()) + " dimensions, not 1");
  }
  if (array.size() == 0) return {};
  const char kind = array.dtype().kind();
  if (kind != 'i' && kind != 'u') {
    Throw(StatusCode::kInvalidArgument, std::string(what) + " has the dtype " +
                                            py::str(array.dtype()).cast<std::string>() +
                                            ", not an integer one");
  }
  const auto wide = py::array_t<int64_t, py::array::c_style | py::array::forcecast>(array);
  std::vector<TokenId> result(static_cast<size_t>(wide.size()));
  const int64_t* values = wide.data();
  for (size_t i = 0; i < result.size(); ++i) {
    if (values[i] < 0 || values[i] > std::numeric_limits<TokenId>::max()) {
      Throw(StatusCode::kInvalidArgument, std::string(what) + "[" + std::to_string(i) + "] is " +
                                              std::to_string(values[i]) + ", no token id");
    }
    result[i] = static_cast<TokenId>(values[i]);
  }
  return result;
}

py::array_t<TokenId> ToArray(const std::vector<TokenId>& tokens) {
  return py::array_t<TokenId>(static_cast<py::ssize_t>(tokens.size()), tokens.data());
}

Bytes::Bytes(const py::handle& object, const char* what, Access access) : what_(what) {
  const int flags = access == Access::kWrite ? PyBUF_WRITABLE : PyBUF_SIMPLE;
  if (PyObject_GetBuffer(object.ptr(), &view_, flags) == 0) return;
  PyErr_Clear();
  Throw(StatusCode::kInvalidArgument,
        std::string(what) + " is a " +
            py::str(py::type::handle_of(object).attr("__name__")).cast<std::string>() + ", not a " +
            (access == Access::kWrite ? "writable, C-contiguous buffer" : "C-contiguous buffer"));
}

Bytes::~Bytes() { PyBuffer_Release(&view_); }

void Bytes::RequireSize(size_t size) const {
  if (this->size() == size) return;
  Throw(StatusCode::kInvalidArgument, std::string(what_) + " has " + std::to_string(this->size()) +
                                          " bytes, not " + std::to_string(size));
}

}  // namespace kvlink::python
