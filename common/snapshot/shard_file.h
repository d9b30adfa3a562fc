// The file of one cut of one shard, written and read as a stream with bounded memory (FORMAT.md).
//
// The writer and the reader are not thread-safe. Both block, so they must run on an I/O thread.
// Bytes that are read are not trusted: every length is checked before use, and a checksum covers
// every bit. A damaged file gives DataLoss with path, offset, expected and actual value. A file of
// a newer version gives Unimplemented with both versions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/interval_set.h"
#include "common/fs/file_system.h"
#include "common/snapshot/checksum.h"
#include "evergrad/v1/snapshot.pb.h"

namespace evergrad::snapshot {

inline constexpr std::uint32_t kVersion = 1;            // version of shard files and manifests
inline constexpr std::uint32_t kBlockBytes = 1u << 20;  // payload of a full block
inline constexpr std::uint64_t kHeaderBytesMax = 4u << 20;
inline constexpr std::uint64_t kFooterBytesMax = 4u << 20;
inline constexpr int kTablesMax = 4096;  // tables of a job, and therefore of a slot
inline constexpr std::uint64_t kCountersBytesMax = 64u << 10;
// Limit of the ledger's size. A ledger with 65,536 open closures of 4,096 updates has 36 MiB.
inline constexpr std::uint64_t kLedgerBytesMax = 64u << 20;

enum class Section : std::uint32_t {
  kValues = 1,
  kState = 2,  // SLOT in the format: one optimizer state
  kCounters = 3,
  kLedger = 4,
  kRows = 5,
  kFilter = 6
};
absl::string_view SectionName(Section section);  // "values"; "section" for an unknown number

// Returns "shard-00003.epoch-1-5.lsn-120.egshard". A name identifies one state and is never reused
// for another state.
std::string ShardFileName(ShardId shard, ShardEpoch epoch, std::uint64_t lsn);
struct ShardFileKey {
  ShardId shard;
  ShardEpoch epoch;
  std::uint64_t lsn = 0;
  friend bool operator==(const ShardFileKey&, const ShardFileKey&) = default;
};
std::optional<ShardFileKey> ParseShardFileName(absl::string_view name);

struct FileDigest {
  std::uint64_t bytes = 0;
  Sha256Digest sha256{};  // digest of the whole file
};

// Uses the memory of one block. The order of calls is: Begin; then BeginSection and Append for each
// section; then Finish. After an error no call is allowed. The caller commits the file.
class ShardFileWriter {
 public:
  // `out` outlives the writer.
  static absl::StatusOr<std::unique_ptr<ShardFileWriter>> Begin(fs::WritableFile* out,
                                                                const v1::ShardFileHeader& header);
  absl::Status BeginSection(Section section, std::uint32_t index);
  absl::Status Append(std::span<const std::byte> bytes);
  // Ends the current block, so that the next bytes begin a new one. The section kRows needs this
  // call, because its blocks are self-contained.
  absl::Status EndBlock();
  absl::Status WriteCounters(const v1::ShardCounters& counters);
  absl::Status WriteLedger(const v1::ShardLedger& ledger);
  absl::StatusOr<FileDigest> Finish();

 private:
  explicit ShardFileWriter(fs::WritableFile* out);
  absl::Status Put(std::span<const std::byte> bytes);
  absl::Status PutPadded(std::span<const std::byte> bytes, std::size_t alignment);

  fs::WritableFile& out_;
  Sha256 hash_;
  std::uint64_t offset_ = 0;
  std::vector<std::byte> block_;  // header and payload of the block being filled
  v1::ShardFileFooter footer_;
};

class ShardFileReader {
 public:
  // The properties that a manifest's entry states for a file.
  struct Expected {
    std::uint64_t bytes = 0;
    Sha256Digest sha256{};
  };
  // Reads and checks both ends of the file: preamble, header, footer, trailer.
  static absl::StatusOr<std::unique_ptr<ShardFileReader>> Open(
      fs::FileSystem& files, absl::string_view uri,
      std::optional<Expected> expected = std::nullopt);

  const v1::ShardFileHeader& header() const { return header_; }
  const v1::ShardFileFooter& footer() const { return footer_; }
  std::uint64_t bytes() const { return size_; }
  const std::string& uri() const { return uri_; }

