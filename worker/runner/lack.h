// An error that says of this worker, and not of the job, that they do not go together: another
// worker may do what this one cannot.
#pragma once

#include "absl/status/status.h"

namespace evergrad::worker {

// As v1::Lack has it. kAbility: its device, build or settings. kInput: its data [LEDGER 33].
enum class Lack { kNone, kAbility, kInput };

// A user's error, too: what is to be done if no worker fits. Survives copies; OK stays OK.
absl::Status WithLack(Lack lack, absl::Status status);
Lack LackOf(const absl::Status& status);

}  // namespace evergrad::worker
