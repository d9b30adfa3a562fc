#include "common/daemon/option_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/daemon/version.h"
#include "common/fs/file.h"
#include "common/schema/scalar.h"
#include "common/schema/yaml_tree.h"

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
  const Bounds narrow{
      bounds.min, std::min<std::uint64_t>(bounds.max, std::numeric_limits<std::uint32_t>::max())};
  Option option{std::string(name), "", "N", std::string(help), absl::StrCat(*target),
                BoundsText(bounds)};
  option.set = [target, narrow](absl::string_view text) {
    const auto value = config::ParseUnsigned(text, narrow.min, narrow.max);
    if (value.ok()) *target = static_cast<std::uint32_t>(*value);
    return value.status();
  };
  AddOption(std::move(option));
}

void OptionTable::Add(absl::string_view name, std::optional<std::uint32_t>* target,
                      absl::string_view help, Bounds bounds) {
  const Bounds narrow{
      bounds.min, std::min<std::uint64_t>(bounds.max, std::numeric_limits<std::uint32_t>::max())};
  Option option{std::string(name),
                "",
                "N",
                std::string(help),
                target->has_value() ? absl::StrCat(**target) : "",
                BoundsText(bounds)};
  option.set = [target, narrow](absl::string_view text) {
    const auto value = config::ParseUnsigned(text, narrow.min, narrow.max);
    if (value.ok()) *target = static_cast<std::uint32_t>(*value);
    return value.status();
  };
  AddOption(std::move(option));
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

std::string OptionTable::UnknownFlag(absl::string_view flag) const {
  std::vector<std::string> names{"help", "version"};
  for (const Option& known : options_) names.push_back(known.flag);
  const std::string nearest = config::NearestName(flag, names);
  return absl::StrCat("unknown flag `--", flag, "`",
                      nearest.empty() ? "" : absl::StrCat("; did you mean `--", nearest, "`?"));
}

OptionTable::Option* OptionTable::FindFlag(absl::string_view flag) {
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
  auto refuse = [](std::string text) { return UserError(absl::InvalidArgumentError(text)); };
  // --help takes precedence over every mistake.
  for (int i = 1; i < argc; ++i) {
    const absl::string_view arg = argv[i];
    if (arg == "--help" || arg == "-h") return ParseOutcome{true, Help()};
    if (arg == "--version") return ParseOutcome{true, absl::StrCat(VersionLine(program_), "\n")};
  }
  std::vector<std::pair<Option*, std::string>> given;
  std::vector<std::string> errors;
  std::size_t argument = 0;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view arg = argv[i];
    Option* option = nullptr;
    std::size_t equals = absl::string_view::npos;
    if (arg.size() == 2 && arg[0] == '-' && arg[1] != '-') {
      for (Option& known : options_)
        if (known.letter == arg[1]) option = &known;
      if (option == nullptr) {
        errors.push_back(absl::StrCat("unknown flag `", arg, "`"));
        continue;
      }
    } else if (!absl::StartsWith(arg, "--") || arg.size() == 2) {
      if (argument < arguments_.size() && !(arg.size() > 1 && arg[0] == '-')) {
        if (arguments_[argument].rest != nullptr)
          arguments_[argument].rest->push_back(std::string(arg));
        else
          *arguments_[argument++].target = std::string(arg);
      } else {
        errors.push_back(
            absl::StrCat("unexpected argument `", arg, "`",
                         kind_ == Kind::kDaemon ? ": every setting is a flag like --listen" : ""));
      }
      continue;
    } else {
      equals = arg.find('=');
      const absl::string_view flag =
          arg.substr(2, equals == absl::string_view::npos ? absl::string_view::npos : equals - 2);
      option = FindFlag(flag);
      if (option == nullptr) {
        errors.push_back(UnknownFlag(flag));
        // The value of an unknown flag is not reported as a second mistake.
        if (equals == absl::string_view::npos && i + 1 < argc &&
            !absl::StartsWith(argv[i + 1], "--"))
          ++i;
        continue;
      }
    }
    std::string value;
    if (equals != absl::string_view::npos) {
      value = std::string(arg.substr(equals + 1));
    } else if (option->is_bool) {
      value = "true";
    } else if (i + 1 < argc) {
      value = argv[++i];
    } else {
      errors.push_back(
          absl::StrCat("--", option->flag, ": a value is missing: expected ", option->kind));
      continue;
    }
    if (option->set_by_flag && !option->repeatable) {
      errors.push_back(absl::StrCat("--", option->flag, ": duplicate flag"));
      continue;
    }
    option->set_by_flag = true;
    given.emplace_back(option, std::move(value));
  }
  for (std::size_t i = argument; i < arguments_.size(); ++i)
    if (arguments_[i].required)
      errors.push_back(
          absl::StrCat("missing argument ", arguments_[i].name, ": ", arguments_[i].help));
  auto apply = [&] {
    for (const auto& [option, value] : given)
      if (const absl::Status status = option->set(value); !status.ok())
        errors.push_back(absl::StrCat("--", option->flag, ": ", status.message()));
  };
  apply();
  if (!errors.empty()) return refuse(absl::StrJoin(errors, "\n"));
  if (!config_file_.empty()) EG_RETURN_IF_ERROR(ReadConfigFile());
  for (const auto& [option, value] : given) {
    if (option->print == nullptr) continue;
    EG_ASSIGN_OR_RETURN(std::string text, option->print());
    return ParseOutcome{true, std::move(text)};
  }
  return ParseOutcome{};
}

