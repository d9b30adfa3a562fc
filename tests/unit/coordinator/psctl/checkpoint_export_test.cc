// Tests psctl checkpoint export. The exported variables are compared bit by bit, and every reason
// to refuse an export is tested.
#include <algorithm>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/mix.h"
#include "common/weights/weight_files.h"
#include "common/weights/weight_stream.h"
#include "tests/unit/coordinator/psctl/checkpoint_fixture.h"

namespace evergrad::psctl {
namespace {

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A checkpoint of the variables kernel, bias and scale. The kernel has three shards. The first and
// the last of these shards are larger than one block of a shard file (1 MiB). The bias has one
// shard, and the scale is a scalar.
struct Saved : Stage {
  std::vector<float> kernel, bias, scale;
  v1::Manifest manifest;
  const std::uint64_t rows = 1001, columns = 700;

  Saved() {
    // The values have arbitrary bit patterns, including NaNs with payloads.
    for (std::uint64_t i = 0; i < rows * columns; ++i)
      kernel.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(Mix(i, 1))));
    bias = {1, -0.0f, 3};
    scale = {7};
    manifest.set_job_uid(5);
    manifest.set_job_name("mnist");
    manifest.set_written_ms(1'700'000'000'000);
    manifest.set_number(1);
    manifest.mutable_plan()->set_fingerprint(snapshot::kFingerprint);
    Add("dense/kernel", {rows, columns}, 0, 400, kernel);
    Add("dense/kernel", {rows, columns}, 400, 401, kernel);
    Add("dense/kernel", {rows, columns}, 401, 1001, kernel);
    Add("dense/bias", {3}, 0, 3, bias);
    Add("scale", {}, 0, 1, scale);
    manifest.set_complete(true);
    WriteManifest();
  }
  std::string Folder() const { return folder / "job"; }
  std::string ShardUri(int i) const { return Folder() + "/" + manifest.shards(i).file(); }
  void WriteManifest() {
    const auto files = fs::MakeLocalFileSystem();
    std::filesystem::remove(Manifest(manifest.number()));
    REQUIRE(snapshot::WriteManifest(*files, Folder(), manifest) == absl::OkStatus());
  }
  // Writes a shard file whose contents `body` writes, and adds the file to the manifest.
  template <class Body>
  void WriteShard(const v1::ShardFileHeader& header, Body body) {
    const auto files = fs::MakeLocalFileSystem();
    REQUIRE(files->MakeFolders(Folder()).ok());
    const std::string file = snapshot::ShardFileName(ShardId(header.shard()), {2, 7}, header.lsn());
    auto created = files->Create(Folder() + "/" + file);
    REQUIRE(created.ok());
    auto writer = snapshot::ShardFileWriter::Begin(created->get(), header);
    REQUIRE(writer.ok());
    body(**writer);
    REQUIRE((*writer)->WriteCounters({}).ok());
    REQUIRE((*writer)->WriteLedger(snapshot::SmallLedger()).ok());
    const auto digest = (*writer)->Finish();
    REQUIRE(digest.ok());
    REQUIRE((*created)->Commit().ok());
    v1::ShardFile& entry = *manifest.add_shards();
    entry.set_shard(header.shard());
    entry.set_file(file);
    entry.set_bytes(digest->bytes);
    entry.set_sha256(digest->sha256.data(), digest->sha256.size());
    *entry.mutable_epoch() = header.epoch();
    *entry.mutable_start() = header.start();
    entry.set_lsn(header.lsn());
    entry.set_vlsn(header.vlsn());
    *entry.mutable_done() = snapshot::SmallLedger().done();
    *entry.mutable_refused() = snapshot::SmallLedger().refused();
  }
  void Add(const std::string& name, const std::vector<std::uint64_t>& shape, std::uint64_t begin,
           std::uint64_t end, const std::vector<float>& values) {
    v1::ShardSpec& spec = *manifest.mutable_plan()->add_shards();
    const auto shard = static_cast<std::uint32_t>(manifest.plan().shards_size() - 1);
    spec.set_shard(shard);
    spec.mutable_variable()->set_name(name);
    for (const std::uint64_t d : shape) spec.mutable_variable()->add_shape(d);
    spec.mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
    spec.mutable_variable()->mutable_initializer()->set_type("zeros");
    spec.mutable_variable()->mutable_optimizer()->set_type("sgd");
    spec.mutable_variable()->mutable_optimizer()->set_momentum(0.9);
    spec.set_row_begin(begin);
    spec.set_row_end(end);
    v1::ShardFileHeader header = snapshot::SmallHeader(shard);
    header.set_job_uid(manifest.job_uid());
    *header.mutable_dense() = spec;
    const std::uint64_t row = values.size() / (shape.empty() ? 1 : shape[0]);
    const auto bytes = std::as_bytes(std::span(values).subspan(begin * row, (end - begin) * row));

    WriteShard(header, [&](snapshot::ShardFileWriter& writer) {
      for (const auto section : {snapshot::Section::kValues, snapshot::Section::kState}) {
        REQUIRE(writer.BeginSection(section, 0).ok());
        REQUIRE(writer.Append(bytes).ok());
      }
    });
  }
  std::vector<weights::NamedTensor> Tensors() const {
    return {{"dense/kernel", tensor::Shape{rows, columns}, kernel},
            {"dense/bias", tensor::Shape{3}, bias},
            {"scale", tensor::Shape{}, scale}};
  }
  int Export(const std::string& path, const std::string& to) {
    return Run({"export", path, "--to", to});
  }
};

