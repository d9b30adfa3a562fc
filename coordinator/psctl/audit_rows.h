// The epochs of an audit as lines of a table. Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/psctl/job_audit.h"

namespace evergrad::psctl {

// A row for each epoch, or one for each run of epochs whose numbers are equal ("1 to 20").
std::vector<std::vector<std::string>> AuditRows(const std::vector<AuditEpoch>& epochs, bool each);

}  // namespace evergrad::psctl
