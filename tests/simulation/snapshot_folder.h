// The folder that all processes share. It has the files of shards [27] and the manifests. Sweeps
// delete files in it [30].
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/messages.h"
#include "tests/simulation/walk_context.h"

namespace evergrad::simulation {

// A durable file that has a cut of a shard.
struct File {
  std::uint32_t p = 0;
  std::unique_ptr<HeldState> state;
  enum {
    kWhole,
    kBadInside,
    // The damage is found only when a server loads the file or when a manifest is chosen.
    kBadAtTheEnds
  } health = kWhole;
};

struct ManifestFile {
  JobUid job;
  std::uint64_t number = 0;
  std::vector<Snapshot> shards;
  std::uint64_t evaluated = 0;  // number of evaluations with a metric
  bool damaged = false;
};

// The files that a sweep must not delete, as SweepRequest of coordinator/checkpoints lists them.
struct Sweep {
  std::set<std::string> needed;
  std::array<std::pair<ShardEpoch, std::uint64_t>, kShards> newest{};
};

// Returns whether two states of one shard that have the same lsn also have the same updates. Their
// attempts may differ: a DUPLICATE can raise an attempt without raising the lsn [6].
bool SameUpdates(const HeldState& a, const HeldState& b);

// Returns the description of the file into which a cut of shard p is written.
Snapshot DescribeCut(const HeldState& cut, std::uint32_t p);

class SnapshotFolder {
 public:
  // `walk` must outlive the folder.
  explicit SnapshotFolder(WalkContext& walk) : walk_(walk) {}

  // Writes a cut to a durable file. If a file of the same name exists, it must have the same
  // content.
  Snapshot Write(std::unique_ptr<HeldState> cut, std::uint32_t p);
  // Returns the file, or nullptr if it does not exist.
  const File* Find(const std::string& uri) const;
  // Adds a manifest of the job and deletes old manifests of the job. Returns the files that the
  // kept manifests name.
  std::set<std::string> AddManifest(JobUid job, std::vector<Snapshot> shards,
                                    std::uint64_t evaluated);
  void DeleteFiles(JobUid job, const Sweep& sweep);
  // Damages a random file or manifest.
  void Damage();
  // Returns the newest manifest from which a job can resume, or nullptr.
  const ManifestFile* ResumePoint() const;

 private:
  void CheckUnneeded(const std::string& uri, const File& file);

  WalkContext& walk_;
  std::map<std::string, File> files_;    // by URI
  std::set<std::string> given_up_;       // damaged files that have been deleted
  std::vector<ManifestFile> manifests_;  // manifests of all jobs, oldest first
};

}  // namespace evergrad::simulation
