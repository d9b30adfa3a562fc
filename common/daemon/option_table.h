// The settings of a daemon. Each setting is declared once, and is both a flag (`--tls-ca FILE`) and
// a key of `--config file.yaml` (`tls: {ca: FILE}`).
//
// A name is dotted snake_case ("tls.ca", "metrics_listen"); its flag has dashes in place of dots
// and underscores. Flags override the file. Unknown names, wrong types, duplicate keys and values
// out of bounds are refused. Mistakes in the file are reported together, with file:line:column. Not
// thread-safe; targets outlive the table.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/daemon/option.h"
#include "common/daemon/settings_file.h"

namespace evergrad::daemon {

struct ParseOutcome {
  bool stop = false;  // --help or --version was given: print `text`, exit with 0
  std::string text;
};

// Both bounds are inclusive.
struct Bounds {
  std::uint64_t min = 0;
  std::uint64_t max = std::numeric_limits<std::uint64_t>::max();
};

class OptionTable {
 public:
  enum class Kind {
    kDaemon,   // has --config FILE
    kCommand,  // a verb of psctl: has flags and arguments, and no file
  };
  // --help shows `program` ("psctl job run") and `summary`, which is one sentence. The table itself
  // adds --help (-h) and --version.
  OptionTable(std::string program, std::string summary, Kind kind = Kind::kDaemon);

  // Adds an option; the current value of *target is its default. The name must be new (EG_CHECK).
  void Add(absl::string_view name, std::string* target, absl::string_view help);
  // Adds a flag that means true without a value; --name=false means false.
  void Add(absl::string_view name, bool* target, absl::string_view help);
  void Add(absl::string_view name, std::uint32_t* target, absl::string_view help,
           Bounds bounds = {});
  void Add(absl::string_view name, std::uint64_t* target, absl::string_view help,
           Bounds bounds = {});
  void Add(absl::string_view name, std::optional<std::uint32_t>* target, absl::string_view help,
           Bounds bounds = {});
  void Add(absl::string_view name, double* target, absl::string_view help, double min = -1e300,
           double max = 1e300);
  void Add(absl::string_view name, std::chrono::milliseconds* target, absl::string_view help,
           std::chrono::milliseconds min = std::chrono::milliseconds(0),
           std::chrono::milliseconds max = std::chrono::hours(24 * 365));
  void AddBytes(absl::string_view name, std::uint64_t* target, absl::string_view help,
                Bounds bounds = {});  // accepts suffixes: 64KiB
  void AddChoice(absl::string_view name, std::string* target, std::vector<std::string> choices,
                 absl::string_view help);

  // Adds a repeatable flag. In a settings file the value is a list, or one text.
  void Add(absl::string_view name, std::vector<std::string>* target, absl::string_view help);
  // Adds a flag like --version. Parse reads the other settings and then ends with the text that
  // `print` returns. Such a flag is not allowed in a settings file.
  void AddPrint(absl::string_view name, absl::string_view help,
                std::function<absl::StatusOr<std::string>()> print);
  // Defines a one-letter form of the flag of the option `name`: `-f` for `--follow`.
  void Short(char letter, absl::string_view name);
  // Declares arguments without a flag, in order. `rest` takes all remaining arguments. `name` is
  // shown to people ("JOB.yaml").
  void AddArgument(absl::string_view name, std::string* target, absl::string_view help,
                   bool required = true);
  void AddRest(absl::string_view name, std::vector<std::string>* target, absl::string_view help);

  // Parses the arguments; argv[0] is skipped. Returns InvalidArgument (a user error) with one line
  // per mistake. Targets without a given value keep their defaults.
  absl::StatusOr<ParseOutcome> Parse(int argc, const char* const* argv);
  // Returns whether a flag or the file sets the option `name`. Valid after Parse.
  bool IsSet(absl::string_view name) const;

  std::string Help() const;
  const std::string& program() const { return program_; }
  // Returns all options as YAML with their explanations. The text is a valid --config file with the
  // default values.
  std::string ReferenceYaml() const { return daemon::ReferenceYaml(options_); }

 private:
  void AddOption(Option option);
  Option* FindFlag(absl::string_view flag);

  const std::string program_, summary_;
  const Kind kind_;
  std::vector<Argument> arguments_;
  std::string config_file_;
  std::vector<Option> options_;
};

}  // namespace evergrad::daemon
