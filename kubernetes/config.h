// The settings of evergrad-operator, except the settings that every daemon has.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/daemon/option_table.h"

namespace evergrad::kubernetes {

struct Config {
  std::string api_server, api_ca, api_token, name_space;  // "" for the pod's own
  std::chrono::milliseconds poll{1000};
  std::chrono::milliseconds status_every{5000};
};

// Declares the settings as flags and keys; `config` outlives the table.
void AddOptions(Config* config, daemon::OptionTable* table);

// Fills in the settings that are not given, as far as a pod has them: the API server from the
// variables KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, and the authority, the token and
// the namespace from the files of the service account. With a given --api-server, the authority and
// the token of the service account are not used. `variable` reads the environment; `folder` is the
// folder of the service account, except in tests. Returns InvalidArgument (a user's error) if the
// API server or the namespace is not known, or a value is not allowed.
absl::Status Resolve(const std::function<std::optional<std::string>(const std::string&)>& variable,
                     Config* config,
                     const std::string& folder = "/var/run/secrets/kubernetes.io/serviceaccount");

// Returns the variables whose values may stand in an object as ${NAME}: those that begin with
// EVERGRAD_. Everybody who may create objects could read the values of others in messages.
std::map<std::string, std::string> VariablesForObjects(char** environment);

}  // namespace evergrad::kubernetes
