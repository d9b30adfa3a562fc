// Renders the epochs of an audit as rows of a table. Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/psctl/job_audit.h"

namespace evergrad::psctl {

// If `each` is set, returns one row per epoch. Otherwise consecutive epochs with equal counts share
// one row ("1 to 20").
std::vector<std::vector<std::string>> AuditRows(const std::vector<AuditEpoch>& epochs, bool each);

}  // namespace evergrad::psctl
