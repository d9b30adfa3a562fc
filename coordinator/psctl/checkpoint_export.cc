// psctl checkpoint export: writes the variables of a checkpoint, which it assembles from their
// shards.
#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/daemon/option_table.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/rows.h"
#include "common/snapshot/shard_file.h"
#include "common/tensor/tensor.h"
#include "common/weights/weight_stream.h"
#include "coordinator/psctl/checkpoint.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/row_sorter.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

// The rows of one variable, in order, are in shards [begin, end) of the manifest.
struct Range {
  int begin = 0, end = 0;
  tensor::Shape shape;
};
// The ids and rows of one table in the output, in parts of at most `part_rows` rows.
struct Table {
  std::uint64_t rows = 0, part_rows = 0, parts = 1;
  // Index of its first tensor in the file; the tensors are ids and rows of part 0, of part 1, …
  std::size_t first = 0;
};
struct Contents {
  std::vector<Range> variables;
  std::vector<Table> tables;
  std::vector<weights::StreamedTensor> tensors;  // variables in the plan's order, then tables
  std::uint64_t parameters = 0;
};

absl::Status Unfit(const std::string& uri, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(
      "the shards of the manifest do not form whole variables: path=", uri, " ", what));
}

// Returns the shards of each variable. A manifest comes from outside, so its rows are checked.
absl::StatusOr<std::vector<Range>> ShardsOfVariables(const std::string& uri, const v1::Plan& plan) {
  std::vector<Range> ranges;
  std::set<std::string> names;
  for (int i = 0; i < plan.shards_size();) {
    if (plan.shards(i).has_slot()) {
      ++i;
      continue;
    }
    const v1::VariableSpec& variable = plan.shards(i).variable();
    const std::vector<std::uint64_t> dims(variable.shape().begin(), variable.shape().end());
    const auto shape = tensor::Shape::Checked(dims);
    if (!shape.ok())
      return Unfit(uri, absl::StrCat("variable=", variable.name(), " ", shape.status().message()));
    if (!names.insert(variable.name()).second)
      return Unfit(uri, absl::StrCat("duplicate variable: variable=", variable.name()));
    Range range{i, i, *shape};
    std::uint64_t row = 0;
    for (; range.end < plan.shards_size() &&
           plan.shards(range.end).variable().name() == variable.name();
         ++range.end) {
      const v1::ShardSpec& shard = plan.shards(range.end);
      if (shard.row_begin() != row || shard.row_end() < row || shard.row_end() > shape->rows() ||
          !std::equal(dims.begin(), dims.end(), shard.variable().shape().begin(),
                      shard.variable().shape().end())) {
        return Unfit(uri, absl::StrCat("rows are not contiguous: variable=", variable.name(),
                                       " shard=", shard.shard(), " want_begin=", row,
                                       " got=", shard.row_begin(), "..", shard.row_end()));
      }
      row = shard.row_end();
    }
    if (row != shape->rows())
      return Unfit(uri, absl::StrCat("rows are missing: variable=", variable.name(),
                                     " want=", shape->rows(), " got=", row));
    ranges.push_back(range);
    i = range.end;
  }
  return ranges;
}

