#include "common/daemon/option_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/daemon/command_line.h"
#include "common/daemon/help_text.h"
#include "common/daemon/settings_file.h"
#include "common/daemon/version.h"
#include "common/schema/scalar.h"

namespace evergrad::daemon {
namespace {

std::string FlagOf(absl::string_view name) {
  std::string flag(name);
  for (char& c : flag)
    if (c == '.' || c == '_') c = '-';
  return flag;
}

std::string BoundsText(const Bounds& bounds) {
  constexpr auto kNone = std::numeric_limits<std::uint64_t>::max();
  if (bounds.min == 0 && bounds.max == kNone) return "";
  if (bounds.max == kNone) return absl::StrCat("at least ", bounds.min);
  return absl::StrCat(bounds.min, " to ", bounds.max);
}

template <class T>
absl::Status Store(absl::StatusOr<T> value, T* target) {
  if (!value.ok()) return value.status();
  *target = *std::move(value);
  return absl::OkStatus();
}

// `target` is a number or an optional number.
template <class T>
Option Uint32Option(absl::string_view name, T* target, absl::string_view help,
                    std::string default_text, Bounds bounds) {
  Option option{std::string(name), "", "N", std::string(help), std::move(default_text),
                BoundsText(bounds)};
  bounds.max = std::min<std::uint64_t>(bounds.max, std::numeric_limits<std::uint32_t>::max());
  option.set = [target, bounds](absl::string_view text) {
    const auto value = config::ParseUnsigned(text, bounds.min, bounds.max);
    if (value.ok()) *target = static_cast<std::uint32_t>(*value);
    return value.status();
  };
  return option;
}

}  // namespace

OptionTable::OptionTable(std::string program, std::string summary, Kind kind)
    : program_(std::move(program)), summary_(std::move(summary)), kind_(kind) {
  if (kind_ == Kind::kDaemon)
    Add("config", &config_file_, "YAML file with the settings below as keys; flags override it");
}

void OptionTable::AddOption(Option option) {
  option.flag = FlagOf(option.name);
  EG_CHECK_MSG(
      FindFlag(option.flag) == nullptr && option.flag != "help" && option.flag != "version",
      option.name);
  options_.push_back(std::move(option));
}

void OptionTable::Add(absl::string_view name, std::string* target, absl::string_view help) {
  Option option{std::string(name), "", "TEXT", std::string(help), *target, ""};
  option.is_text = true;
  option.set = [target](absl::string_view text) {
    *target = std::string(text);
    return absl::OkStatus();
  };
  AddOption(std::move(option));
}

void OptionTable::Add(absl::string_view name, bool* target, absl::string_view help) {
  Option option{std::string(name), "", "", std::string(help), *target ? "true" : "false", ""};
  option.is_bool = true;
  option.set = [target](absl::string_view text) { return Store(config::ParseBool(text), target); };
  AddOption(std::move(option));
}

void OptionTable::AddPrint(absl::string_view name, absl::string_view help,
                           std::function<absl::StatusOr<std::string>()> print) {
  Option option{std::string(name), "", "", std::string(help), "", ""};
  option.is_bool = true;
  option.set = [](absl::string_view text) {
    bool ignored = false;
    return Store(config::ParseBool(text), &ignored);
  };
  option.print = std::move(print);
  AddOption(std::move(option));
}

void OptionTable::Add(absl::string_view name, std::uint64_t* target, absl::string_view help,
                      Bounds bounds) {
  Option option{std::string(name), "", "N", std::string(help), absl::StrCat(*target),
                BoundsText(bounds)};
  option.set = [target, bounds](absl::string_view text) {
    return Store(config::ParseUnsigned(text, bounds.min, bounds.max), target);
  };
  AddOption(std::move(option));
}

void OptionTable::Add(absl::string_view name, std::uint32_t* target, absl::string_view help,
                      Bounds bounds) {
  AddOption(Uint32Option(name, target, help, absl::StrCat(*target), bounds));
}

void OptionTable::Add(absl::string_view name, std::optional<std::uint32_t>* target,
                      absl::string_view help, Bounds bounds) {
  AddOption(Uint32Option(name, target, help, *target ? absl::StrCat(**target) : "", bounds));
}

void OptionTable::Add(absl::string_view name, double* target, absl::string_view help, double min,
                      double max) {
  const bool bounded = min > -1e300 || max < 1e300;
  const std::string bounds =
      bounded ? absl::StrCat(config::FormatReal(min), " to ", config::FormatReal(max)) : "";
  Option option{std::string(name), "", "X", std::string(help), config::FormatReal(*target), bounds};
  option.set = [target, min, max, bounds](absl::string_view text) {
    const auto value = config::ParseReal(text);
    if (!value.ok()) return value.status();
    if (*value < min || *value > max)
      return absl::InvalidArgumentError(
          absl::StrCat("expected a number from ", bounds, ", got `", text, "`"));
    *target = *value;
    return absl::OkStatus();
  };
  AddOption(std::move(option));
}

void OptionTable::Add(absl::string_view name, std::chrono::milliseconds* target,
                      absl::string_view help, std::chrono::milliseconds min,
                      std::chrono::milliseconds max) {
  Option option{
      std::string(name), "", "TIME", std::string(help), config::FormatDuration(*target), ""};
  if (min.count() > 0) option.bounds = absl::StrCat("at least ", config::FormatDuration(min));
  option.set = [target, min, max](absl::string_view text) {
    const auto value = config::ParseDuration(text);
    if (!value.ok()) return value.status();
    if (*value < min || *value > max)
      return absl::InvalidArgumentError(
          absl::StrCat("expected a duration from ", config::FormatDuration(min), " to ",
                       config::FormatDuration(max), ", got `", text, "`"));
    *target = *value;
    return absl::OkStatus();
  };
  AddOption(std::move(option));
}

void OptionTable::AddBytes(absl::string_view name, std::uint64_t* target, absl::string_view help,
                           Bounds bounds) {
  Option option{
      std::string(name), "", "SIZE", std::string(help), config::FormatByteSize(*target), ""};
  if (bounds.min > 0) option.bounds = absl::StrCat("at least ", config::FormatByteSize(bounds.min));
  option.set = [target, bounds](absl::string_view text) {
    const auto value = config::ParseByteSize(text);
    if (!value.ok()) return value.status();
    if (*value < bounds.min || *value > bounds.max)
      return absl::InvalidArgumentError(
          absl::StrCat("expected a size from ", config::FormatByteSize(bounds.min), " to ",
                       config::FormatByteSize(bounds.max), ", got `", text, "`"));
    *target = *value;
    return absl::OkStatus();
  };
  AddOption(std::move(option));
}

void OptionTable::AddChoice(absl::string_view name, std::string* target,
                            std::vector<std::string> choices, absl::string_view help) {
  Option option{std::string(name), "", absl::StrJoin(choices, "|"), std::string(help), *target, ""};
  option.set = [target, choices = std::move(choices)](absl::string_view text) {
    if (std::find(choices.begin(), choices.end(), text) == choices.end())
      return absl::InvalidArgumentError(absl::StrCat("expected one of ",
                                                     absl::StrJoin(choices, ", "), ", got `", text,
                                                     "`", config::Suggestion(text, choices)));
    *target = std::string(text);
    return absl::OkStatus();
  };
  AddOption(std::move(option));
}

void OptionTable::Add(absl::string_view name, std::vector<std::string>* target,
                      absl::string_view help) {
  Option option{std::string(name),           "", "TEXT", absl::StrCat(help, "; repeatable"),
                absl::StrJoin(*target, ","), ""};
  option.repeatable = true;
  option.is_text = true;
  option.set = [target](absl::string_view text) {
    target->push_back(std::string(text));
    return absl::OkStatus();
  };
  AddOption(std::move(option));
}

void OptionTable::Short(char letter, absl::string_view name) {
  Option* option = FindFlag(FlagOf(name));
  EG_CHECK_MSG(option != nullptr, std::string(name));
  option->letter = letter;
}

void OptionTable::AddArgument(absl::string_view name, std::string* target, absl::string_view help,
                              bool required) {
  arguments_.push_back({std::string(name), std::string(help), target, nullptr, required});
}

void OptionTable::AddRest(absl::string_view name, std::vector<std::string>* target,
                          absl::string_view help) {
  arguments_.push_back({std::string(name), std::string(help), nullptr, target, false});
}

Option* OptionTable::FindFlag(absl::string_view flag) {
  for (Option& option : options_)
    if (option.flag == flag) return &option;
  return nullptr;
}

bool OptionTable::IsSet(absl::string_view name) const {
  for (const Option& option : options_)
    if (option.name == name) return option.set_by_flag || option.set_by_file;
  return false;
}

absl::StatusOr<ParseOutcome> OptionTable::Parse(int argc, const char* const* argv) {
  // --help takes precedence over every mistake.
  for (int i = 1; i < argc; ++i) {
    const absl::string_view arg = argv[i];
    if (arg == "--help" || arg == "-h") return ParseOutcome{true, Help()};
    if (arg == "--version") return ParseOutcome{true, absl::StrCat(VersionLine(program_), "\n")};
  }
  EG_ASSIGN_OR_RETURN(
      const std::vector<GivenFlag> given,
      ReadCommandLine(argc, argv, &options_, arguments_,
                      kind_ == Kind::kDaemon ? ": every setting is a flag like --listen" : ""));
  if (!config_file_.empty()) EG_RETURN_IF_ERROR(ReadSettingsFile(config_file_, &options_));
  for (const GivenFlag& flag : given) {
    if (flag.option->print == nullptr) continue;
    EG_ASSIGN_OR_RETURN(std::string text, flag.option->print());
    return ParseOutcome{true, std::move(text)};
  }
  return ParseOutcome{};
}

std::string OptionTable::Help() const {
  return HelpText(program_, summary_, kind_ == Kind::kDaemon, options_, arguments_);
}

}  // namespace evergrad::daemon
