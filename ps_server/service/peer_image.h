// The image of a stopped shard at another server, as a file that is read over the data stream
// (LEDGER line 22).
//
// A file system of one file, so that a moved shard is read and checked by the very code that reads
// a snapshot. Blocking: I/O threads only; one thread at a time. What it reads is bounded by credit
// like any pull: a piece leaves its server after a grant. Two pieces of memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/ids.h"
#include "common/client/parameter_client.h"
#include "common/fs/file_system.h"
#include "common/time/clock.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::ps_server {

struct PeerImage {
  // Outlives what is read of it; destroying it ends every call, with an error.
  client::ParameterClient* client = nullptr;
  const Clock* clock = nullptr;  // outlives it
  v1::Endpoint server;
  JobUid job;
  ShardId shard;
  ShardEpoch epoch;
  std::uint64_t bytes = 0;
  std::shared_ptr<const std::atomic<bool>>
      unwanted;  // shared with who may end the reading: true ends it with Cancelled. May be null
  std::chrono::milliseconds piece_deadline{5000};
  // A server that cannot be reached is tried again for so long: a stream is dialed anew.
  std::chrono::milliseconds unreachable_max{300};
};

// Every URI is the image; nothing can be written. Errors: Unavailable, the server is gone or
// silent; NotFound, it has no such image any more.
std::unique_ptr<fs::FileSystem> MakePeerFileSystem(PeerImage image);

}  // namespace evergrad::ps_server
