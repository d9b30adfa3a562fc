// A bidirectional stream of byte messages between two processes, or within one: what the two
// transports implement and message streams and data streams are built on. Private to the room.
// Everything happens on one loop's thread.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/transport/pieces.h"

namespace evergrad::transport {

class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  virtual void OnOpen() = 0;  // Messages may be sent. A server's link is open from the start.
  virtual void OnMessage(
      MessageView message) = 0;  // The link goes on reading whatever happens (rule 2).
  virtual void OnSent() = 0;     // The message given to Send has been taken; the next may be sent.
  // The last event. OK: the peer ended the stream.
  virtual void OnEnd(absl::Status status) = 0;
};

class Link {
 public:
  virtual ~Link() = default;
  // Starts it. `events` is held until the end or Detach(); no event comes from inside of a call
  // into the link.
  virtual void Start(std::shared_ptr<LinkEvents> events) = 0;
  // One message at a time. Its owners are held until its bytes have left the process.
  virtual void Send(OutgoingPieces pieces) = 0;
  // After what was sent: a server ends the stream with `status`, a client half-closes. OnEnd
  // follows, at a server no OnMessage. A server may refuse a link that was never started this way.
  virtual void Finish(absl::Status status) = 0;
  // Ends it now, both ways. No more events, whatever was under way.
  virtual void Detach() = 0;
};

// Opens a link to the peer of a channel. `fresh`: the connection is suspect, make a new one.
using LinkFactory = std::function<std::shared_ptr<Link>(absl::string_view method, bool fresh)>;

inline constexpr char kDataMethod[] = "/evergrad.v1.Data/Stream";
inline constexpr char kClientNameMetadata[] =
    "evergrad-client";  // of a data stream: ChannelOptions::client_name
inline constexpr std::size_t kClientNameBytesMax = 128;
inline constexpr char kHealthMethod[] = "/grpc.health.v1.Health/Check";

}  // namespace evergrad::transport
