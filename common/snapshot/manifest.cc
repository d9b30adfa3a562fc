#include "common/snapshot/manifest.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <array>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/snapshot/layout.h"
#include "common/snapshot/messages.h"

namespace evergrad::snapshot {
namespace {

// Checks the rules of a manifest that was read or will be written. Returns "" for a valid manifest.
std::string Defect(const v1::Manifest& m) {
  if (m.shards_size() == 0 || m.shards_size() != m.plan().shards_size())
    return absl::StrCat("shards: want=", m.plan().shards_size(), " got=", m.shards_size());
  for (int i = 0; i < m.shards_size(); ++i) {
    const v1::ShardFile& s = m.shards(i);
    const auto at = [&](absl::string_view what) {
      return absl::StrCat(what, ": shard=", s.shard());
    };
    if (s.shard() != m.plan().shards(i).shard())
      return absl::StrCat("order of shards: want=", m.plan().shards(i).shard(), " got=", s.shard());
    if (i > 0 && s.shard() <= m.shards(i - 1).shard()) return at("duplicate shard");
    const auto done = FromProto(s.done()), refused = FromProto(s.refused());
    if (!done.ok() || !refused.ok()) return at("a set is malformed");
    if (s.file().empty()) {
      if (s.bytes() != 0 || !s.sha256().empty() || s.lsn() != 0 || s.vlsn() != 0 || !done->empty())
        return at("the shard has no file, but a size, a digest or progress");
      continue;
    }
    const auto key = ParseShardFileName(s.file());
    if (!key) return at("not a shard file's name");
    if (key->shard.value() != s.shard() || key->epoch != FromProto<ShardEpoch>(s.epoch()) ||
        key->lsn != s.lsn())
      return at("the name of the file does not match its entry");
    if (s.sha256().size() != sizeof(Sha256Digest)) return at("sha256 is not 32 bytes");
    if (s.bytes() < kPreambleBytes + kTrailerBytes)
      return at("the file's size is below the minimum");
    if (s.vlsn() > s.lsn()) return at("vlsn above lsn");
  }
  if (m.complete() != DoneSetsAreEqual(m))
    return absl::StrCat("complete: want=", DoneSetsAreEqual(m), " got=", m.complete());
  return "";
}

absl::Status Damaged(absl::string_view path, std::uint64_t offset, absl::string_view what,
                     absl::string_view want, absl::string_view got) {
  return absl::DataLossError(absl::StrCat("manifest is damaged: ", what, ": path=", path,
                                          " offset=", offset, " want=", want, " got=", got));
}

}  // namespace

std::string ManifestName(std::uint64_t number) {
  return absl::StrFormat("manifest-%012u.egmanifest", number);
}

std::optional<std::uint64_t> ParseManifestName(absl::string_view name) {
  const absl::string_view whole = name;
  std::uint64_t number = 0;
  if (!absl::ConsumePrefix(&name, "manifest-") || !absl::ConsumeSuffix(&name, ".egmanifest") ||
      !absl::SimpleAtoi(name, &number) || ManifestName(number) != whole) {
    return std::nullopt;
  }
  return number;
}

bool DoneSetsAreEqual(const v1::Manifest& manifest) {
  for (const v1::ShardFile& shard : manifest.shards()) {
    const auto& first = manifest.shards(0).done().bounds();
    if (!std::equal(first.begin(), first.end(), shard.done().bounds().begin(),
                    shard.done().bounds().end()))
      return false;
  }
  return true;
}

absl::StatusOr<std::string> EncodeManifest(const v1::Manifest& manifest) {
  if (const std::string defect = Defect(manifest); !defect.empty())
    return absl::InvalidArgumentError(absl::StrCat("not a manifest: ", defect));
  if (manifest.ByteSizeLong() > kManifestBytesMax)
    return absl::ResourceExhaustedError(absl::StrCat(
        "the manifest is too large: bytes=", manifest.ByteSizeLong(), " max=", kManifestBytesMax));
  std::string text;
  if (!manifest.SerializeToString(&text))
    return absl::InvalidArgumentError("the manifest cannot be serialized");
  std::array<std::byte, kPreambleBytes> preamble{};
  std::memcpy(preamble.data(), kManifestMagic, kMagicBytes);
  Store(std::span(preamble), 8, kVersion);
  Store(std::span(preamble), 12, static_cast<std::uint64_t>(text.size()));
  Sha256 hash;
  hash.Update(BytesOf(text));
  const Sha256Digest digest = hash.Value();
  std::copy(digest.begin(), digest.end(), preamble.begin() + 20);
  Seal(preamble);
  return absl::StrCat(
      absl::string_view(reinterpret_cast<const char*>(preamble.data()), preamble.size()), text);
}

absl::StatusOr<v1::Manifest> DecodeManifest(absl::string_view bytes, absl::string_view path) {
  const std::span<const std::byte> all = BytesOf(bytes);
  if (all.size() < kPreambleBytes)
    return Damaged(path, all.size(), "file ends early",
                   absl::StrCat("at least ", kPreambleBytes, " bytes"), absl::StrCat(all.size()));
  const auto preamble = all.first(kPreambleBytes);
  if (!HasMagic(preamble, kManifestMagic))
    return Damaged(path, 0, "not a manifest", "EGMANIF", Hex(preamble.first(kMagicBytes)));
  if (!IsSealed(preamble))
    return Damaged(path, 0, "checksum of the preamble", absl::StrCat(Crc32c(preamble.first(60))),
                   absl::StrCat(Load<std::uint32_t>(preamble, 60)));
  if (const auto version = Load<std::uint32_t>(preamble, 8); version != kVersion) {
    return absl::UnimplementedError(absl::StrCat("the manifest has another version: path=", path,
                                                 " version=", version, " supported=", kVersion,
                                                 version > kVersion ? " (use a newer build)" : ""));
  }
  if (!AllZero(preamble.subspan(52, 8)))
    return Damaged(path, 52, "reserved bytes", "zeros", "other");
  const auto text = all.subspan(kPreambleBytes);
  if (const auto want = Load<std::uint64_t>(preamble, 12); want != text.size())
    return Damaged(path, all.size(), "file size", absl::StrCat(want + kPreambleBytes),
                   absl::StrCat(all.size()));
  Sha256 hash;
  hash.Update(text);
  const Sha256Digest got = hash.Value();
  if (!std::equal(got.begin(), got.end(), preamble.begin() + 20))
    return Damaged(path, kPreambleBytes, "sha256 of the contents", Hex(preamble.subspan(20, 32)),
                   Hex(got));
  v1::Manifest manifest;
  if (text.size() > kManifestBytesMax ||
      !manifest.ParseFromArray(text.data(), static_cast<int>(text.size())))
    return Damaged(path, kPreambleBytes, "not a message", "protobuf", "other bytes");
  if (const std::string defect = Defect(manifest); !defect.empty())
    return Damaged(path, kPreambleBytes, "contents do not fit together", "a manifest", defect);
  return manifest;
}

absl::Status WriteManifest(fs::FileSystem& files, absl::string_view folder,
                           const v1::Manifest& manifest) {
  EG_ASSIGN_OR_RETURN(const std::string bytes, EncodeManifest(manifest));
  return fs::WriteWhole(files, fs::JoinUri(folder, ManifestName(manifest.number())), bytes);
}

absl::StatusOr<v1::Manifest> ReadManifest(fs::FileSystem& files, absl::string_view uri) {
  EG_ASSIGN_OR_RETURN(const std::string bytes,
                      fs::ReadWhole(files, uri, kManifestBytesMax + kPreambleBytes));
  return DecodeManifest(bytes, uri);
}

absl::StatusOr<std::vector<std::uint64_t>> ListManifests(fs::FileSystem& files,
                                                         absl::string_view folder) {
  EG_ASSIGN_OR_RETURN(const std::vector<fs::ListedFile> entries, files.List(folder));
  std::vector<std::uint64_t> numbers;
  for (const fs::ListedFile& entry : entries)
    if (const auto number = ParseManifestName(entry.name); number && !entry.is_folder)
      numbers.push_back(*number);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

absl::StatusOr<NewestManifest> FindNewestManifest(fs::FileSystem& files, absl::string_view folder) {
  EG_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> numbers, ListManifests(files, folder));
  NewestManifest newest;
  std::string reasons;
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    newest.uri = fs::JoinUri(folder, ManifestName(*number));
    absl::StatusOr<v1::Manifest> manifest = ReadManifest(files, newest.uri);
    if (manifest.ok() && manifest->number() != *number) {
      manifest = Damaged(newest.uri, 0, "the number in the name belongs to another manifest",
                         absl::StrCat(*number), absl::StrCat(manifest->number()));
    }
    if (manifest.ok()) {
      newest.manifest = *std::move(manifest);
      return newest;
    }
    absl::StrAppend(&reasons, "; ", manifest.status().message());
    newest.passed_over.push_back(manifest.status());
  }
  return absl::NotFoundError(
      absl::StrCat("no readable manifest: path=", folder, " found=", numbers.size(), reasons));
}

