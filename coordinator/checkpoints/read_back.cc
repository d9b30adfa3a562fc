#include "coordinator/checkpoints/read_back.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/snapshot/manifest.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kHostsNamedMax = 8;

}  // namespace

ReadBack::ReadBack(std::string folder, v1::Manifest manifest, Options options)
    : folder_(std::move(folder)), manifest_(std::move(manifest)), options_(std::move(options)) {}

absl::Status ReadBack::Look(fs::FileSystem& files, int index, std::uint64_t* read) {
  const v1::ShardFile& entry = manifest_.shards(index);
  const std::string uri = fs::JoinUri(folder_, entry.file());
  const auto found = sizes_.lower_bound({entry.file(), 0});
  // A network file system may list a new file only after some seconds. Opening the file makes the
  // client ask the server of the file system.
  if (found == sizes_.end() || found->first != entry.file())
    return snapshot::CheckShardOf(files, folder_, manifest_, index, options_.whole).status();
  if (found->second != entry.bytes()) {
    return absl::DataLossError(
        absl::StrCat("the size of a shard file differs from its server's report: path=", uri,
                     " want=", entry.bytes(), " got=", found->second));
  }
  if (!options_.whole && options_.read_before.contains(entry.file())) return absl::OkStatus();
  *read += options_.whole ? entry.bytes() : std::min<std::uint64_t>(entry.bytes(), 1u << 20);
  return snapshot::CheckShardOf(files, folder_, manifest_, index, options_.whole).status();
}

bool ReadBack::Step(fs::FileSystem& files) {
  if (!listed_) {
    listed_ = true;
    const auto entries = files.List(folder_);
    if (entries.ok()) {
      for (const fs::ListedFile& entry : *entries)
        if (!entry.is_folder) sizes_.emplace(entry.name, entry.bytes);
    } else if (!absl::IsNotFound(entries.status())) {
      for (; next_ < total(); ++next_)
        unread_.push_back(
            {manifest_.shards(next_).shard(), manifest_.shards(next_).host(), entries.status()});
    }
  }
  for (std::uint64_t read = 0; next_ < total() && read < options_.step_bytes; ++next_) {
    const v1::ShardFile& entry = manifest_.shards(next_);
    if (entry.file().empty()) continue;
    if (absl::Status status = Look(files, next_, &read); !status.ok())
      unread_.push_back({entry.shard(), entry.host(), std::move(status)});
  }
  return next_ >= total();
}

absl::Status UnreadError(const std::vector<UnreadFile>& unread, int total, absl::string_view folder,
                         absl::string_view this_host) {
  if (unread.empty()) return absl::OkStatus();
  const UnreadFile* worst = &unread.front();
  std::map<std::string, std::size_t> hosts;
  for (const UnreadFile& file : unread) {
    ++hosts[file.host.empty() ? "unknown" : file.host];
    if (absl::IsNotFound(worst->status) && !absl::IsNotFound(file.status)) worst = &file;
  }
  std::vector<std::string> named;
  for (const auto& [host, files] : hosts) {
    if (named.size() == kHostsNamedMax) {
      named.push_back(absl::StrCat("and ", hosts.size() - kHostsNamedMax, " more"));
      break;
    }
    named.push_back(absl::StrCat(host, " (", files, ")"));
  }
  const std::string which = absl::StrCat(
      unread.size(), " of ", total, " shard files, written on host ", absl::StrJoin(named, ", "));
  if (absl::IsNotFound(worst->status)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint folder is not shared: the coordinator on host ", this_host,
                     " cannot see ", which, ": ", worst->status.message(),
                     " (set checkpoint.directory to a folder that every server and the coordinator "
                     "see, or checkpoint: off)"));
  }
  return absl::Status(
      worst->status.code(),
      absl::StrCat("the coordinator on host ", this_host, " cannot read back ", which, ": shard ",
                   worst->shard, ": ", worst->status.message(), " folder=", folder));
}

}  // namespace evergrad::coordinator
