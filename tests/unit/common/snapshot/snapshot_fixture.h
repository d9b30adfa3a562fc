// Makes small files of every kind, whose bytes are the same each time. The golden files and the
// tables of damaged files are made from them.
#pragma once

#include <bit>
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "common/snapshot/manifest.h"
#include "common/snapshot/messages.h"
#include "common/snapshot/shard_file.h"

namespace evergrad::snapshot {

inline const char kFolder[] = "file:///checkpoints";
inline const char kFingerprint[] =
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

inline v1::ShardSpec SmallSpec(std::uint32_t shard, std::uint64_t rows = 6) {
  v1::ShardSpec spec;
  spec.set_shard(shard);
  spec.mutable_variable()->set_name("dense/kernel");
  spec.mutable_variable()->add_shape(rows * 2);
  spec.mutable_variable()->add_shape(3);
  spec.mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
  spec.mutable_variable()->mutable_initializer()->set_type("zeros");
  spec.mutable_variable()->mutable_optimizer()->set_type("counting");
  spec.set_row_begin(shard * rows);
  spec.set_row_end((shard + 1) * rows);
  return spec;
}

inline v1::ShardFileHeader SmallHeader(std::uint32_t shard = 0, std::uint64_t rows = 6) {
  v1::ShardFileHeader header;
  header.set_job_uid(0x0123456789abcdef);
  header.set_shard(shard);
  *header.mutable_epoch() = ToProto(ShardEpoch{2, 7});
  *header.mutable_start() = ToProto(MapVersion{2, 3});
  header.set_lsn(120 + shard);
  header.set_vlsn(118);
  header.set_kind(v1::SHARD_KIND_DENSE);
  header.set_plan_fingerprint(kFingerprint);
  *header.mutable_dense() = SmallSpec(shard, rows);
  header.set_slots(1);
  return header;
}

inline v1::ShardLedger SmallLedger() {
  v1::ShardLedger ledger;
  *ledger.mutable_done() = ToProto(IntervalSet{0, 1, 2, 5});
  *ledger.mutable_refused() = ToProto(IntervalSet{4});
  v1::OpenClosure& open = *ledger.add_open();
  open.set_closure(3);
  *open.mutable_attempt() = ToProto(Attempt{1, 9});
  open.add_bits(0b1011);
  return ledger;
}

inline std::vector<float> Floats(std::size_t n, float first) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = first + static_cast<float>(i) * 0.5f;
  return values;
}

inline void AppendFloats(ShardFileWriter& writer, std::size_t n, float first) {
  const std::vector<float> values = Floats(n, first);
  REQUIRE(writer.Append(std::as_bytes(std::span(values))).ok());
}

inline FileDigest WriteSmall(fs::FileSystem& files, const std::string& uri,
                             const v1::ShardFileHeader& header,
                             const v1::ShardLedger& ledger = SmallLedger(),
                             std::uint64_t updates = 100) {
  auto file = files.Create(uri);
  REQUIRE(file.ok());
  auto writer = ShardFileWriter::Begin(file->get(), header);
  REQUIRE(writer.ok());
  const v1::ShardSpec& spec = header.dense();
  const std::size_t n = (spec.row_end() - spec.row_begin()) * 3;
  if (header.kind() == v1::SHARD_KIND_DENSE) {
    REQUIRE((*writer)->BeginSection(Section::kValues, 0).ok());
    AppendFloats(**writer, n, 1);
    for (std::uint32_t k = 0; k < header.slots(); ++k) {
      REQUIRE((*writer)->BeginSection(Section::kState, k).ok());
      AppendFloats(**writer, n, -1);
    }
  }
  v1::ShardCounters counters;
  counters.set_updates_applied(updates);
  v1::SkipCount& skip = *counters.add_skips();
  skip.set_reason("nan");
  skip.set_count(2);
  REQUIRE((*writer)->WriteCounters(counters).ok());
  REQUIRE((*writer)->WriteLedger(ledger).ok());
  for (int t = 0; t < header.table_rows_size(); ++t) {
    REQUIRE((*writer)->BeginSection(Section::kRows, static_cast<std::uint32_t>(t)).ok());
    for (std::uint64_t block = 0; block < 2; ++block) {
      // The block has two rows, each with two elements and one optimizer state (FORMAT.md, "Rows of
      // a table").
      std::vector<std::uint32_t> words = {2, 0};
      for (const std::uint64_t word : {block * 10 + 1, block * 10 + 2, std::uint64_t{50},
                                       std::uint64_t{51}, std::uint64_t{3}, std::uint64_t{4}}) {
        words.push_back(static_cast<std::uint32_t>(word));
        words.push_back(static_cast<std::uint32_t>(word >> 32));
      }
      for (const float value : Floats(8, 2)) words.push_back(std::bit_cast<std::uint32_t>(value));
      REQUIRE((*writer)->Append(std::as_bytes(std::span(words))).ok());
      REQUIRE((*writer)->EndBlock().ok());
    }
  }
  auto digest = (*writer)->Finish();
  REQUIRE(digest.ok());
  REQUIRE((*file)->Commit().ok());
  return *digest;
}

