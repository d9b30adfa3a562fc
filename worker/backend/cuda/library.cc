#include "worker/backend/cuda/library.h"

#include <dlfcn.h>

#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace evergrad::worker {
namespace {

// Returns whether the library itself is missing, and not one of its dependencies. In both cases
// dlerror() gives "PATH: cannot open shared object file: No such file or directory".
bool IsAbsent(const std::string& name, absl::string_view error) {
  return error.find("cannot open shared object file") != absl::string_view::npos &&
         error.substr(0, name.size()) == name;
}

}  // namespace

absl::StatusOr<const EgCudaApi*> LoadCudaLibrary(const std::string& path) {
  const std::string name = path.empty() ? kCudaLibraryName : path;
  // The executable's folder is searched first, and then the folders of the linker.
  std::error_code ignored;
  const std::filesystem::path beside =
      std::filesystem::read_symlink("/proc/self/exe", ignored).replace_filename(kCudaLibraryName);
  const std::string file =
      path.empty() && std::filesystem::exists(beside, ignored) ? beside.string() : name;
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    const std::string text = why == nullptr ? "no reason given" : why;
    if (IsAbsent(file, text)) return absl::NotFoundError(absl::StrCat(name, " does not exist"));
    return absl::FailedPreconditionError(absl::StrCat(name, " cannot be loaded: ", text));
  }
  const auto entry = reinterpret_cast<EgCudaEntry>(::dlsym(handle, EG_CUDA_ENTRY));
  const EgCudaApi* const api = entry == nullptr ? nullptr : entry();
  if (api == nullptr) {
    ::dlclose(handle);
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is not a library of Evergrad: it lacks ", EG_CUDA_ENTRY));
  }
  if (api->abi_version != EG_CUDA_ABI_VERSION || api->table_bytes != sizeof(EgCudaApi)) {
    const std::string text = absl::StrFormat(
        "%s is of another version: want=%u (%u bytes) got=%u (%u bytes)", name, EG_CUDA_ABI_VERSION,
        static_cast<unsigned>(sizeof(EgCudaApi)), api->abi_version, api->table_bytes);
    ::dlclose(handle);
    return absl::FailedPreconditionError(text);
  }
  return api;
}

absl::Status StatusOf(const EgCudaError& error) {
  const absl::string_view text(error.text);
  switch (error.kind) {
    case EG_CUDA_OK: return absl::OkStatus();
    case EG_CUDA_NO_DRIVER:
    case EG_CUDA_NO_DEVICE: return absl::NotFoundError(text);
    case EG_CUDA_NO_LIBRARY: return absl::FailedPreconditionError(text);
    case EG_CUDA_NO_MEMORY: return absl::ResourceExhaustedError(text);
    case EG_CUDA_BAD_SHAPE: return absl::InvalidArgumentError(text);
    default: return absl::InternalError(text);
  }
}

absl::StatusOr<std::vector<EgCudaDevice>> CudaDevices(const EgCudaApi& api) {
  EgCudaError error{};
  std::int32_t count = 0;
  if (api.device_count(&count, &error) != EG_CUDA_OK) return StatusOf(error);
  std::vector<EgCudaDevice> devices(static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i)
    if (api.device(i, &devices[static_cast<std::size_t>(i)], &error) != EG_CUDA_OK)
      return StatusOf(error);
  return devices;
}

std::string DescribeDevice(const EgCudaDevice& device) {
  return absl::StrFormat("%s, sm_%d%d, %d SMs, %.1f GiB", device.name, device.major, device.minor,
                         device.multiprocessors,
                         static_cast<double>(device.memory_bytes) / (1ull << 30));
}

}  // namespace evergrad::worker
