#include "coordinator/psctl/control_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/runtime/executor.h"
#include "common/transport/not_connected.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

// The pause between two attempts to reach a coordinator.
constexpr auto kPause = std::chrono::milliseconds(50);
constexpr auto kSilence = std::chrono::milliseconds(1000);  // a shorter wait is not reported

}  // namespace

ControlClient::ControlClient(Context& context, const Connection& connection, std::string address,
                             std::unique_ptr<transport::Channel> channel)
    : context_(context),
      address_(std::move(address)),
      timeout_(connection.timeout),
      wait_(connection.wait),
      channel_(std::move(channel)) {}
ControlClient::~ControlClient() = default;

absl::StatusOr<std::unique_ptr<ControlClient>> ControlClient::Connect(
    Context& context, const Connection& connection) {
  EG_ASSIGN_OR_RETURN(Target target, TargetOf(context, connection));
  transport::ChannelOptions options;
  options.tls = std::move(target.tls);
  options.peer_task = "coordinator";
  options.check_host = true;
  options.message_bytes_max = 64ull << 20;  // for a job with many variables and shards
  EG_ASSIGN_OR_RETURN(auto channel, context.transport->Dial({target.address, ""}, options));
  return std::unique_ptr<ControlClient>(
      new ControlClient(context, connection, std::move(target.address), std::move(channel)));
}

absl::Status ControlClient::Explained(const std::string& address, const absl::Status& status) {
  const absl::StatusCode code = status.code();
  if (code == absl::StatusCode::kInternal && OriginOf(status).empty())
    return absl::InternalError(absl::StrCat(status.message(), " address=", address));
  if (code != absl::StatusCode::kUnavailable && code != absl::StatusCode::kDeadlineExceeded)
    return status;
  if (!OriginOf(status).empty()) return status;  // the coordinator itself has refused the call
  if (!transport::IsNotConnected(status) && code == absl::StatusCode::kDeadlineExceeded) {
    return absl::Status(code,
                        absl::StrCat("the coordinator did not answer in time, but may have carried "
                                     "out the request (psctl job list shows the jobs): address=",
                                     address, " cause=", status.message()));
  }
  return absl::Status(
      code, absl::StrCat("coordinator not reachable (does it run, is this its address?): address=",
                         address, " cause=", status.message()));
}

absl::StatusOr<std::string> ControlClient::Exchange(const std::string& method,
                                                    const std::string& request,
                                                    std::chrono::milliseconds longer) {
  absl::StatusOr<std::string> answer =
      transport::UnaryAndWait(*channel_, method, request, timeout_ + longer);
  if (answer.ok() || !transport::IsNotConnected(answer.status())) return answer;
  const MonoTime begun = context_.clock->Now();
  runtime::WaitableEvent never;  // never set; a pause waits for it with a timeout
  bool said = false;
  for (MonoTime waited{0};
       !answer.ok() && transport::IsNotConnected(answer.status()) && waited < wait_;
       waited = context_.clock->Now() - begun) {
    if (waited >= kSilence && !std::exchange(said, true)) {
      context_.err << "psctl: no coordinator at " << Printable(address_)
                   << " yet; trying again for " << ShowAge(wait_.count()) << " (--wait)\n"
                   << std::flush;
    }
    never.WaitFor(kPause);
    answer = transport::UnaryAndWait(*channel_, method, request, timeout_ + longer);
  }
  return answer;
}

void ControlClient::GetJobAsync(const v1::GetJobRequest& request,
                                std::function<void(absl::StatusOr<v1::GetJobResponse>)> done) {
  channel_->Unary(
      client::ControlMethod<v1::GetJobRequest>(), request.SerializeAsString(),
      timeout_ + std::chrono::milliseconds(request.wait_ms()),
      [address = address_, done = std::move(done)](const absl::StatusOr<std::string>& bytes) {
        done(Parse<v1::GetJobResponse>(address, bytes));
      });
}

}  // namespace evergrad::psctl
