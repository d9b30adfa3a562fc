#include "coordinator/psctl/cluster_contexts.h"

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/host_port.h"
#include "common/base/status.h"
#include "common/daemon/option_table.h"
#include "common/fs/file.h"
#include "common/fs/file_system.h"
#include "common/schema/schema.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

constexpr std::uint64_t kFileBytesMax = 1u << 20;
constexpr std::size_t kContextsMax = 1000, kNameBytesMax = 63;

using config::Node;

const config::Table<ClusterContext>& ContextTable() {
  using config::PlainText;
  using config::Required;
  static const auto* const table = new config::Table<ClusterContext>{
      "a context",
      {Required(PlainText<ClusterContext>("name", &ClusterContext::name, "name of the context"),
                ""),
       Required(PlainText<ClusterContext>("coordinator", &ClusterContext::coordinator,
                                          "host:port of the coordinator"),
                ""),
       PlainText<ClusterContext>("tls_ca", &ClusterContext::tls_ca, "PEM file of the authority"),
       PlainText<ClusterContext>("tls_cert", &ClusterContext::tls_cert,
                                 "PEM file of your certificate"),
       PlainText<ClusterContext>("tls_key", &ClusterContext::tls_key,
                                 "PEM file of your private key")},
      {"token"}};
  return *table;
}

// Returns the reason why a context cannot be used, or "".
std::string Problem(const ClusterContext& one) {
  const bool good_name = !one.name.empty() && one.name.size() <= kNameBytesMax &&
                         std::all_of(one.name.begin(), one.name.end(), [](unsigned char c) {
                           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                                  (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
                         });
  if (!good_name)
    return absl::StrCat("the name of a context has 1 to ", kNameBytesMax,
                        " letters, digits and the characters - _ . only: got=`",
                        Printable(one.name), "`");
  const std::optional<HostPort> address = ParseHostPort(one.coordinator);
  if (!address || address->port == 0)
    return absl::StrCat("context ", one.name,
                        ": coordinator: expected host:port with a port from 1 to 65535, got `",
                        Printable(one.coordinator), "`");
  const int files = !one.tls_ca.empty() + !one.tls_cert.empty() + !one.tls_key.empty();
  if (files != 0 && files != 3)
    return absl::StrCat("context ", one.name, ": TLS needs all three of tls_ca, tls_cert, tls_key");
  for (const std::string* path : {&one.tls_ca, &one.tls_cert, &one.tls_key})
    if (!path->empty() && path->front() != '/')
      return absl::StrCat("context ", one.name, ": expected an absolute path, got `",
                          Printable(*path), "`");
  return "";
}

const config::Table<ClusterContexts>& FileTable() {
  static const auto* const table = new config::Table<ClusterContexts>{
      "the file of contexts",
      {config::PlainText<ClusterContexts>("current", &ClusterContexts::current,
                                          "the context that is used by default"),
       {"contexts", "list of contexts", "", false,
        [](config::Reader& reader, const Node& node, ClusterContexts* file) {
          if (!reader.IsList(node, "contexts", "contexts")) return;
          for (const Node& item : node.items) {
            const std::size_t before = reader.count();
            ClusterContext one;
            ContextTable().Read(reader, item, &one);
            if (reader.count() != before) continue;
            std::string problem = Problem(one);
            if (problem.empty() && file->Find(one.name) != nullptr)
              problem = absl::StrCat("there are two contexts of this name: name=", one.name);
            if (problem.empty() && file->all.size() == kContextsMax)
              problem = absl::StrCat("too many contexts: max=", kContextsMax);
            if (problem.empty())
              file->all.push_back(std::move(one));
            else
              reader.Report(item.where(), std::move(problem));
          }
        },
        [](const ClusterContexts& file) {
          std::vector<Node> items;
          for (const ClusterContext& one : file.all)
            ContextTable().Write(one, &items.emplace_back());
          return std::optional<Node>(config::MakeList(std::move(items)));
        },
        "", nullptr, "", nullptr, ""}},
      {}};
  return *table;
}

absl::Status NoSuchContext(const ClusterContexts& contexts, const std::string& name) {
  std::vector<std::string> names;
  for (const ClusterContext& one : contexts.all) names.push_back(one.name);
  return UserError(absl::NotFoundError(
      absl::StrCat("there is no context `", Printable(name), "`: ",
                   names.empty() ? "`psctl context add` makes one"
                                 : absl::StrCat("the contexts are ", absl::StrJoin(names, ", ")))));
}

}  // namespace

