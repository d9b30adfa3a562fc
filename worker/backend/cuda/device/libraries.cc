#include "worker/backend/cuda/device/libraries.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>
#include <type_traits>

#include "worker/backend/cuda/device/check.h"

namespace evergrad::cuda {
namespace {

#define EG_NAME__(major) "libcublasLt.so." #major
#define EG_NAME_(major) EG_NAME__(major)
// cuBLAS has the same major version as CUDA.
constexpr const char kBlasName[] = EG_NAME_(CUBLAS_VER_MAJOR);
constexpr const char kDnnName[] = "libcudnn.so.9";
static_assert(CUDNN_MAJOR == 9);

// The functions of a library, or the reason why it cannot be used.
template <typename Functions>
struct Loaded {
  Functions functions;
  int32_t kind;
  EgCudaError error;
};

// Opens a library. A library stays open, because its threads and handlers outlive any use of it.
// `load` names the first missing function.
template <typename Functions, typename Load>
Loaded<Functions> Open(const char* name, Load load) {
  Loaded<Functions> result{};
  void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    result.kind = Fail(EG_CUDA_NO_LIBRARY, 0, &result.error, "%s cannot be loaded: %s", name,
                       why == nullptr ? "no reason given" : why);
    // CUDA's own installer uses this path, which the linker does not search.
    const std::string installed = std::string("/usr/local/cuda/lib64/") + name;
    handle = ::dlopen(installed.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (handle == nullptr) {
    return result;
  } else if (const char* const missing = load(handle, result.functions); missing != nullptr) {
    result.kind = Fail(EG_CUDA_NO_LIBRARY, 0, &result.error, "%s lacks %s", name, missing);
  } else {
    result.kind = EG_CUDA_OK;
  }
  return result;
}

template <typename Functions>
int32_t Answer(const Loaded<Functions>& once, const Functions** functions, EgCudaError* error) {
  *functions = &once.functions;
  if (once.kind != EG_CUDA_OK) *error = once.error;
  return once.kind;
}

}  // namespace

#define EG_LOAD_(name)                                                       \
  loaded.name = reinterpret_cast<decltype(&::name)>(::dlsym(handle, #name)); \
  if (loaded.name == nullptr) return #name;

int32_t LoadBlas(const Blas** blas, EgCudaError* error) {
  static const Loaded<Blas> once =
      Open<Blas>(kBlasName, [](void* handle, Blas& loaded) -> const char* {
        EG_BLAS_FUNCTIONS(EG_LOAD_)
        return nullptr;
      });
  return Answer(once, blas, error);
}

int32_t LoadDnn(const Dnn** dnn, EgCudaError* error) {
  static const Loaded<Dnn> once = Open<Dnn>(kDnnName, [](void* handle, Dnn& loaded) -> const char* {
    EG_DNN_FUNCTIONS(EG_LOAD_)
    return nullptr;
  });
  return Answer(once, dnn, error);
}

int32_t LoadNvml(const Nvml** nvml, EgCudaError* error) {
  static const Loaded<Nvml> once = [] {
    const auto find = [](void* handle, const char* name, auto* function) {
      *function =
          reinterpret_cast<std::remove_pointer_t<decltype(function)>>(::dlsym(handle, name));
      return *function != nullptr;
    };
    Loaded<Nvml> result =
        Open<Nvml>("libnvidia-ml.so.1", [&](void* handle, Nvml& loaded) -> const char* {
          if (!find(handle, "nvmlInit_v2", &loaded.Init)) return "nvmlInit_v2";
          if (!find(handle, "nvmlDeviceGetHandleByPciBusId_v2", &loaded.DeviceGetHandleByPciBusId))
            return "nvmlDeviceGetHandleByPciBusId_v2";
          if (!find(handle, "nvmlDeviceGetUtilizationRates", &loaded.DeviceGetUtilizationRates))
            return "nvmlDeviceGetUtilizationRates";
          return nullptr;
        });
    if (result.kind == EG_CUDA_OK) {
      if (const int status = result.functions.Init(); status != 0)
        result.kind = Fail(EG_CUDA_NO_LIBRARY, status, &result.error, "nvmlInit: nvml %d", status);
    }
    return result;
  }();
  return Answer(once, nvml, error);
}

}  // namespace evergrad::cuda
