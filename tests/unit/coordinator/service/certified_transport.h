// The in-process transport, as if it used TLS certificates. Each session and each unary call has
// the certificate of the task that the test has set.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "common/base/mutex.h"
#include "tests/support/inproc/inproc_transport.h"

namespace evergrad::coordinator {

class CertifiedTransport final : public transport::Transport {
 public:
  absl::StatusOr<std::unique_ptr<transport::Server>> Listen(const transport::ServerOptions& options,
                                                            transport::Handlers handlers) override {
    handlers.stream = [this, stream = std::move(handlers.stream)](
                          const transport::PeerInfo& peer, absl::string_view method,
                          std::shared_ptr<transport::MessageStream> to) {
      return stream(Certified(peer, /*session=*/true), method, std::move(to));
    };
    handlers.unary = [this, unary = std::move(handlers.unary)](
                         const transport::PeerInfo& peer, absl::string_view method,
                         std::string request,
                         std::unique_ptr<transport::UnaryResponder> responder) {
      unary(Certified(peer, /*session=*/false), method, std::move(request), std::move(responder));
    };
    return inner_->Listen(options, std::move(handlers));
  }
  absl::StatusOr<std::unique_ptr<transport::Channel>> Dial(
      const transport::Address& address, const transport::ChannelOptions& options) override {
    return inner_->Dial(address, options);
  }
  // Sets the task that the certificates of sessions name, such as "worker/0" or "user". With "" the
  // sessions have no certificate, as without TLS.
  void Certify(const std::string& task) {
    MutexLock lock(&mu_);
    sessions_ = task;
  }
  void CertifyCalls(const std::string& task) {
    MutexLock lock(&mu_);
    calls_ = task;
  }

 private:
  transport::PeerInfo Certified(transport::PeerInfo peer, bool session) {
    MutexLock lock(&mu_);
    peer.certificate_task = session ? sessions_ : calls_;
    return peer;
  }
  const std::unique_ptr<transport::Transport> inner_ = transport::MakeInprocTransport(nullptr);
  Mutex mu_;
  std::string sessions_ ABSL_GUARDED_BY(mu_), calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace evergrad::coordinator
