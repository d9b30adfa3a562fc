// Marks errors that are about this worker and not about the job: another worker may be able to do
// the work. Pure, any thread.
#pragma once

#include "absl/status/status.h"

namespace evergrad::worker {

// The kinds of shortfall, as in v1::Lack. kAbility: its device, build or settings do not
// fit the job. kInput: its data are missing, or are not the plan's [LEDGER 33].
enum class Shortfall { kNone, kAbility, kInput };

// Marks `status`, which becomes a user's error, too, for the case that no worker can do the work.
// The mark survives copies. An OK status stays OK.
absl::Status WithShortfall(Shortfall shortfall, absl::Status status);
Shortfall ShortfallOf(const absl::Status& status);

}  // namespace evergrad::worker
