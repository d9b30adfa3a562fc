#include "common/snapshot/contents_check.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "common/snapshot/layout.h"
#include "common/snapshot/shard_file.h"

namespace evergrad::snapshot {
namespace {

std::string Text(std::uint64_t n) { return absl::StrCat(n); }

// Returns the size of a dense shard's values in bytes, or nullopt for an invalid description.
std::optional<std::uint64_t> ValueBytes(const v1::ShardSpec& spec) {
  const auto& shape = spec.variable().shape();
  if (spec.row_begin() >= spec.row_end() || spec.row_end() > (shape.empty() ? 1 : shape[0]))
    return std::nullopt;
  std::optional<std::uint64_t> bytes = CheckedMul(spec.row_end() - spec.row_begin(), sizeof(float));
  for (int i = 1; bytes && i < shape.size(); ++i) bytes = CheckedMul(*bytes, shape[i]);
  return bytes;
}

// Returns whether the blocks of the section have varying sizes and each block can be read without
// the others.
bool IsSelfContained(Section section) {
  return section == Section::kRows || section == Section::kFilter;
}

class SectionsCheck {
 public:
  SectionsCheck(const v1::ShardFileHeader& header, const v1::ShardFileFooter& footer,
                std::uint64_t footer_offset, const DamageAt& damage)
      : header_(header),
        footer_(footer),
        footer_offset_(footer_offset),
        damage_(damage),
        dense_(header.kind() == v1::SHARD_KIND_DENSE),
        value_bytes_(dense_ ? *ValueBytes(header.dense()) : 0) {}

  absl::Status Run(std::uint64_t blocks_begin) {
    std::uint64_t offset = blocks_begin;
    for (int i = 0; i < footer_.sections_size(); ++i) {
      const v1::SectionEntry& entry = footer_.sections(i);
      if (entry.section() < 1 || entry.section() > 6)
        return Bad("section", "1 to 6", Text(entry.section()));
      if (entry.offset() != offset)
        return Bad("offset of a section", Text(offset), Text(entry.offset()));
      // The smallest possible size of the section's blocks: headers and payload, without padding.
      // The exact place of a block is checked when the block is read.
      const std::uint64_t least = entry.blocks() * std::uint64_t{kBlockHeaderBytes} + entry.bytes();
      if (entry.bytes() > footer_offset_ || least > footer_offset_ - offset)
        return Bad("bytes of a section", absl::StrCat("at most ", footer_offset_ - offset),
                   Text(entry.bytes()));
      EG_RETURN_IF_ERROR(CheckEntry(entry));
      EG_ASSIGN_OR_RETURN(offset, IsSelfContained(static_cast<Section>(entry.section()))
                                      ? EndOfSelfContained(i, offset + least)
                                      : EndOfFull(entry));
      if (offset > footer_offset_)
        return Bad("end of a section", absl::StrCat("at most ", footer_offset_), Text(offset));
    }
    if (offset != footer_offset_)
      return Bad("end of the sections", Text(footer_offset_), Text(offset));
    return CheckCounts();
  }

 private:
  absl::Status Bad(absl::string_view what, absl::string_view want, absl::string_view got) const {
    return damage_(footer_offset_, absl::StrCat("footer: ", what), want, got);
  }

  // Compares the entry's index and size with the header, and counts the section by its kind.
  absl::Status CheckEntry(const v1::SectionEntry& entry) {
    const auto section = static_cast<Section>(entry.section());
    switch (section) {
      case Section::kValues:
      case Section::kState:
        if (!dense_ || entry.bytes() != value_bytes_ ||
            (section == Section::kState && entry.index() != states_) ||
            (section == Section::kValues && entry.index() != 0)) {
          return Bad(absl::StrCat("section ", SectionName(section)),
                     absl::StrCat(value_bytes_, " bytes, in order"),
                     absl::StrCat(entry.bytes(), " bytes, index ", entry.index()));
        }
        ++(section == Section::kState ? states_ : values_);
        break;
      case Section::kCounters:
        ++counters_;
        if (entry.bytes() > kCountersBytesMax)
          return Bad("bytes of the counters", absl::StrCat("at most ", kCountersBytesMax),
                     Text(entry.bytes()));
        break;
      case Section::kLedger:
        ++ledgers_;
        if (entry.bytes() > kLedgerBytesMax)
          return Bad("bytes of the ledger", absl::StrCat("at most ", kLedgerBytesMax),
                     Text(entry.bytes()));
        break;
      case Section::kRows:
      case Section::kFilter:
        if (dense_ || entry.index() >= static_cast<std::uint32_t>(header_.table_rows_size()))
          return Bad(absl::StrCat("table of section ", SectionName(section)),
                     "a table of the header", Text(entry.index()));
        break;
    }
    return absl::OkStatus();
  }

