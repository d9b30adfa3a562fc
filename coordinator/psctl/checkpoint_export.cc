// psctl checkpoint export: the variables of a checkpoint, put together from their shards.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/daemon/option_table.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/shard_file.h"
#include "common/tensor/tensor.h"
#include "common/weights/weight_files.h"
#include "coordinator/psctl/checkpoint.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

struct Variable {
  std::string name;
  tensor::Shape shape;
  std::vector<float> values;
};

// Shards [begin, end) of the manifest are the rows of one variable, in order.
struct Range {
  int begin = 0, end = 0;
};

absl::Status Unfit(const std::string& uri, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("manifest's cut cannot be put together: path=", uri, " ", what));
}

// Which shards make which variable. A manifest comes from outside: whatever it says about rows is checked.
absl::StatusOr<std::vector<Range>> Cut(const std::string& uri, const v1::Plan& plan) {
  std::vector<Range> ranges;
  std::set<std::string> names;
  for (int i = 0; i < plan.shards_size();) {
    const v1::VariableSpec& variable = plan.shards(i).variable();
    const std::vector<std::uint64_t> dims(variable.shape().begin(), variable.shape().end());
    const auto shape = tensor::Shape::Checked(dims);
    if (!shape.ok()) return Unfit(uri, absl::StrCat("variable=", variable.name(), " ", shape.status().message()));
    if (!names.insert(variable.name()).second) return Unfit(uri, absl::StrCat("variable twice: variable=", variable.name()));
    Range range{i, i};
    std::uint64_t row = 0;
    for (; range.end < plan.shards_size() && plan.shards(range.end).variable().name() == variable.name(); ++range.end) {
      const v1::ShardSpec& shard = plan.shards(range.end);
      if (shard.row_begin() != row || shard.row_end() < row || shard.row_end() > shape->rows() ||
          !std::equal(dims.begin(), dims.end(), shard.variable().shape().begin(), shard.variable().shape().end())) {
        return Unfit(uri, absl::StrCat("rows do not follow each other: variable=", variable.name(), " shard=", shard.shard(), " want_begin=", row,
                                       " got=", shard.row_begin(), "..", shard.row_end()));
      }
      row = shard.row_end();
    }
    if (row != shape->rows()) return Unfit(uri, absl::StrCat("rows are missing: variable=", variable.name(), " want=", shape->rows(), " got=", row));
    ranges.push_back(range);
    i = range.end;
  }
  return ranges;
}

absl::Status RefuseTables(const FoundManifest& found) {
  if (found.manifest.plan().tables_size() == 0) return absl::OkStatus();
  std::vector<std::string> tables;
  for (const v1::TableSpec& table : found.manifest.plan().tables()) tables.push_back(table.name());
  return UserError(
      absl::UnimplementedError(absl::StrCat("not built yet: export of embedding tables: path=", found.uri, " tables=", absl::StrJoin(tables, ","))));
}

// Both ends of every file, before anything is made room for: it says how large the files truly are, and what they are.
absl::Status CheckEnds(fs::FileSystem& files, const FoundManifest& found) {
  const v1::Manifest& manifest = found.manifest;
  for (int i = 0; i < manifest.shards_size(); ++i) {
    const v1::ShardFile& entry = manifest.shards(i);
    if (entry.file().empty()) {
      return UserError(absl::FailedPreconditionError(
          absl::StrCat("nothing of a shard was saved yet, it is still as the seed makes it; export a newer checkpoint: path=", found.uri, " shard=",
                       entry.shard(), " variable=", manifest.plan().shards(i).variable().name())));
    }
    auto report = snapshot::CheckShardOf(files, fs::FolderOf(found.uri), manifest, i, /*whole=*/false);
    // What a manifest names must be there.
    if (absl::IsNotFound(report.status())) return absl::DataLossError(report.status().message());
    if (!report.ok()) return report.status();
    if (report->header.kind() != v1::SHARD_KIND_DENSE)
      return Unfit(found.uri, absl::StrCat("a slot of tables in the place of a dense shard: file=", entry.file()));
  }
  return absl::OkStatus();
}

