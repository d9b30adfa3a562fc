#include <algorithm>
#include <array>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "common/snapshot/layout.h"
#include "common/snapshot/shard_file.h"

namespace evergrad::snapshot {

absl::string_view SectionName(Section section) {
  switch (section) {
    case Section::kValues: return "values";
    case Section::kState: return "optimizer state";
    case Section::kCounters: return "counters";
    case Section::kLedger: return "ledger";
    case Section::kRows: return "rows";
    case Section::kFilter: return "filter";
  }
  return "section";
}

std::string ShardFileName(ShardId shard, ShardEpoch epoch, std::uint64_t lsn) {
  return absl::StrFormat("shard-%05u.epoch-%u-%u.lsn-%u.egshard", shard.value(), epoch.term,
                         epoch.n, lsn);
}

std::optional<ShardFileKey> ParseShardFileName(absl::string_view name) {
  const absl::string_view whole = name;
  ShardFileKey key;
  std::uint32_t shard = 0;
  const auto number = [&](absl::string_view prefix, auto* out) {
    if (!absl::ConsumePrefix(&name, prefix)) return false;
    const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    const bool read = absl::SimpleAtoi(name.substr(0, digits), out);
    name.remove_prefix(digits);
    return read;
  };
  if (!number("shard-", &shard) || !number(".epoch-", &key.epoch.term) ||
      !number("-", &key.epoch.n) || !number(".lsn-", &key.lsn) || name != ".egshard") {
    return std::nullopt;
  }
  key.shard = ShardId(shard);
  // A name with another spelling of a number, such as leading zeros, is not valid.
  if (ShardFileName(key.shard, key.epoch, key.lsn) != whole) return std::nullopt;
  return key;
}

ShardFileWriter::ShardFileWriter(fs::WritableFile* out) : out_(*out) {
  block_.reserve(kBlockHeaderBytes + kBlockBytes + kAlignment);
}

absl::Status ShardFileWriter::Put(std::span<const std::byte> bytes) {
  hash_.Update(bytes);
  offset_ += bytes.size();
  return out_.Append(bytes);
}

absl::Status ShardFileWriter::PutPadded(std::span<const std::byte> bytes, std::size_t alignment) {
  constexpr std::array<std::byte, kPreambleBytes> kZeros{};
  EG_RETURN_IF_ERROR(Put(bytes));
  return Put(std::span(kZeros).first(RoundUp(bytes.size(), alignment) - bytes.size()));
}

absl::StatusOr<std::unique_ptr<ShardFileWriter>> ShardFileWriter::Begin(
    fs::WritableFile* out, const v1::ShardFileHeader& header) {
  std::unique_ptr<ShardFileWriter> writer(new ShardFileWriter(out));
  const std::string bytes = header.SerializeAsString();
  if (bytes.empty() || bytes.size() > kHeaderBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header of a shard file has an invalid size: bytes=", bytes.size(),
                     " max=", kHeaderBytesMax));
  }
  std::array<std::byte, kPreambleBytes> preamble{};
  std::memcpy(preamble.data(), kShardMagic, kMagicBytes);
  Store(std::span(preamble), 8, kVersion);
  Store(std::span(preamble), 12, kBlockBytes);
  Store(std::span(preamble), 16, static_cast<std::uint32_t>(bytes.size()));
  Store(std::span(preamble), 20, Crc32c(BytesOf(bytes)));
  Seal(preamble);
  EG_RETURN_IF_ERROR(writer->Put(preamble));
  EG_RETURN_IF_ERROR(writer->PutPadded(BytesOf(bytes), kAlignment));
  return writer;
}

absl::Status ShardFileWriter::BeginSection(Section section, std::uint32_t index) {
  EG_RETURN_IF_ERROR(EndBlock());
  v1::SectionEntry* entry = footer_.add_sections();
  entry->set_section(static_cast<std::uint32_t>(section));
  entry->set_index(index);
  entry->set_offset(offset_);
  return absl::OkStatus();
}

absl::Status ShardFileWriter::Append(std::span<const std::byte> bytes) {
  EG_CHECK(footer_.sections_size() > 0);
  while (!bytes.empty()) {
    if (block_.empty()) block_.resize(kBlockHeaderBytes);
    const std::size_t room = kBlockHeaderBytes + kBlockBytes - block_.size();
    const std::size_t n = std::min(room, bytes.size());
    block_.insert(block_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    bytes = bytes.subspan(n);
    if (n == room) EG_RETURN_IF_ERROR(EndBlock());
  }
  return absl::OkStatus();
}

absl::Status ShardFileWriter::EndBlock() {
  if (block_.empty()) return absl::OkStatus();
  v1::SectionEntry& entry = *footer_.mutable_sections(footer_.sections_size() - 1);
  const std::span<std::byte> head = std::span(block_).first(kBlockHeaderBytes);
  const std::span<const std::byte> payload =
      std::span<const std::byte>(block_).subspan(kBlockHeaderBytes);
  Store(head, 0, kBlockMagic);
  Store(head, 4, entry.section());
  Store(head, 8, entry.index());
  Store(head, 12, static_cast<std::uint32_t>(payload.size()));
  Store(head, 16, entry.bytes());
  Store(head, 24, Crc32c(payload));
  Seal(head);
  entry.set_bytes(entry.bytes() + payload.size());
  entry.set_blocks(entry.blocks() + 1);
  absl::Status status = PutPadded(block_, kAlignment);
  block_.clear();
  return status;
}

absl::Status ShardFileWriter::WriteCounters(const v1::ShardCounters& counters) {
  EG_RETURN_IF_ERROR(BeginSection(Section::kCounters, 0));
  const std::string bytes = counters.SerializeAsString();
  if (bytes.size() > kCountersBytesMax)
    return absl::ResourceExhaustedError(absl::StrCat(
        "the counters are too large: bytes=", bytes.size(), " max=", kCountersBytesMax));
  return Append(BytesOf(bytes));
}

absl::Status ShardFileWriter::WriteLedger(const v1::ShardLedger& ledger) {
  EG_RETURN_IF_ERROR(BeginSection(Section::kLedger, 0));
  if (ledger.ByteSizeLong() > kLedgerBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the ledger is too large: bytes=", ledger.ByteSizeLong(), " max=", kLedgerBytesMax));
  }
  return Append(BytesOf(ledger.SerializeAsString()));
}

absl::StatusOr<FileDigest> ShardFileWriter::Finish() {
  EG_RETURN_IF_ERROR(EndBlock());
  const std::uint64_t footer_offset = offset_;
  const std::string bytes = footer_.SerializeAsString();
  if (bytes.size() > kFooterBytesMax)
    return absl::ResourceExhaustedError(
        absl::StrCat("too many sections: bytes=", bytes.size(), " max=", kFooterBytesMax));
  EG_RETURN_IF_ERROR(PutPadded(BytesOf(bytes), kAlignment));
  std::array<std::byte, kTrailerBytes> trailer{};
  std::memcpy(trailer.data(), kTrailerMagic, kMagicBytes);
  Store(std::span(trailer), 8, static_cast<std::uint32_t>(bytes.size()));
  Store(std::span(trailer), 12, Crc32c(BytesOf(bytes)));
  Store(std::span(trailer), 16, footer_offset);
  const Sha256Digest before = hash_.Value();
  std::copy(before.begin(), before.end(), trailer.begin() + 28);
  Seal(trailer);
  EG_RETURN_IF_ERROR(Put(trailer));
  return FileDigest{offset_, hash_.Value()};
}

}  // namespace evergrad::snapshot