// Checks header and footer of every file before any memory is allocated, because header and footer
// state the size and kind of the file. Adds up the rows of the slots.
absl::Status CheckEnds(fs::FileSystem& files, const FoundManifest& found,
                       std::vector<Table>* tables) {
  const v1::Manifest& manifest = found.manifest;
  std::uint32_t slots = 0;
  for (int i = 0; i < manifest.shards_size(); ++i) {
    const v1::ShardFile& entry = manifest.shards(i);
    const v1::ShardSpec& spec = manifest.plan().shards(i);
    if (entry.file().empty()) {
      return UserError(absl::FailedPreconditionError(
          absl::StrCat("a shard has not been saved yet and still has its initial values; export a "
                       "newer checkpoint: path=",
                       found.uri, " shard=", entry.shard(),
                       spec.has_slot() ? absl::StrCat(" slot=", spec.slot().slot())
                                       : absl::StrCat(" variable=", spec.variable().name()))));
    }
    auto report =
        snapshot::CheckShardOf(files, fs::FolderOf(found.uri), manifest, i, /*whole=*/false);
    // A file that the manifest names must exist.
    if (absl::IsNotFound(report.status())) return absl::DataLossError(report.status().message());
    if (!report.ok()) return report.status();
    const v1::ShardFileHeader& header = report->header;
    if (!spec.has_slot()) {
      if (header.kind() != v1::SHARD_KIND_DENSE)
        return Unfit(found.uri, absl::StrCat("found a table slot, expected a dense shard: file=",
                                             entry.file()));
      continue;
    }
    // CheckShardOf has checked that a slot has the tables of the plan.
    if (header.kind() != v1::SHARD_KIND_SLOT || header.slot().slot() != slots)
      return Unfit(found.uri,
                   absl::StrCat("unexpected table slot: file=", entry.file(), " want=", slots));
    ++slots;
    for (std::size_t t = 0; t < tables->size(); ++t) {
      const std::uint64_t rows = header.table_rows(static_cast<int>(t));
      // A row count that exceeds the bytes of the file must not lead to an allocation.
      if (rows > report->bytes / sizeof(std::int64_t))
        return Unfit(found.uri,
                     absl::StrCat("a file is too small for its rows: file=", entry.file()));
      (*tables)[t].rows += rows;
    }
  }
  if (slots == 0 && !tables->empty())
    return Unfit(found.uri, "the manifest has tables but no slots");
  for (const v1::ShardSpec& spec : manifest.plan().shards()) {
    if (spec.has_slot() && spec.slot().slots() != slots)
      return Unfit(found.uri,
                   absl::StrCat("slots are missing: want=", spec.slot().slots(), " got=", slots));
  }
  return absl::OkStatus();
}

// Returns "movies/ids", or "movies/ids.00000", "movies/ids.00001", … for a table in parts. All
// numbers have the same number of digits, so the order of the names is the order of the numbers.
std::string PartName(absl::string_view table, absl::string_view what, const Table& of,
                     std::uint64_t part) {
  const auto digits = static_cast<int>(std::max<std::size_t>(5, absl::StrCat(of.parts - 1).size()));
  return of.parts == 1 ? absl::StrCat(table, "/", what)
                       : absl::StrFormat("%s/%s.%0*d", table, what, digits, part);
}

absl::StatusOr<Contents> Plan(fs::FileSystem& files, const FoundManifest& found,
                              std::uint64_t part_bytes) {
  const v1::Plan& plan = found.manifest.plan();
  Contents contents;
  contents.tables.resize(static_cast<std::size_t>(plan.tables_size()));
  EG_RETURN_IF_ERROR(CheckEnds(files, found, &contents.tables));
  EG_ASSIGN_OR_RETURN(contents.variables, ShardsOfVariables(found.uri, plan));
  for (const Range& range : contents.variables) {
    std::uint64_t file_bytes = 0;
    for (int i = range.begin; i < range.end; ++i) file_bytes += found.manifest.shards(i).bytes();
    const std::string& name = plan.shards(range.begin).variable().name();
    if (range.shape.elements() > file_bytes / sizeof(float))
      return Unfit(found.uri, absl::StrCat("files too small: variable=", name));
    contents.tensors.push_back({name, weights::Element::kFloat32, range.shape});
    contents.parameters += range.shape.elements();
  }
  for (int t = 0; t < plan.tables_size(); ++t) {
    const v1::TableSpec& spec = plan.tables(t);
    Table& table = contents.tables[static_cast<std::size_t>(t)];
    const std::uint64_t row_bytes =
        sizeof(std::int64_t) + std::uint64_t{spec.dimension()} * sizeof(float);
    table.part_rows = std::max<std::uint64_t>(1, part_bytes / row_bytes);
    table.parts = std::max<std::uint64_t>(1, (table.rows + table.part_rows - 1) / table.part_rows);
    table.first = contents.tensors.size();
    for (std::uint64_t part = 0; part < table.parts; ++part) {
      const std::uint64_t rows = std::min(table.part_rows, table.rows - part * table.part_rows);
      contents.tensors.push_back({PartName(spec.name(), "ids", table, part),
                                  weights::Element::kInt64, tensor::Shape{rows}});
      contents.tensors.push_back({PartName(spec.name(), "rows", table, part),
                                  weights::Element::kFloat32,
                                  tensor::Shape{rows, spec.dimension()}});
    }
    contents.parameters += table.rows * spec.dimension();
  }
  return contents;
}

