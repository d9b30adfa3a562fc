#include "coordinator/runs/model_tables.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/rows.h"
#include "common/weights/weight_stream.h"

namespace evergrad::coordinator {

absl::Status ModelTables::Begin(fs::FileSystem& files) {
  EG_ASSIGN_OR_RETURN(manifest_, snapshot::ReadManifest(files, manifest_uri_));
  tables_.resize(static_cast<std::size_t>(manifest_.plan().tables_size()));
  return absl::OkStatus();
}

absl::Status ModelTables::Take(const snapshot::ShardFileReader::Piece& piece) {
  if (piece.section != snapshot::Section::kRows) return absl::OkStatus();
  if (piece.index >= tables_.size())
    return absl::DataLossError(absl::StrCat(
        "a checkpoint file has rows of a table that is not in the plan: table=", piece.index));
  const std::uint32_t dimension =
      manifest_.plan().tables(static_cast<int>(piece.index)).dimension();
  const auto view = snapshot::ParseRows(piece.data, dimension);
  if (!view)
    return absl::DataLossError(
        absl::StrCat("a block of rows in a checkpoint file is unreadable: table=", piece.index));
  bytes_ += view->ids.size() + view->values.size();
  if (bytes_ > bytes_max_)
    return absl::ResourceExhaustedError(absl::StrCat(
        "the tables are too large for the coordinator (use `psctl checkpoint export`): bytes_max=",
        bytes_max_));
  Rows& rows = tables_[piece.index];
  const std::size_t before = rows.ids.size();
  rows.ids.resize(before + view->rows);
  std::memcpy(rows.ids.data() + before, view->ids.data(), view->ids.size());
  rows.values.resize((before + view->rows) * dimension);
  std::memcpy(rows.values.data() + before * dimension, view->values.data(), view->values.size());
  return absl::OkStatus();
}

absl::Status ModelTables::Read(fs::FileSystem& files, int index) {
  const v1::ShardFile& entry = manifest_.shards(index);
  if (!manifest_.plan().shards(index).has_slot() || entry.file().empty()) return absl::OkStatus();
  snapshot::ShardFileReader::Expected expected{entry.bytes(), {}};
  // ReadManifest has checked the size of the digest.
  std::memcpy(expected.sha256.data(), entry.sha256().data(), expected.sha256.size());
  EG_ASSIGN_OR_RETURN(const auto reader,
                      snapshot::ShardFileReader::Open(
                          files, fs::JoinUri(fs::FolderOf(manifest_uri_), entry.file()), expected));
  return reader->ReadAll(
      [this](const snapshot::ShardFileReader::Piece& piece) { return Take(piece); });
}

absl::Status ModelTables::Write() {
  std::vector<weights::StreamedTensor> tensors;
  for (int t = 0; t < manifest_.plan().tables_size(); ++t) {
    const v1::TableSpec& table = manifest_.plan().tables(t);
    const std::uint64_t rows = tables_[static_cast<std::size_t>(t)].ids.size();
    tensors.push_back(
        {absl::StrCat(table.name(), "/ids"), weights::Element::kInt64, tensor::Shape{rows}});
    tensors.push_back({absl::StrCat(table.name(), "/rows"), weights::Element::kFloat32,
                       tensor::Shape{rows, table.dimension()}});
  }
  EG_RETURN_IF_ERROR(fs::MakeDirectories(fs::FolderOf(path_)));
  EG_ASSIGN_OR_RETURN(const auto stream, weights::WeightStream::Create(path_, weights::Format::kNpz,
                                                                       std::move(tensors)));
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    Rows rows = std::exchange(tables_[t], {});
    const std::size_t dimension = manifest_.plan().tables(static_cast<int>(t)).dimension();
    std::vector<std::size_t> order(rows.ids.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return rows.ids[a] < rows.ids[b]; });
    for (const std::size_t i : order)
      EG_RETURN_IF_ERROR(stream->Append(2 * t, std::as_bytes(std::span(&rows.ids[i], 1))));
    for (const std::size_t i : order)
      EG_RETURN_IF_ERROR(stream->Append(
          2 * t + 1, std::as_bytes(std::span(rows.values.data() + i * dimension, dimension))));
  }
  return stream->Finish();
}

bool ModelTables::Step(fs::FileSystem& files) {
  if (!begun_) {
    begun_ = true;
    status_ = Begin(files);
  } else if (next_ < manifest_.shards_size()) {
    status_ = Read(files, next_++);
  } else {
    status_ = Write();
    return true;
  }
  return !status_.ok();
}

}  // namespace evergrad::coordinator
