// A program for rights_test.py and for the table of rights in docs/security.md.
//
//   evergrad-rights table     prints the roles and, for each RPC, the roles that may call it (JSON)
//   evergrad-rights call      reads calls from stdin, one JSON object a line, makes them, and
//   prints
//                             one JSON object for each
//
// A call has the members address, method, kind ("unary", "worker session", "server session" or
// "data"), ca, cert and key. Without `ca` the connection has no TLS. Without `cert` the client has
// no certificate. The program dials with gRPC itself, because the transport of the daemons refuses
// to use an expired certificate, and a stranger would not. For the same reason it does not check
// the certificate of the daemon. The result has the members `result`, which is "no connection",
// "registered", "rejected: KIND" or the name of a gRPC status code, and `message`.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/client/control.h"
#include "common/client/protocol.h"
#include "common/fs/file.h"
#include "common/transport/certificate_task.h"
#include "common/transport/health_protocol.h"
#include "coordinator/service/control_calls.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad {
namespace {

namespace tls = grpc::experimental;

constexpr std::chrono::seconds kPatience{60};

// ---------------------------------------------------------------- the table

nlohmann::json RowOf(const std::string& method, const std::string& kind,
                     const std::vector<std::string>& roles, const std::string& daemon) {
  return {{"method", method}, {"kind", kind},        {"roles", roles},
          {"daemon", daemon}, {"owner_only", false}, {"audited", false}};
}

nlohmann::json Table() {
  std::vector<std::string> every_role;
  for (const absl::string_view role : transport::kCertificateRoles) every_role.emplace_back(role);
  nlohmann::json rows = nlohmann::json::array();
  for (const coordinator::ControlCall& call : coordinator::ControlCalls()) {
    const std::vector<std::string> roles(call.roles.begin(), call.roles.end());
    rows.push_back(RowOf(call.method, "unary", roles, "coordinator"));
    rows.back()["owner_only"] = call.owner_only;
    rows.back()["audited"] = call.audited;
  }
  // Registrar::CheckCertificate and ServerOptions::data_peers of the server decide these rows.
  rows.push_back(RowOf(client::kSessionMethod, "worker session", {"worker"}, "coordinator"));
  rows.push_back(RowOf(client::kSessionMethod, "server session", {"ps_server"}, "coordinator"));
  rows.push_back(RowOf("/evergrad.v1.Data/Stream", "data", {"worker", "ps_server"}, "ps_server"));
  rows.push_back(RowOf(transport::kHealthMethod, "unary", every_role, "every daemon"));
  return {{"roles", every_role}, {"rows", rows}};
}

// ---------------------------------------------------------------- calls

std::string Contents(const std::string& path) {
  auto contents = fs::ReadFile(path, 1u << 20);
  if (contents.ok()) return *std::move(contents);
  std::cerr << "evergrad-rights: " << contents.status().ToString() << "\n";
  std::exit(2);
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const nlohmann::json& call) {
  const std::string ca = call.value("ca", ""), cert = call.value("cert", "");
  if (ca.empty()) return grpc::InsecureChannelCredentials();
  std::vector<tls::IdentityKeyCertPair> identity;
  if (!cert.empty()) identity.push_back({Contents(call.value("key", "")), Contents(cert)});
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<tls::StaticDataCertificateProvider>(Contents(ca), identity));
  options.watch_root_certs();
  if (!identity.empty()) options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
  return tls::TlsCredentials(options);
}

// Returns whether the daemon has accepted the connection. gRPC reports a connection only after the
// daemon's first HTTP/2 frame, which a daemon sends to a client whose certificate it has accepted.
bool Connect(grpc::Channel& channel) {
  const auto deadline = std::chrono::system_clock::now() + kPatience;
  for (;;) {
    const grpc_connectivity_state state = channel.GetState(true);
    if (state == GRPC_CHANNEL_READY) return true;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || !channel.WaitForStateChange(state, deadline))
      return false;
  }
}

std::string HelloOf(v1::Role role) {
  v1::TaskBatch batch;
  v1::Hello* const hello = batch.add_messages()->mutable_hello();
  hello->set_protocol_version(client::kProtocolVersion);
  hello->set_role(role);
  hello->set_identity("9");
  hello->set_process_uid(9);
  hello->set_host("rights");
  if (role == v1::ROLE_PS_SERVER) hello->mutable_endpoint()->set_address("127.0.0.1:9");
  return batch.SerializeAsString();
}

