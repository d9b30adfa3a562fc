// A transport on which the test acts as the peer. Every dial is recorded. Everything runs on the
// test's thread and with a manual clock, so a test can follow a whole session message by message.
// over_transports_test.cc tests the real transports.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/transport/transport.h"

namespace evergrad::client {

// One message stream that the client has dialed, as the coordinator sees it.
struct Link {
  transport::MessageStreamEvents events;
  std::vector<std::string> sent;
  bool open = true;
  absl::Status refuse_sends;  // if not OK, Send returns it
};

// One data call, as the server sees it.
struct DataCall {
  std::uint64_t ticket = 0;
  std::string bytes;
  transport::DataOptions options;
  transport::DataDone done;
};
struct DataLink {
  transport::Address address;
  std::vector<DataCall> calls;
  // `announced` has the size of each announced request, and the answer to the announcement.
  // `abandoned` has the tickets of requests that were abandoned. Tickets count from 1.
  std::vector<std::uint64_t> announced, abandoned;
  bool open = true;
  std::function<void()> on_call;   // runs inside Call
  std::function<void()> on_close;  // runs when the stream is being destroyed
};

class ScriptedTransport final : public transport::Transport {
 public:
  absl::StatusOr<std::unique_ptr<transport::Server>> Listen(const transport::ServerOptions&,
                                                            transport::Handlers) override {
    return absl::UnimplementedError("scripted");
  }
  absl::StatusOr<std::unique_ptr<transport::Channel>> Dial(
      const transport::Address& address, const transport::ChannelOptions&) override {
    if (!refuse_dials.ok()) return refuse_dials;
    return std::unique_ptr<transport::Channel>(std::make_unique<ScriptedChannel>(this, address));
  }

  absl::Status refuse_dials;
  std::vector<std::string> methods;
  std::vector<std::shared_ptr<Link>> links;  // shared with the streams
  std::vector<std::shared_ptr<DataLink>> data_links;

 private:
  class ScriptedStream final : public transport::MessageStream {
   public:
    explicit ScriptedStream(std::shared_ptr<Link> link) : link_(std::move(link)) {}
    ~ScriptedStream() override { Close(); }
    absl::Status Send(std::string message) override {
      if (!link_->refuse_sends.ok()) return link_->refuse_sends;
      link_->sent.push_back(std::move(message));
      return absl::OkStatus();
    }
    void Close() override { link_->open = false; }

   private:
    std::shared_ptr<Link> link_;
  };
  class ScriptedData final : public transport::DataStream {
   public:
    explicit ScriptedData(std::shared_ptr<DataLink> link) : link_(std::move(link)) {}
    ~ScriptedData() override {
      link_->open = false;
      if (link_->on_close) link_->on_close();
      for (DataCall& call : link_->calls) {
        if (call.done) std::exchange(call.done, nullptr)(absl::CancelledError("stream closed"));
      }
    }
    std::uint64_t Announce(std::uint64_t request_bytes,
                           const transport::DataOptions& options) override {
      link_->announced.push_back(request_bytes + options.response_bytes_max);
      return link_->announced.size();
    }
    void Abandon(std::uint64_t ticket) override { link_->abandoned.push_back(ticket); }
    void Call(std::uint64_t ticket, transport::Frame request, const transport::DataOptions& options,
              transport::DataDone done) override {
      if (link_->on_call) link_->on_call();
      std::string bytes;
      for (const auto& piece : request.pieces)
        bytes.append(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
      link_->calls.push_back({ticket, std::move(bytes), options, std::move(done)});
    }

   private:
    std::shared_ptr<DataLink> link_;
  };
  class ScriptedChannel final : public transport::Channel {
   public:
    ScriptedChannel(ScriptedTransport* owner, transport::Address address)
        : owner_(owner), address_(std::move(address)) {}
    void Unary(absl::string_view, std::string, std::chrono::milliseconds,
               transport::UnaryDone done) override {
      done(absl::UnimplementedError("scripted"));
    }
    std::unique_ptr<transport::MessageStream> OpenStream(
        absl::string_view method, transport::MessageStreamEvents events) override {
      owner_->methods.emplace_back(method);
      auto link = std::make_shared<Link>();
      link->events = std::move(events);
      owner_->links.push_back(link);
      return std::make_unique<ScriptedStream>(std::move(link));
    }
    std::unique_ptr<transport::DataStream> OpenData() override {
      auto link = std::make_shared<DataLink>();
      link->address = address_;
      owner_->data_links.push_back(link);
      return std::make_unique<ScriptedData>(std::move(link));
    }

   private:
    ScriptedTransport* const owner_;
    const transport::Address address_;
  };
};

}  // namespace evergrad::client