  // The payload of one block of kValues, kState, kRows or kFilter: bytes [offset, offset +
  // data.size()) of its section.
  struct Piece {
    Section section = Section::kValues;
    std::uint32_t index = 0;
    std::uint64_t offset = 0;
    std::uint64_t section_bytes = 0;
    std::span<const std::byte> data;
  };
  // Reads the whole file once, in order. Data given to `take` may be used only if the result is OK,
  // because damage may be found up to the last byte. An error of `take` ends the reading.
  absl::Status ReadAll(const std::function<absl::Status(const Piece&)>& take);
  // Reads and checks only the blocks of the counters and of the ledger.
  absl::Status ReadLedger();

  // The following results are valid after ReadAll or ReadLedger.
  const v1::ShardCounters& counters() const { return counters_; }
  const v1::ShardLedger& ledger() const { return ledger_; }
  const IntervalSet& done() const { return done_; }
  const IntervalSet& refused() const { return refused_; }
  // The following results are valid after ReadAll.
  const Sha256Digest& sha256() const { return sha256_; }

 private:
  ShardFileReader() = default;
  absl::Status Damaged(std::uint64_t offset, absl::string_view what, absl::string_view want,
                       absl::string_view got) const;
  absl::Status Read(std::uint64_t offset, std::span<std::byte> out) const;
  // A protobuf message at one end of the file, as the preamble or the trailer describes it.
  struct Part {
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;
  };
  absl::Status ReadEnds(const std::optional<Expected>& expected);
  absl::Status ReadPreamble();
  absl::Status ReadTrailer();
  // Decodes the part at the beginning of `bytes`, which are the bytes of the file from `offset` on.
  absl::Status Decode(const Part& part, std::span<const std::byte> bytes, std::uint64_t offset,
                      absl::string_view name, google::protobuf::MessageLite* message) const;
  std::uint64_t EndOf(int section) const;  // offset of the first byte after the section
  // Reads one section block by block. If `hash` is given, adds all bytes of the section to it.
  absl::Status ReadSection(int section, Sha256* hash,
                           const std::function<absl::Status(const Piece&)>& take);
  absl::Status TakeCounters(const std::string& bytes, std::uint64_t offset);
  absl::Status TakeLedger(const std::string& bytes, std::uint64_t offset);

  std::string uri_;
  std::unique_ptr<fs::ReadableFile> file_;
  std::uint64_t size_ = 0, blocks_begin_ = 0, footer_offset_ = 0;
  Part header_part_, footer_part_;
  std::vector<std::byte> head_, tail_;  // bytes before the blocks, and after them
  Sha256Digest trailer_hash_{};
  std::optional<Sha256Digest> expected_hash_;
  std::vector<std::byte> block_;
  v1::ShardFileHeader header_;
  v1::ShardFileFooter footer_;
  v1::ShardCounters counters_;
  v1::ShardLedger ledger_;
  IntervalSet done_, refused_;
  Sha256Digest sha256_{};
};

// The result of checking a shard file, with the digests that `psctl variable list` shows for a
// shard on a server. The digests of a slot are sums over its tables.
struct ShardFileReport {
  v1::ShardFileHeader header;
  v1::ShardCounters counters;
  IntervalSet done, refused;
  std::uint64_t open_closures = 0;
  // Open closures, in rising order, each with its updates that the values contain.
  std::vector<std::pair<ClosureId, IntervalSet>> open;
  std::uint64_t bytes = 0;
  Sha256Digest sha256{};
  std::uint64_t value_bytes = 0, state_bytes = 0;
  bool verified =
      false;  // true: every byte was read; false: only both ends of the file, counters and ledger
  std::uint64_t value_digest = 0, state_digest = 0;  // valid if `verified`
};
absl::StatusOr<ShardFileReport> DescribeShardFile(fs::FileSystem& files, absl::string_view uri);
absl::StatusOr<ShardFileReport> VerifyShardFile(
    fs::FileSystem& files, absl::string_view uri,
    std::optional<ShardFileReader::Expected> expected = std::nullopt);

}  // namespace evergrad::snapshot