// Returns the first message of a call: a Hello, a health request, or bytes that no handler accepts.
// The handler of an RPC therefore changes nothing.
std::string FirstMessage(const nlohmann::json& call) {
  const auto kind = call.at("kind").get<std::string>();
  if (kind == "worker session") return HelloOf(v1::ROLE_WORKER);
  if (kind == "server session") return HelloOf(v1::ROLE_PS_SERVER);
  if (call.at("method") == transport::kHealthMethod) return transport::HealthRequest("");
  return "\xff\xff\xff";
}

const char* NameOf(grpc::StatusCode code) {
  static const char* const names[] = {"OK",
                                      "CANCELLED",
                                      "UNKNOWN",
                                      "INVALID_ARGUMENT",
                                      "DEADLINE_EXCEEDED",
                                      "NOT_FOUND",
                                      "ALREADY_EXISTS",
                                      "PERMISSION_DENIED",
                                      "RESOURCE_EXHAUSTED",
                                      "FAILED_PRECONDITION",
                                      "ABORTED",
                                      "OUT_OF_RANGE",
                                      "UNIMPLEMENTED",
                                      "INTERNAL",
                                      "UNAVAILABLE",
                                      "DATA_LOSS",
                                      "UNAUTHENTICATED"};
  return code >= 0 && code < static_cast<int>(std::size(names)) ? names[code] : "?";
}

std::string Text(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return "";
  std::string text;
  for (const grpc::Slice& slice : slices)
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

// Returns the verdict in the coordinator's first batch of a session.
nlohmann::json VerdictOf(const std::string& bytes) {
  v1::CoordinatorBatch batch;
  if (!batch.ParseFromString(bytes) || batch.messages_size() == 0)
    return {{"result", "unreadable"}, {"message", ""}};
  const v1::CoordinatorMessage& first = batch.messages(0);
  if (first.has_rejected())
    return {{"result", absl::StrCat("rejected: ", first.rejected().kind())},
            {"message", first.rejected().message()}};
  return {{"result", first.has_registered() ? "registered" : "unexpected"}, {"message", ""}};
}

class OneCall {
 public:
  OneCall(const std::shared_ptr<grpc::Channel>& channel, const nlohmann::json& call)
      : stub_(channel),
        session_(call.at("kind").get<std::string>().ends_with("session")),
        unary_(call.at("kind") == "unary") {
    context_.set_deadline(std::chrono::system_clock::now() + kPatience);
    if (session_) context_.AddMetadata("evergrad-call", "stream");
    stream_ = stub_.PrepareCall(&context_, call.at("method").get<std::string>(), &queue_);
  }
  ~OneCall() {
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  nlohmann::json Run(const std::string& message) {
    stream_->StartCall(this);
    const grpc::Slice slice(message);
    const grpc::ByteBuffer request(&slice, 1);
    nlohmann::json verdict;
    if (Wait()) {
      // A stream that the client half-closes would end at once.
      if (unary_)
        stream_->WriteLast(request, grpc::WriteOptions(), this);
      else
        stream_->Write(request, this);
      Wait();
      // A data stream may carry some messages before its end.
      for (;;) {
        grpc::ByteBuffer answer;
        stream_->Read(&answer, this);
        if (!Wait()) break;
        if (!session_) continue;
        verdict = VerdictOf(Text(answer));
        context_.TryCancel();
        break;
      }
    }
    grpc::Status status;
    stream_->Finish(&status, this);
    Wait();
    if (!verdict.is_null()) return verdict;
    return {{"result", NameOf(status.error_code())}, {"message", status.error_message()}};
  }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  const bool session_, unary_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

void MakeCalls() {
  // Open connections, by address and certificate. A refused connection is tried anew by each call.
  std::map<std::string, std::shared_ptr<grpc::Channel>> open;
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json call = nlohmann::json::parse(line);
    const std::string key = absl::StrCat(call.at("address").get<std::string>(), " ",
                                         call.value("ca", ""), " ", call.value("cert", ""));
    std::shared_ptr<grpc::Channel>& channel = open[key];
    if (channel == nullptr) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      channel = grpc::CreateCustomChannel(call.at("address").get<std::string>(),
                                          CredentialsOf(call), arguments);
    }
    nlohmann::json result = {{"result", "no connection"}, {"message", ""}};
    if (Connect(*channel))
      result = OneCall(channel, call).Run(FirstMessage(call));
    else
      channel = nullptr;
    std::cout << result.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << std::endl;
  }
}

}  // namespace
}  // namespace evergrad

int main(int argc, char** argv) {
  const std::string verb = argc == 2 ? argv[1] : "";
  if (verb == "table") {
    std::cout << evergrad::Table().dump(1) << "\n";
  } else if (verb == "call") {
    evergrad::MakeCalls();
  } else {
    std::cerr << "usage: evergrad-rights table|call\n";
    return 2;
  }
  return 0;
}