  // Returns the end of a section of self-contained blocks, which is the offset of the next section.
  // The places of the single blocks are known only when the blocks are read.
  absl::StatusOr<std::uint64_t> EndOfSelfContained(int section, std::uint64_t least) const {
    const v1::SectionEntry& entry = footer_.sections(section);
    const std::uint64_t end = section + 1 < footer_.sections_size()
                                  ? footer_.sections(section + 1).offset()
                                  : footer_offset_;
    if (end < least || end > footer_offset_ || (entry.blocks() == 0 && end != entry.offset()))
      return Bad("end of a section", absl::StrCat(least, " to ", footer_offset_), Text(end));
    return end;
  }

  // Returns the end of a section whose blocks are full, except the last one.
  absl::StatusOr<std::uint64_t> EndOfFull(const v1::SectionEntry& entry) const {
    const std::uint64_t full = entry.bytes() / kBlockBytes, rest = entry.bytes() % kBlockBytes;
    if (entry.blocks() != full + (rest != 0))
      return Bad("blocks of a section", Text(full + (rest != 0)), Text(entry.blocks()));
    return entry.offset() + full * (kBlockHeaderBytes + kBlockBytes) +
           (rest == 0 ? 0 : kBlockHeaderBytes + RoundUp(rest, kAlignment));
  }

  absl::Status CheckCounts() const {
    if (counters_ != 1 || ledgers_ != 1)
      return Bad("counters and ledger", "one of each", absl::StrCat(counters_, " and ", ledgers_));
    if (dense_ && (values_ != 1 || states_ != header_.slots()))
      return Bad("values and optimizer states", absl::StrCat("1 and ", header_.slots()),
                 absl::StrCat(values_, " and ", states_));
    return absl::OkStatus();
  }

  const v1::ShardFileHeader& header_;
  const v1::ShardFileFooter& footer_;
  const std::uint64_t footer_offset_;
  const DamageAt& damage_;
  const bool dense_;
  const std::uint64_t value_bytes_;
  std::uint32_t states_ = 0, counters_ = 0, ledgers_ = 0, values_ = 0;  // number of sections so far
};

}  // namespace

absl::Status CheckHeader(const v1::ShardFileHeader& header, const DamageAt& damage) {
  const auto bad = [&](absl::string_view what, absl::string_view want, absl::string_view got) {
    return damage(kPreambleBytes, absl::StrCat("header: ", what), want, got);
  };
  if (header.vlsn() > header.lsn())
    return bad("vlsn above lsn", absl::StrCat("<= ", header.lsn()), Text(header.vlsn()));
  switch (header.kind()) {
    case v1::SHARD_KIND_DENSE:
      if (header.dense().shard() != header.shard())
        return bad("shard of the rows", Text(header.shard()), Text(header.dense().shard()));
      if (header.dense().variable().dtype() != v1::DTYPE_FLOAT32)
        return bad("dtype", "float32", Text(header.dense().variable().dtype()));
      if (header.dense().variable().shape_size() > 8)
        return bad("rank", "0 to 8",
                   Text(static_cast<std::uint64_t>(header.dense().variable().shape_size())));
      if (!ValueBytes(header.dense()) || *ValueBytes(header.dense()) == 0)
        return bad("rows", "inside the shape",
                   absl::StrCat(header.dense().row_begin(), "..", header.dense().row_end()));
      if (header.slots() > 16) return bad("slots", "0 to 16", Text(header.slots()));
      return absl::OkStatus();
    case v1::SHARD_KIND_SLOT: {
      const int tables = header.slot().tables_size();
      if (tables == 0 || tables > kTablesMax)
        return bad("tables", absl::StrCat("1 to ", kTablesMax),
                   Text(static_cast<std::uint64_t>(tables)));
      if (header.slot().slot() >= header.slot().slots())
        return bad("slot", absl::StrCat("< ", header.slot().slots()), Text(header.slot().slot()));
      const std::pair<const char*, int> lists[] = {
          {"steps of tables", header.table_steps_size()},
          {"rows of tables", header.table_rows_size()},
          {"filtered ids of tables", header.table_filtered_size()}};
      for (const auto& [what, size] : lists) {
        if (size != tables)
          return bad(what, Text(static_cast<std::uint64_t>(tables)),
                     Text(static_cast<std::uint64_t>(size)));
      }
      return absl::OkStatus();
    }
    default: return bad("kind", "dense or slot", Text(static_cast<std::uint64_t>(header.kind())));
  }
}

absl::Status CheckSections(const v1::ShardFileHeader& header, const v1::ShardFileFooter& footer,
                           std::uint64_t blocks_begin, std::uint64_t footer_offset,
                           const DamageAt& damage) {
  return SectionsCheck(header, footer, footer_offset, damage).Run(blocks_begin);
}

}  // namespace evergrad::snapshot
