// Adds the path of a file to the error of an object store.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace evergrad::object_store {

// Returns an error of the same kind, with the same marks, whose message is "WHAT: path=PATH: " and
// the message of `cause`. `cause` is an error.
absl::Status PathError(absl::string_view what, absl::string_view path, const absl::Status& cause);

}  // namespace evergrad::object_store