TEST_CASE("an exported checkpoint has every bit of every variable, whole and in the plan's order") {
  Saved saved;
  REQUIRE(weights::WriteNpz(saved.folder / "want.npz", saved.Tensors()).ok());
  REQUIRE(weights::WriteSafetensors(saved.folder / "want.safetensors", saved.Tensors()).ok());
  const std::string want = Contents(saved.folder / "want.npz");
  for (const std::string& path : {saved.Folder(), "file://" + saved.Folder(), saved.Manifest(1)}) {
    INFO(path);
    std::ofstream(saved.folder / "got.npz") << "an old one";
    CHECK(saved.Export(path, saved.folder / "got.npz") == kSucceeded);
    CHECK(saved.err.str().empty());
    CHECK(saved.out.str().find(
              "3 variable(s), 700704 parameters, of checkpoint 1 of job mnist 0000000000000005") !=
          std::string::npos);
    CHECK((Contents(saved.folder / "got.npz") == want));
  }
  // A relative path begins at the folder in which psctl was called.
  CHECK(saved.Export(".", "w.safetensors") == kSucceeded);
  CHECK(
      (Contents(saved.Folder() + "/w.safetensors") == Contents(saved.folder / "want.safetensors")));
  const nlohmann::json json =
      saved.Json({"export", saved.Folder(), "--to", saved.folder / "j.npz"}, kSucceeded);
  CHECK(json["file"] == saved.folder / "j.npz");
  CHECK(json["number"] == 1);
  CHECK(json["parameters"] == 700704);
  CHECK(json["variables"][0] == nlohmann::json{{"name", "dense/kernel"}, {"shape", {1001, 700}}});
  CHECK(json["variables"][2] ==
        nlohmann::json{{"name", "scale"}, {"shape", nlohmann::json::array()}});
}

// Adds two embedding tables, in three slots, to the dense variables. Each block has at most two
// rows, and the rows are not sorted.
struct SavedTables : Saved {
  using Rows = std::map<std::int64_t, std::vector<float>>;
  Rows movies, biases;
  static constexpr std::uint32_t kSlots = 3;