// Reads the file to its last byte, which decides whether `into` holds the shard's values.
absl::Status ReadValues(fs::FileSystem& files, const std::string& folder, const v1::ShardFile& entry, std::span<std::byte> into) {
  snapshot::ShardFileReader::Expected expected{entry.bytes(), {}};
  std::memcpy(expected.sha256.data(), entry.sha256().data(), expected.sha256.size());  // DecodeManifest has looked at its size
  EG_ASSIGN_OR_RETURN(const auto reader, snapshot::ShardFileReader::Open(files, fs::JoinUri(folder, entry.file()), expected));
  return reader->ReadAll([&](const snapshot::ShardFileReader::Piece& piece) -> absl::Status {
    if (piece.section != snapshot::Section::kValues) return absl::OkStatus();
    if (piece.section_bytes != into.size()) {
      return absl::DataLossError(
          absl::StrCat("values have another size than their rows: path=", reader->uri(), " want=", into.size(), " got=", piece.section_bytes));
    }
    std::memcpy(into.data() + piece.offset, piece.data.data(), piece.data.size());
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<Variable>> Assemble(fs::FileSystem& files, const FoundManifest& found) {
  const v1::Manifest& manifest = found.manifest;
  EG_RETURN_IF_ERROR(RefuseTables(found));
  EG_RETURN_IF_ERROR(CheckEnds(files, found));
  EG_ASSIGN_OR_RETURN(const std::vector<Range> ranges, Cut(found.uri, manifest.plan()));
  std::vector<Variable> variables;
  for (const Range& range : ranges) {
    const v1::VariableSpec& spec = manifest.plan().shards(range.begin).variable();
    Variable variable{spec.name(), tensor::Shape(std::vector<std::uint64_t>(spec.shape().begin(), spec.shape().end())), {}};
    std::uint64_t file_bytes = 0;
    for (int i = range.begin; i < range.end; ++i) file_bytes += manifest.shards(i).bytes();
    if (variable.shape.elements() > file_bytes / sizeof(float)) return Unfit(found.uri, absl::StrCat("files too small: variable=", spec.name()));
    variable.values.resize(variable.shape.elements());
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(variable.values));
    for (int i = range.begin; i < range.end; ++i) {
      const v1::ShardSpec& shard = manifest.plan().shards(i);
      const std::uint64_t row_bytes = variable.shape.rows() == 0 ? 0 : bytes.size() / variable.shape.rows();
      EG_RETURN_IF_ERROR(ReadValues(files, fs::FolderOf(found.uri), manifest.shards(i),
                                    bytes.subspan(shard.row_begin() * row_bytes, (shard.row_end() - shard.row_begin()) * row_bytes)));
    }
    variables.push_back(std::move(variable));
  }
  return variables;
}

}  // namespace

int ExportCheckpoint(Context& context, const std::vector<std::string>& args) {
  std::string output = "text", path, to;
  daemon::OptionTable table("psctl checkpoint export",
                            "writes the weights of a checkpoint, with the names and layouts of Keras, as a job's own weights.npz has them; reads and "
                            "checks every byte on the way. The file is replaced when the new one is whole",
                            daemon::OptionTable::Kind::kCommand);
  table.AddArgument("PATH", &path, "a job's checkpoint folder or runs folder (its newest manifest counts), or a manifest; file:// or a plain path");
  table.Add("to", &to, "the file to write: .npz or .safetensors");
  AddOutputOption(&table, &output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const bool npz = absl::EndsWith(to, ".npz");
  if (!npz && !absl::EndsWith(to, ".safetensors"))
    return Report(context, UserError(absl::InvalidArgumentError(absl::StrCat("--to: expected a path that ends with .npz or .safetensors, got `", to, "`"))));
  const auto target = fs::LocalPath(UriOf(context, to));
  if (!target.ok()) return ReportCheckpoint(context, target.status());
  const std::string uri = UriOf(context, path);
  if (snapshot::ParseShardFileName(fs::NameOf(uri)))
    return Report(context, UserError(absl::InvalidArgumentError(absl::StrCat("a shard is a part of a variable; name its manifest or folder: path=", uri))));

  const auto files = fs::MakeLocalFileSystem();
  const auto found = FindManifest(*files, uri);
  if (!found.ok()) return ReportCheckpoint(context, found.status());
  for (const absl::Status& status : found->passed_over) context.err << "psctl: newer, but passed over: " << Printable(status.message()) << "\n";
  const auto variables = Assemble(*files, *found);
  if (!variables.ok()) return ReportCheckpoint(context, variables.status());
  std::vector<weights::NamedTensor> tensors;
  std::uint64_t parameters = 0;
  for (const Variable& variable : *variables) {
    tensors.push_back({variable.name, variable.shape, variable.values});
    parameters += variable.values.size();
  }
  if (const absl::Status written = npz ? weights::WriteNpz(*target, tensors) : weights::WriteSafetensors(*target, tensors); !written.ok())
    return ReportCheckpoint(context, written);

  const v1::Manifest& m = found->manifest;
  if (output == "json") {
    nlohmann::json json = {{"file", *target},          {"manifest", found->uri},
                           {"number", m.number()},     {"job", m.job_name()},
                           {"job_uid", ShowHex(m.job_uid())}, {"complete", m.complete()},
                           {"parameters", parameters}, {"variables", nlohmann::json::array()}};
    for (const Variable& variable : *variables) json["variables"].push_back({{"name", variable.name}, {"shape", variable.shape.dims()}});
    context.out << Dump(json) << "\n";
  } else {
    context.out << "wrote " << Printable(ShowPath(context, *target)) << ": " << variables->size() << " variable(s), " << parameters
                << " parameters, of checkpoint " << m.number() << " of job " << Printable(m.job_name()) << " " << ShowHex(m.job_uid()) << "\n";
    if (!m.complete()) context.out << "the checkpoint is not complete: its shards hold different closures, as they do while training goes on\n";
  }
  return kSucceeded;
}

}  // namespace evergrad::psctl
