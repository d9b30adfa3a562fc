// The first error of a backend since the caller last took an error. Errors name a place: the layer
// and the phase to which the work belongs that is being requested. Not thread-safe.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/cuda_abi.h"

namespace evergrad::worker {

const char* NameOf(Phase phase);

class FirstError {
 public:
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  absl::Status Take() { return std::exchange(status_, absl::OkStatus()); }  // clears the error

  // `layer` is not copied, so the text must live until the next call.
  void Enter(absl::string_view layer, Phase phase) { layer_ = layer, phase_ = phase; }
  absl::string_view layer() const { return layer_; }
  Phase phase() const { return phase_; }

  // Each of these functions stores an error only if there is none.
  void Refuse(absl::string_view primitive, const absl::Status& status);
  void Fail(absl::string_view primitive, const EgCudaError& error);  // the device has failed
  // Returns whether `kind` is EG_CUDA_OK, and stores the error otherwise.
  bool Check(absl::string_view primitive, std::int32_t kind, const EgCudaError& error);

  // Returns the error of a device that has failed, without storing it.
  absl::Status DeviceFailed(absl::string_view primitive, const EgCudaError& error) const;

 private:
  absl::Status Error(absl::StatusCode code, absl::string_view primitive,
                     absl::string_view why) const;

  absl::Status status_;
  absl::string_view layer_;
  Phase phase_ = Phase::kForward;
};

}  // namespace evergrad::worker