  explicit SavedTables(std::int64_t twice = 0) {
    for (std::int64_t i = 0; i < 40; ++i) {
      // Ids of both signs occur.
      const auto id = static_cast<std::int64_t>(Mix(static_cast<std::uint64_t>(i), 2));
      movies[id] = {static_cast<float>(i), static_cast<float>(id % 1000), -0.0f};
    }
    biases[5] = {0.5f};
    biases[-5] = {-0.5f};
    AddTable("movies", 3);
    AddTable("biases", 1);
    AddTable("empty", 2);
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) AddSlot(slot, slot == 1 ? twice : 0);
    WriteManifest();
  }
  void AddTable(const std::string& name, std::uint32_t dimension) {
    v1::TableSpec& table = *manifest.mutable_plan()->add_tables();
    table.set_name(name);
    table.set_dtype(v1::DTYPE_FLOAT32);
    table.set_dimension(dimension);
    table.set_index(static_cast<std::uint32_t>(manifest.plan().tables_size() - 1));
    table.mutable_optimizer()->set_type("adagrad");
  }
  void AddSlot(std::uint32_t slot, std::int64_t twice) {
    v1::ShardSpec& spec = *manifest.mutable_plan()->add_shards();
    const auto shard = static_cast<std::uint32_t>(manifest.plan().shards_size() - 1);
    spec.set_shard(shard);
    spec.mutable_slot()->set_slot(slot);
    spec.mutable_slot()->set_slots(kSlots);
    v1::ShardFileHeader header = snapshot::SmallHeader(shard);
    header.set_job_uid(manifest.job_uid());
    header.set_kind(v1::SHARD_KIND_SLOT);
    header.clear_dense();
    header.clear_slots();
    *header.mutable_slot() = spec.slot();
    *header.mutable_slot()->mutable_tables() = manifest.plan().tables();
    std::vector<std::vector<std::int64_t>> ids(3);
    const Rows* tables[] = {&movies, &biases};
    for (std::size_t t = 0; t < 2; ++t) {
      for (const auto& [id, row] : *tables[t])
        if (static_cast<std::uint64_t>(id) % kSlots == slot || (t == 0 && id == twice))
          ids[t].push_back(id);
      std::reverse(ids[t].begin(), ids[t].end());
    }
    for (const auto& of : ids) {
      header.add_table_rows(of.size());
      header.add_table_filtered(0);
      header.add_table_steps(9);
    }
    WriteShard(header, [&](snapshot::ShardFileWriter& writer) {
      for (std::uint32_t t = 0; t < 2; ++t) {
        if (ids[t].empty()) continue;
        REQUIRE(writer.BeginSection(snapshot::Section::kRows, t).ok());
        for (std::size_t at = 0; at < ids[t].size(); at += 2) {
          std::vector<std::int64_t> some(
              ids[t].begin() + static_cast<std::ptrdiff_t>(at),
              ids[t].begin() + static_cast<std::ptrdiff_t>(std::min(at + 2, ids[t].size())));
          std::sort(some.begin(), some.end());
          std::string block;
          const auto put = [&](auto value) {
            block.append(reinterpret_cast<const char*>(&value), sizeof(value));
          };
          put(static_cast<std::uint32_t>(some.size()));
          put(std::uint32_t{0});
          for (const std::int64_t id : some) put(id);
          for (std::size_t i = 0; i < 2 * some.size(); ++i) put(std::uint64_t{7});
          for (const std::int64_t id : some)
            for (const float value : tables[t]->at(id)) put(value);
          for (std::size_t i = 0; i < some.size() * tables[t]->begin()->second.size(); ++i)
            put(99.f);  // a value of the optimizer state
          REQUIRE(writer.Append(std::as_bytes(std::span(block))).ok());
          REQUIRE(writer.EndBlock().ok());
        }
      }
    });
  }
  // Returns the expected contents of the exported file, in which a part of `movies` has `part_rows`
  // rows.
  std::string Want(weights::Format format, std::size_t part_rows) const {
    struct Part {
      std::vector<std::int64_t> ids;
      std::vector<float> rows;
    };
    std::vector<Part> parts(1);
    for (const auto& [id, row] : movies) {
      if (parts.back().ids.size() == part_rows) parts.emplace_back();
      parts.back().ids.push_back(id);
      parts.back().rows.insert(parts.back().rows.end(), row.begin(), row.end());
    }
    std::vector<weights::StreamedTensor> tensors;
    std::vector<std::span<const std::byte>> bytes;
    const std::vector<weights::NamedTensor> dense = Tensors();
    for (const weights::NamedTensor& tensor : dense) {
      tensors.push_back({tensor.name, weights::Element::kFloat32, tensor.shape});
      bytes.push_back(std::as_bytes(tensor.values));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::string suffix = parts.size() == 1 ? "" : absl::StrFormat(".%05d", i);
      tensors.push_back(
          {"movies/ids" + suffix, weights::Element::kInt64, tensor::Shape{parts[i].ids.size()}});
      tensors.push_back({"movies/rows" + suffix, weights::Element::kFloat32,
                         tensor::Shape{parts[i].ids.size(), 3}});
      bytes.push_back(std::as_bytes(std::span(parts[i].ids)));
      bytes.push_back(std::as_bytes(std::span(parts[i].rows)));
    }
    const std::vector<std::int64_t> bias_ids = {-5, 5};
    const std::vector<float> bias_rows = {-0.5f, 0.5f};
    tensors.push_back({"biases/ids", weights::Element::kInt64, tensor::Shape{2}});
    tensors.push_back({"biases/rows", weights::Element::kFloat32, tensor::Shape{2, 1}});
    tensors.push_back({"empty/ids", weights::Element::kInt64, tensor::Shape{0}});
    tensors.push_back({"empty/rows", weights::Element::kFloat32, tensor::Shape{0, 2}});
    bytes.push_back(std::as_bytes(std::span(bias_ids)));
    bytes.push_back(std::as_bytes(std::span(bias_rows)));
    bytes.resize(tensors.size());
    const std::string path = folder / "want";
    auto stream = weights::WeightStream::Create(path, format, tensors);
    REQUIRE(stream.ok());
    for (std::size_t i = 0; i < tensors.size(); ++i) REQUIRE((*stream)->Append(i, bytes[i]).ok());
    REQUIRE((*stream)->Finish().ok());
    return Contents(path);
  }
};

