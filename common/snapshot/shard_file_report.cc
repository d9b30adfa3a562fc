#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mix.h"
#include "common/base/status.h"
#include "common/sharding/row_digest.h"
#include "common/snapshot/layout.h"
#include "common/snapshot/shard_file.h"

namespace evergrad::snapshot {
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
    if (section == Section::kState) report.state_bytes += entry.bytes();
  }
  return report;
}

// Adds the rows of a block of section ROWS or FILTER to the digests, which are computed like those
// of a slot on a server. Returns false if the size of the block does not match its number of rows
// (FORMAT.md).
bool AddRows(std::span<const std::byte> block, bool waiting, std::uint32_t dimension,
             std::uint64_t* values, std::uint64_t* states) {
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
  const std::uint64_t state = floats - std::min<std::uint64_t>(floats, dimension),
                      state_at = head + n * (floats - state) * sizeof(float);
  for (std::uint64_t i = 0; i < n; ++i) {
    const auto id = static_cast<std::int64_t>(Load<std::uint64_t>(block, 8 + 8 * i));
    *states += sharding::DigestOfCounters(
        id, static_cast<std::uint32_t>(Load<std::uint64_t>(block, 8 + 8 * n + 8 * i)),
        static_cast<std::uint32_t>(Load<std::uint64_t>(block, 8 + 16 * n + 8 * i)), waiting);
    if (waiting) continue;
    take(head + i * dimension * sizeof(float), dimension, 0);
    take(state_at + i * state * sizeof(float), state, dimension);
    *values += sharding::DigestOfRow(id, 0, std::span(row).first(dimension));
    *states += sharding::DigestOfRow(id, dimension, std::span(row).subspan(dimension));
  }
  return true;
}

}  // namespace

absl::StatusOr<ShardFileReport> DescribeShardFile(fs::FileSystem& files, absl::string_view uri) {
  EG_ASSIGN_OR_RETURN(const auto reader, ShardFileReader::Open(files, uri));
  EG_RETURN_IF_ERROR(reader->ReadLedger());
  return ReportOf(*reader);
}

absl::StatusOr<ShardFileReport> VerifyShardFile(fs::FileSystem& files, absl::string_view uri,
                                                std::optional<ShardFileReader::Expected> expected) {
  EG_ASSIGN_OR_RETURN(const auto reader, ShardFileReader::Open(files, uri, expected));
  std::uint64_t row_elements = 1;
  const v1::ShardSpec& spec = reader->header().dense();
  for (int i = 1; i < spec.variable().shape_size(); ++i)
    row_elements *= spec.variable().shape(i);  // does not overflow: checked by Open
  const std::uint64_t first = spec.row_begin() * row_elements;
  std::uint64_t values = 0, states = 0;
  EG_RETURN_IF_ERROR(reader->ReadAll([&](const ShardFileReader::Piece& piece) {
    if (piece.section == Section::kRows || piece.section == Section::kFilter) {
      const v1::SlotSpec& slot_spec = reader->header().slot();
      if (piece.index >= static_cast<std::uint32_t>(slot_spec.tables_size()) ||
          !AddRows(piece.data, piece.section == Section::kFilter,
                   slot_spec.tables(static_cast<int>(piece.index)).dimension(), &values, &states))
        return absl::DataLossError(absl::StrCat("a block of rows is malformed: path=", uri,
                                                " table=", piece.index,
                                                " bytes=", piece.data.size()));
      return absl::OkStatus();
    }
    if (piece.section != Section::kValues && piece.section != Section::kState)
      return absl::OkStatus();
    const bool is_state = piece.section == Section::kState;
    std::uint64_t index = first + piece.offset / sizeof(float) +
                          (is_state ? static_cast<std::uint64_t>(piece.index) << 56 : 0);
    std::uint64_t& sum = is_state ? states : values;
    for (std::size_t i = 0; i + sizeof(float) <= piece.data.size(); i += sizeof(float))
      sum += Mix(index++, Load<std::uint32_t>(piece.data, i));
    return absl::OkStatus();
  }));
  ShardFileReport report = ReportOf(*reader);
  report.verified = true;
  report.value_digest = values;
  report.state_digest = states;
  return report;
}

}  // namespace evergrad::snapshot
