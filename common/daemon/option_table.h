// A daemon's settings, each declared once: as a flag (`--tls-ca FILE`) and as a key of `--config
// file.yaml` (`tls: {ca: FILE}`).
//
// A name is dotted snake_case ("tls.ca", "metrics_listen"); the flag is the same with dashes. Flags
// override the file. Unknown names, wrong types, duplicate keys and values out of bounds are
// refused, those of the file with file:line:column and all together. Not thread-safe; targets
// outlive the table.
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

namespace evergrad::config {
struct Node;
}

namespace evergrad::daemon {

struct ParseOutcome {
  bool stop = false;  // --help or --version was given: print `text`, exit with 0
  std::string text;
};

// Both inclusive.
struct Bounds {
  std::uint64_t min = 0;
  std::uint64_t max = std::numeric_limits<std::uint64_t>::max();
};

class OptionTable {
 public:
  enum class Kind {
    kDaemon,   // has --config FILE
    kCommand,  // a verb of psctl: flags and arguments, no file
  };
  // `program`: what --help shows ("psctl job run"); `summary`: one sentence. --help (-h) and
  // --version are there by themselves.
  OptionTable(std::string program, std::string summary, Kind kind = Kind::kDaemon);

  // The default is what *target holds now. Adding a name twice is a broken invariant.
  void Add(absl::string_view name, std::string* target, absl::string_view help);
  void Add(absl::string_view name, bool* target,
           absl::string_view help);  // flag alone means true; --name=false
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
                Bounds bounds = {});  // 64KiB
  void AddChoice(absl::string_view name, std::string* target, std::vector<std::string> choices,
                 absl::string_view help);

  // Repeatable; in a settings file a list, or one value.
  void Add(absl::string_view name, std::vector<std::string>* target, absl::string_view help);
  // Like --version: where the flag is given, Parse ends with what `print` says, once the other
  // settings are read. Not in a settings file.
  void AddPrint(absl::string_view name, absl::string_view help,
                std::function<absl::StatusOr<std::string>()> print);
  // `-f` for `--follow`.
  void Short(char letter, absl::string_view name);
  // Arguments without a flag, in order; `rest` takes all that is left. `name` is for people
  // ("JOB.yaml").
  void AddArgument(absl::string_view name, std::string* target, absl::string_view help,
                   bool required = true);
  void AddRest(absl::string_view name, std::vector<std::string>* target, absl::string_view help);

  // argv[0] is skipped. InvalidArgument (a user's): one line per mistake. Targets keep their
  // defaults where nothing is given.
  absl::StatusOr<ParseOutcome> Parse(int argc, const char* const* argv);
  // Whether the name was given by flag or file. After Parse.
  bool IsSet(absl::string_view name) const;

  std::string Help() const;
  const std::string& program() const { return program_; }
  // Every option as YAML with its explanation: a --config file that changes nothing.
  std::string ReferenceYaml() const;

 private:
  struct Option {
    std::string name, flag, kind, help, default_text, bounds;
    bool is_bool = false;
    bool is_text = false;
    bool repeatable = false;
    char letter = 0;
    std::function<absl::Status(absl::string_view)> set;
    std::function<absl::StatusOr<std::string>()> print;
    bool set_by_flag = false, set_by_file = false;
  };
  struct Argument {
    std::string name, help;
    std::string* target = nullptr;
    std::vector<std::string>* rest = nullptr;
    bool required = false;
  };
  void AddOption(Option option);
  std::string UnknownFlag(absl::string_view flag) const;
  Option* FindFlag(absl::string_view flag);
  absl::Status ReadConfigFile();
  void ReadConfigMap(const config::Node& map, const std::string& prefix,
                     std::vector<std::string>* errors);

  const std::string program_, summary_;
  const Kind kind_;
  std::vector<Argument> arguments_;
  std::string config_file_;
  std::vector<Option> options_;
};

}  // namespace evergrad::daemon