TEST_CASE(
    "tables are exported beside the variables, with ascending ids and their rows, in parts if they "
    "are large") {
  SavedTables saved;
  REQUIRE(saved.Export(saved.Folder(), saved.folder / "w.npz") == kSucceeded);
  CHECK(saved.out.str().find(
            "3 variable(s), 3 table(s) with 42 rows, 700826 parameters, of checkpoint 1") !=
        std::string::npos);
  CHECK((Contents(saved.folder / "w.npz") == saved.Want(weights::Format::kNpz, 1000)));
  REQUIRE(saved.Export(saved.Folder(), saved.folder / "w.safetensors") == kSucceeded);
  CHECK((Contents(saved.folder / "w.safetensors") ==
         saved.Want(weights::Format::kSafetensors, 1000)));
  const nlohmann::json json =
      saved.Json({"export", saved.Folder(), "--to", saved.folder / "w.npz"}, kSucceeded);
  CHECK(json["tables"][0] ==
        nlohmann::json({{"name", "movies"}, {"rows", 40}, {"dimension", 3}, {"parts", 1}}));
  CHECK(json["tables"][2]["rows"] == 0);
  // The folder must hold no other file, such as a temporary one.
  for (const auto& entry : std::filesystem::directory_iterator(saved.folder.path()))
    CHECK(entry.path().filename().string()[0] != '.');
}

