#include "kubernetes/config.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/config/crd.h"
#include "common/fs/file.h"
#include "kubernetes/api/api.h"

namespace evergrad::kubernetes {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

constexpr std::size_t kNamespaceBytesMax = 4096;

}  // namespace

void AddOptions(Config* config, daemon::OptionTable* table) {
  table->Add(
      "api_server", &config->api_server,
      "URL of the API server of Kubernetes, https://HOST:PORT. Plain http:// is allowed on a "
      "loopback address, for kubectl proxy. Empty means the API server of this pod's "
      "cluster (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT), with the authority "
      "and the token of the pod's service account");
  table->Add("api_ca", &config->api_ca,
             "PEM file of the authority of the API server's certificate. With --api-server, empty "
             "means the authorities of the system");
  table->Add("api_token", &config->api_token,
             "file with the bearer token for the API server. It is read again for each request. "
             "With --api-server, empty means no token");
  table->Add("namespace", &config->name_space,
             "namespace of the TrainingJobs. Empty means the namespace of this pod");
  table->Add("poll", &config->poll, "pause between two lists of the coordinator's jobs",
             milliseconds(50), hours(1));
  table->Add("status_every", &config->status_every,
             "shortest pause between two writes of one object's progress. A change of its state is "
             "written at once",
             milliseconds(50), hours(1));
  table->AddPrint("print_crd",
                  "print the CustomResourceDefinition of TrainingJob as YAML, for kubectl apply, "
                  "and exit",
                  [] { return absl::StatusOr<std::string>(config::TrainingJobCrd()); });
}

absl::Status Resolve(const std::function<std::optional<std::string>(const std::string&)>& variable,
                     Config* config, const std::string& folder) {
  if (config->api_server.empty()) {
    const std::string host = variable("KUBERNETES_SERVICE_HOST").value_or("");
    const std::string port = variable("KUBERNETES_SERVICE_PORT").value_or("");
    if (!host.empty() && !port.empty()) {
      const bool ipv6 = absl::StrContains(host, ':');
      config->api_server =
          absl::StrCat("https://", ipv6 ? "[" : "", host, ipv6 ? "]" : "", ":", port);
      if (config->api_ca.empty()) config->api_ca = folder + "/ca.crt";
      if (config->api_token.empty()) config->api_token = folder + "/token";
    }
  }
  if (config->name_space.empty()) {
    const absl::StatusOr<std::string> text =
        fs::ReadFile(folder + "/namespace", kNamespaceBytesMax);
    if (text.ok()) config->name_space = std::string(absl::StripAsciiWhitespace(*text));
  }
  ApiOptions options;
  options.server = config->api_server;
  options.name_space = config->name_space;
  return CheckApiOptions(options);
}

std::map<std::string, std::string> VariablesForObjects(char** environment) {
  std::map<std::string, std::string> variables;
  for (char** one = environment; *one != nullptr; ++one) {
    const absl::string_view text(*one);
    const std::size_t end = text.find('=');
    if (end == absl::string_view::npos || !absl::StartsWith(text, "EVERGRAD_")) continue;
    variables[std::string(text.substr(0, end))] = std::string(text.substr(end + 1));
  }
  return variables;
}

}  // namespace evergrad::kubernetes
