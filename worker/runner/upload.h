// Tracks the files of an export while they are sent: the next part, and the bytes that the
// coordinator has confirmed. Files are sent one after another, each in order, with a bounded window
// of unconfirmed bytes. A pure state machine; the caller handles bytes and messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace evergrad::worker {

class Upload {
 public:
  struct File {
    std::string name;
    std::uint64_t bytes = 0;
  };
  struct Chunk {
    std::size_t file = 0;
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
    bool last = false;  // the last chunk of its file, which carries the digest of the whole file
  };
  Upload(std::vector<File> files, std::size_t chunk_bytes, std::size_t window_bytes);

  // Returns the next chunk, which counts as sent from now on. Returns nullopt if the window is
  // full, or if a file waits for its final confirmation.
  std::optional<Chunk> Next();
  // Confirms the first `bytes` of that file. Returns InvalidArgument for more bytes than were sent,
  // or for the name of another file.
  absl::Status Confirm(absl::string_view name, std::uint64_t bytes);
  // Starts the current file again, because unconfirmed data is lost with its session. Chunks of an
  // earlier generation() are invalid.
  void Restart();
  std::uint64_t generation() const { return generation_; }
  bool done() const { return file_ == files_.size(); }
  std::uint64_t confirmed_bytes() const { return former_ + confirmed_; }  // bytes of all files

 private:
  const std::vector<File> files_;
  const std::size_t chunk_bytes_, window_bytes_;
  std::size_t file_ = 0;
  std::uint64_t sent_ = 0, confirmed_ = 0, former_ = 0, generation_ = 0;
  bool last_sent_ = false;
};

}  // namespace evergrad::worker
