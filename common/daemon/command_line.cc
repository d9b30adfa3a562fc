#include "common/daemon/command_line.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/nearest_name.h"
#include "common/base/status.h"

namespace evergrad::daemon {
namespace {

class Reader {
 public:
  Reader(int argc, const char* const* argv, std::vector<Option>* options,
         const std::vector<Argument>& arguments, const std::string& unexpected)
      : argc_(argc),
        argv_(argv),
        options_(*options),
        arguments_(arguments),
        unexpected_(unexpected) {}

  absl::StatusOr<std::vector<GivenFlag>> Read() {
    for (next_ = 1; next_ < argc_;) {
      const absl::string_view word = argv_[next_++];
      if (word.size() == 2 && word[0] == '-' && word[1] != '-')
        ReadLetter(word);
      else if (absl::StartsWith(word, "--") && word.size() > 2)
        ReadFlag(word);
      else
        ReadArgument(word);
    }
    for (std::size_t i = argument_; i < arguments_.size(); ++i)
      if (arguments_[i].required)
        Report("missing argument ", arguments_[i].name, ": ", arguments_[i].help);
    for (const auto& [option, value] : given_)
      if (const absl::Status status = option->set(value); !status.ok())
        Report("--", option->flag, ": ", status.message());
    if (!mistakes_.empty())
      return UserError(absl::InvalidArgumentError(absl::StrJoin(mistakes_, "\n")));
    return std::move(given_);
  }

 private:
  // `word` is "-f".
  void ReadLetter(absl::string_view word) {
    Option* option = nullptr;
    for (Option& known : options_)
      if (known.letter == word[1]) option = &known;
    if (option == nullptr)
      Report("unknown flag `", word, "`");
    else
      ReadValue(option, std::nullopt);
  }

  // `word` is "--tls-ca" or "--tls-ca=FILE".
  void ReadFlag(absl::string_view word) {
    const std::size_t equals = word.find('=');
    std::optional<std::string> value;
    if (equals != absl::string_view::npos) value = std::string(word.substr(equals + 1));
    const absl::string_view flag = word.substr(0, equals).substr(2);
    for (Option& option : options_)
      if (option.flag == flag) return ReadValue(&option, std::move(value));
    ReportUnknown(flag);
    // The word after an unknown flag is skipped as its value, so that it is not reported as a
    // second mistake.
    if (!value && next_ < argc_ && !absl::StartsWith(argv_[next_], "--")) ++next_;
  }

  void ReadArgument(absl::string_view word) {
    if (argument_ >= arguments_.size() || (word.size() > 1 && word[0] == '-'))
      Report("unexpected argument `", word, "`", unexpected_);
    else if (arguments_[argument_].rest != nullptr)
      arguments_[argument_].rest->push_back(std::string(word));
    else
      *arguments_[argument_++].target = std::string(word);
  }

  // Reads the value from the next word if the flag's own word has none.
  void ReadValue(Option* option, std::optional<std::string> value) {
    if (!value && option->is_bool) value = "true";
    if (!value) {
      if (next_ >= argc_)
        return Report("--", option->flag, ": a value is missing: expected ", option->kind);
      value = argv_[next_++];
    }
    if (option->set_by_flag && !option->repeatable)
      return Report("--", option->flag, ": duplicate flag");
    option->set_by_flag = true;
    given_.push_back({option, *std::move(value)});
  }

  void ReportUnknown(absl::string_view flag) {
    std::vector<std::string> names{"help", "version"};
    for (const Option& known : options_) names.push_back(known.flag);
    const std::string nearest = NearestName(flag, names);
    Report("unknown flag `--", flag, "`",
           nearest.empty() ? "" : absl::StrCat("; did you mean `--", nearest, "`?"));
  }

  template <class... Text>
  void Report(const Text&... text) {
    mistakes_.push_back(absl::StrCat(text...));
  }

  const int argc_;
  const char* const* const argv_;
  std::vector<Option>& options_;
  const std::vector<Argument>& arguments_;
  const std::string& unexpected_;
  int next_ = 1;              // the word to read next
  std::size_t argument_ = 0;  // the argument to which the next word without a flag belongs
  std::vector<GivenFlag> given_;
  std::vector<std::string> mistakes_;
};

}  // namespace

absl::StatusOr<std::vector<GivenFlag>> ReadCommandLine(int argc, const char* const* argv,
                                                       std::vector<Option>* options,
                                                       const std::vector<Argument>& arguments,
                                                       const std::string& unexpected) {
  return Reader(argc, argv, options, arguments, unexpected).Read();
}

}  // namespace evergrad::daemon
