#include "coordinator/psctl/context.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/host_port.h"
#include "common/base/status.h"
#include "common/daemon/option_table.h"
#include "common/daemon/version.h"
#include "common/fs/file.h"
#include "common/schema/scalar.h"
#include "coordinator/psctl/cluster_contexts.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {

std::vector<Verb> AllVerbs() {
  std::vector<Verb> all;
  for (std::vector<Verb> verbs :
       {JobVerbs(), ClusterVerbs(), TaskVerbs(), VariableVerbs(), LogsVerbs(), HealthVerbs(),
        CheckpointVerbs(), CertVerbs(), ContextVerbs(), CompletionVerbs()})
    std::move(verbs.begin(), verbs.end(), std::back_inserter(all));
  all.push_back({"version", "", "print the version",
                 [](Context& context, const std::vector<std::string>& args) {
                   std::string output = "text";
                   daemon::OptionTable table("psctl version", "prints the version",
                                             daemon::OptionTable::Kind::kCommand);
                   AddOutputOption(&table, &output);
                   if (const auto code = ParseArguments(context, &table, args)) return *code;
                   const std::string line = daemon::VersionLine("psctl");
                   context.out << (output == "json" ? absl::StrCat("{\"version\": \"", line, "\"}")
                                                    : line)
                               << "\n";
                   return kSucceeded;
                 }});
  return all;
}

namespace {

std::string Overview(const std::vector<Verb>& verbs, absl::string_view noun) {
  std::string out = noun.empty() ? "psctl: runs and watches Evergrad clusters and their "
                                   "jobs\n\nusage: psctl NOUN VERB [flags]\n\n"
                                 : absl::StrCat("usage: psctl ", noun, " VERB [flags]\n\n");
  std::size_t width = 0;
  for (const Verb& verb : verbs) width = std::max(width, verb.noun.size() + verb.verb.size() + 1);
  for (const Verb& verb : verbs) {
    if (!noun.empty() && verb.noun != noun) continue;
    const std::string name =
        verb.verb.empty() ? verb.noun : absl::StrCat(verb.noun, " ", verb.verb);
    absl::StrAppend(&out, "  ", name, std::string(width - name.size() + 2, ' '), verb.summary,
                    "\n");
  }
  absl::StrAppend(&out,
                  "\npsctl NOUN VERB --help lists the flags. Exit codes: 0 succeeded, 1 job failed "
                  "or checkpoint damaged, 2 bad usage or file,\n"
                  "3 cancelled, 4 cluster not reachable or accepts no work now, 5 the result does "
                  "not meet a --require, 130 interrupted.\n");
  return out;
}

int UsageError(Context& context, const std::string& text) {
  context.err << "psctl: " << text << "\n";
  return kUsage;
}

}  // namespace

void AddConnectionOptions(daemon::OptionTable* table, Connection* connection) {
  table->Add("coordinator", &connection->coordinator,
             "address of the coordinator; if left out, the context $EVERGRAD_CONTEXT, or else the "
             "address in the cluster folder, $EVERGRAD_COORDINATOR, or the current context");
  table->Add("context", &connection->context,
             "name of a context (psctl context list), whose address and certificate are used");
  table->Add("folder", &connection->folder, "cluster folder (psctl cluster up)");
  table->Add("tls.ca", &connection->tls.ca,
             "PEM file of the authority; give all three --tls-… flags or none");
  table->Add("tls.cert", &connection->tls.cert, "PEM file of your certificate");
  table->Add("tls.key", &connection->tls.key, "PEM file of your private key");
  table->Add("timeout", &connection->timeout, "time limit of one call",
             std::chrono::milliseconds(100), std::chrono::minutes(10));
  table->Add("wait", &connection->wait,
             "how long to wait for a coordinator that does not listen yet; 0ms: do not wait",
             std::chrono::milliseconds(0), std::chrono::hours(24));
}

void AddOutputOption(daemon::OptionTable* table, std::string* output) {
  table->AddChoice("output", output, {"text", "json"}, "text for people, json for programs");
}

namespace {

std::string Variable(const Context& context, const char* name) {
  const auto found = context.environment.find(name);
  return found == context.environment.end() ? "" : found->second;
}

// Returns the name of the current context, or "".
absl::StatusOr<std::string> CurrentContext(const Context& context) {
  if (!ClusterContextsPath(context).ok()) return std::string();  // there is no home folder
  EG_ASSIGN_OR_RETURN(ClusterContexts contexts, ReadClusterContexts(context));
  return std::move(contexts.current);
}

absl::StatusOr<Target> TargetOfContext(const Context& context, const std::string& name,
                                       const transport::TlsFiles& tls) {
  EG_ASSIGN_OR_RETURN(ClusterContext one, ClusterContextNamed(context, name));
  Target target{std::move(one.coordinator), tls};
  if (tls.empty()) {
    target.tls.ca = std::move(one.tls_ca);
    target.tls.cert = std::move(one.tls_cert);
    target.tls.key = std::move(one.tls_key);
  }
  return target;
}

}  // namespace