inline v1::ShardFileHeader SmallTableHeader() {
  v1::ShardFileHeader header = SmallHeader(1);
  header.set_kind(v1::SHARD_KIND_SLOT);
  header.clear_dense();
  header.clear_slots();
  header.mutable_slot()->set_slot(1);
  header.mutable_slot()->set_slots(128);
  v1::TableSpec& table = *header.mutable_slot()->add_tables();
  table.set_name("embedding");
  table.set_dtype(v1::DTYPE_FLOAT32);
  table.set_dimension(2);
  table.mutable_optimizer()->set_type("counting");
  header.add_table_rows(4);
  header.add_table_filtered(0);
  header.add_table_steps(51);
  return header;
}

// Returns a manifest of two small shards, and writes their files beside it.
inline v1::Manifest SmallManifest(fs::FileSystem& files, std::uint64_t number = 12) {
  v1::Manifest manifest;
  manifest.set_job_uid(0x0123456789abcdef);
  manifest.set_job_name("fashion-cnn");
  manifest.set_yaml("kind: TrainingJob\n");
  manifest.set_seed(7);
  manifest.mutable_plan()->set_fingerprint(kFingerprint);
  manifest.mutable_plan()->set_train_examples(60000);
  manifest.set_number(number);
  *manifest.mutable_version() = ToProto(MapVersion{2, 8});
  manifest.set_complete(true);
  manifest.set_written_ms(1'700'000'000'000);
  v1::FinishedMetric& metric = *manifest.add_metrics();
  metric.set_scope("eval");
  metric.set_name("accuracy");
  metric.set_value(0.875);
  metric.set_examples(10000);
  for (std::uint32_t shard = 0; shard < 2; ++shard) {
    const v1::ShardFileHeader header = SmallHeader(shard);
    const std::string name = ShardFileName(ShardId(shard), {2, 7}, header.lsn());
    const std::string uri = fs::JoinUri(kFolder, name);
    REQUIRE(files.MakeFolders(kFolder).ok());
    FileDigest digest;
    if (*files.Exists(uri)) {
      const auto report = VerifyShardFile(files, uri);
      REQUIRE(report.ok());
      digest = {report->bytes, report->sha256};
    } else {
      digest = WriteSmall(files, uri, header);
    }
    *manifest.mutable_plan()->add_shards() = SmallSpec(shard);
    v1::ShardFile& entry = *manifest.add_shards();
    entry.set_shard(shard);
    entry.set_file(name);
    entry.set_bytes(digest.bytes);
    entry.set_sha256(digest.sha256.data(), digest.sha256.size());
    *entry.mutable_epoch() = header.epoch();
    *entry.mutable_start() = header.start();
    entry.set_lsn(header.lsn());
    entry.set_vlsn(header.vlsn());
    *entry.mutable_done() = SmallLedger().done();
    *entry.mutable_refused() = SmallLedger().refused();
  }
  return manifest;
}

}  // namespace evergrad::snapshot
