// Compares the table of the RPCs of the service Control with api.proto, and tests which roles may
// call each RPC.
#include "coordinator/service/control_calls.h"

#include <catch2/catch.hpp>

#include <iostream>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "certified_transport.h"
#include "common/client/control.h"
#include "task_fixture.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

constexpr const char* kRoles[] = {"coordinator", "ps_server", "worker", "user"};

std::string NameOf(const ControlCall& call) {
  return call.method.substr(call.method.rfind('/') + 1);
}

// Returns a line for each RPC, with its name and the roles that may call it.
std::string Matrix() {
  std::string text;
  for (const ControlCall& call : ControlCalls()) {
    absl::StrAppend(&text, absl::StrFormat("%-16s", NameOf(call)));
    for (const char* role : kRoles) {
      transport::PeerInfo peer;
      peer.certificate_task = absl::StrCat(role, std::string(role) == "coordinator" ? "" : "/0");
      if (CheckCaller(call, peer).ok()) absl::StrAppend(&text, " ", role);
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace

TEST_CASE("the roles that may call each method of Control") {
  const std::string matrix = Matrix();
  std::cout << matrix;
  CHECK(matrix == R"(SubmitJob        user
GetJob           user
ListJobs         user
CancelJob        user
ListTasks        user
ListVariables    user
ReadTaskLogs     user
GetClusterInfo   user
DrainTask        user
ListRunFiles     user
ReadRunFile      user
ScheduleClosure  user
JoinClosures     user
ClosuresDone     user
FetchResult      user
CancelClosures   user
ReleaseResults   user
FinishJob        user
)");
}

TEST_CASE("each method of Control in api.proto has one row, in the order of the file") {
  const google::protobuf::ServiceDescriptor& service = client::ControlService();
  std::vector<std::string> declared, rows;
  for (int i = 0; i < service.method_count(); ++i) declared.push_back(service.method(i)->name());
  for (const ControlCall& call : ControlCalls()) rows.push_back(NameOf(call));
  CHECK(rows == declared);
}

TEST_CASE("a request of a role that is not permitted is refused before its handler runs") {
  auto made = std::make_unique<CertifiedTransport>();
  CertifiedTransport& certificates = *made;
  TestCluster c({}, nullptr, std::move(made));
  for (const ControlCall& call : ControlCalls()) {
    CAPTURE(call.method);
    const std::set<absl::string_view> allowed(call.roles.begin(), call.roles.end());
    for (const char* role : kRoles) {
      CAPTURE(role);
      certificates.CertifyCalls(role);
      // If the role may call the RPC, its handler refuses these bytes as malformed.
      const absl::Status status =
          transport::UnaryAndWait(*c.channel, call.method, "\xff\xff\xff", std::chrono::seconds(15))
              .status();
      CHECK(status.code() == (allowed.contains(role) ? absl::StatusCode::kInvalidArgument
                                                     : absl::StatusCode::kPermissionDenied));
    }
  }
}

TEST_CASE("each permitted role may call a method, and a method without roles has no callers") {
  ControlCall call;
  transport::PeerInfo server;
  server.certificate_task = "ps_server/3";
  CHECK(absl::IsPermissionDenied(CheckCaller(call, server)));
  call.roles = {"user", "worker"};
  CHECK(absl::IsPermissionDenied(CheckCaller(call, server)));
  CHECK(CheckCaller(call, transport::PeerInfo()).ok());  // no certificate proves a role without TLS
  call.roles = {"user", "ps_server"};
  CHECK(CheckCaller(call, server).ok());
}

TEST_CASE("a method without a row is refused for every caller") {
  auto made = std::make_unique<CertifiedTransport>();
  CertifiedTransport& certificates = *made;
  TestCluster c({}, nullptr, std::move(made));
  for (const char* certificate : {"", "user/alice", "worker/0"}) {
    CAPTURE(certificate);
    certificates.CertifyCalls(certificate);
    for (const char* method : {"/evergrad.v1.Control/Nothing", "/evergrad.v1.Other/GetJob", ""}) {
      CAPTURE(method);
      CHECK(absl::IsUnimplemented(
          transport::UnaryAndWait(*c.channel, method, "", std::chrono::seconds(15)).status()));
    }
  }
}