absl::StatusOr<Target> TargetOf(const Context& context, const Connection& connection) {
  const int files =
      !connection.tls.ca.empty() + !connection.tls.cert.empty() + !connection.tls.key.empty();
  if (files != 0 && files != 3)
    return UserError(
        absl::InvalidArgumentError("TLS needs all three of --tls-ca, --tls-cert and --tls-key "
                                   "(psctl cert issue writes them)"));
  // `from` names the source of the address, for the error of a malformed address.
  const auto checked = [&](absl::string_view from, std::string address) -> absl::StatusOr<Target> {
    const std::optional<HostPort> parts = ParseHostPort(address);
    if (parts && parts->port != 0) return Target{std::move(address), connection.tls};
    return UserError(absl::InvalidArgumentError(absl::StrCat(
        from, ": expected host:port with a port from 1 to 65535, got `", address, "`")));
  };
  if (!connection.coordinator.empty() && !connection.context.empty())
    return UserError(absl::InvalidArgumentError("give --coordinator or --context, not both"));
  if (!connection.coordinator.empty()) return checked("--coordinator", connection.coordinator);
  if (!connection.context.empty())
    return TargetOfContext(context, connection.context, connection.tls);
  if (const std::string name = Variable(context, "EVERGRAD_CONTEXT"); !name.empty())
    return TargetOfContext(context, name, connection.tls);
  const std::string file =
      absl::StrCat(AbsolutePath(context, connection.folder), "/coordinator.address");
  if (fs::Exists(file)) {
    EG_ASSIGN_OR_RETURN(const std::string text, fs::ReadFile(file, 4096));
    if (const std::string address(absl::StripAsciiWhitespace(text)); !address.empty())
      return checked(ShowPath(context, file), address);
  }
  if (std::string address = Variable(context, "EVERGRAD_COORDINATOR"); !address.empty())
    return checked("$EVERGRAD_COORDINATOR", std::move(address));
  EG_ASSIGN_OR_RETURN(const std::string name, CurrentContext(context));
  if (!name.empty()) return TargetOfContext(context, name, connection.tls);
  return UserError(absl::InvalidArgumentError(
      absl::StrCat("which coordinator? Give --coordinator HOST:PORT, set EVERGRAD_COORDINATOR, "
                   "choose a context (psctl context use), start a cluster here (psctl cluster up)",
                   connection.instead.empty() ? "" : absl::StrCat(", or ", connection.instead),
                   ": no ", ShowPath(context, file))));
}

std::optional<int> ParseArguments(Context& context, daemon::OptionTable* table,
                                  const std::vector<std::string>& args) {
  std::vector<const char*> argv{"psctl"};
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  const auto outcome = table->Parse(static_cast<int>(argv.size()), argv.data());
  if (!outcome.ok()) {
    for (const absl::string_view line : absl::StrSplit(outcome.status().message(), '\n'))
      context.err << table->program() << ": " << Printable(line) << "\n";
    context.err << "(" << table->program() << " --help lists its arguments and flags)\n";
    return kUsage;
  }
  if (outcome->stop) {
    context.out << outcome->text;
    return kSucceeded;
  }
  return std::nullopt;
}

int Report(Context& context, const absl::Status& status) {
  for (const absl::string_view line : absl::StrSplit(status.message(), '\n'))
    context.err << "psctl: " << Printable(line) << "\n";
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded: return kUnreachable;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated: return kUsage;
    default: return BlameOf(status) == Blame::kUser ? kUsage : kFailed;
  }
}

std::string AbsolutePath(const Context& context, const std::string& path) {
  return (std::filesystem::path(context.folder) / path).lexically_normal().string();
}

std::string ShowPath(const Context& context, const std::string& path) {
  const std::string prefix = context.folder.empty() || context.folder.back() == '/'
                                 ? context.folder
                                 : context.folder + "/";
  return !prefix.empty() && absl::StartsWith(path, prefix) ? path.substr(prefix.size()) : path;
}

int RunPsctl(Context& context, const std::vector<std::string>& args) {
  const std::vector<Verb> verbs = AllVerbs();
  if (args.empty()) {
    context.err << Overview(verbs, "");
    return kUsage;
  }
  if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    context.out << Overview(verbs, "");
    return kSucceeded;
  }
  if (args[0] == "--version") {
    context.out << daemon::VersionLine("psctl") << "\n";
    return kSucceeded;
  }
  std::set<std::string> nouns;
  std::vector<std::string> known_verbs;
  for (const Verb& verb : verbs) {
    nouns.insert(verb.noun);
    if (verb.noun == args[0]) known_verbs.push_back(verb.verb);
    // A noun without verbs (logs, health, version) is followed by its arguments.
    if (verb.noun == args[0] && verb.verb.empty())
      return verb.run(context, {args.begin() + 1, args.end()});
    if (args.size() > 1 && verb.noun == args[0] && verb.verb == args[1])
      return verb.run(context, {args.begin() + 2, args.end()});
  }
  if (nouns.count(args[0]) == 0) {
    return UsageError(context,
                      absl::StrCat("unknown noun `", Printable(args[0]), "`",
                                   config::Suggestion(args[0], {nouns.begin(), nouns.end()}),
                                   " (psctl --help lists them)"));
  }
  if (args.size() == 1) {
    context.err << Overview(verbs, args[0]);
    return kUsage;
  }
  if (args[1] == "--help" || args[1] == "-h") {
    context.out << Overview(verbs, args[0]);
    return kSucceeded;
  }
  return UsageError(context, absl::StrCat("unknown verb `", Printable(args[1]), "` of ", args[0],
                                          config::Suggestion(args[1], known_verbs), " (psctl ",
                                          args[0], " --help lists them)"));
}

}  // namespace evergrad::psctl
