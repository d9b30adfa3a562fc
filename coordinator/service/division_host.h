// Gives WorkerDivision access to the jobs and workers of this room: an implementation of
// DivisionHost.
#pragma once

#include <memory>

#include "coordinator/service/job_supervisor.h"
#include "coordinator/service/service_parts.h"

namespace evergrad::coordinator {

std::unique_ptr<DivisionHost> MakeDivisionHost(ServiceParts parts, JobSupervisor* supervisor);

}  // namespace evergrad::coordinator
