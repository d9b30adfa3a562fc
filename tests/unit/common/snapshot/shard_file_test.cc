// Tests shard files. The bytes that were written can be read, and if any bit or byte is changed,
// the error names the change.
#include "common/snapshot/shard_file.h"

#include <bit>
#include <random>

#include "common/snapshot/layout.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/unit/common/snapshot/snapshot_fixture.h"

namespace evergrad::snapshot {
namespace {

const std::string kUri = "file:///shard";
const auto kNothing = [](const ShardFileReader::Piece&) { return absl::OkStatus(); };

// Writes these bytes into the file `uri`.
void Put(fs::MemoryFileSystem& files, absl::string_view bytes, const std::string& uri = kUri) {
  if (*files.Exists(uri)) REQUIRE(files.Remove(uri).ok());
  REQUIRE(fs::WriteWhole(files, uri, bytes).ok());
}

void CheckNamed(const absl::Status& status) {
  CHECK(status.code() == absl::StatusCode::kDataLoss);
  for (const char* word : {"path=file:///", "offset=", "want=", "got="})
    CHECK(status.message().find(word) != std::string::npos);
}

TEST_CASE("crc32c equals the standard, by instruction and by table, at once and in pieces") {
  CHECK(Crc32c(BytesOf("123456789")) == 0xe3069283);
  CHECK(Crc32c({}) == 0);
  std::mt19937 random(7);
  std::string text;
  for (int i = 0; i < 300; ++i) {
    CHECK(Crc32c(BytesOf(text)) == Crc32cPortable(BytesOf(text)));
    const std::size_t cut = text.empty() ? 0 : random() % text.size();
    CHECK(Crc32c(BytesOf(text).subspan(cut), Crc32c(BytesOf(text).first(cut))) ==
          Crc32c(BytesOf(text)));
    text.push_back(static_cast<char>(random()));
  }
}

TEST_CASE("the name of a shard file states its content, in one spelling") {
  const std::string name = ShardFileName(ShardId(3), {1, 5}, 120);
  CHECK(name == "shard-00003.epoch-1-5.lsn-120.egshard");
  CHECK(ParseShardFileName(name) == ShardFileKey{ShardId(3), {1, 5}, 120});
  CHECK(ParseShardFileName(ShardFileName(ShardId(~0u), {~0ull, ~0ull}, ~0ull)) ==
        ShardFileKey{ShardId(~0u), {~0ull, ~0ull}, ~0ull});
  for (const char* bad :
       {"", "shard-3.epoch-1-5.lsn-120.egshard", "shard-00003.epoch-1-5.lsn-0120.egshard",
        "shard-00003.epoch-1-5.lsn-120.egshard~",
        "shard-00003.epoch-1-5.lsn-99999999999999999999.egshard",
        "shard-00003.epoch--5.lsn-1.egshard", "../shard-00003.epoch-1-5.lsn-120.egshard"}) {
    INFO(bad);
    CHECK_FALSE(ParseShardFileName(bad).has_value());
  }
}

TEST_CASE(
    "a shard file that was written can be read in one pass, with the hash of the whole file") {
  for (const std::uint64_t rows : {6u, 100'000u}) {
    fs::MemoryFileSystem files;
    const v1::ShardFileHeader header = SmallHeader(1, rows);
    const FileDigest digest = WriteSmall(files, kUri, header);
    const auto whole = fs::ReadWhole(files, kUri, 1 << 30);
    REQUIRE(whole.ok());
    CHECK(whole->size() == digest.bytes);
    Sha256 hash;
    hash.Update(BytesOf(*whole));
    CHECK(hash.Value() == digest.sha256);

    const auto reader =
        ShardFileReader::Open(files, kUri, ShardFileReader::Expected{digest.bytes, digest.sha256});
    REQUIRE(reader.ok());
    CHECK((*reader)->header().SerializeAsString() == header.SerializeAsString());
    std::vector<float> values, slot;
    REQUIRE((*reader)
                ->ReadAll([&](const ShardFileReader::Piece& piece) {
                  std::vector<float>& into = piece.section == Section::kValues ? values : slot;
                  if (into.size() * sizeof(float) != piece.offset ||
                      piece.data.size() > kBlockBytes)
                    return absl::InternalError("pieces out of order");
                  const std::size_t at = into.size();
                  into.resize(at + piece.data.size() / sizeof(float));
                  std::memcpy(into.data() + at, piece.data.data(), piece.data.size());
                  return absl::OkStatus();
                })
                .ok());
    CHECK(values == Floats(rows * 3, 1));
    CHECK(slot == Floats(rows * 3, -1));
    CHECK((*reader)->sha256() == digest.sha256);
    CHECK((*reader)->counters().updates_applied() == 100);
    CHECK((*reader)->done() == IntervalSet{0, 1, 2, 5});
    CHECK((*reader)->refused() == IntervalSet{4});
    REQUIRE((*reader)->ledger().open_size() == 1);
    CHECK((*reader)->ledger().open(0).bits(0) == 0b1011);

    const auto described = DescribeShardFile(files, kUri), verified = VerifyShardFile(files, kUri);
    REQUIRE(described.ok());
    REQUIRE(verified.ok());
    CHECK(described->done == verified->done);
    CHECK_FALSE(described->verified);
    CHECK(verified->sha256 == digest.sha256);
    CHECK(verified->value_bytes == rows * 12);
    CHECK(verified->state_bytes == rows * 12);
    CHECK(verified->value_digest != verified->state_digest);
  }
}

TEST_CASE("an empty ledger, no slots and sections without bytes can be written and read") {
  fs::MemoryFileSystem files;
  v1::ShardFileHeader header = SmallHeader();
  header.set_slots(0);
  WriteSmall(files, kUri, header, {});
  const auto report = VerifyShardFile(files, kUri);
  REQUIRE(report.ok());
  CHECK(report->done.empty());
  CHECK(report->open_closures == 0);
  CHECK(report->state_bytes == 0);
}

TEST_CASE("every flipped bit of a small file is detected and named") {
  for (const bool table : {false, true}) {
    fs::MemoryFileSystem files;
    WriteSmall(files, kUri, table ? SmallTableHeader() : SmallHeader());
    const auto size = fs::ReadWhole(files, kUri, 1 << 20)->size();
    int quiet = 0;
    for (std::uint64_t at = 0; at < size; ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        REQUIRE(files.Damage(kUri, at, static_cast<std::byte>(1 << bit)).ok());
        const absl::Status status = VerifyShardFile(files, kUri).status();
        if (status.code() != absl::StatusCode::kDataLoss ||
            status.message().find("offset=") == std::string::npos) {
          ++quiet;
          UNSCOPED_INFO("byte " << at << " bit " << bit << ": " << status.ToString());
        }
        REQUIRE(files.Damage(kUri, at, static_cast<std::byte>(1 << bit)).ok());
      }
    }
    CHECK(quiet == 0);
    CHECK(VerifyShardFile(files, kUri).ok());
  }
}

TEST_CASE("a file that is truncated anywhere, or extended, is detected and named") {
  fs::MemoryFileSystem source;
  WriteSmall(source, kUri, SmallHeader());
  const std::string whole = *fs::ReadWhole(source, kUri, 1 << 20);
  fs::MemoryFileSystem files;
  int quiet = 0;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    Put(files, whole.substr(0, size));
    const absl::Status status = VerifyShardFile(files, kUri).status();
    if (status.code() != absl::StatusCode::kDataLoss) ++quiet;
  }
  CHECK(quiet == 0);
  Put(files, whole + std::string(64, '\0'));
  CheckNamed(VerifyShardFile(files, kUri).status());
  // 32 bytes in the middle are missing: both ends are right, but the size is not.
  Put(files, whole.substr(0, 320) + whole.substr(352));
  CheckNamed(VerifyShardFile(files, kUri).status());
}

TEST_CASE("messages call each section by a word of the vocabulary") {
  CHECK(SectionName(Section::kValues) == "values");
  CHECK(SectionName(Section::kState) == "optimizer state");
  CHECK(SectionName(Section::kRows) == "rows");
  CHECK(SectionName(static_cast<Section>(99)) == "section");
}

TEST_CASE("damage in a large file is named by its block") {
  fs::MemoryFileSystem files;
  const std::uint64_t rows = 300'000;  // 3.6 MB of values, and as much of one optimizer state
  WriteSmall(files, kUri, SmallHeader(0, rows));
  const std::uint64_t first =
      VerifyShardFile(files, kUri).ok()
          ? (*ShardFileReader::Open(files, kUri))->footer().sections(0).offset()
          : 0;
  for (std::uint64_t block = 0; block < 3; ++block) {
    const std::uint64_t at =
        first + block * (kBlockHeaderBytes + kBlockBytes) + kBlockHeaderBytes + 12345;
    REQUIRE(files.Damage(kUri, at, std::byte{4}).ok());
    const absl::Status status = VerifyShardFile(files, kUri).status();
    CheckNamed(status);
    CHECK(status.message().find(absl::StrCat("checksum of block ", block, " of section values")) !=
          std::string::npos);
    CHECK(DescribeShardFile(files, kUri).ok());  // both ends and the ledger are whole
    REQUIRE(files.Damage(kUri, at, std::byte{4}).ok());
  }
  CHECK(VerifyShardFile(files, kUri).ok());
}

TEST_CASE("another version is refused by its number, whatever else the file contains") {
  fs::MemoryFileSystem source;
  WriteSmall(source, kUri, SmallHeader());
  std::string bytes = *fs::ReadWhole(source, kUri, 1 << 20);
  const std::span<std::byte> preamble =
      std::as_writable_bytes(std::span(bytes.data(), kPreambleBytes));
  for (const std::uint32_t version : {0u, 2u, 77u}) {
    Store(preamble, 8, version);
    Seal(preamble);
    fs::MemoryFileSystem files;
    Put(files, bytes);
    const absl::Status status = VerifyShardFile(files, kUri).status();
    CHECK(status.code() == absl::StatusCode::kUnimplemented);
    CHECK(status.message().find(absl::StrCat("version=", version)) != std::string::npos);
    CHECK(status.message().find("supported=1") != std::string::npos);
  }
}

TEST_CASE("inconsistent fields under correct checksums are refused") {
  struct Case {
    const char* words;
    std::function<void(v1::ShardFileHeader*)> header;
    std::function<void(v1::ShardLedger*)> ledger;
  };
  const auto keep = [](auto*) {};
  const std::vector<Case> cases = {
      {"vlsn above lsn", [](auto* h) { h->set_vlsn(h->lsn() + 1); }, keep},
      {"shard of the rows", [](auto* h) { h->set_shard(5); }, keep},
      {"dtype",
       [](auto* h) { h->mutable_dense()->mutable_variable()->set_dtype(v1::DTYPE_FLOAT64); }, keep},
      {"rows", [](auto* h) { h->mutable_dense()->set_row_end(1000); }, keep},
      {"rows", [](auto* h) { h->mutable_dense()->mutable_variable()->set_shape(1, ~0ull); }, keep},
      {"rank",
       [](auto* h) {
         for (int i = 0; i < 8; ++i) h->mutable_dense()->mutable_variable()->add_shape(1);
       },
       keep},
      {"section values", [](auto* h) { h->mutable_dense()->mutable_variable()->set_shape(1, 4); },
       keep},
      {"kind", [](auto* h) { h->set_kind(static_cast<v1::ShardKind>(9)); }, keep},
      {"slots", [](auto* h) { h->set_slots(17); }, keep},
      {"updates above lsn", [](auto* h) { h->set_lsn(99), h->set_vlsn(0); }, keep},
      {"sets", keep, [](auto* l) { l->mutable_done()->add_bounds(1); }},
      {"sets", keep,
       [](auto* l) { l->mutable_refused()->add_bounds(1), l->mutable_refused()->add_bounds(1); }},
      {"not in rising order", keep, [](auto* l) { *l->add_open() = l->open(0); }},
      {"updates of an open closure", keep,
       [](auto* l) {
         for (int i = 0; i < 64; ++i) l->mutable_open(0)->add_bits(1);
       }},
      {"has ended", keep, [](auto* l) { l->mutable_open(0)->set_closure(4); }},
  };
  for (const Case& c : cases) {
    INFO(c.words);
    fs::MemoryFileSystem files;
    v1::ShardFileHeader written = SmallHeader(), changed = SmallHeader();
    c.header(&changed);
    v1::ShardLedger ledger = SmallLedger();
    c.ledger(&ledger);
    // The values and the optimizer state have the right shape, but the header describes another
    // shape.
    auto file = files.Create(kUri);
    auto writer = ShardFileWriter::Begin(file->get(), changed);
    REQUIRE(writer.ok());
    const std::size_t n = (written.dense().row_end() - written.dense().row_begin()) * 3;
    for (const Section section : {Section::kValues, Section::kState}) {
      REQUIRE((*writer)->BeginSection(section, 0).ok());
      AppendFloats(**writer, n, 1);
    }
    v1::ShardCounters counters;
    counters.set_updates_applied(100);
    REQUIRE((*writer)->WriteCounters(counters).ok());
    REQUIRE((*writer)->WriteLedger(ledger).ok());
    REQUIRE((*writer)->Finish().ok());
    REQUIRE((*file)->Commit().ok());
    const absl::Status status = VerifyShardFile(files, kUri).status();
    CheckNamed(status);
    CHECK(status.message().find(c.words) != std::string::npos);
  }
}

TEST_CASE("random changes of several bytes are always detected, and never end the process") {
  fs::MemoryFileSystem source;
  WriteSmall(source, kUri, SmallHeader());
  const std::string whole = *fs::ReadWhole(source, kUri, 1 << 20);
  std::mt19937 random(20261121);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = whole;
    for (int change = 0; change < 4; ++change)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    // In half of the rounds the checksums of the fixed parts are corrected. The code behind these
    // checks then runs, too.
    if (round % 2 == 0) {
      Seal(std::as_writable_bytes(std::span(bytes.data(), kPreambleBytes)));
      Seal(std::as_writable_bytes(
          std::span(bytes.data() + bytes.size() - kTrailerBytes, kTrailerBytes)));
    }
    if (bytes == whole) continue;
    fs::MemoryFileSystem files;
    Put(files, bytes);
    const absl::Status status = VerifyShardFile(files, kUri).status();
    if (status.ok()) FAIL("a changed file passed in round " << round);
  }
}