TEST_CASE("a table above --part-bytes is divided into parts") {
  SavedTables saved;
  // A row of `movies` takes 20 bytes, and the smallest allowed --part-bytes is 4096. With 500 more
  // rows the table does not fit into one such part.
  for (std::int64_t i = 0; i < 500; ++i)
    saved.movies[1'000'000 + i] = {1, 2, static_cast<float>(i)};
  saved.manifest.mutable_shards()->DeleteSubrange(5, 3);
  saved.manifest.mutable_plan()->mutable_shards()->DeleteSubrange(5, 3);
  for (std::uint32_t slot = 0; slot < SavedTables::kSlots; ++slot) {
    std::filesystem::remove(
        saved.folder / ("job/" + snapshot::ShardFileName(ShardId(5 + slot), {2, 7}, 125 + slot)));
    saved.AddSlot(slot, 0);
  }
  saved.WriteManifest();
  REQUIRE(saved.Run({"export", saved.Folder(), "--to", saved.folder / "w.npz", "--part-bytes",
                     "4096"}) == kSucceeded);
  CHECK((Contents(saved.folder / "w.npz") == saved.Want(weights::Format::kNpz, 4096 / 20)));
}

TEST_CASE("a missing slot, one with a duplicate row, and one with other tables are damage") {
  {
    // The row is in its own slot and once more in slot 1.
    const std::int64_t other = [] {
      const SavedTables::Rows movies = SavedTables().movies;
      for (const auto& [candidate, row] : movies)
        if (static_cast<std::uint64_t>(candidate) % SavedTables::kSlots != 1) return candidate;
      return std::int64_t{0};
    }();
    SavedTables saved(other);
    CHECK(saved.Export(saved.Folder(), saved.folder / "w.npz") == kFailed);
    CHECK(saved.err.str().find(absl::StrCat("table=movies duplicate row: id=", other)) !=
          std::string::npos);
  }
  {
    SavedTables saved;
    saved.manifest.mutable_shards()->DeleteSubrange(saved.manifest.shards_size() - 1, 1);
    saved.manifest.mutable_plan()->mutable_shards()->DeleteSubrange(
        saved.manifest.plan().shards_size() - 1, 1);
    saved.WriteManifest();
    CHECK(saved.Export(saved.Folder(), saved.folder / "w.npz") == kFailed);
    CHECK(saved.err.str().find("slots are missing: want=3 got=2") != std::string::npos);
  }
  {
    SavedTables saved;
    saved.manifest.mutable_plan()->mutable_tables(0)->set_dimension(4);
    saved.WriteManifest();
    CHECK(saved.Export(saved.Folder(), saved.folder / "w.npz") == kFailed);
    CHECK_FALSE(std::filesystem::exists(saved.folder / "w.npz"));
  }
}

TEST_CASE(
    "one flipped bit in any file ends the export with code 1, path and offset, and keeps the old "
    "file") {
  for (const double place : {0.0, 0.1, 0.3, 0.7, 0.99}) {
    Saved saved;
    std::ofstream(saved.folder / "w.npz") << "an old one";
    Stage::Flip(
        saved.ShardUri(2),
        static_cast<std::streamoff>(place * static_cast<double>(saved.manifest.shards(2).bytes())));
    INFO(place);
    CHECK(saved.Export(saved.Folder(), saved.folder / "w.npz") == kFailed);
    CHECK(saved.err.str().find(saved.manifest.shards(2).file()) != std::string::npos);
    CHECK(saved.err.str().find("offset=") != std::string::npos);
    CHECK(Contents(saved.folder / "w.npz") == "an old one");
  }
}

TEST_CASE("a missing file, a wrong file of the right name and a damaged manifest are damage") {
  Saved saved;
  const std::string to = saved.folder / "w.npz";
  std::filesystem::copy_file(saved.ShardUri(1), saved.folder / "kept");
  std::filesystem::remove(saved.ShardUri(1));
  CHECK(saved.Export(saved.Folder(), to) == kFailed);
  CHECK(saved.err.str().find(saved.manifest.shards(1).file()) != std::string::npos);
  std::filesystem::copy_file(saved.ShardUri(3), saved.ShardUri(1));
  CHECK(saved.Export(saved.Folder(), to) == kFailed);
  std::filesystem::remove(saved.ShardUri(1));
  std::filesystem::copy_file(saved.folder / "kept", saved.ShardUri(1));
  CHECK(saved.Export(saved.Folder(), to) == kSucceeded);
}

