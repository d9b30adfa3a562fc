// psctl completion: scripts that let bash and zsh complete nouns, verbs, flags and contexts. The
// scripts ask psctl itself for the candidates, so they never become stale. They run the psctl of
// PATH, and never the program that the command line names.
#include <algorithm>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/daemon/option_table.h"
#include "coordinator/psctl/cluster_contexts.h"
#include "coordinator/psctl/context.h"

namespace evergrad::psctl {
namespace {

constexpr char kBash[] = R"script(# Completion of psctl for bash. Add this line to ~/.bashrc:
#   source <(psctl completion bash)
_psctl() {
  local word=${COMP_WORDS[COMP_CWORD]}
  local IFS=$'\n'
  COMPREPLY=($(compgen -W "$(psctl completion candidates -- \
    "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- "$word"))
}
complete -o default -F _psctl psctl
)script";

constexpr char kZsh[] = R"script(#compdef psctl
# Completion of psctl for zsh. Add this line to ~/.zshrc, after compinit:
#   source <(psctl completion zsh)
_psctl() {
  local -a candidates
  candidates=("${(@f)$(psctl completion candidates -- \
    "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  candidates=(${candidates:#})
  if (( ${#candidates} )); then
    compadd -- "${candidates[@]}"
  else
    _files
  fi
}
compdef _psctl psctl
)script";

int Print(Context& context, const std::vector<std::string>& args, const char* shell,
          const char* script) {
  daemon::OptionTable table(
      absl::StrCat("psctl completion ", shell),
      absl::StrCat("prints a script for ", shell, " that completes the arguments of psctl"),
      daemon::OptionTable::Kind::kCommand);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  context.out << script;
  return kSucceeded;
}

// Returns the flags of a verb, from its help.
std::vector<std::string> FlagsOf(const Context& context, const Verb& verb) {
  std::ostringstream out, err;
  Context quiet{out, err};
  quiet.clock = context.clock;
  verb.run(quiet, {"--help"});
  std::set<std::string> flags;
  for (const absl::string_view line : absl::StrSplit(out.str(), '\n')) {
    const std::size_t begin = line.find("--");
    // A flag begins its line, after spaces and perhaps its one-letter form ("-f, ").
    if (begin == absl::string_view::npos || begin > 8 ||
        line.substr(0, begin).find_first_not_of(" -,abcdefghijklmnopqrstuvwxyz") !=
            absl::string_view::npos)
      continue;
    const std::size_t end = line.find_first_not_of("-abcdefghijklmnopqrstuvwxyz0123456789", begin);
    flags.insert(std::string(line.substr(begin, end - begin)));
  }
  flags.erase("--");
  return {flags.begin(), flags.end()};
}

}  // namespace

std::vector<std::string> CompletionCandidates(const Context& context,
                                              const std::vector<Verb>& verbs,
                                              const std::vector<std::string>& words) {
  const std::string word = words.empty() ? "" : words.back();
  std::set<std::string> found;
  if (words.size() <= 1) {
    for (const Verb& verb : verbs) found.insert(verb.noun);
  } else {
    const Verb* chosen = nullptr;
    for (const Verb& verb : verbs) {
      if (verb.noun != words[0]) continue;
      if (words.size() == 2 && !verb.verb.empty()) found.insert(verb.verb);
      if (verb.verb.empty() || (words.size() > 2 && verb.verb == words[1])) chosen = &verb;
    }
    if (chosen != nullptr && absl::StartsWith(word, "-")) {
      for (std::string& flag : FlagsOf(context, *chosen)) found.insert(std::move(flag));
    }
    const bool names_context = (words[0] == "context" && words.size() == 3 && words[1] != "add") ||
                               (words.size() > 2 && words[words.size() - 2] == "--context");
    if (const auto contexts = ReadClusterContexts(context); names_context && contexts.ok())
      for (const ClusterContext& one : contexts->all) found.insert(one.name);
  }
  std::vector<std::string> candidates;
  std::copy_if(found.begin(), found.end(), std::back_inserter(candidates),
               [&](const std::string& candidate) { return absl::StartsWith(candidate, word); });
  return candidates;
}

std::vector<Verb> CompletionVerbs() {
  return {{"completion", "bash", "print a script that completes arguments in bash",
           [](Context& context, const std::vector<std::string>& args) {
             return Print(context, args, "bash", kBash);
           }},
          {"completion", "zsh", "print a script that completes arguments in zsh",
           [](Context& context, const std::vector<std::string>& args) {
             return Print(context, args, "zsh", kZsh);
           }},
          {"completion", "candidates", "print the possible next words, for the scripts",
           [](Context& context, const std::vector<std::string>& args) {
             std::vector<std::string> words;
             if (!args.empty() && args[0] == "--") {
               // The words may be flags of another verb, so they are not parsed here.
               words.assign(args.begin() + 1, args.end());
             } else {
               daemon::OptionTable table(
                   "psctl completion candidates",
                   "prints the words with which the last of WORDS can be completed, one per line. "
                   "WORDS follow `--`",
                   daemon::OptionTable::Kind::kCommand);
               if (const auto code = ParseArguments(context, &table, args)) return *code;
             }
             for (const std::string& candidate : CompletionCandidates(context, AllVerbs(), words))
               context.out << candidate << "\n";
             return kSucceeded;
           }}};
}

}  // namespace evergrad::psctl
