// The task to which a certificate belongs. The certificate has exactly one URI name
// `evergrad://ROLE[/IDENTITY]`, as `psctl cert issue` writes it. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::transport {

inline constexpr char kCertificateScheme[] = "evergrad://";

// The roles that a certificate can name. docs/security.md lists the rights of each role.
inline constexpr absl::string_view kCertificateRoles[] = {
    "coordinator", "ps_server", "worker", "viewer", "user", "operator", "admin"};

// Returns the role of a task: "user" for "user/alice" and for "user".
absl::string_view RoleOfTask(absl::string_view task);

// Returns "worker/0", or "worker" for any worker. Returns PermissionDenied if the URIs contain no
// such name (the certificate is from an older psctl or from another tool), more than one such name,
// or a name with an invalid role or identity.
absl::StatusOr<std::string> TaskOfUris(const std::vector<std::string>& uris);

// Checks whether `name` can be the task of a certificate: one of kCertificateRoles, optionally
// followed by an identity. The coordinator has no identity.
absl::Status CheckTaskName(absl::string_view name);

// Compares a certificate's task `have` with `want`, which is "" for any task, "worker" for any
// worker, or "worker/0" for one worker. The error is PermissionDenied: "certificate is for
// worker/0, expected coordinator".
absl::Status CheckTask(absl::string_view have, absl::string_view want);

// Checks whether the leaf certificate `pem` is valid for the host of `host_port`. The error is
// PermissionDenied and names the certificate's hosts.
absl::Status CheckHost(const std::string& pem, const std::string& host_port);

}  // namespace evergrad::transport
