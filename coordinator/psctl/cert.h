// A certificate authority and certificates for tasks, as files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace evergrad::psctl {

struct CertRequest {
  std::string folder;  // folder of ca.pem, ca.key and the results
  std::string name;    // common name and file name: NAME.pem, NAME.key
  // Host names and addresses under which peers connect to the task. Clients of the coordinator
  // check them.
  std::vector<std::string> hosts;
  std::uint32_t days = 365;
  // The task that the certificate identifies: coordinator, ps_server/N, worker/NAME, viewer/NAME,
  // user/NAME, operator/NAME, admin/NAME, or a role alone. "" means TaskOfName(name).
  std::string task = {};
  // Folder for ca.crt, tls.crt and tls.key, the files that the task needs. "" means NAME.pem and
  // NAME.key in `folder`.
  std::string to = {};
};
struct IssuedFiles {
  std::string authority, certificate, key;  // paths
};
// Returns the task of a certificate name: coordinator for coordinator, ps_server/0 for ps-server-0,
// worker/0 for worker-0, and user/NAME for any other name, also for the names of other roles.
// Rights beyond those of a user are only given by a stated task.
std::string TaskOfName(const std::string& name);
// Writes ca.pem and ca.key (mode 0600). Returns AlreadyExists with the path if one of the files
// exists; no file is ever overwritten.
absl::Status InitAuthority(const std::string& folder, const std::string& name, std::uint32_t days);
// Returns the paths of the files that `IssueCertificate(request)` writes. Pure.
IssuedFiles FilesOf(const CertRequest& request);
// Makes a certificate for a task that acts as server and client, signed by the folder's authority.
// Writes the certificate and its key (mode 0600), and with `to` also a copy of the authority's
// certificate. Returns AlreadyExists if one of these files exists, and NotFound if the folder has
// no authority.
absl::Status IssueCertificate(const CertRequest& request);

}  // namespace evergrad::psctl
