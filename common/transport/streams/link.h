// A bidirectional stream of byte messages between two processes, or within one. The two transports
// implement links, and message streams and data streams use links. Private to the room. All calls
// and events are on the thread of one loop.
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
  // The link continues to read, whatever the callback does (rule 2 in transport.h).
  virtual void OnMessage(MessageView message) = 0;
  virtual void OnSent() = 0;  // The message given to Send has been accepted; the next may be sent.
  // The last event. OK means that the peer ended the stream.
  virtual void OnEnd(absl::Status status) = 0;
};

class Link {
 public:
  virtual ~Link() = default;
  // Starts the link, which holds `events` until the end or Detach(). The link emits no event while
  // one of its methods runs.
  virtual void Start(std::shared_ptr<LinkEvents> events) = 0;
  // Sends one message. The caller must wait for OnSent before the next. The owners of the message
  // are held until its bytes have left the process.
  virtual void Send(OutgoingPieces pieces) = 0;
  // Takes effect after the messages that were sent before. On a server, Finish ends the stream with
  // `status`. On a client, it half-closes the stream. OnEnd follows in both cases. On a server,
  // OnMessage is not called between Finish and OnEnd. A server may also call Finish to refuse a
  // link that was never started.
  virtual void Finish(absl::Status status) = 0;
  // Ends both directions now. No more events follow, even for operations in flight.
  virtual void Detach() = 0;
};

// Opens a link to the peer of a channel. `fresh` requests a new connection, because the current one
// is suspect.
using LinkFactory = std::function<std::shared_ptr<Link>(absl::string_view method, bool fresh)>;

inline constexpr char kDataMethod[] = "/evergrad.v1.Data/Stream";
// The metadata with the client's name on a data stream (ChannelOptions::client_name).
inline constexpr char kClientNameMetadata[] = "evergrad-client";
inline constexpr std::size_t kClientNameBytesMax = 128;

}  // namespace evergrad::transport
