// Gives jobs access to the process: an implementation of JobHost that uses the parts of this room.
#pragma once

#include <memory>

#include "common/fault/failpoints.h"
#include "common/fs/file_system.h"
#include "coordinator/service/job_supervisor.h"
#include "coordinator/service/service_parts.h"

namespace evergrad::coordinator {

// The control executor owns the host and its jobs; the other parts outlive the host.
// `checkpoints` is the thread that reads and writes checkpoints.
std::unique_ptr<JobHost> MakeJobHost(ServiceParts parts, runtime::Executor* checkpoints,
                                     fault::Failpoints* failpoints, fs::FileSystem* file_system,
                                     JobSupervisor* supervisor);

}  // namespace evergrad::coordinator
