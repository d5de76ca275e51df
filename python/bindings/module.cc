// The extension module kvlink._kvlink. What Python sees is re-exported by kvlink/__init__.py; types
// and docstrings are in kvlink/_kvlink.pyi.
#include "convert.h"

PYBIND11_MODULE(_kvlink, module) {
  module.attr("__version__") = KVLINK_VERSION;
  kvlink::python::BindOptions(module);
  kvlink::python::BindSequence(module);
  kvlink::python::BindCache(module);
  kvlink::python::BindStore(module);
}
