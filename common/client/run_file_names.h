// Names of the files of a job's runs folder that are sent between hosts. Both ends use these lists,
// so no path comes from the wire.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace evergrad::client {

// Files that an export closure sends to the coordinator.
inline constexpr std::array<const char*, 3> kExportNames = {"weights.npz", "weights.safetensors",
                                                            "model/vocabularies.json"};
// Files of a run that a user can fetch, in this order.
inline constexpr std::array<const char*, 11> kRunFileNames = {
    "report.html",      "result.json",
    "metrics.jsonl",    "job.yaml",
    "weights.npz",      "weights.safetensors",
    "model/README.md",  "model/load.py",
    "model/model.json", "model/vocabularies.json",
    "model/tables.npz"};

inline bool IsExportName(absl::string_view name) {
  return std::find(kExportNames.begin(), kExportNames.end(), name) != kExportNames.end();
}
inline bool IsRunFileName(absl::string_view name) {
  return std::find(kRunFileNames.begin(), kRunFileNames.end(), name) != kRunFileNames.end();
}

// Returns the contents of a folder's mark file, which name the job to which the files belong.
inline std::string RunMark(JobUid job) {
  return absl::StrCat("evergrad run of job ", JobUidString(job), "\n");
}

}  // namespace evergrad::client
