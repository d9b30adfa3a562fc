// The image of a stopped shard at another server, as a file that is read over the data stream
// (LEDGER line 22).
//
// The image is presented as a file system with one file, so that the code that reads snapshots also
// reads and checks a moved shard. Blocking: for I/O threads only, one thread at a time. Like any
// pull, each read needs a grant: the sending server first reserves the memory for the piece. A read
// uses the memory of two pieces.
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
  // The client outlives all reads of the image. The destructor of the client ends every call with
  // an error.
  client::ParameterClient* client = nullptr;
  const Clock* clock = nullptr;  // outlives the image
  v1::Endpoint server;
  JobUid job;
  ShardId shard;
  ShardEpoch epoch;
  std::uint64_t bytes = 0;
  // If another thread sets this flag, the reading ends with Cancelled. May be null.
  std::shared_ptr<const std::atomic<bool>> unwanted;
  std::chrono::milliseconds piece_deadline{5000};
  // If the server cannot be reached, reads are repeated for this time. Meanwhile the data stream
  // dials the server again.
  std::chrono::milliseconds unreachable_max{300};
};

// Returns a file system in which every URI names the image and writes fail. Reads return
// Unavailable if the server has disconnected or does not answer, and NotFound if it no longer has
// the image.
std::unique_ptr<fs::FileSystem> MakePeerFileSystem(PeerImage image);

}  // namespace evergrad::ps_server