TEST_CASE("a folder with a damaged newest manifest is not exported unless an older one is named") {
  Saved saved;
  const std::string to = saved.folder / "w.npz";
  saved.manifest.set_number(2);
  saved.WriteManifest();
  Stage::Flip(saved.Manifest(2), 300);
  CHECK(saved.Export(saved.Folder(), to) == kFailed);
  CHECK_FALSE(std::filesystem::exists(to));
  CHECK(saved.err.str().find("cannot read the newest checkpoint, so nothing was written") !=
        std::string::npos);
  CHECK(saved.err.str().find(saved.Manifest(1)) != std::string::npos);
  CHECK(saved.Export(saved.Manifest(2), to) == kFailed);
  CHECK(saved.Export(saved.Manifest(1), to) == kSucceeded);
  CHECK(saved.out.str().find("of checkpoint 1") != std::string::npos);
}

TEST_CASE("shards that do not cover whole variables are damage, whatever the manifest says") {
  const auto refusal = [](const std::function<void(v1::Manifest*)>& change) {
    Saved saved;
    change(&saved.manifest);
    saved.WriteManifest();
    CHECK(saved.Export(saved.Folder(), saved.folder / "w.npz") == kFailed);
    CHECK_FALSE(std::filesystem::exists(saved.folder / "w.npz"));
    return saved.err.str();
  };
  // Each shard file states its contents, and the plan in the manifest must agree with them.
  CHECK(refusal([](v1::Manifest* m) {
          m->mutable_plan()->mutable_shards(1)->set_row_begin(399);
        }).find("does not match its manifest: cut") != std::string::npos);
  CHECK(refusal([](v1::Manifest* m) {
          m->mutable_plan()->mutable_shards(3)->mutable_variable()->set_shape(0, 1ull << 60);
        }).find("does not match its manifest: cut") != std::string::npos);
  const auto without = [&](int shard) {
    return refusal([shard](v1::Manifest* m) {
      m->mutable_shards()->DeleteSubrange(shard, 1);
      m->mutable_plan()->mutable_shards()->DeleteSubrange(shard, 1);
    });
  };
  CHECK(without(1).find("rows are not contiguous: variable=dense/kernel shard=2 "
                        "want_begin=400 got=401..1001") != std::string::npos);
  CHECK(without(2).find("rows are missing: variable=dense/kernel want=1001 got=401") !=
        std::string::npos);
}

TEST_CASE(
    "a shard from the seed, a single shard file and other kinds of file are refused as user's "
    "errors") {
  Saved saved;
  const std::string to = saved.folder / "w.npz";
  CHECK(saved.Export(saved.ShardUri(0), to) == kUsage);
  CHECK(saved.err.str().find("a shard file holds only a part of a variable") != std::string::npos);
  CHECK(saved.Export(saved.Folder(), saved.folder / "w.h5") == kUsage);
  CHECK(saved.err.str().find("--to: expected a path that ends with .npz or .safetensors") !=
        std::string::npos);
  CHECK(saved.Run({"export", saved.Folder()}) == kUsage);
  CHECK(saved.Export(saved.Folder(), "s3://bucket/w.npz") == kUsage);
  CHECK(saved.Export(saved.Folder(), saved.folder / "none/w.npz") == kUsage);
  CHECK(saved.Export(saved.folder / "none", to) == kUsage);
  CHECK(saved.Run({"export", "--help"}) == kSucceeded);

  v1::Manifest seed = saved.manifest;
  v1::ShardFile empty;
  empty.set_shard(3);
  *seed.mutable_shards(3) = empty;
  seed.set_complete(false);
  std::swap(saved.manifest, seed);
  saved.WriteManifest();
  CHECK(saved.Export(saved.Folder(), to) == kUsage);
  CHECK(saved.err.str().find("a shard has not been saved yet") != std::string::npos);
  CHECK(saved.err.str().find("variable=dense/bias") != std::string::npos);

  CHECK_FALSE(std::filesystem::exists(to));
}

}  // namespace
}  // namespace evergrad::psctl
