// Which task a certificate is for: its URI name `evergrad://ROLE[/IDENTITY]`, one and no more, as
// `psctl cert issue` writes it. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::transport {

inline constexpr char kCertificateScheme[] = "evergrad://";

// "worker/0", or "worker": any worker. PermissionDenied: no such name among the URIs (a certificate
// of an older psctl, or of somebody else's making), more than one, or one that is no role and
// identity.
absl::StatusOr<std::string> TaskOfUris(const std::vector<std::string>& uris);

// Whether `name` can be a task of a certificate: a known role (coordinator, ps_server, worker,
// user), then an identity or nothing.
absl::Status CheckTaskName(absl::string_view name);

// `have` of a certificate against `want`: "" anybody, "worker" any worker, "worker/0".
// PermissionDenied: "certificate is for worker/0, expected coordinator".
absl::Status CheckTask(absl::string_view have, absl::string_view want);

// Whether the leaf certificate `pem` is for the host of `host_port`. PermissionDenied names what it
// is for.
absl::Status CheckHost(const std::string& pem, const std::string& host_port);

}  // namespace evergrad::transport