const ClusterContext* ClusterContexts::Find(absl::string_view name) const {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const ClusterContext& one) { return one.name == name; });
  return found == all.end() ? nullptr : &*found;
}

absl::StatusOr<std::string> ClusterContextsPath(const Context& context) {
  for (const auto& [variable, below] :
       {std::pair("XDG_CONFIG_HOME", ""), std::pair("HOME", "/.config")}) {
    const auto found = context.environment.find(variable);
    // The specification of XDG_CONFIG_HOME ignores relative paths.
    if (found != context.environment.end() && absl::StartsWith(found->second, "/"))
      return absl::StrCat(found->second, below, "/evergrad/config.yaml");
  }
  return UserError(absl::FailedPreconditionError(
      "contexts are stored in your home folder, but neither XDG_CONFIG_HOME nor HOME is set"));
}

absl::StatusOr<ClusterContexts> ReadClusterContexts(const Context& context) {
  EG_ASSIGN_OR_RETURN(const std::string path, ClusterContextsPath(context));
  ClusterContexts contexts;
  const auto text = fs::ReadFile(path, kFileBytesMax);
  if (absl::IsNotFound(text.status())) return contexts;
  if (!text.ok()) return UserError(text.status());
  std::vector<config::Mistake> mistakes;
  const auto tree = config::ReadYamlTree(*text, {path}, &mistakes);
  config::Reader reader(&mistakes);
  if (tree && tree->kind != Node::Kind::kNull) FileTable().Read(reader, *tree, &contexts);
  if (mistakes.empty()) return contexts;
  return UserError(absl::InvalidArgumentError(
      absl::StrJoin(mistakes, "\n", [](std::string* out, const config::Mistake& mistake) {
        absl::StrAppend(out, mistake.ToString());
      })));
}

absl::Status WriteClusterContexts(const Context& context, const ClusterContexts& contexts) {
  EG_ASSIGN_OR_RETURN(const std::string path, ClusterContextsPath(context));
  EG_RETURN_IF_ERROR(fs::MakeDirectories(fs::FolderOf(path)));
  Node root;
  FileTable().Write(contexts, &root);
  // The file names private keys, so it is for this user only, from its first byte on.
  const mode_t before = ::umask(0077);
  const absl::Status written = fs::WriteFileAtomic(path, config::PrintYaml(root));
  ::umask(before);
  return written;
}

absl::StatusOr<ClusterContext> ClusterContextNamed(const Context& context,
                                                   const std::string& name) {
  EG_ASSIGN_OR_RETURN(const ClusterContexts contexts, ReadClusterContexts(context));
  if (const ClusterContext* one = contexts.Find(name)) return *one;
  return NoSuchContext(contexts, name);
}

