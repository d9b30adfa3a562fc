#include "common/daemon/help_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace evergrad::daemon {

std::string HelpText(const std::string& program, const std::string& summary, bool has_file,
                     const std::vector<Option>& options, const std::vector<Argument>& arguments) {
  std::string out = absl::StrCat(program, ": ", summary, "\n\nusage: ", program,
                                 has_file ? " [--config FILE]" : "", " [flags]");
  for (const Argument& argument : arguments)
    absl::StrAppend(&out, argument.required ? " " : " [", argument.name,
                    argument.rest != nullptr ? " …" : "", argument.required ? "" : "]");
  absl::StrAppend(&out, "\n\n");
  for (const Argument& argument : arguments)
    absl::StrAppend(&out, "  ", argument.name, "  ", argument.help, "\n");
  if (!arguments.empty()) absl::StrAppend(&out, "\n");
  std::size_t width = 0;
  std::vector<std::string> heads;
  for (const Option& option : options) {
    heads.push_back(absl::StrCat(
        "  ", option.letter != 0 ? absl::StrCat("-", std::string(1, option.letter), ", ") : "",
        "--", option.flag, option.kind.empty() ? "" : " ", option.kind));
    width = std::max(width, std::min<std::size_t>(heads.back().size(), 34));
  }
  for (std::size_t i = 0; i < options.size(); ++i) {
    const Option& option = options[i];
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
  absl::StrAppend(&out, "  --help", std::string(width - 8 + 2, ' '), "print this help and exit\n");
  absl::StrAppend(&out, "  --version", std::string(width - 11 + 2, ' '),
                  "print the version and exit\n");
  if (has_file)
    absl::StrAppend(&out,
                    "\nIn the --config file the same settings are keys with underscores "
                    "(metrics_listen: …), and tls is a mapping: tls: {ca: …, "
                    "cert: …, key: …}.\n");
  return out;
}

}  // namespace evergrad::daemon