absl::Status OptionTable::ReadConfigFile() {
  auto text = fs::ReadFile(config_file_, config::kYamlBytesMax);
  if (!text.ok())
    return UserError(
        absl::Status(text.status().code(), absl::StrCat("--config: ", text.status().message())));
  std::vector<config::Mistake> mistakes;
  const auto root = config::ReadYamlTree(*text, {config_file_}, &mistakes);
  std::vector<std::string> errors;
  for (const config::Mistake& mistake : mistakes) errors.push_back(mistake.ToString());
  if (root && root->kind == config::Node::Kind::kMap) {
    ReadConfigMap(*root, "", &errors);
  } else if (root && root->kind != config::Node::Kind::kNull) {
    errors.push_back(absl::StrCat(root->where().ToString(),
                                  ": expected a mapping of settings, got ", root->Describe()));
  }
  if (!errors.empty()) return UserError(absl::InvalidArgumentError(absl::StrJoin(errors, "\n")));
  return absl::OkStatus();
}

void OptionTable::ReadConfigMap(const config::Node& map, const std::string& prefix,
                                std::vector<std::string>* errors) {
  for (const config::YamlEntry& entry : map.entries) {
    const std::string name = prefix + entry.key;
    auto report = [&](const config::Location& where, absl::string_view text) {
      errors->push_back(absl::StrCat(where.ToString(), ": ", text));
    };
    if (entry.value.refused) continue;
    Option* option = nullptr;
    bool is_group = false;
    std::vector<std::string> siblings;
    for (Option& known : options_) {
      if (known.name == name) option = &known;
      if (absl::StartsWith(known.name, name + ".")) is_group = true;
      if (absl::StartsWith(known.name, prefix)) {
        const std::vector<std::string> rest =
            absl::StrSplit(known.name.substr(prefix.size()), absl::MaxSplits('.', 1));
        if (siblings.empty() || siblings.back() != rest[0]) siblings.push_back(rest[0]);
      }
    }
    if (is_group) {
      if (entry.value.kind == config::Node::Kind::kMap)
        ReadConfigMap(entry.value, name + ".", errors);
      else
        report(entry.value.where(),
               absl::StrCat(name, ": expected a mapping, got ", entry.value.Describe()));
      continue;
    }
    const bool flag_alone =
        option != nullptr && (option->name == "config" || option->print != nullptr);
    if (option == nullptr || flag_alone) {
      report(entry.where(), absl::StrCat("unknown setting `", name, "`",
                                         flag_alone ? "; it is only a flag"
                                                    : config::Suggestion(entry.key, siblings)));
      continue;
    }
    option->set_by_file = true;
    if (option->set_by_flag) continue;
    if (option->repeatable && entry.value.kind == config::Node::Kind::kSequence) {
      for (const config::Node& item : entry.value.items) {
        if (item.kind != config::Node::Kind::kScalar)
          report(item.where(),
                 absl::StrCat(name, ": expected a list of texts, got ", item.Describe()));
        else if (const absl::Status status = option->set(item.text); !status.ok())
          report(item.where(), absl::StrCat(name, ": ", status.message()));
      }
      continue;
    }
    if (entry.value.kind != config::Node::Kind::kScalar) {
      report(entry.value.where(),
             absl::StrCat(name, ": expected one value, got ", entry.value.Describe()));
      continue;
    }
    if (entry.value.quoted && !option->is_text &&
        (option->is_bool || option->kind == "N" || option->kind == "X")) {
      report(entry.value.where(),
             absl::StrCat(name, ": expected ", option->is_bool ? "true or false" : "a number",
                          ", got ", entry.value.Describe()));
      continue;
    }
    if (const absl::Status status = option->set(entry.value.text); !status.ok())
      report(entry.value.where(), absl::StrCat(name, ": ", status.message()));
  }
}

