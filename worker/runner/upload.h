// Which part of which file an export sends next, and what the coordinator has confirmed: one file
// after another, each in order, a bounded window of bytes beyond what is confirmed. Pure; bytes and
// messages are the caller's.
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
    bool last = false;  // of its file: the digest of the whole goes with it
  };
  Upload(std::vector<File> files, std::size_t chunk_bytes, std::size_t window_bytes);

  // The next chunk to be sent, which counts as sent from here on; nullopt: the window is full, or a
  // file waits for its last word.
  std::optional<Chunk> Next();
  // So many bytes of that file are confirmed. InvalidArgument: more than was sent, or another
  // file's name.
  absl::Status Confirm(absl::string_view name, std::uint64_t bytes);
  // What was sent and not confirmed is lost with its session: the present file begins anew. Chunks
  // of an earlier generation() are void.
  void Restart();
  std::uint64_t generation() const { return generation_; }
  bool done() const { return file_ == files_.size(); }
  std::uint64_t confirmed_bytes() const { return former_ + confirmed_; }  // of all files

 private:
  const std::vector<File> files_;
  const std::size_t chunk_bytes_, window_bytes_;
  std::size_t file_ = 0;
  std::uint64_t sent_ = 0, confirmed_ = 0, former_ = 0, generation_ = 0;
  bool last_sent_ = false;
};

}  // namespace evergrad::worker