namespace {

int Add(Context& context, const std::vector<std::string>& args) {
  ClusterContext one;
  daemon::OptionTable table(
      "psctl context add",
      "stores the address of a coordinator and your certificate for it under a name. The first "
      "context becomes the current one. An existing context of this name is replaced",
      daemon::OptionTable::Kind::kCommand);
  table.AddArgument("NAME", &one.name, "name of the context");
  table.Add("coordinator", &one.coordinator, "address of the coordinator, host:port");
  table.Add("tls.ca", &one.tls_ca,
            "PEM file of the authority; give all three --tls-… flags or none");
  table.Add("tls.cert", &one.tls_cert, "PEM file of your certificate");
  table.Add("tls.key", &one.tls_key, "PEM file of your private key");
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  for (std::string* path : {&one.tls_ca, &one.tls_cert, &one.tls_key}) {
    if (path->empty()) continue;
    *path = AbsolutePath(context, *path);
    if (!fs::Exists(*path))
      return Report(
          context,
          UserError(absl::NotFoundError(absl::StrCat("there is no such file: path=", *path))));
  }
  if (const std::string problem = Problem(one); !problem.empty())
    return Report(context, UserError(absl::InvalidArgumentError(problem)));
  auto contexts = ReadClusterContexts(context);
  if (!contexts.ok()) return Report(context, contexts.status());
  const bool replaced = std::erase_if(contexts->all, [&](const ClusterContext& other) {
                          return other.name == one.name;
                        }) > 0;
  if (contexts->all.empty() && contexts->current.empty()) contexts->current = one.name;
  contexts->all.push_back(one);
  std::sort(contexts->all.begin(), contexts->all.end(),
            [](const ClusterContext& a, const ClusterContext& b) { return a.name < b.name; });
  if (const absl::Status written = WriteClusterContexts(context, *contexts); !written.ok())
    return Report(context, written);
  context.out << "context " << one.name << (replaced ? " replaced" : " added")
              << (contexts->current == one.name ? "; it is the current context" : "") << "\n";
  return kSucceeded;
}

int List(Context& context, const std::vector<std::string>& args) {
  std::string output = "text";
  daemon::OptionTable table("psctl context list", "shows your contexts; * marks the current one",
                            daemon::OptionTable::Kind::kCommand);
  AddOutputOption(&table, &output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const auto contexts = ReadClusterContexts(context);
  if (!contexts.ok()) return Report(context, contexts.status());
  if (output == "json") {
    nlohmann::json json = {{"current", contexts->current}, {"contexts", nlohmann::json::array()}};
    for (const ClusterContext& one : contexts->all)
      json["contexts"].push_back({{"name", one.name},
                                  {"coordinator", one.coordinator},
                                  {"tls_ca", one.tls_ca},
                                  {"tls_cert", one.tls_cert},
                                  {"tls_key", one.tls_key}});
    context.out << Dump(json) << "\n";
    return kSucceeded;
  }
  if (contexts->all.empty()) {
    context.out << "no contexts; `psctl context add` makes one\n";
    return kSucceeded;
  }
  std::vector<std::vector<std::string>> rows;
  for (const ClusterContext& one : contexts->all)
    rows.push_back({one.name == contexts->current ? "*" : "", one.name, one.coordinator,
                    one.tls_cert.empty() ? "no TLS" : Printable(one.tls_cert)});
  for (const std::string& line :
       RenderTable({{""}, {"name"}, {"coordinator"}, {"certificate"}}, rows))
    context.out << line << "\n";
  return kSucceeded;
}

int Use(Context& context, const std::vector<std::string>& args) {
  std::string name;
  daemon::OptionTable table("psctl context use",
                            "makes a context the current one, which psctl uses if neither a flag, "
                            "nor a cluster folder, nor the environment names a coordinator",
                            daemon::OptionTable::Kind::kCommand);
  table.AddArgument("NAME", &name, "name of the context");
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  auto contexts = ReadClusterContexts(context);
  if (!contexts.ok()) return Report(context, contexts.status());
  if (contexts->Find(name) == nullptr) return Report(context, NoSuchContext(*contexts, name));
  contexts->current = name;
  if (const absl::Status written = WriteClusterContexts(context, *contexts); !written.ok())
    return Report(context, written);
  context.out << "the current context is " << name << "\n";
  return kSucceeded;
}

int Remove(Context& context, const std::vector<std::string>& args) {
  std::string name;
  daemon::OptionTable table("psctl context remove",
                            "removes a context; the files of its certificate stay",
                            daemon::OptionTable::Kind::kCommand);
  table.AddArgument("NAME", &name, "name of the context");
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  auto contexts = ReadClusterContexts(context);
  if (!contexts.ok()) return Report(context, contexts.status());
  if (contexts->Find(name) == nullptr) return Report(context, NoSuchContext(*contexts, name));
  std::erase_if(contexts->all, [&](const ClusterContext& one) { return one.name == name; });
  if (contexts->current == name) contexts->current.clear();
  if (const absl::Status written = WriteClusterContexts(context, *contexts); !written.ok())
    return Report(context, written);
  context.out << "context " << name << " removed"
              << (contexts->current.empty() ? "; there is no current context" : "") << "\n";
  return kSucceeded;
}

}  // namespace

std::vector<Verb> ContextVerbs() {
  return {
      {"context", "add", "store a coordinator's address and your certificate under a name", Add},
      {"context", "list", "show your contexts", List},
      {"context", "use", "make a context the current one", Use},
      {"context", "remove", "remove a context", Remove}};
}

}  // namespace evergrad::psctl