std::string OptionTable::Help() const {
  std::string out = absl::StrCat(program_, ": ", summary_, "\n\nusage: ", program_,
                                 kind_ == Kind::kDaemon ? " [--config FILE]" : "", " [flags]");
  for (const Argument& argument : arguments_)
    absl::StrAppend(&out, argument.required ? " " : " [", argument.name,
                    argument.rest != nullptr ? " …" : "", argument.required ? "" : "]");
  absl::StrAppend(&out, "\n\n");
  for (const Argument& argument : arguments_)
    absl::StrAppend(&out, "  ", argument.name, "  ", argument.help, "\n");
  if (!arguments_.empty()) absl::StrAppend(&out, "\n");
  std::size_t width = 0;
  std::vector<std::string> heads;
  for (const Option& option : options_) {
    heads.push_back(absl::StrCat(
        "  ", option.letter != 0 ? absl::StrCat("-", std::string(1, option.letter), ", ") : "",
        "--", option.flag, option.kind.empty() ? "" : " ", option.kind));
    width = std::max(width, std::min<std::size_t>(heads.back().size(), 34));
  }
  for (std::size_t i = 0; i < options_.size(); ++i) {
    const Option& option = options_[i];
    std::string notes;
    if (!option.bounds.empty()) absl::StrAppend(&notes, option.bounds, "; ");
    if (!option.default_text.empty())
      absl::StrAppend(&notes, "default ", option.default_text, "; ");
    if (!notes.empty()) notes = absl::StrCat(" (", notes.substr(0, notes.size() - 2), ")");
    absl::StrAppend(&out, heads[i],
                    std::string(heads[i].size() > width ? 1 : width - heads[i].size() + 1, ' '),
                    " ", option.help, notes, "\n");
  }
  width = std::max<std::size_t>(width, 11);
  absl::StrAppend(&out, "  --help", std::string(width - 8 + 2, ' '), "print this and exit\n");
  absl::StrAppend(&out, "  --version", std::string(width - 11 + 2, ' '),
                  "print the version and exit\n");
  if (kind_ == Kind::kDaemon)
    absl::StrAppend(&out,
                    "\nIn the --config file the same settings are keys with underscores "
                    "(metrics_listen: …), and tls is a mapping: tls: {ca: …, "
                    "cert: …, key: …}.\n");
  return out;
}

std::string OptionTable::ReferenceYaml() const {
  std::string out;
  std::string group;
  for (const Option& option : options_) {
    if (option.name == "config" || option.print != nullptr) continue;
    std::string key = option.name, indent;
    if (const std::size_t dot = option.name.find('.'); dot != std::string::npos) {
      if (group != option.name.substr(0, dot))
        absl::StrAppend(&out, option.name.substr(0, dot), ":\n");
      group = option.name.substr(0, dot);
      key = option.name.substr(dot + 1);
      indent = "  ";
    } else {
      group.clear();
    }
    absl::StrAppend(&out, indent, "# ", option.help,
                    option.bounds.empty() ? "" : absl::StrCat(" (", option.bounds, ")"), "\n");
    // An optional number without a value has no default to print.
    if (option.kind == "N" && option.default_text.empty())
      absl::StrAppend(&out, indent, "# ", key, ": N\n");
    else if (option.repeatable)
      absl::StrAppend(&out, indent, key, ": []\n");
    else if (option.is_text)
      absl::StrAppend(&out, indent, key, ": \"", option.default_text, "\"\n");
    else
      absl::StrAppend(&out, indent, key, ": ", option.default_text, "\n");
  }
  return out;
}

}  // namespace evergrad::daemon
