#include "common/base/ids.h"

namespace evergrad {

std::string JobUidString(JobUid uid) {
  return absl::StrCat(absl::Hex(uid.value(), absl::kZeroPad16));
}

}  // namespace evergrad
