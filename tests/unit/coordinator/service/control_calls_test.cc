// Compares the table of the RPCs of the service Control with api.proto, and tests which roles may
// call each RPC.
#include "coordinator/service/control_calls.h"

#include <catch2/catch.hpp>

#include <functional>
#include <iostream>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "certified_transport.h"
#include "common/client/control.h"
#include "common/transport/certificate_task.h"
#include "task_fixture.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

transport::PeerInfo PeerOf(absl::string_view role) {
  transport::PeerInfo peer;
  peer.certificate_task = absl::StrCat(role, role == "coordinator" ? "" : "/0");
  return peer;
}

// Returns a line for each RPC, with its name and the roles that may call it.
std::string Matrix() {
  std::string text;
  for (const ControlCall& call : ControlCalls()) {
    absl::StrAppend(&text, absl::StrFormat("%-16s", std::string(call.name())));
    for (const absl::string_view role : transport::kCertificateRoles) {
      if (CheckCaller(call, PeerOf(role)).ok()) absl::StrAppend(&text, " ", role);
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

// Returns the names of the RPCs for which `of` returns true.
std::set<std::string> Names(const std::function<bool(const ControlCall&)>& of) {
  std::set<std::string> names;
  for (const ControlCall& call : ControlCalls()) {
    if (of(call)) names.insert(std::string(call.name()));
  }
  return names;
}

}  // namespace

TEST_CASE("the roles that may call each method of Control") {
  const std::string matrix = Matrix();
  std::cout << matrix;
  CHECK(matrix == R"(SubmitJob        user operator admin
GetJob           viewer user operator admin
ListJobs         viewer user operator admin
CancelJob        user operator admin
DeleteJob        user operator admin
ListTasks        viewer user operator admin
ListVariables    viewer user operator admin
ReadTaskLogs     viewer user operator admin
GetClusterInfo   viewer user operator admin
DrainTask        admin
CordonTask       admin
ListRunFiles     viewer user operator admin
ReadRunFile      viewer user operator admin
ScheduleClosure  user admin
JoinClosures     user admin
ClosuresDone     user admin
FetchResult      user admin
CancelClosures   user admin
ReleaseResults   user admin
FinishJob        user admin
)");
}

TEST_CASE("a viewer may call only methods that read, and a task may call none") {
  const auto of = [](absl::string_view role) {
    return Names([&](const ControlCall& call) { return CheckCaller(call, PeerOf(role)).ok(); });
  };
  CHECK(of("viewer") == std::set<std::string>{"GetJob", "ListJobs", "ListTasks", "ListVariables",
                                              "ReadTaskLogs", "GetClusterInfo", "ListRunFiles",
                                              "ReadRunFile"});
  for (const char* task : {"coordinator", "ps_server", "worker"}) CHECK(of(task).empty());
  CHECK(of("admin").size() == ControlCalls().size());
}

TEST_CASE("the audit log has each call that changes a job or a task") {
  CHECK(Names([](const ControlCall& call) { return call.audited; }) ==
        std::set<std::string>{"SubmitJob", "CancelJob", "DeleteJob", "DrainTask", "CordonTask",
                              "CancelClosures", "FinishJob"});
}

TEST_CASE("each method of Control in api.proto has one row, in the order of the file") {
  const google::protobuf::ServiceDescriptor& service = client::ControlService();
  std::vector<std::string> declared, rows;
  for (int i = 0; i < service.method_count(); ++i) declared.push_back(service.method(i)->name());
  for (const ControlCall& call : ControlCalls()) rows.emplace_back(call.name());
  CHECK(rows == declared);
}

TEST_CASE("a request of a role that is not permitted is refused before its handler runs") {
  auto made = std::make_unique<CertifiedTransport>();
  CertifiedTransport& certificates = *made;
  TestCluster c({}, nullptr, std::move(made));
  for (const ControlCall& call : ControlCalls()) {
    CAPTURE(call.method);
    const std::set<absl::string_view> allowed(call.roles.begin(), call.roles.end());
    for (const absl::string_view role : transport::kCertificateRoles) {
      CAPTURE(role);
      certificates.CertifyCalls(std::string(role));
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
  CHECK(CheckCaller(call, server).message() ==
        "certificate is for ps_server/3, expected user or worker");
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
