#include "common/schema/location.h"

#include "absl/strings/str_cat.h"

namespace evergrad::config {

std::string Location::ToString() const {
  if (line == 0) return file;
  return absl::StrCat(file, ":", line, ":", column);
}

std::string Mistake::ToString() const { return absl::StrCat(where.ToString(), ": ", text); }

}  // namespace evergrad::config
