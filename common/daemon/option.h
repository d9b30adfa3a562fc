// The declarations of settings and arguments, as OptionTable makes them. The code of the command
// line, of the settings file and of the help text reads these declarations.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::daemon {

struct Option {
  std::string name, flag;  // "tls.ca", "tls-ca"
  std::string kind;        // the value as people read it: "N"; "" for a flag without a value
  std::string help, default_text, bounds;
  bool is_bool = false;
  bool is_text = false;
  bool repeatable = false;
  char letter = 0;                                     // 0 for none
  std::function<absl::Status(absl::string_view)> set;  // parses the value and stores it
  std::function<absl::StatusOr<std::string>()> print;  // set for a flag like --version
  bool set_by_flag = false, set_by_file = false;
  // Returns whether the option has no key in a settings file.
  bool is_flag_only() const { return name == "config" || print != nullptr; }
};

// An argument without a flag. Exactly one of `target` and `rest` is set.
struct Argument {
  std::string name, help;
  std::string* target = nullptr;
  std::vector<std::string>* rest = nullptr;
  bool required = false;
};

}  // namespace evergrad::daemon
