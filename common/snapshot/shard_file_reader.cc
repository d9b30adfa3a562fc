#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/base/mix.h"
#include "common/base/status.h"
#include "common/sharding/row_digest.h"
#include "common/snapshot/layout.h"
#include "common/snapshot/messages.h"
#include "common/snapshot/shard_file.h"

namespace evergrad::snapshot {
namespace {

std::string Text(std::uint64_t n) { return absl::StrCat(n); }
std::string HexText(std::uint32_t n) { return absl::StrCat(absl::Hex(n, absl::kZeroPad8)); }

bool KnownSection(std::uint32_t section) { return section >= 1 && section <= 6; }

// Returns the size of a dense shard's values in bytes; nullopt for an invalid description.
std::optional<std::uint64_t> ValueBytes(const v1::ShardSpec& spec) {
  const auto& shape = spec.variable().shape();
  if (spec.row_begin() >= spec.row_end() || spec.row_end() > (shape.empty() ? 1 : shape[0]))
    return std::nullopt;
  std::optional<std::uint64_t> bytes = CheckedMul(spec.row_end() - spec.row_begin(), sizeof(float));
  for (int i = 1; bytes && i < shape.size(); ++i) bytes = CheckedMul(*bytes, shape[i]);
  return bytes;
}

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
  EG_RETURN_IF_ERROR(reader->CheckHeader());
  EG_RETURN_IF_ERROR(reader->CheckSections());
  return reader;
}

absl::Status ShardFileReader::ReadEnds(const std::optional<Expected>& expected) {
  if (expected && expected->bytes != size_)
    return Damaged(std::min(size_, expected->bytes), "file size differs from the manifest's",
                   Text(expected->bytes), Text(size_));
  if (size_ < kPreambleBytes + kTrailerBytes)
    return Damaged(size_, "file ends early",
                   absl::StrCat("at least ", kPreambleBytes + kTrailerBytes, " bytes"),
                   Text(size_));
  std::array<std::byte, kPreambleBytes> preamble;
  EG_RETURN_IF_ERROR(Read(0, preamble));
  if (!HasMagic(preamble, kShardMagic))
    return Damaged(0, "not a shard file", "EGSHARD", Hex(std::span(preamble).first(kMagicBytes)));
  // Version and checksum have the same place in every version, so that damage can be told from a
  // newer version.
  if (!IsSealed(preamble))
    return Damaged(0, "checksum of the preamble", HexText(Crc32c(std::span(preamble).first(60))),
                   HexText(Load<std::uint32_t>(preamble, 60)));
  const auto version = Load<std::uint32_t>(preamble, 8);
  if (version != kVersion) {
    return absl::UnimplementedError(absl::StrCat(
        "snapshot file of another version: path=", uri_, " version=", version,
        " this build reads version ", kVersion, version > kVersion ? " (use a newer build)" : ""));
  }
  block_bytes_ = Load<std::uint32_t>(preamble, 12);
  if (block_bytes_ != kBlockBytes)
    return Damaged(12, "block size", Text(kBlockBytes), Text(block_bytes_));
  const std::uint64_t header_bytes = Load<std::uint32_t>(preamble, 16);
  if (header_bytes == 0 || header_bytes > kHeaderBytesMax ||
      header_bytes > size_ - kPreambleBytes - kTrailerBytes) {
    return Damaged(
        16, "header size",
        absl::StrCat("1 to ", std::min<std::uint64_t>(kHeaderBytesMax,
                                                      size_ - kPreambleBytes - kTrailerBytes)),
        Text(header_bytes));
  }
  if (!AllZero(std::span(preamble).subspan(24, 36)))
    return Damaged(24, "reserved bytes", "zeros", "other");
  blocks_begin_ = kPreambleBytes + RoundUp(header_bytes, kAlignment);

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
  const std::uint64_t footer_bytes = Load<std::uint32_t>(trailer, 8);
  footer_offset_ = Load<std::uint64_t>(trailer, 16);
  if (footer_bytes > kFooterBytesMax || footer_offset_ < blocks_begin_ ||
      footer_offset_ > trailer_offset ||
      trailer_offset - footer_offset_ != RoundUp(footer_bytes, kAlignment)) {
    return Damaged(trailer_offset, "place of the footer",
                   absl::StrCat(blocks_begin_, " to ", trailer_offset),
                   absl::StrCat(footer_offset_, " with ", footer_bytes, " bytes"));
  }
  std::copy_n(trailer.begin() + 28, trailer_hash_.size(), trailer_hash_.begin());

  head_.resize(blocks_begin_);
  EG_RETURN_IF_ERROR(Read(0, head_));
  tail_.resize(size_ - footer_offset_);
  EG_RETURN_IF_ERROR(Read(footer_offset_, tail_));
  const auto part = [&](std::span<const std::byte> bytes, std::uint64_t offset, std::uint64_t size,
                        std::uint32_t crc, absl::string_view name,
                        google::protobuf::MessageLite* message) -> absl::Status {
    const auto text = bytes.first(size);
    if (const std::uint32_t got = Crc32c(text); got != crc)
      return Damaged(offset, absl::StrCat("checksum of the ", name), HexText(crc), HexText(got));
    if (!AllZero(bytes.subspan(size, RoundUp(size, kAlignment) - size)))
      return Damaged(offset + size, absl::StrCat("padding of the ", name), "zeros", "other");
    if (!message->ParseFromArray(text.data(), static_cast<int>(size)))
      return Damaged(offset, absl::StrCat(name, " is not a protobuf message"), "protobuf",
                     "other bytes");
    return absl::OkStatus();
  };
  EG_RETURN_IF_ERROR(part(std::span<const std::byte>(head_).subspan(kPreambleBytes), kPreambleBytes,
                          header_bytes, Load<std::uint32_t>(preamble, 20), "header", &header_));
  return part(tail_, footer_offset_, footer_bytes, Load<std::uint32_t>(trailer, 12), "footer",
              &footer_);
}

absl::Status ShardFileReader::CheckHeader() const {
  const auto bad = [&](absl::string_view what, absl::string_view want, absl::string_view got) {
    return Damaged(kPreambleBytes, absl::StrCat("header: ", what), want, got);
  };
  if (header_.vlsn() > header_.lsn())
    return bad("vlsn above lsn", absl::StrCat("<= ", header_.lsn()), Text(header_.vlsn()));
  switch (header_.kind()) {
    case v1::SHARD_KIND_DENSE:
      if (header_.dense().shard() != header_.shard())
        return bad("shard of the rows", Text(header_.shard()), Text(header_.dense().shard()));
      if (header_.dense().variable().dtype() != v1::DTYPE_FLOAT32)
        return bad("dtype", "float32", Text(header_.dense().variable().dtype()));
      if (header_.dense().variable().shape_size() > 8)
        return bad("rank", "0 to 8",
                   Text(static_cast<std::uint64_t>(header_.dense().variable().shape_size())));
      if (!ValueBytes(header_.dense()) || *ValueBytes(header_.dense()) == 0)
        return bad("rows", "inside the shape",
                   absl::StrCat(header_.dense().row_begin(), "..", header_.dense().row_end()));
      if (header_.slots() > 16) return bad("slots", "0 to 16", Text(header_.slots()));
      return absl::OkStatus();
    case v1::SHARD_KIND_SLOT: {
      const int tables = header_.slot().tables_size();
      if (tables == 0 || tables > kTablesMax)
        return bad("tables", absl::StrCat("1 to ", kTablesMax),
                   Text(static_cast<std::uint64_t>(tables)));
      if (header_.slot().slot() >= header_.slot().slots())
        return bad("slot", absl::StrCat("< ", header_.slot().slots()), Text(header_.slot().slot()));
      const std::pair<const char*, int> lists[] = {
          {"steps of tables", header_.table_steps_size()},
          {"rows of tables", header_.table_rows_size()},
          {"filtered ids of tables", header_.table_filtered_size()}};
      for (const auto& [what, size] : lists) {
        if (size != tables)
          return bad(what, Text(static_cast<std::uint64_t>(tables)),
                     Text(static_cast<std::uint64_t>(size)));
      }
      return absl::OkStatus();
    }
    default: return bad("kind", "dense or slot", Text(static_cast<std::uint64_t>(header_.kind())));
  }
}

absl::Status ShardFileReader::CheckSections() const {
  std::uint64_t offset = blocks_begin_;
  const auto bad = [&](absl::string_view what, absl::string_view want, absl::string_view got) {
    return Damaged(footer_offset_, absl::StrCat("footer: ", what), want, got);
  };
  const bool dense = header_.kind() == v1::SHARD_KIND_DENSE;
  const std::uint64_t value_bytes = dense ? *ValueBytes(header_.dense()) : 0;
  std::uint32_t slots = 0, counters = 0, ledgers = 0, values = 0;
  for (int i = 0; i < footer_.sections_size(); ++i) {
    const v1::SectionEntry& entry = footer_.sections(i);
    const auto section = static_cast<Section>(entry.section());
    if (!KnownSection(entry.section())) return bad("section", "1 to 6", Text(entry.section()));
    if (entry.offset() != offset)
      return bad("offset of a section", Text(offset), Text(entry.offset()));
    // The minimum size of the section's blocks: headers, payload, padding. The exact place of each
    // block is checked when the block is read.
    const std::uint64_t least = entry.blocks() * std::uint64_t{kBlockHeaderBytes} + entry.bytes();
    if (entry.bytes() > size_ || least > footer_offset_ - offset)
      return bad("bytes of a section", absl::StrCat("at most ", footer_offset_ - offset),
                 Text(entry.bytes()));
    std::uint64_t taken = 0;
    switch (section) {
      case Section::kValues:
      case Section::kSlot:
        if (!dense || entry.bytes() != value_bytes ||
            (section == Section::kSlot && entry.index() != slots) ||
            (section == Section::kValues && entry.index() != 0)) {
          return bad(absl::StrCat("section ", SectionName(section)),
                     absl::StrCat(value_bytes, " bytes, in order"),
                     absl::StrCat(entry.bytes(), " bytes, index ", entry.index()));
        }
        ++(section == Section::kSlot ? slots : values);
        break;
      case Section::kCounters:
        ++counters;
        if (entry.bytes() > kCountersBytesMax)
          return bad("bytes of the counters", absl::StrCat("at most ", kCountersBytesMax),
                     Text(entry.bytes()));
        break;
      case Section::kLedger:
        ++ledgers;
        if (entry.bytes() > kLedgerBytesMax)
          return bad("bytes of the ledger", absl::StrCat("at most ", kLedgerBytesMax),
                     Text(entry.bytes()));
        break;
      case Section::kRows:
      case Section::kFilter:
        if (dense || entry.index() >= static_cast<std::uint32_t>(header_.table_rows_size()))
          return bad(absl::StrCat("section ", SectionName(section)), "of a table in the header",
                     Text(entry.index()));
        break;
    }
    if (section == Section::kRows || section == Section::kFilter) {
      // The blocks of this section vary in size, so their places are known only when they are read.
      const std::uint64_t end = EndOf(i);
      if (end < offset + least || end > footer_offset_ || (entry.blocks() == 0 && end != offset)) {
        return bad("end of a section", absl::StrCat(offset + least, " to ", footer_offset_),
                   Text(end));
      }
      taken = end - offset;
    } else {
      const std::uint64_t full = entry.bytes() / kBlockBytes, rest = entry.bytes() % kBlockBytes;
      if (entry.blocks() != full + (rest != 0))
        return bad("blocks of a section", Text(full + (rest != 0)), Text(entry.blocks()));
      taken = full * (kBlockHeaderBytes + kBlockBytes) +
              (rest == 0 ? 0 : kBlockHeaderBytes + RoundUp(rest, kAlignment));
    }
    offset += taken;
    if (offset > footer_offset_)
      return bad("end of a section", absl::StrCat("at most ", footer_offset_), Text(offset));
  }
  if (offset != footer_offset_)
    return bad("end of the sections", Text(footer_offset_), Text(offset));
  if (counters != 1 || ledgers != 1)
    return bad("counters and ledger", "one of each", absl::StrCat(counters, " and ", ledgers));
  if (dense && (values != 1 || slots != header_.slots()))
    return bad("values and slots", absl::StrCat("1 and ", header_.slots()),
               absl::StrCat(values, " and ", slots));
  return absl::OkStatus();
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
      return Damaged(offset, "counters: reasons do not rise", counters_.skips(i - 1).reason(),
                     counters_.skips(i).reason());
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
      return bad("open closures do not rise", absl::StrCat("> ", *last), Text(open.closure()));
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

namespace {

ShardFileReport ReportOf(const ShardFileReader& reader) {
  ShardFileReport report;
  report.header = reader.header();
  report.counters = reader.counters();
  report.done = reader.done();
  report.refused = reader.refused();
  report.open_closures = static_cast<std::uint64_t>(reader.ledger().open_size());
  for (const v1::OpenClosure& open : reader.ledger().open()) {
    IntervalSet updates;
    for (int word = 0; word < open.bits_size(); ++word) {
      for (std::uint64_t bit = 0; bit < 64; ++bit) {
        if ((open.bits(word) >> bit & 1) != 0)
          updates.Add(static_cast<std::uint64_t>(word) * 64 + bit);
      }
    }
    report.open.emplace_back(ClosureId(open.closure()), std::move(updates));
  }
  report.bytes = reader.bytes();
  report.sha256 = reader.sha256();
  for (const v1::SectionEntry& entry : reader.footer().sections()) {
    const auto section = static_cast<Section>(entry.section());
    if (section == Section::kValues || section == Section::kRows)
      report.value_bytes += entry.bytes();
    if (section == Section::kSlot) report.slot_bytes += entry.bytes();
  }
  return report;
}

}  // namespace

absl::StatusOr<ShardFileReport> DescribeShardFile(fs::FileSystem& files, absl::string_view uri) {
  EG_ASSIGN_OR_RETURN(const auto reader, ShardFileReader::Open(files, uri));
  EG_RETURN_IF_ERROR(reader->ReadLedger());
  return ReportOf(*reader);
}

namespace {

// Adds a block of ROWS or FILTER to the digests, as a slot on a server computes them. Returns false
// if the block does not match its number of rows (FORMAT.md).
bool AddRows(std::span<const std::byte> block, bool waiting, std::uint32_t dimension,
             std::uint64_t* values, std::uint64_t* slots) {
  if (block.size() < 8) return false;
  const std::uint64_t n = Load<std::uint32_t>(block, 0);
  const std::uint64_t head = 8 + 24 * n;
  if (n == 0 || block.size() < head || (block.size() - head) % (n * sizeof(float)) != 0)
    return false;
  const std::uint64_t floats = (block.size() - head) / (n * sizeof(float));  // floats per row
  if (waiting ? floats != 0 : floats < dimension) return false;
  std::vector<float> row(floats);
  const auto take = [&](std::uint64_t at, std::uint64_t count, std::uint64_t to) {
    if (count > 0) std::memcpy(row.data() + to, block.data() + at, count * sizeof(float));
  };
  const std::uint64_t numbers = floats - std::min<std::uint64_t>(floats, dimension),
                      numbers_at = head + n * (floats - numbers) * sizeof(float);
  for (std::uint64_t i = 0; i < n; ++i) {
    const auto id = static_cast<std::int64_t>(Load<std::uint64_t>(block, 8 + 8 * i));
    *slots += sharding::DigestOfCounters(
        id, static_cast<std::uint32_t>(Load<std::uint64_t>(block, 8 + 8 * n + 8 * i)),
        static_cast<std::uint32_t>(Load<std::uint64_t>(block, 8 + 16 * n + 8 * i)), waiting);
    if (waiting) continue;
    take(head + i * dimension * sizeof(float), dimension, 0);
    take(numbers_at + i * numbers * sizeof(float), numbers, dimension);
    *values += sharding::DigestOfRow(id, 0, std::span(row).first(dimension));
    *slots += sharding::DigestOfRow(id, dimension, std::span(row).subspan(dimension));
  }
  return true;
}

}  // namespace

absl::StatusOr<ShardFileReport> VerifyShardFile(fs::FileSystem& files, absl::string_view uri,
                                                std::optional<ShardFileReader::Expected> expected) {
  EG_ASSIGN_OR_RETURN(const auto reader, ShardFileReader::Open(files, uri, expected));
  std::uint64_t row_elements = 1;
  const v1::ShardSpec& spec = reader->header().dense();
  // Does not overflow: checked by Open.
  for (int i = 1; i < spec.variable().shape_size(); ++i) row_elements *= spec.variable().shape(i);
  const std::uint64_t first = spec.row_begin() * row_elements;
  std::uint64_t values = 0, slots = 0;
  EG_RETURN_IF_ERROR(reader->ReadAll([&](const ShardFileReader::Piece& piece) {
    if (piece.section == Section::kRows || piece.section == Section::kFilter) {
      const v1::SlotSpec& slot_spec = reader->header().slot();
      if (piece.index >= static_cast<std::uint32_t>(slot_spec.tables_size()) ||
          !AddRows(piece.data, piece.section == Section::kFilter,
                   slot_spec.tables(static_cast<int>(piece.index)).dimension(), &values, &slots))
        return absl::DataLossError(absl::StrCat("block of rows is malformed: path=", uri, " table=",
                                                piece.index, " bytes=", piece.data.size()));
      return absl::OkStatus();
    }
    if (piece.section != Section::kValues && piece.section != Section::kSlot)
      return absl::OkStatus();
    const bool slot = piece.section == Section::kSlot;
    std::uint64_t index = first + piece.offset / sizeof(float) +
                          (slot ? static_cast<std::uint64_t>(piece.index) << 56 : 0);
    std::uint64_t& sum = slot ? slots : values;
    for (std::size_t i = 0; i + sizeof(float) <= piece.data.size(); i += sizeof(float))
      sum += Mix(index++, Load<std::uint32_t>(piece.data, i));
    return absl::OkStatus();
  }));
  ShardFileReport report = ReportOf(*reader);
  report.verified = true;
  report.value_digest = values;
  report.slot_digest = slots;
  return report;
}

}  // namespace evergrad::snapshot
