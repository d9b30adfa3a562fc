#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "common/snapshot/contents_check.h"
#include "common/snapshot/layout.h"
#include "common/snapshot/messages.h"
#include "common/snapshot/shard_file.h"

namespace evergrad::snapshot {
namespace {

std::string Text(std::uint64_t n) { return absl::StrCat(n); }
std::string HexText(std::uint32_t n) { return absl::StrCat(absl::Hex(n, absl::kZeroPad8)); }

}  // namespace

absl::Status ShardFileReader::Damaged(std::uint64_t offset, absl::string_view what,
                                      absl::string_view want, absl::string_view got) const {
  return absl::DataLossError(absl::StrCat("snapshot file is damaged: ", what, ": path=", uri_,
                                          " offset=", offset, " want=", want, " got=", got));
}

absl::Status ShardFileReader::Read(std::uint64_t offset, std::span<std::byte> out) const {
  EG_ASSIGN_OR_RETURN(const std::size_t n, file_->ReadAt(offset, out));
  if (n != out.size())
    return Damaged(offset + n, "file ends early", absl::StrCat(out.size(), " bytes"),
                   absl::StrCat(n, " bytes"));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ShardFileReader>> ShardFileReader::Open(
    fs::FileSystem& files, absl::string_view uri, std::optional<Expected> expected) {
  std::unique_ptr<ShardFileReader> reader(new ShardFileReader);
  reader->uri_ = std::string(uri);
  EG_ASSIGN_OR_RETURN(reader->file_, files.Open(uri));
  reader->size_ = reader->file_->size();
  if (expected) reader->expected_hash_ = expected->sha256;
  EG_RETURN_IF_ERROR(reader->ReadEnds(expected));
  const auto damage = [&](std::uint64_t offset, absl::string_view what, absl::string_view want,
                          absl::string_view got) {
    return reader->Damaged(offset, what, want, got);
  };
  EG_RETURN_IF_ERROR(CheckHeader(reader->header_, damage));
  EG_RETURN_IF_ERROR(CheckSections(reader->header_, reader->footer_, reader->blocks_begin_,
                                   reader->footer_offset_, damage));
  return reader;
}

absl::Status ShardFileReader::ReadPreamble() {
  std::array<std::byte, kPreambleBytes> preamble;
  EG_RETURN_IF_ERROR(Read(0, preamble));
  if (!HasMagic(preamble, kShardMagic))
    return Damaged(0, "not a shard file", "EGSHARD", Hex(std::span(preamble).first(kMagicBytes)));
  // Version and checksum have the same place in every version, so that damage can be distinguished
  // from a newer version.
  if (!IsSealed(preamble))
    return Damaged(0, "checksum of the preamble", HexText(Crc32c(std::span(preamble).first(60))),
                   HexText(Load<std::uint32_t>(preamble, 60)));
  const auto version = Load<std::uint32_t>(preamble, 8);
  if (version != kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("the snapshot file has another version: path=", uri_, " version=", version,
                     " supported=", kVersion, version > kVersion ? " (use a newer build)" : ""));
  }
  if (const auto bytes = Load<std::uint32_t>(preamble, 12); bytes != kBlockBytes)
    return Damaged(12, "block size", Text(kBlockBytes), Text(bytes));
  header_part_.bytes = Load<std::uint32_t>(preamble, 16);
  if (header_part_.bytes == 0 || header_part_.bytes > kHeaderBytesMax ||
      header_part_.bytes > size_ - kPreambleBytes - kTrailerBytes) {
    return Damaged(
        16, "header size",
        absl::StrCat("1 to ", std::min<std::uint64_t>(kHeaderBytesMax,
                                                      size_ - kPreambleBytes - kTrailerBytes)),
        Text(header_part_.bytes));
  }
  if (!AllZero(std::span(preamble).subspan(24, 36)))
    return Damaged(24, "reserved bytes", "zeros", "other");
  blocks_begin_ = kPreambleBytes + RoundUp(header_part_.bytes, kAlignment);
  header_part_.crc = Load<std::uint32_t>(preamble, 20);
  return absl::OkStatus();
}

absl::Status ShardFileReader::ReadTrailer() {
  std::array<std::byte, kTrailerBytes> trailer;
  const std::uint64_t trailer_offset = size_ - kTrailerBytes;
  EG_RETURN_IF_ERROR(Read(trailer_offset, trailer));
  if (!HasMagic(trailer, kTrailerMagic))
    return Damaged(trailer_offset, "no trailer at the end (truncated?)", "EGSHEND",
                   Hex(std::span(trailer).first(kMagicBytes)));
  if (!IsSealed(trailer))
    return Damaged(trailer_offset, "checksum of the trailer",
                   HexText(Crc32c(std::span(trailer).first(60))),
                   HexText(Load<std::uint32_t>(trailer, 60)));
  if (!AllZero(std::span(trailer).subspan(24, 4)))
    return Damaged(trailer_offset + 24, "reserved bytes", "zeros", "other");
  footer_part_.bytes = Load<std::uint32_t>(trailer, 8);
  footer_offset_ = Load<std::uint64_t>(trailer, 16);
  if (footer_part_.bytes > kFooterBytesMax || footer_offset_ < blocks_begin_ ||
      footer_offset_ > trailer_offset ||
      trailer_offset - footer_offset_ != RoundUp(footer_part_.bytes, kAlignment)) {
    return Damaged(trailer_offset, "place of the footer",
                   absl::StrCat(blocks_begin_, " to ", trailer_offset),
                   absl::StrCat(footer_offset_, " with ", footer_part_.bytes, " bytes"));
  }
  std::copy_n(trailer.begin() + 28, trailer_hash_.size(), trailer_hash_.begin());
  footer_part_.crc = Load<std::uint32_t>(trailer, 12);
  return absl::OkStatus();
}

absl::Status ShardFileReader::Decode(const Part& part, std::span<const std::byte> bytes,
                                     std::uint64_t offset, absl::string_view name,
                                     google::protobuf::MessageLite* message) const {
  const auto text = bytes.first(part.bytes);
  if (const std::uint32_t got = Crc32c(text); got != part.crc)
    return Damaged(offset, absl::StrCat("checksum of the ", name), HexText(part.crc), HexText(got));
  if (!AllZero(bytes.subspan(part.bytes, RoundUp(part.bytes, kAlignment) - part.bytes)))
    return Damaged(offset + part.bytes, absl::StrCat("padding of the ", name), "zeros", "other");
  if (!message->ParseFromArray(text.data(), static_cast<int>(part.bytes)))
    return Damaged(offset, absl::StrCat(name, " is not a protobuf message"), "protobuf",
                   "other bytes");
  return absl::OkStatus();
}

absl::Status ShardFileReader::ReadEnds(const std::optional<Expected>& expected) {
  if (expected && expected->bytes != size_)
    return Damaged(std::min(size_, expected->bytes), "file size differs from the manifest's",
                   Text(expected->bytes), Text(size_));
  if (size_ < kPreambleBytes + kTrailerBytes)
    return Damaged(size_, "file ends early",
                   absl::StrCat("at least ", kPreambleBytes + kTrailerBytes, " bytes"),
                   Text(size_));
  EG_RETURN_IF_ERROR(ReadPreamble());
  EG_RETURN_IF_ERROR(ReadTrailer());
  head_.resize(blocks_begin_);
  EG_RETURN_IF_ERROR(Read(0, head_));
  tail_.resize(size_ - footer_offset_);
  EG_RETURN_IF_ERROR(Read(footer_offset_, tail_));
  EG_RETURN_IF_ERROR(Decode(header_part_, std::span<const std::byte>(head_).subspan(kPreambleBytes),
                            kPreambleBytes, "header", &header_));
  return Decode(footer_part_, tail_, footer_offset_, "footer", &footer_);
}

std::uint64_t ShardFileReader::EndOf(int section) const {
  return section + 1 < footer_.sections_size() ? footer_.sections(section + 1).offset()
                                               : footer_offset_;
}

absl::Status ShardFileReader::ReadSection(int number, Sha256* hash,
                                          const std::function<absl::Status(const Piece&)>& take) {
  const v1::SectionEntry& entry = footer_.sections(number);
  const std::uint64_t blocks_end = EndOf(number);
  std::uint64_t at = entry.offset(), done = 0;
  const auto section = static_cast<Section>(entry.section());
  std::string small;  // the complete counters or ledger
  for (std::uint32_t b = 0; b < entry.blocks(); ++b) {
    const auto where = [&] {
      return absl::StrCat("block ", b, " of section ", SectionName(section), " ", entry.index());
    };
    if (blocks_end - at < kBlockHeaderBytes)
      return Damaged(at, absl::StrCat(where(), " is missing"), "a block", "the section's end");
    std::array<std::byte, kBlockHeaderBytes> head;
    EG_RETURN_IF_ERROR(Read(at, head));
    if (!IsSealed(head))
      return Damaged(at, absl::StrCat("checksum of the header of ", where()),
                     HexText(Crc32c(std::span(head).first(kBlockHeaderBytes - 4))),
                     HexText(Load<std::uint32_t>(head, kBlockHeaderBytes - 4)));
    const std::uint64_t payload = Load<std::uint32_t>(head, 12);
    const bool self_contained = section == Section::kRows || section == Section::kFilter;
    const std::uint64_t left = entry.bytes() - done;
    const bool fits = self_contained
                          ? payload >= 1 && payload <= std::min<std::uint64_t>(left, kBlockBytes)
                          : payload == std::min<std::uint64_t>(left, kBlockBytes);
    if (Load<std::uint32_t>(head, 0) != kBlockMagic ||
        Load<std::uint32_t>(head, 4) != entry.section() ||
        Load<std::uint32_t>(head, 8) != entry.index() || Load<std::uint64_t>(head, 16) != done ||
        !fits || RoundUp(payload, kAlignment) > blocks_end - at - kBlockHeaderBytes) {
      return Damaged(at, absl::StrCat("header of ", where()),
                     absl::StrCat("section offset ", done, ", at most ", left, " bytes"),
                     absl::StrCat("section ", Load<std::uint32_t>(head, 4), " index ",
                                  Load<std::uint32_t>(head, 8), " offset ",
                                  Load<std::uint64_t>(head, 16), ", ", payload, " bytes"));
    }
    block_.resize(RoundUp(payload, kAlignment));
    EG_RETURN_IF_ERROR(Read(at + kBlockHeaderBytes, block_));
    const auto data = std::span<const std::byte>(block_).first(payload);
    if (const std::uint32_t crc = Crc32c(data); crc != Load<std::uint32_t>(head, 24)) {
      return Damaged(at + kBlockHeaderBytes, absl::StrCat("checksum of ", where()),
                     HexText(Load<std::uint32_t>(head, 24)), HexText(crc));
    }
    if (!AllZero(std::span<const std::byte>(block_).subspan(payload)))
      return Damaged(at + kBlockHeaderBytes + payload, absl::StrCat("padding of ", where()),
                     "zeros", "other");
    if (hash != nullptr) {
      hash->Update(head);
      hash->Update(block_);
    }
    if (section == Section::kCounters || section == Section::kLedger) {
      small.append(reinterpret_cast<const char*>(data.data()), data.size());
    } else {
      EG_RETURN_IF_ERROR(take({section, entry.index(), done, entry.bytes(), data}));
    }
    done += payload;
    at += kBlockHeaderBytes + block_.size();
  }
  if (done != entry.bytes() || at != blocks_end)
    return Damaged(at, absl::StrCat("end of section ", SectionName(section)),
                   absl::StrCat(entry.bytes(), " bytes to offset ", blocks_end),
                   absl::StrCat(done, " bytes to offset ", at));
  if (section == Section::kCounters) return TakeCounters(small, entry.offset());
  if (section == Section::kLedger) return TakeLedger(small, entry.offset());
  return absl::OkStatus();
}

absl::Status ShardFileReader::TakeCounters(const std::string& bytes, std::uint64_t offset) {
  if (!counters_.ParseFromString(bytes))
    return Damaged(offset, "counters are not a protobuf message", "protobuf", "other bytes");
  if (counters_.updates_applied() > header_.lsn())
    return Damaged(offset, "counters: updates above lsn", absl::StrCat("<= ", header_.lsn()),
                   Text(counters_.updates_applied()));
  for (int i = 1; i < counters_.skips_size(); ++i)
    if (counters_.skips(i - 1).reason() >= counters_.skips(i).reason())
      return Damaged(offset, "counters: skip reasons are not sorted",
                     counters_.skips(i - 1).reason(), counters_.skips(i).reason());
  return absl::OkStatus();
}

absl::Status ShardFileReader::TakeLedger(const std::string& bytes, std::uint64_t offset) {
  const auto bad = [&](absl::string_view what, absl::string_view want, absl::string_view got) {
    return Damaged(offset, absl::StrCat("ledger: ", what), want, got);
  };
  if (!ledger_.ParseFromString(bytes)) return bad("not a message", "protobuf", "other bytes");
  const auto done = FromProto(ledger_.done()), refused = FromProto(ledger_.refused());
  if (!done.ok() || !refused.ok())
    return bad("sets", "rising intervals", (done.ok() ? refused : done).status().message());
  done_ = *done;
  refused_ = *refused;
  std::optional<std::uint64_t> last;
  for (const v1::OpenClosure& open : ledger_.open()) {
    if (last && open.closure() <= *last)
      return bad("open closures are not in rising order", absl::StrCat("> ", *last),
                 Text(open.closure()));
    last = open.closure();
    if (open.bits_size() > static_cast<int>(kUpdatesPerClosureMax / 64))
      return bad("updates of an open closure", Text(kUpdatesPerClosureMax),
                 Text(static_cast<std::uint64_t>(open.bits_size()) * 64));
    if (done_.Contains(open.closure()) || refused_.Contains(open.closure()))
      return bad("an open closure has ended", "open", Text(open.closure()));
  }
  return absl::OkStatus();
}

absl::Status ShardFileReader::ReadLedger() {
  const auto nothing = [](const Piece&) { return absl::OkStatus(); };
  for (int i = 0; i < footer_.sections_size(); ++i) {
    const auto section = static_cast<Section>(footer_.sections(i).section());
    if (section == Section::kCounters || section == Section::kLedger)
      EG_RETURN_IF_ERROR(ReadSection(i, nullptr, nothing));
  }
  return absl::OkStatus();
}

absl::Status ShardFileReader::ReadAll(const std::function<absl::Status(const Piece&)>& take) {
  Sha256 hash;
  hash.Update(head_);
  for (int i = 0; i < footer_.sections_size(); ++i) EG_RETURN_IF_ERROR(ReadSection(i, &hash, take));
  const std::span<const std::byte> tail(tail_);
  hash.Update(tail.first(tail.size() - kTrailerBytes));
  if (const Sha256Digest got = hash.Value(); got != trailer_hash_)
    return Damaged(size_ - kTrailerBytes + 28, "sha256 of the file", Hex(trailer_hash_), Hex(got));
  hash.Update(tail.last(kTrailerBytes));
  sha256_ = hash.Value();
  if (expected_hash_ && *expected_hash_ != sha256_)
    return Damaged(0, "sha256 differs from the manifest's", Hex(*expected_hash_), Hex(sha256_));
  return absl::OkStatus();
}

}  // namespace evergrad::snapshot
