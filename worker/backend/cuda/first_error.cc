#include "worker/backend/cuda/first_error.h"

#include "absl/strings/str_cat.h"

namespace evergrad::worker {

const char* NameOf(Phase phase) {
  switch (phase) {
    case Phase::kForward: return "forward";
    case Phase::kLoss: return "loss";
    case Phase::kBackward: return "backward";
    case Phase::kFinish: return "finish";
  }
  return "";
}

absl::Status FirstError::Error(absl::StatusCode code, absl::string_view primitive,
                               absl::string_view why) const {
  return absl::Status(code, absl::StrCat("backend could not compute: layer=", layer_, " phase=",
                                         NameOf(phase_), " primitive=", primitive, " cause=", why));
}

absl::Status FirstError::DeviceFailed(absl::string_view primitive, const EgCudaError& error) const {
  return Error(absl::StatusCode::kUnavailable, primitive,
               absl::StrCat("the device has failed: ", error.text));
}

void FirstError::Refuse(absl::string_view primitive, const absl::Status& status) {
  if (ok()) status_ = Error(status.code(), primitive, status.message());
}

void FirstError::Fail(absl::string_view primitive, const EgCudaError& error) {
  if (ok()) status_ = DeviceFailed(primitive, error);
}

bool FirstError::Check(absl::string_view primitive, std::int32_t kind, const EgCudaError& error) {
  if (kind == EG_CUDA_OK) return true;
  if (kind == EG_CUDA_NO_MEMORY)
    Refuse(primitive, absl::ResourceExhaustedError(error.text));
  else if (kind == EG_CUDA_FAILED)
    Fail(primitive, error);
  else
    Refuse(primitive, absl::InternalError(error.text));
  return false;
}

}  // namespace evergrad::worker
