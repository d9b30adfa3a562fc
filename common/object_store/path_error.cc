#include "common/object_store/path_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace evergrad::object_store {

absl::Status PathError(absl::string_view what, absl::string_view path, const absl::Status& cause) {
  absl::Status error(cause.code(), absl::StrCat(what, ": path=", path, ": ", cause.message()));
  cause.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { error.SetPayload(url, payload); });
  return error;
}

}  // namespace evergrad::object_store