absl::StatusOr<ShardFileReport> CheckShardOf(fs::FileSystem& files, absl::string_view folder,
                                             const v1::Manifest& manifest, int index, bool whole) {
  const v1::ShardFile& entry = manifest.shards(index);
  const std::string uri = fs::JoinUri(folder, entry.file());
  ShardFileReader::Expected expected{entry.bytes(), {}};
  std::copy_n(BytesOf(entry.sha256()).begin(), expected.sha256.size(), expected.sha256.begin());
  absl::StatusOr<ShardFileReport> report = absl::UnknownError("");
  if (whole) {
    report = VerifyShardFile(files, uri, expected);
  } else {
    report = DescribeShardFile(files, uri);
    if (report.ok() && report->bytes != entry.bytes())
      report = Damaged(uri, report->bytes, "file size differs from the manifest's",
                       absl::StrCat(entry.bytes()), absl::StrCat(report->bytes));
  }
  if (!report.ok()) return report;
  const v1::ShardFileHeader& h = report->header;
  const auto differs = [&](absl::string_view what, const std::string& want,
                           const std::string& got) {
    return absl::DataLossError(absl::StrCat("shard file does not match its manifest: ", what,
                                            ": path=", uri, " want=", want, " got=", got));
  };
  const auto stamp = [](const v1::Stamp& s) { return absl::StrCat(s.term(), ".", s.n()); };
  if (h.job_uid() != manifest.job_uid())
    return differs("job", JobUidString(JobUid(manifest.job_uid())),
                   JobUidString(JobUid(h.job_uid())));
  if (h.plan_fingerprint() != manifest.plan().fingerprint())
    return differs("plan", manifest.plan().fingerprint(), h.plan_fingerprint());
  if (h.shard() != entry.shard())
    return differs("shard", absl::StrCat(entry.shard()), absl::StrCat(h.shard()));
  if (stamp(h.epoch()) != stamp(entry.epoch()))
    return differs("epoch", stamp(entry.epoch()), stamp(h.epoch()));
  if (stamp(h.start()) != stamp(entry.start()))
    return differs("start", stamp(entry.start()), stamp(h.start()));
  if (h.lsn() != entry.lsn())
    return differs("lsn", absl::StrCat(entry.lsn()), absl::StrCat(h.lsn()));
  if (h.vlsn() != entry.vlsn())
    return differs("vlsn", absl::StrCat(entry.vlsn()), absl::StrCat(h.vlsn()));
  if (h.kind() == v1::SHARD_KIND_DENSE) {
    // The header of a file does not state wire_dtype, the type in which a job sends the values,
    // because the contents of the file do not depend on this type.
    v1::ShardSpec want = manifest.plan().shards(index);
    if (want.has_variable()) want.mutable_variable()->clear_wire_dtype();
    if (!google::protobuf::util::MessageDifferencer::Equals(h.dense(), want))
      return differs("cut", want.ShortDebugString(), h.dense().ShortDebugString());
  }
  if (h.kind() == v1::SHARD_KIND_SLOT) {
    const v1::ShardSpec& spec = manifest.plan().shards(index);
    const auto text = [](std::uint32_t slot, std::uint32_t slots, const auto& tables) {
      std::string all = absl::StrCat("slot ", slot, " of ", slots, ":");
      for (const v1::TableSpec& table : tables)
        absl::StrAppend(&all, " ", table.name(), " x ", table.dimension());
      return all;
    };
    const std::string want =
        spec.has_slot() ? text(spec.slot().slot(), spec.slot().slots(), manifest.plan().tables())
                        : "a dense shard";
    if (const std::string got = text(h.slot().slot(), h.slot().slots(), h.slot().tables());
        got != want)
      return differs("cut", want, got);
  }
  if (report->done != *FromProto(entry.done()))
    return differs("done", FromProto(entry.done())->ToString(), report->done.ToString());
  if (report->refused != *FromProto(entry.refused()))
    return differs("refused", FromProto(entry.refused())->ToString(), report->refused.ToString());
  return report;
}

}  // namespace evergrad::snapshot
