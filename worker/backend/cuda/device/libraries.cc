#include "worker/backend/cuda/device/libraries.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <type_traits>

#include "worker/backend/cuda/device/check.h"

namespace evergrad::cuda {
namespace {

#define EG_NAME__(major) "libcublasLt.so." #major
#define EG_NAME_(major) EG_NAME__(major)
// cuBLAS' major version is CUDA's.
constexpr const char kBlasName[] = EG_NAME_(CUBLAS_VER_MAJOR);
constexpr const char kDnnName[] = "libcudnn.so.9";
static_assert(CUDNN_MAJOR == 9);

// A library that was opened stays open: its threads and handlers outlive any use of it.
template <typename Load>
int32_t Open(const char* name, Load load, EgCudaError* error) {
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Fail(EG_CUDA_NO_LIBRARY, 0, error, "%s cannot be loaded: %s", name, ::dlerror());
  const char* const missing = load(handle);
  if (missing != nullptr) return Fail(EG_CUDA_NO_LIBRARY, 0, error, "%s lacks %s", name, missing);
  return EG_CUDA_OK;
}

}  // namespace

#define EG_LOAD_(name)                                                       \
  loaded.name = reinterpret_cast<decltype(&::name)>(::dlsym(handle, #name)); \
  if (loaded.name == nullptr) return #name;

int32_t LoadBlas(const Blas** blas, EgCudaError* error) {
  struct Loaded {
    Blas functions;
    int32_t kind;
    EgCudaError error{};
  };
  static const Loaded once = [] {
    Loaded result{};
    Blas& loaded = result.functions;
    result.kind = Open(
        kBlasName,
        [&](void* handle) -> const char* {
          EG_BLAS_FUNCTIONS(EG_LOAD_)
          return nullptr;
        },
        &result.error);
    return result;
  }();
  *blas = &once.functions;
  if (once.kind != EG_CUDA_OK) *error = once.error;
  return once.kind;
}

int32_t LoadDnn(const Dnn** dnn, EgCudaError* error) {
  struct Loaded {
    Dnn functions;
    int32_t kind;
    EgCudaError error{};
  };
  static const Loaded once = [] {
    Loaded result{};
    Dnn& loaded = result.functions;
    result.kind = Open(
        kDnnName,
        [&](void* handle) -> const char* {
          EG_DNN_FUNCTIONS(EG_LOAD_)
          return nullptr;
        },
        &result.error);
    return result;
  }();
  *dnn = &once.functions;
  if (once.kind != EG_CUDA_OK) *error = once.error;
  return once.kind;
}

int32_t LoadNvml(const Nvml** nvml, EgCudaError* error) {
  struct Loaded {
    Nvml functions;
    int32_t kind;
    EgCudaError error{};
  };
  static const Loaded once = [] {
    Loaded result{};
    Nvml& loaded = result.functions;
    const auto find = [](void* handle, const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(::dlsym(handle, name));
      return *function != nullptr;
    };
    result.kind = Open(
        "libnvidia-ml.so.1",
        [&](void* handle) -> const char* {
          if (!find(handle, "nvmlInit_v2", &loaded.Init)) return "nvmlInit_v2";
          if (!find(handle, "nvmlDeviceGetHandleByPciBusId_v2", &loaded.DeviceGetHandleByPciBusId)) return "nvmlDeviceGetHandleByPciBusId_v2";
          if (!find(handle, "nvmlDeviceGetUtilizationRates", &loaded.DeviceGetUtilizationRates)) return "nvmlDeviceGetUtilizationRates";
          return nullptr;
        },
        &result.error);
    if (result.kind == EG_CUDA_OK) {
      if (const int status = loaded.Init(); status != 0) result.kind = Fail(EG_CUDA_NO_LIBRARY, status, &result.error, "nvmlInit: nvml %d", status);
    }
    return result;
  }();
  *nvml = &once.functions;
  if (once.kind != EG_CUDA_OK) *error = once.error;
  return once.kind;
}

}  // namespace evergrad::cuda