using TakePiece = std::function<absl::Status(const snapshot::ShardFileReader::Piece&)>;

// Reads the file to its last byte. The checksum at the end decides whether the contents may be
// used.
absl::Status ReadShard(fs::FileSystem& files, const std::string& folder, const v1::ShardFile& entry,
                       const TakePiece& take) {
  snapshot::ShardFileReader::Expected expected{entry.bytes(), {}};
  // DecodeManifest has checked the size of the digest.
  std::memcpy(expected.sha256.data(), entry.sha256().data(), expected.sha256.size());
  EG_ASSIGN_OR_RETURN(const auto reader, snapshot::ShardFileReader::Open(
                                             files, fs::JoinUri(folder, entry.file()), expected));
  return reader->ReadAll(take);
}

absl::Status WriteVariables(fs::FileSystem& files, const FoundManifest& found,
                            const Contents& contents, weights::WeightStream* out) {
  const v1::Manifest& manifest = found.manifest;
  for (std::size_t v = 0; v < contents.variables.size(); ++v) {
    const Range& range = contents.variables[v];
    for (int i = range.begin; i < range.end; ++i) {
      const v1::ShardSpec& shard = manifest.plan().shards(i);
      const std::uint64_t rows = shard.row_end() - shard.row_begin();
      const std::uint64_t want = rows == 0 ? 0 : rows * range.shape.row_elements() * sizeof(float);
      const std::string& file = manifest.shards(i).file();
      EG_RETURN_IF_ERROR(
          ReadShard(files, fs::FolderOf(found.uri), manifest.shards(i),
                    [&](const snapshot::ShardFileReader::Piece& piece) -> absl::Status {
                      if (piece.section != snapshot::Section::kValues) return absl::OkStatus();
                      if (piece.section_bytes != want) {
                        return absl::DataLossError(absl::StrCat(
                            "the shard file has too many or too few bytes of values: file=", file,
                            " want=", want, " got=", piece.section_bytes));
                      }
                      return out->Append(v, piece.data);
                    }));
    }
  }
  return absl::OkStatus();
}

