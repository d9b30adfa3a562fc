#include "coordinator/service/write_trouble.h"

#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kPathsMax = 1024;

}  // namespace

std::string WriteTrouble::After(const std::string& path, const absl::Status& status, MonoTime now) {
  const auto found = troubles_.find(path);
  if (status.ok()) {
    if (found == troubles_.end()) return "";
    const std::uint64_t failures = found->second.failures;
    troubles_.erase(found);
    return absl::StrCat("the file can be written again: path=", path, " failed_writes=", failures);
  }
  if (found == troubles_.end() && troubles_.size() >= kPathsMax) return "";
  Trouble& trouble = troubles_[path];
  ++trouble.failures;
  if (trouble.failures > 1 && now - trouble.said < kSaidEvery) return "";
  trouble.said = now;
  return trouble.failures == 1
             ? std::string(status.message())
             : absl::StrCat(status.message(), " failed_writes=", trouble.failures);
}

}  // namespace evergrad::coordinator
