// Named clusters of a user: address, authority and certificate, in one file,
// ~/.config/evergrad/config.yaml (or $XDG_CONFIG_HOME/evergrad/config.yaml).
//
//   current: production
//   contexts:
//     - name: production
//       coordinator: evergrad.example.org:4000
//       tls_ca: /home/alice/ca.pem
//       tls_cert: /home/alice/alice.pem
//       tls_key: /home/alice/alice.key
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/psctl/context.h"

namespace evergrad::psctl {

struct ClusterContext {
  std::string name, coordinator;
  std::string tls_ca, tls_cert, tls_key;  // absolute paths; "" without TLS
};
struct ClusterContexts {
  std::string current;  // "" for none
  std::vector<ClusterContext> all;
  const ClusterContext* Find(absl::string_view name) const;  // null if there is none
};

// Returns the path of the file. The environment without XDG_CONFIG_HOME and HOME is a user's error.
absl::StatusOr<std::string> ClusterContextsPath(const Context& context);
// Reads the file; a missing file has no contexts. The error, a user's, has one line for each
// mistake, with file:line:column.
absl::StatusOr<ClusterContexts> ReadClusterContexts(const Context& context);
// Writes the file atomically, with mode 0600, and creates its folder.
absl::Status WriteClusterContexts(const Context& context, const ClusterContexts& contexts);

// Returns the context with this name. The error, a user's, names the contexts that exist.
absl::StatusOr<ClusterContext> ClusterContextNamed(const Context& context, const std::string& name);

// psctl context add, list, use, remove.
std::vector<Verb> ContextVerbs();

}  // namespace evergrad::psctl
