#include "common/client/session_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/build_info.h"
#include "common/base/check.h"
#include "common/client/protocol.h"
#include "common/random/philox.h"

namespace evergrad::client {
namespace {

using std::chrono::milliseconds;

// Bounds for the intervals that the coordinator sends. Without the lower bound, the client could
// run in a busy loop. Without the upper bounds, it could be silent for longer than any lease.
constexpr std::uint32_t kHeartbeatMsMin = 5, kHeartbeatMsMax = 60'000, kRetryAfterMsMax = 60'000;
constexpr std::size_t kQuotedBytesMax = 500;

}  // namespace

struct SessionClient::Impl : std::enable_shared_from_this<SessionClient::Impl> {
  Impl(transport::Transport* t, runtime::Executor* e, log::Logger* l, Options o, Events ev)
      : transport(t), executor(e), logger(l), options(std::move(o)), events(std::move(ev)) {}

  // Wraps `f` in a task for the executor. When the task runs, it calls `f` only if the dial
  // `of_dial` has not ended.
  template <class F>
  std::function<void()> IfStill(std::uint64_t of_dial, F f) {
    return [weak = weak_from_this(), of_dial, f = std::move(f)]() mutable {
      const auto self = weak.lock();
      if (self && !self->stopped && self->dial == of_dial) f(*self);
    };
  }

  void Dial() {
    const std::uint64_t this_dial = ++dial;
    state = State::kDialing;
    transport::ChannelOptions to_coordinator = options.channel;
    to_coordinator.peer_task = "coordinator";
    to_coordinator.check_host = true;  // this host is configured, so the certificate must name it
    auto made = transport->Dial({options.coordinator_address, ""}, to_coordinator);
    if (!made.ok()) return GiveUp(made.status());
    channel = *std::move(made);
    transport::MessageStreamEvents stream_events;
    const auto weak = weak_from_this();
    // The callbacks below use this copy of the pointer, since they may run until Close() returns.
    // The executor outlives the stream.
    runtime::Executor* const where = executor;
    stream_events.on_message = [weak, where, this_dial](std::string bytes) {
      if (const auto self = weak.lock())
        where->Post(
            self->IfStill(this_dial, [bytes = std::move(bytes)](Impl& me) { me.OnBytes(bytes); }));
    };
    stream_events.on_end = [weak, where, this_dial](absl::Status status) {
      if (const auto self = weak.lock())
        where->Post(
            self->IfStill(this_dial, [status = std::move(status)](Impl& me) { me.OnEnd(status); }));
    };
    stream = channel->OpenStream(kSessionMethod, std::move(stream_events));
    v1::Hello hello = events.make_hello ? events.make_hello() : v1::Hello();
    if (stopped || dial != this_dial) return;
    if (hello.protocol_version() == 0) hello.set_protocol_version(kProtocolVersion);
    if (hello.build_id().empty()) hello.set_build_id(BuildId());
    hello.set_cordoned(cordoned);
    v1::TaskBatch batch;
    *batch.add_messages()->mutable_hello() = std::move(hello);
    const absl::Status sent = stream->Send(batch.SerializeAsString());
    if (!sent.ok()) return GiveUp(sent);
    executor->PostAfter(
        options.registered_within, IfStill(this_dial, [](Impl& me) {
          if (me.state == State::kDialing)
            me.GiveUp(absl::DeadlineExceededError("the coordinator does not answer the Hello"));
        }));
  }

  // Ends a dial that failed.
  void GiveUp(const absl::Status& why) {
    WaitFor(absl::StrCat("dial ", static_cast<int>(why.code())),
            CleanText(why.ToString(absl::StatusToStringMode::kWithNoExtraData), kQuotedBytesMax));
    EndStream();
    Redial(milliseconds(0));
  }

  // Ends a session. Lose calls on_lost, which may stop this client, so the caller of Lose must
  // return directly afterwards.
  void Lose(const std::string& why) {
    const bool had = state == State::kRegistered;
    EndStream();
    const std::uint64_t ended = dial;
    if (had) {
      logger->Warning(absl::StrCat("lost the connection to the coordinator: address=",
                                   options.coordinator_address, " reason=", why));
      if (events.on_lost) events.on_lost(why);
      if (stopped || dial != ended) return;
    } else {
      WaitFor(why, why);
    }
    Redial(milliseconds(0));
  }

  void EndStream() {
    state = State::kWaiting;
    ++dial;  // Invalidates the tasks that the old stream has posted.
    pending.Clear();
    pending_bytes = 0;
    flush_posted = false;
    broken = false;
    stream.reset();
    channel.reset();
  }

