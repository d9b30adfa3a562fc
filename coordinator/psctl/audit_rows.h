// Renders the epochs of an audit as rows of a table. Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/psctl/job_audit.h"

namespace evergrad::psctl {

// Returns one row per epoch if `each`; otherwise one row for each run of epochs with equal numbers
// ("1 to 20").
std::vector<std::vector<std::string>> AuditRows(const std::vector<AuditEpoch>& epochs, bool each);

}  // namespace evergrad::psctl
