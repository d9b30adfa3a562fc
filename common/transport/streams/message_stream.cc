#include "common/transport/streams/message_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/transport/status_detail.h"

namespace evergrad::transport {

class MessageStreamCore::Handle final : public MessageStream {
 public:
  explicit Handle(std::shared_ptr<MessageStreamCore> core) : core_(std::move(core)) {}
  ~Handle() override { core_->Close(); }
  absl::Status Send(std::string message) override { return core_->Send(std::move(message)); }
  void Close() override { core_->Close(); }

 private:
  const std::shared_ptr<MessageStreamCore> core_;
};

MessageStreamCore::MessageStreamCore(std::shared_ptr<Loop> loop, fault::Failpoints* failpoints,
                                     Options options)
    : loop_(std::move(loop)), failpoints_(failpoints), options_(std::move(options)) {}

std::unique_ptr<MessageStream> MessageStreamCore::MakeHandle() {
  return std::make_unique<Handle>(shared_from_this());
}

void MessageStreamCore::Start(std::shared_ptr<Link> link, MessageStreamEvents events) {
  if (closing_) return;  // The owner closed the stream before the loop ran this task.
  link_ = std::move(link);
  events_ = std::make_shared<MessageStreamEvents>(std::move(events));
  link_->Start(shared_from_this());
}

absl::Status MessageStreamCore::Send(std::string message) {
  if (message.size() > options_.message_bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat("message too large: bytes=", message.size(),
                                                   " max=", options_.message_bytes_max));
  }
  {
    MutexLock lock(&mu_);
    if (ended_) return absl::UnavailableError("message stream has ended");
    if (unsent_bytes_ + message.size() > options_.unsent_bytes_max) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "peer does not read: unsent_bytes=", unsent_bytes_, " max=", options_.unsent_bytes_max));
    }
    unsent_bytes_ += message.size();
    unsent_.push_back(std::move(message));
    if (std::exchange(pump_posted_, true)) return absl::OkStatus();
  }
  loop_->Post([self = shared_from_this()] { self->Pump(); });
  return absl::OkStatus();
}

void MessageStreamCore::Close() {
  loop_->RunAndWait([this] { CloseOnLoop(); });
}

void MessageStreamCore::CloseOnLoop() {
  if (std::exchange(closing_, true)) return;
  events_ = nullptr;
  {
    MutexLock lock(&mu_);
    ended_ = true;
  }
  if (link_ == nullptr) return;
  flushing_ = true;
  loop_->BeginFlush();
  loop_->PostAfter(Loop::kFlushMax, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->End();
  });
  Pump();
}

void MessageStreamCore::Abort(const absl::Status& status) {
  const auto events = std::exchange(events_, nullptr);
  if (End() && events != nullptr && events->on_end) events->on_end(OwnCopy(status));
}

bool MessageStreamCore::End() {
  {
    MutexLock lock(&mu_);
    ended_ = true;
    unsent_.clear();
    unsent_bytes_ = 0;
  }
  const auto link = std::exchange(link_, nullptr);
  if (link == nullptr) return false;
  link->Detach();
  if (std::exchange(flushing_, false)) loop_->EndFlush();
  if (options_.on_gone) options_.on_gone();
  return true;
}

bool MessageStreamCore::Cut() {
  if (failpoints_ == nullptr) return false;
  const fault::Hit hit = failpoints_->At("session.cut");
  if (!hit) return false;
  const auto cut = [weak = weak_from_this()] {
    if (const auto self = weak.lock())
      self->Abort(absl::UnavailableError("message stream disconnected by failpoint session.cut"));
  };
  // The end is posted, because the running callback may belong to the link that ends.
  loop_->PostAfter(std::chrono::milliseconds(hit.delay_ms), cut);
  return hit.action != fault::Action::kDelay;
}

void MessageStreamCore::Pump() {
  std::string message;
  {
    MutexLock lock(&mu_);
    pump_posted_ = false;
    if (link_ == nullptr || !open_ || sending_ || finished_) return;
    if (unsent_.empty()) {
      if (!closing_) return;
      finished_ = true;
    } else {
      message = std::move(unsent_.front());
      unsent_.pop_front();
    }
  }
  if (finished_) {
    link_->Finish(absl::OkStatus());
    return;
  }
  if (Cut()) return;
  sending_ = true;
  sending_bytes_ = message.size();
  last_sent_ = loop_->Now();
  auto owner = std::make_shared<const std::string>(std::move(message));
  OutgoingPieces pieces;
  pieces.push_back({owner, std::as_bytes(std::span(owner->data(), owner->size()))});
  link_->Send(std::move(pieces));
  WatchProgress();
}

// Ends the stream if the peer does not accept a message within progress_timeout (rule 8).
void MessageStreamCore::WatchProgress() {
  if (std::exchange(watching_, true)) return;
  loop_->PostAfter(last_sent_ + options_.progress_timeout - loop_->Now(), [weak =
                                                                               weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->watching_ = false;
    if (!self->sending_ || self->link_ == nullptr) return;
    const MonoTime late = self->loop_->Now() - self->last_sent_ - self->options_.progress_timeout;
    if (late < MonoTime{0}) return self->WatchProgress();
    // If this timer fires much too late, the process itself was suspended (SIGSTOP, for example).
    // The peer then gets its full time again.
    if (late > self->options_.progress_timeout / 3) {
      self->last_sent_ = self->loop_->Now();
      return self->WatchProgress();
    }
    self->Abort(
        absl::UnavailableError("peer makes no progress: a message was not accepted in time"));
  });
}

void MessageStreamCore::OnOpen() {
  open_ = true;
  Pump();
}

void MessageStreamCore::OnMessage(MessageView message) {
  std::string text;
  for (const auto& part : message)
    text.append(reinterpret_cast<const char*>(part.data()), part.size());
  if (options_.count) options_.count(text.size(), 0);
  if (text.size() > options_.message_bytes_max) {
    Abort(absl::ResourceExhaustedError(absl::StrCat("message too large: bytes=", text.size(),
                                                    " max=", options_.message_bytes_max)));
    return;
  }
  if (events_ == nullptr || Cut()) return;
  const auto events = events_;
  if (events->on_message) events->on_message(std::move(text));
}

void MessageStreamCore::OnSent() {
  sending_ = false;
  last_sent_ = loop_->Now();
  if (options_.count) options_.count(0, sending_bytes_);
  {
    MutexLock lock(&mu_);
    unsent_bytes_ -= std::min(unsent_bytes_, sending_bytes_);
  }
  Pump();
}

void MessageStreamCore::OnEnd(absl::Status status) { Abort(status); }

}  // namespace evergrad::transport
