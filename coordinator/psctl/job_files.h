// What this machine can say of the files that a job names as its data, before anything is started.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/config/job_spec.h"

namespace evergrad::psctl {

struct FileNotes {
  std::vector<config::Mistake> mistakes;  // no worker could read it either
  std::vector<config::Mistake> missing;   // not here; the workers may have it
};
// One note a path, at the line that names it.
FileNotes LookAtFiles(const std::vector<config::DataPath>& paths,
                      const std::map<std::string, std::string>& environment);

}  // namespace evergrad::psctl
