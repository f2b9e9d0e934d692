#include "backends/cuda/libraries.h"

#include <dlfcn.h>

#include "base/error.h"

namespace h3::cuda {
namespace {

// The first of `names` that opens. Handles are never closed: the tables point into them for the life of the process.
void* open_first(const char* const* names, std::string& reason) {
  for (; *names != nullptr; ++names) {
    if (void* handle = ::dlopen(*names, RTLD_NOW | RTLD_LOCAL)) return handle;
    const char* error = ::dlerror();
    reason = error != nullptr ? error : "cannot be opened";
  }
  return nullptr;
}

template <typename Function>
void resolve(void* handle, const char* name, Function& function, std::string& reason) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
  if (function == nullptr) reason = strf("lacks %s", name);
}

BlasLt open_blas_lt() {
  BlasLt table;
  const char* const names[] = {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13", nullptr};
  void* handle = open_first(names, table.reason);
  if (handle == nullptr) return table;
  table.reason.clear();
#define H3_RESOLVE(name) resolve(handle, #name, table.name, table.reason);
  H3_BLASLT(H3_RESOLVE)
  if (table.loaded()) {
    const size_t v = table.cublasLtGetVersion();
    table.version = strf("%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
  }
  return table;
}

Dnn open_dnn() {
  Dnn table;
  const char* const names[] = {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9", nullptr};
  void* handle = open_first(names, table.reason);
  if (handle == nullptr) return table;
  table.reason.clear();
  H3_DNN(H3_RESOLVE)
#undef H3_RESOLVE
  if (table.loaded()) {
    const size_t v = table.cudnnGetVersion();
    table.version = strf("%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
  }
  return table;
}

}  // namespace

const BlasLt& blas_lt() {
  static const BlasLt table = open_blas_lt();
  return table;
}

const Dnn& dnn() {
  static const Dnn table = open_dnn();
  return table;
}

}  // namespace h3::cuda