  void Redial(milliseconds at_least) {
    backoff = backoff == milliseconds(0) ? options.backoff_min
                                         : std::min(backoff * 2, options.backoff_max);
    const double share =
        0.5 + 0.5 * static_cast<double>(random::Uniform(options.jitter_seed, redials++));
    const auto drawn = std::chrono::duration_cast<std::chrono::nanoseconds>(backoff * share);
    executor->PostAfter(std::max<std::chrono::nanoseconds>(drawn, at_least),
                        IfStill(dial, [](Impl& me) { me.Dial(); }));
  }

  // Logs the reason for waiting once, not at every retry. `key` identifies the reason, because the
  // text of one reason may vary.
  void WaitFor(const std::string& key, const std::string& text) {
    if (key == waiting_key) return;
    waiting_key = key;
    logger->Warning(absl::StrCat(
        "waiting for the coordinator: address=", options.coordinator_address, " reason=", text));
    if (events.on_waiting) events.on_waiting(text);
  }

  void OnEnd(const absl::Status& status) {
    if (state == State::kDialing) {
      return GiveUp(status.ok()
                        ? absl::UnavailableError(
                              "the coordinator ended the session before it registered this task")
                        : status);
    }
    Lose(status.ok() ? "the coordinator ended the session"
                     : CleanText(status.ToString(absl::StatusToStringMode::kWithNoExtraData),
                                 kQuotedBytesMax));
  }

  void OnBytes(const std::string& bytes) {
    v1::CoordinatorBatch batch;
    if (!batch.ParseFromString(bytes))
      return Malformed(absl::StrCat("the bytes are not a batch of messages: bytes=", bytes.size()));
    const std::uint64_t session = dial;
    for (const v1::CoordinatorMessage& message : batch.messages()) {
      Handle(message);
      if (stopped || dial != session) return;
    }
  }

  void Handle(const v1::CoordinatorMessage& message) {
    switch (message.message_case()) {
      case v1::CoordinatorMessage::kRegistered: return OnRegistered(message.registered());
      case v1::CoordinatorMessage::kRejected: return OnRejected(message.rejected());
      case v1::CoordinatorMessage::MESSAGE_NOT_SET:
        return Malformed("the message is empty or of an unknown kind");
      default:
        if (state != State::kRegistered)
          return Malformed(absl::StrCat("a message before Registered: field=",
                                        static_cast<int>(message.message_case())));
        if (message.has_cordon()) {
          cordoned = message.cordon().on();
          logger->Info(cordoned ? "this task is cordoned: it gets no new work"
                                : "the cordon of this task has ended");
          break;
        }
        if (events.on_message) events.on_message(message);
    }
  }

  void Malformed(absl::string_view what) {
    Lose(absl::StrCat("malformed message from the coordinator: ", what));
  }

  void OnRegistered(const v1::Registered& registered) {
    if (state == State::kRegistered) return Malformed("a second Registered in one session");
    if (registered.term() == 0 || registered.heartbeat_ms() == 0) {
      return Malformed(
          absl::StrCat("Registered without a term or heartbeat interval: term=", registered.term(),
                       " heartbeat_ms=", registered.heartbeat_ms()));
    }
    state = State::kRegistered;
    waiting_key.clear();
    heartbeat =
        milliseconds(std::clamp(registered.heartbeat_ms(), kHeartbeatMsMin, kHeartbeatMsMax));
    logger->Info(absl::StrCat(
        "registered with the coordinator: address=", options.coordinator_address,
        " identity=", CleanText(registered.identity(), kQuotedBytesMax),
        " term=", registered.term(), " registration=", registered.registration().term(), ".",
        registered.registration().n(), " lease_ms=", registered.lease_ms()));
    // The backoff is reset only after the session has lasted for backoff_max. Otherwise a
    // coordinator that drops every session would be dialed in a tight loop.
    executor->PostAfter(options.backoff_max,
                        IfStill(dial, [](Impl& me) { me.backoff = milliseconds(0); }));
    const std::uint64_t session = dial;
    if (events.on_registered) events.on_registered(registered);
    // The first heartbeat is sent at once, because a worker without a heartbeat gets no work.
    if (!stopped && dial == session) Beat();
  }

  void OnRejected(const v1::Rejected& rejected) {
    const std::string why = absl::StrCat(CleanText(rejected.kind(), kQuotedBytesMax), ": ",
                                         CleanText(rejected.message(), kQuotedBytesMax));
    const bool had = state == State::kRegistered;
    // The batch that contains `rejected` may be freed while the events run.
    const v1::Rejected kept = rejected;  // NOLINT(performance-unnecessary-copy-initialization)
    EndStream();
    const std::uint64_t ended = dial;
    if (kept.exit()) {
      logger->Error(absl::StrCat("the coordinator refused this task permanently: address=",
                                 options.coordinator_address, " reason=", why));
    } else if (had) {
      logger->Warning(absl::StrCat("lost the connection to the coordinator: address=",
                                   options.coordinator_address, " reason=", why));
    } else {
      WaitFor(absl::StrCat("rejected ", kept.kind()), why);
    }
    if (had && events.on_lost) events.on_lost(why);
    if (stopped || dial != ended) return;
    if (events.on_rejected) events.on_rejected(kept);
    if (stopped || dial != ended || kept.exit()) return;
    Redial(milliseconds(std::min(kept.retry_after_ms(), kRetryAfterMsMax)));
  }

