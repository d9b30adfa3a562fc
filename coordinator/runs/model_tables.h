// Writes the embedding tables of a job's last checkpoint to one file if they are small. The rows
// are in ascending order of ids, and the arrays have the same names as in an export by `psctl
// checkpoint export`.
//
// Blocking, not thread-safe. The class runs on the file thread, one Step at a time, and uses at
// most bytes_max of memory for the rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/fs/file_system.h"
#include "common/snapshot/shard_file.h"
#include "evergrad/v1/snapshot.pb.h"

namespace evergrad::coordinator {

inline constexpr std::uint64_t kModelTablesBytesMax = 256u << 20;

class ModelTables {
 public:
  ModelTables(std::string manifest_uri, std::string path,
              std::uint64_t bytes_max = kModelTablesBytesMax)
      : manifest_uri_(std::move(manifest_uri)), path_(std::move(path)), bytes_max_(bytes_max) {}

  // Reads the manifest, then one file per step; the last step writes `path`. Returns true when
  // `path` is complete, or when status() has an error. The error is ResourceExhausted if the tables
  // are larger than bytes_max or the disk is full; otherwise it is the error of a file.
  bool Step(fs::FileSystem& files);
  const absl::Status& status() const { return status_; }

 private:
  struct Rows {
    std::vector<std::int64_t> ids;
    std::vector<float> values;
  };
  absl::Status Begin(fs::FileSystem& files);
  absl::Status Read(fs::FileSystem& files, int index);
  absl::Status Take(const snapshot::ShardFileReader::Piece& piece);
  absl::Status Write();

  const std::string manifest_uri_, path_;
  const std::uint64_t bytes_max_;
  v1::Manifest manifest_;
  bool begun_ = false;
  int next_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<Rows> tables_;
  absl::Status status_;
};

}  // namespace evergrad::coordinator
