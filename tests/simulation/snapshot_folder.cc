#include "tests/simulation/snapshot_folder.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace evergrad::simulation {
namespace {

constexpr std::size_t kManifestsKept = 2;  // the number of manifests that are kept of each job

}  // namespace

bool SameUpdates(const HeldState& a, const HeldState& b) {
  const ps_server::Ledger &l = a.shard->ledger(), &m = b.shard->ledger();
  const auto same_bits = [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.bits == y.second.bits;
  };
  return a.count == b.count && l.done() == m.done() && l.refused() == m.refused() &&
         std::equal(l.open().begin(), l.open().end(), m.open().begin(), m.open().end(), same_bits);
}

Snapshot DescribeCut(const HeldState& cut, std::uint32_t p) {
  const ps_server::Shard& shard = *cut.shard;
  Snapshot snapshot;
  snapshot.folder = absl::StrCat("job-", cut.job.value());
  snapshot.file = absl::StrCat(p, "-", shard.epoch().ToString(), "-", shard.lsn());
  snapshot.job = cut.job;
  snapshot.epoch = shard.epoch();
  snapshot.start = shard.start();
  snapshot.lsn = shard.lsn();
  snapshot.vlsn = shard.vlsn();
  snapshot.done = shard.ledger().done();
  snapshot.refused = shard.ledger().refused();
  return snapshot;
}

Snapshot SnapshotFolder::Write(std::unique_ptr<HeldState> cut, std::uint32_t p) {
  Snapshot snapshot = DescribeCut(*cut, p);
  walk_.Trace("file ", snapshot.Uri(), " is durable");
  File& file = files_[snapshot.Uri()];
  if (file.state && !SameUpdates(*file.state, *cut))
    walk_.Fail(absl::StrCat("27 one name, two contents: ", snapshot.Uri()));
  file.p = p;
  file.state = std::move(cut);
  file.health = File::kWhole;
  return snapshot;
}

const File* SnapshotFolder::Find(const std::string& uri) const {
  const auto file = files_.find(uri);
  return file == files_.end() ? nullptr : &file->second;
}

std::set<std::string> SnapshotFolder::AddManifest(JobUid job, std::vector<Snapshot> shards,
                                                  std::uint64_t evaluated) {
  std::uint64_t number = 1;
  for (const ManifestFile& m : manifests_) {
    if (m.job == job) number = std::max(number, m.number + 1);
  }
  for (const Snapshot& snapshot : shards) {
    if (!walk_.options.torn && Find(snapshot.Uri()) == nullptr &&
        !given_up_.contains(snapshot.Uri()))
      walk_.Fail(absl::StrCat("27 a manifest names a file that is not there: ", snapshot.Uri()));
  }
  walk_.Count("manifest");
  walk_.Trace("manifest ", number, " is durable");
  manifests_.push_back({job, number, std::move(shards), evaluated, false});
  std::size_t kept = 0;
  std::set<std::string> needed;
  for (std::size_t i = manifests_.size(); i-- > 0;) {
    const ManifestFile& m = manifests_[i];
    if (m.job != job) continue;
    if (kept >= kManifestsKept) {
      manifests_.erase(manifests_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (!m.damaged) {
      ++kept;
      for (const Snapshot& snapshot : m.shards) needed.insert(snapshot.Uri());
    }
  }
  return needed;
}

void SnapshotFolder::DeleteFiles(JobUid job, const Sweep& sweep) {
  for (auto it = files_.begin(); it != files_.end();) {
    const auto here = it++;
    const auto& [uri, file] = *here;
    if (file.state->job != job || sweep.needed.contains(uri)) continue;
    const ps_server::Shard& shard = *file.state->shard;
    if (std::pair(shard.epoch(), shard.lsn()) > sweep.newest[file.p])
      continue;  // a server may not have reported this file yet
    CheckUnneeded(uri, file);
    walk_.Count("file deleted");
    walk_.Trace("file ", uri, " is deleted");
    if (file.health != File::kWhole) given_up_.insert(uri);
    files_.erase(here);
  }
}

void SnapshotFolder::CheckUnneeded(const std::string& uri, const File& file) {
  for (const ManifestFile& m : manifests_) {
    const bool names = std::any_of(m.shards.begin(), m.shards.end(),
                                   [&](const Snapshot& s) { return s.Uri() == uri; });
    if (names && !m.damaged && file.health == File::kWhole)
      walk_.Fail(absl::StrCat("30 a file is deleted that a kept manifest names: ", uri,
                              " manifest=", m.number));
  }
}

void SnapshotFolder::Damage() {
  if (!manifests_.empty() && walk_.random.Chance(0.4)) {
    manifests_[walk_.random.Below(manifests_.size())].damaged = true;
    walk_.Count("manifest damaged");
    return;
  }
  if (files_.empty()) return;
  auto it = files_.begin();
  std::advance(it, walk_.random.Below(files_.size()));
  it->second.health = walk_.random.Chance(0.5) ? File::kBadInside : File::kBadAtTheEnds;
  walk_.Trace("file ", it->first, " is damaged");
}

const ManifestFile* SnapshotFolder::ResumePoint() const {
  const auto looks_whole = [&](const Snapshot& snapshot) {
    const File* file = Find(snapshot.Uri());
    return file != nullptr && file->health != File::kBadAtTheEnds;
  };
  for (auto m = manifests_.rbegin(); m != manifests_.rend(); ++m) {
    if (!m->damaged && std::all_of(m->shards.begin(), m->shards.end(), looks_whole)) return &*m;
  }
  return nullptr;
}

}  // namespace evergrad::simulation