// Reads each slot's file once. The sorter orders the rows. Equal tables therefore give equal bytes,
// even if their rows were divided differently into slots and servers.
absl::Status WriteTables(fs::FileSystem& files, const FoundManifest& found,
                         const Contents& contents, const std::string& folder,
                         weights::WeightStream* out) {
  const v1::Manifest& manifest = found.manifest;
  if (contents.tables.empty()) return absl::OkStatus();
  std::vector<std::uint32_t> dimensions;
  for (const v1::TableSpec& table : manifest.plan().tables())
    dimensions.push_back(table.dimension());
  RowSorter::Options options;
  options.folder = folder;
  RowSorter sorter(options, dimensions);
  for (int i = 0; i < manifest.shards_size(); ++i) {
    if (!manifest.plan().shards(i).has_slot()) continue;
    EG_RETURN_IF_ERROR(ReadShard(
        files, fs::FolderOf(found.uri), manifest.shards(i),
        [&](const snapshot::ShardFileReader::Piece& piece) -> absl::Status {
          if (piece.section != snapshot::Section::kRows) return absl::OkStatus();
          const auto rows = piece.index < dimensions.size()
                                ? snapshot::ParseRows(piece.data, dimensions[piece.index])
                                : std::nullopt;
          if (!rows)
            return absl::DataLossError(absl::StrCat("the size of a block of rows is wrong: file=",
                                                    manifest.shards(i).file()));
          return sorter.Add(piece.index, rows->ids, rows->values);
        }));
  }
  for (std::size_t t = 0; t < contents.tables.size(); ++t) {
    const Table& table = contents.tables[t];
    std::uint64_t done = 0;
    const absl::Status status = sorter.Drain(
        t, [&](std::span<const std::int64_t> ids, std::span<const float> values) -> absl::Status {
          if (ids.size() > table.rows - done)
            return absl::DataLossError(
                absl::StrCat("more rows than the headers of the files state: want=", table.rows));
          while (!ids.empty()) {
            const std::uint64_t part = done / table.part_rows;
            const std::size_t n =
                std::min<std::uint64_t>(ids.size(), (part + 1) * table.part_rows - done);
            EG_RETURN_IF_ERROR(out->Append(table.first + 2 * part, std::as_bytes(ids.first(n))));
            EG_RETURN_IF_ERROR(out->Append(table.first + 2 * part + 1,
                                           std::as_bytes(values.first(n * dimensions[t]))));
            ids = ids.subspan(n);
            values = values.subspan(n * dimensions[t]);
            done += n;
          }
          return absl::OkStatus();
        });
    const std::string& name = manifest.plan().tables(static_cast<int>(t)).name();
    if (absl::IsDataLoss(status))
      return Unfit(found.uri, absl::StrCat("table=", name, " ", status.message()));
    EG_RETURN_IF_ERROR(status);
    if (done != table.rows)
      return Unfit(found.uri, absl::StrCat("rows are missing: table=", name, " want=", table.rows,
                                           " got=", done));
  }
  return absl::OkStatus();
}

absl::StatusOr<Contents> Export(fs::FileSystem& files, const FoundManifest& found,
                                std::uint64_t part_bytes, weights::Format format,
                                const std::string& target) {
  EG_ASSIGN_OR_RETURN(const Contents contents, Plan(files, found, part_bytes));
  EG_ASSIGN_OR_RETURN(const auto out,
                      weights::WeightStream::Create(target, format, contents.tensors));
  EG_RETURN_IF_ERROR(WriteVariables(files, found, contents, out.get()));
  EG_RETURN_IF_ERROR(WriteTables(files, found, contents, fs::FolderOf(target), out.get()));
  EG_RETURN_IF_ERROR(out->Finish());
  return contents;
}

std::string TablesText(const Contents& contents) {
  if (contents.tables.empty()) return "";
  std::uint64_t rows = 0;
  for (const Table& table : contents.tables) rows += table.rows;
  return absl::StrCat(contents.tables.size(), " table(s) with ", rows, " rows, ");
}

void ShowExport(Context& context, const FoundManifest& found, const Contents& contents,
                const std::string& target, bool as_json) {
  const v1::Manifest& m = found.manifest;
  if (as_json) {
    nlohmann::json json = {{"file", target},
                           {"manifest", found.uri},
                           {"number", m.number()},
                           {"job", m.job_name()},
                           {"job_uid", ShowHex(m.job_uid())},
                           {"complete", m.complete()},
                           {"parameters", contents.parameters},
                           {"variables", nlohmann::json::array()},
                           {"tables", nlohmann::json::array()}};
    for (std::size_t v = 0; v < contents.variables.size(); ++v)
      json["variables"].push_back(
          {{"name", contents.tensors[v].name}, {"shape", contents.tensors[v].shape.dims()}});
    for (std::size_t t = 0; t < contents.tables.size(); ++t) {
      const v1::TableSpec& spec = m.plan().tables(static_cast<int>(t));
      json["tables"].push_back({{"name", spec.name()},
                                {"rows", contents.tables[t].rows},
                                {"dimension", spec.dimension()},
                                {"parts", contents.tables[t].parts}});
    }
    context.out << Dump(json) << "\n";
  } else {
    context.out << "wrote " << Printable(ShowPath(context, target)) << ": "
                << contents.variables.size() << " variable(s), " << TablesText(contents)
                << contents.parameters << " parameters, of checkpoint " << m.number() << " of job "
                << Printable(m.job_name()) << " " << ShowHex(m.job_uid()) << "\n";
    if (!m.complete())
      context.out << "the checkpoint is not complete: its shards hold different closures, as is "
                     "usual during training\n";
  }
}

}  // namespace

