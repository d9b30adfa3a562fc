// Checks the data files that a job names, as far as this machine can see them, before anything
// starts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/config/job_spec.h"

namespace evergrad::psctl {

struct FileNotes {
  std::vector<config::Mistake> mistakes;  // paths that no worker could read either
  // Files that are missing on this machine; the workers may have them.
  std::vector<config::Mistake> missing;
};
// Returns one note per path, at the line that names it.
FileNotes LookAtFiles(const std::vector<config::DataPath>& paths,
                      const std::map<std::string, std::string>& environment);

}  // namespace evergrad::psctl
