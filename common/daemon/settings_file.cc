#include "common/daemon/settings_file.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/schema/scalar.h"
#include "common/schema/yaml_tree.h"

namespace evergrad::daemon {
namespace {

// Sets options from the mappings of a file, and collects the mistakes.
class Reader {
 public:
  Reader(std::vector<Option>* options, std::vector<std::string>* mistakes)
      : options_(*options), mistakes_(*mistakes) {}

  // `prefix` is the dotted name of the mapping: "", or "tls.".
  void ReadMap(const config::Node& map, const std::string& prefix) {
    for (const config::YamlEntry& entry : map.entries)
      if (!entry.value.refused) ReadEntry(entry, prefix);
  }

 private:
  void ReadEntry(const config::YamlEntry& entry, const std::string& prefix) {
    const std::string name = prefix + entry.key;
    Option* option = nullptr;
    bool is_group = false;
    for (Option& known : options_) {
      if (known.name == name) option = &known;
      if (absl::StartsWith(known.name, name + ".")) is_group = true;
    }
    if (is_group) {
      if (entry.value.kind == config::Node::Kind::kMap)
        ReadMap(entry.value, name + ".");
      else
        Report(entry.value.where(), name, ": expected a mapping, got ", entry.value.Describe());
    } else if (option == nullptr) {
      Report(entry.where(), "unknown setting `", name, "`",
             config::Suggestion(entry.key, KeysOf(prefix)));
    } else if (option->is_flag_only()) {
      Report(entry.where(), "unknown setting `", name,
             "`; this setting can only be given as a flag");
    } else {
      option->set_by_file = true;
      if (!option->set_by_flag) ReadValue(entry.value, *option);
    }
  }

  void ReadValue(const config::Node& value, const Option& option) {
    const bool is_scalar = value.kind == config::Node::Kind::kScalar;
    if (option.repeatable && value.kind == config::Node::Kind::kSequence) {
      for (const config::Node& item : value.items) {
        if (item.kind != config::Node::Kind::kScalar)
          Report(item.where(), option.name, ": expected a list of texts, got ", item.Describe());
        else
          Set(item, option);
      }
    } else if (!is_scalar) {
      Report(value.where(), option.name, ": expected one value, got ", value.Describe());
    } else if (value.quoted && !option.is_text &&
               (option.is_bool || option.kind == "N" || option.kind == "X")) {
      Report(value.where(), option.name, ": expected ",
             option.is_bool ? "true or false" : "a number", ", got ", value.Describe());
    } else {
      Set(value, option);
    }
  }

  void Set(const config::Node& value, const Option& option) {
    if (const absl::Status status = option.set(value.text); !status.ok())
      Report(value.where(), option.name, ": ", status.message());
  }

  // Returns the keys of the mapping `prefix`, for a suggestion.
  std::vector<std::string> KeysOf(const std::string& prefix) const {
    std::vector<std::string> keys;
    for (const Option& known : options_) {
      if (!absl::StartsWith(known.name, prefix)) continue;
      const std::vector<std::string> rest =
          absl::StrSplit(known.name.substr(prefix.size()), absl::MaxSplits('.', 1));
      if (keys.empty() || keys.back() != rest[0]) keys.push_back(rest[0]);
    }
    return keys;
  }

  template <class... Text>
  void Report(const config::Location& where, const Text&... text) {
    mistakes_.push_back(absl::StrCat(where.ToString(), ": ", text...));
  }

  std::vector<Option>& options_;
  std::vector<std::string>& mistakes_;
};

}  // namespace

absl::Status ReadSettingsFile(const std::string& path, std::vector<Option>* options) {
  auto text = fs::ReadFile(path, config::kYamlBytesMax);
  if (!text.ok())
    return UserError(
        absl::Status(text.status().code(), absl::StrCat("--config: ", text.status().message())));
  std::vector<config::Mistake> mistakes;
  const auto root = config::ReadYamlTree(*text, {path}, &mistakes);
  std::vector<std::string> errors;
  errors.reserve(mistakes.size());
  for (const config::Mistake& mistake : mistakes) errors.push_back(mistake.ToString());
  if (root && root->kind == config::Node::Kind::kMap) {
    Reader(options, &errors).ReadMap(*root, "");
  } else if (root && root->kind != config::Node::Kind::kNull) {
    errors.push_back(absl::StrCat(root->where().ToString(),
                                  ": expected a mapping of settings, got ", root->Describe()));
  }
  if (!errors.empty()) return UserError(absl::InvalidArgumentError(absl::StrJoin(errors, "\n")));
  return absl::OkStatus();
}

std::string ReferenceYaml(const std::vector<Option>& options) {
  std::string out;
  std::string group;
  for (const Option& option : options) {
    if (option.is_flag_only()) continue;
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
