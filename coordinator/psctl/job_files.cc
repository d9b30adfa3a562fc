#include "coordinator/psctl/job_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/fs/object_uri.h"

namespace evergrad::psctl {
namespace {

constexpr char kExampleData[] = "EVERGRAD_DATA";

// Returns advice for a missing file if its path uses EVERGRAD_DATA, or "" for any other path.
std::string Hint(const config::DataPath& path,
                 const std::map<std::string, std::string>& environment) {
  if (std::find(path.variables.begin(), path.variables.end(), kExampleData) == path.variables.end())
    return "";
  const auto set = environment.find(kExampleData);
  return absl::StrCat(
      " (`./evergrad data` fetches the example data; EVERGRAD_DATA, which this path contains, is ",
      set == environment.end() || set->second.empty() ? "not set" : set->second, ")");
}

}  // namespace

FileNotes LookAtFiles(const std::vector<config::DataPath>& paths,
                      const std::map<std::string, std::string>& environment) {
  FileNotes notes;
  for (const config::DataPath& path : paths) {
    if (fs::IsObjectUri(path.path)) continue;  // the workers have the credentials for it
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path.path, error);
    if (std::filesystem::is_directory(status)) {
      notes.mistakes.push_back({path.where, absl::StrCat("is a folder: ", path.path,
                                                         ": expected the path of one file")});
    } else if (!std::filesystem::exists(status)) {
      if (path.path.find('[') != std::string::npos)
        notes.mistakes.push_back(
            {path.where,
             absl::StrCat("no such file: ", path.path,
                          ": expected the path of one file; patterns are not expanded")});
      else
        notes.missing.push_back(
            {path.where, absl::StrCat("no such file: ", path.path, Hint(path, environment))});
    }
  }
  return notes;
}

}  // namespace evergrad::psctl