  void Beat() {
    if (state != State::kRegistered) return;
    const std::uint64_t session = dial;
    v1::TaskMessage message;
    *message.mutable_heartbeat() =
        events.make_heartbeat ? events.make_heartbeat() : v1::Heartbeat();
    if (stopped || dial != session) return;
    message.mutable_heartbeat()->set_sequence(++heartbeats);
    Send(std::move(message));
    executor->PostAfter(heartbeat, IfStill(dial, [](Impl& me) { me.Beat(); }));
  }

  bool Send(v1::TaskMessage message) {
    if (state != State::kRegistered || broken) return false;
    // The daemon also sends heartbeats of its own, between those of Beat.
    if (message.has_heartbeat() && options.recommendation)
      message.mutable_heartbeat()->set_recommendation(options.recommendation());
    // Inside the batch, the message needs at most 16 further bytes, for its tag and its length.
    const std::uint64_t bytes = message.ByteSizeLong() + 16;
    if (bytes > options.channel.message_bytes_max) {
      logger->Error(absl::StrCat("message to the coordinator is too large: field=",
                                 static_cast<int>(message.message_case()), " bytes=", bytes,
                                 " limit=", options.channel.message_bytes_max));
      return false;
    }
    if (pending_bytes + bytes > std::min(kSessionBatchBytesMax, options.channel.message_bytes_max))
      Flush();
    if (broken) return false;
    *pending.add_messages() = std::move(message);
    pending_bytes += bytes;
    if (!flush_posted) {
      flush_posted = true;
      executor->Post(IfStill(dial, [](Impl& me) {
        me.flush_posted = false;
        me.Flush();
      }));
    }
    return true;
  }

  void Flush() {
    if (pending.messages_size() == 0 || !stream || broken) return;
    const absl::Status sent = stream->Send(pending.SerializeAsString());
    pending.Clear();
    pending_bytes = 0;
    if (sent.ok()) return;
    // The call of Lose() is posted, because the caller of Send() does not expect that callbacks run
    // inside Send().
    broken = true;
    executor->Post(
        IfStill(dial, [why = CleanText(sent.ToString(absl::StatusToStringMode::kWithNoExtraData),
                                       kQuotedBytesMax)](Impl& me) { me.Lose(why); }));
  }

  void Stop() {
    if (stopped) return;
    if (state == State::kRegistered) Flush();
    stopped = true;
    EndStream();
  }

  enum class State { kWaiting, kDialing, kRegistered };

  transport::Transport* const transport;
  runtime::Executor* const executor;
  log::Logger* const logger;
  const Options options;
  const Events events;

  State state = State::kWaiting;
  bool cordoned = false;  // by the last Cordon, also over sessions
  bool stopped = false;
  bool broken = false;  // a send failed, and Lose() has been posted
  // The number of the current dial. The number changes with each dial and each end of a session. A
  // task that was posted for another number does nothing.
  std::uint64_t dial = 0;
  std::uint64_t redials = 0;
  std::uint64_t heartbeats = 0;
  milliseconds backoff{0};
  milliseconds heartbeat{0};
  std::string waiting_key;
  std::unique_ptr<transport::Channel> channel;
  std::unique_ptr<transport::MessageStream> stream;  // Destroyed before its channel.
  v1::TaskBatch pending;
  std::uint64_t pending_bytes = 0;
  bool flush_posted = false;
};

SessionClient::SessionClient(transport::Transport* transport, runtime::Executor* executor,
                             log::Logger* logger, Options options, Events events)
    : impl_(std::make_shared<Impl>(transport, executor, logger, std::move(options),
                                   std::move(events))) {}

SessionClient::~SessionClient() { Stop(); }

void SessionClient::Start() {
  EG_CHECK_MSG(impl_->dial == 0, "a session client can be started only once");
  impl_->Dial();
}

void SessionClient::Stop() { impl_->Stop(); }
bool SessionClient::registered() const {
  return impl_->state == Impl::State::kRegistered && !impl_->broken;
}
bool SessionClient::Send(v1::TaskMessage message) { return impl_->Send(std::move(message)); }

}  // namespace evergrad::client