int ExportCheckpoint(Context& context, const std::vector<std::string>& args) {
  std::string output = "text", path, to;
  std::uint64_t part_bytes = 1ull << 30;
  daemon::OptionTable table(
      "psctl checkpoint export",
      "writes the weights of a checkpoint with the names and layouts of Keras, like the "
      "weights.npz of a job, and the ids and rows of each embedding table in ascending order of "
      "the ids. Every byte of the checkpoint is read and checked, in bounded memory. An existing "
      "output file is replaced when the new file is complete",
      daemon::OptionTable::Kind::kCommand);
  table.AddArgument("PATH", &path,
                    "a job's checkpoint folder or runs folder (its newest manifest is used, and "
                    "must not be damaged), or a manifest; a plain path, file://, s3:// or gs://");
  table.Add("to", &to, "the file to write: .npz or .safetensors");
  table.AddBytes("part-bytes", &part_bytes,
                 "tables above this size are written in parts of at most this size: "
                 "NAME/ids.00000, NAME/rows.00000, …",
                 {4096, 1ull << 50});
  object_store::StoreOptions stores;
  AddOutputOption(&table, &output);
  object_store::AddStoreOptions(&table, &stores);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const bool npz = absl::EndsWith(to, ".npz");
  if (!npz && !absl::EndsWith(to, ".safetensors"))
    return Report(
        context,
        UserError(absl::InvalidArgumentError(absl::StrCat(
            "--to: expected a path that ends with .npz or .safetensors, got `", to, "`"))));
  const auto target = fs::LocalPath(UriOf(context, to));
  if (!target.ok()) return ReportCheckpoint(context, target.status());
  const std::string uri = UriOf(context, path);
  if (snapshot::ParseShardFileName(fs::NameOf(uri)))
    return Report(
        context,
        UserError(absl::InvalidArgumentError(absl::StrCat(
            "a shard file holds only a part of a variable; name its manifest or folder: path=",
            uri))));

  const auto files = OpenFiles(context, stores);
  if (!files.ok()) return Report(context, files.status());
  const auto found = FindManifest(**files, uri);
  if (!found.ok()) return ReportCheckpoint(context, found.status());
  // For a folder, the newest checkpoint is exported. An older checkpoint is exported only if the
  // user names its manifest.
  if (!found->passed_over.empty()) {
    for (const absl::Status& status : found->passed_over)
      context.err << "psctl: " << Printable(status.message()) << "\n";
    return ReportCheckpoint(context, absl::DataLossError(absl::StrCat(
                                         "cannot read the newest checkpoint, so nothing was "
                                         "written; the newest readable one is checkpoint ",
                                         found->manifest.number(),
                                         "; to export it, name its manifest: path=", found->uri)));
  }
  const auto contents =
      Export(**files, *found, part_bytes,
             npz ? weights::Format::kNpz : weights::Format::kSafetensors, *target);
  if (!contents.ok()) return ReportCheckpoint(context, contents.status());

  ShowExport(context, *found, *contents, *target, output == "json");
  return kSucceeded;
}

}  // namespace evergrad::psctl
