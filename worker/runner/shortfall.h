// Marks errors that concern only this worker. After such an error another worker may be able to do
// the work, so the job need not fail. The functions are pure.
#pragma once

#include "absl/status/status.h"

namespace evergrad::worker {

// The kinds of shortfall, as in v1::Lack. kAbility means that the worker's device, build or
// settings do not suit the job. kInput means that the data on this worker are missing, or differ
// from the plan's [LEDGER 33].
enum class Shortfall { kNone, kAbility, kInput };

// Marks `status` and makes it a user error, for the case that no worker can do the work. The mark
// survives copies. An OK status stays OK.
absl::Status WithShortfall(Shortfall shortfall, absl::Status status);
Shortfall ShortfallOf(const absl::Status& status);

}  // namespace evergrad::worker