TEST_CASE("the manifest's size and hash are compared with the file") {
  fs::MemoryFileSystem files;
  const FileDigest digest = WriteSmall(files, kUri, SmallHeader());
  CHECK(VerifyShardFile(files, kUri, ShardFileReader::Expected{digest.bytes, digest.sha256}).ok());
  CheckNamed(
      VerifyShardFile(files, kUri, ShardFileReader::Expected{digest.bytes + 1, digest.sha256})
          .status());
  ShardFileReader::Expected other{digest.bytes, digest.sha256};
  other.sha256[31] ^= std::byte{1};
  const absl::Status status = VerifyShardFile(files, kUri, other).status();
  CheckNamed(status);
  CHECK(status.message().find("manifest") != std::string::npos);
}

TEST_CASE("an error of the receiver ends the reading, and a missing file is NotFound") {
  fs::MemoryFileSystem files;
  WriteSmall(files, kUri, SmallHeader());
  auto reader = ShardFileReader::Open(files, kUri);
  CHECK((*reader)->ReadAll([](const auto&) { return absl::CancelledError("enough"); }).code() ==
        absl::StatusCode::kCancelled);
  CHECK((*reader)->ReadAll(kNothing).ok());
  CHECK(ShardFileReader::Open(files, "file:///none").status().code() ==
        absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace evergrad::snapshot
