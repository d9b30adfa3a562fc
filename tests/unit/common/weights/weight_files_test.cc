// Tests files of weights: the contents that readers of zip, npy and safetensors find in them, and
// what a failed write leaves on the disk.
#include "common/weights/weight_files.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>

#include "common/weights/weight_stream.h"
#include "tests/support/temp_folder.h"

namespace evergrad::weights {
namespace {

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
std::string Bytes(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// Returns the contents of each entry of a zip file, as libzip reads them, by the name of the entry.
std::map<std::string, std::string> Unzip(const std::string& path) {
  std::map<std::string, std::string> entries;
  int error = 0;
  zip_t* archive = zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &error);
  REQUIRE(archive != nullptr);
  for (zip_int64_t i = 0; i < zip_get_num_entries(archive, 0); ++i) {
    zip_stat_t stat;
    REQUIRE(zip_stat_index(archive, static_cast<zip_uint64_t>(i), 0, &stat) == 0);
    CHECK(stat.comp_method == ZIP_CM_STORE);
    std::string bytes(stat.size, '\0');
    zip_file_t* file = zip_fopen_index(archive, static_cast<zip_uint64_t>(i), 0);
    REQUIRE(file != nullptr);
    CHECK(zip_fread(file, bytes.data(), bytes.size()) == static_cast<zip_int64_t>(bytes.size()));
    zip_fclose(file);
    entries[stat.name] = bytes;
  }
  zip_discard(archive);
  return entries;
}

struct Weights {
  std::vector<float> kernel{1,
                            -0.0f,
                            std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::denorm_min(),
                            3e38f,
                            -1},
      bias{2, 3}, scalar{7};
  std::vector<NamedTensor> Tensors() const {
    return {{"dense/kernel", tensor::Shape{3, 2}, kernel},
            {"dense/bias", tensor::Shape{2}, bias},
            {"scale", tensor::Shape{}, scalar}};
  }
};

TEST_CASE("an npz file has an npy entry with the bits of each variable") {
  const test::TempFolder folder;
  const Weights weights;
  REQUIRE(WriteNpz(folder / "w.npz", weights.Tensors()).ok());
  const auto entries = Unzip(folder / "w.npz");
  REQUIRE(entries.size() == 3);
  const struct {
    const char *name, *shape;
    const std::vector<float>& values;
  } cases[] = {{"dense/kernel.npy", "'shape': (3, 2), }", weights.kernel},
               {"dense/bias.npy", "'shape': (2,), }", weights.bias},
               {"scale.npy", "'shape': (), }", weights.scalar}};
  for (const auto& c : cases) {
    INFO(c.name);
    const std::string& entry = entries.at(c.name);
    REQUIRE(entry.size() > 10);
    CHECK(entry.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
    const std::size_t header =
        static_cast<unsigned char>(entry[8]) + 256u * static_cast<unsigned char>(entry[9]);
    CHECK((10 + header) % 64 == 0);
    const std::string text = entry.substr(10, header);
    CHECK(text.find("'descr': '<f4', 'fortran_order': False") != std::string::npos);
    CHECK(text.find(c.shape) != std::string::npos);
    CHECK(text.back() == '\n');
    CHECK(entry.substr(10 + header) == Bytes(c.values));
  }
}

TEST_CASE("a safetensors file has a header with offsets, and then the bits") {
  const test::TempFolder folder;
  const Weights weights;
  REQUIRE(WriteSafetensors(folder / "w.safetensors", weights.Tensors()).ok());
  const std::string file = Contents(folder / "w.safetensors");
  const std::size_t header =
      static_cast<unsigned char>(file[0]) + 256u * static_cast<unsigned char>(file[1]);
  CHECK(header % 8 == 0);
  const std::string text = file.substr(8, header);
  CHECK(text.find(R"("dense/kernel":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]})") !=
        std::string::npos);
  CHECK(text.find(R"("scale":{"dtype":"F32","shape":[],"data_offsets":[32,36]})") !=
        std::string::npos);
  CHECK(file.substr(8 + header) ==
        Bytes(weights.kernel) + Bytes(weights.bias) + Bytes(weights.scalar));
}

TEST_CASE("equal weights give equal bytes, and a file is replaced as a whole") {
  const test::TempFolder folder;
  Weights weights;
  for (const auto& [write, name] :
       {std::pair{&WriteNpz, "w.npz"}, std::pair{&WriteSafetensors, "w.safetensors"}}) {
    std::ofstream(folder / name) << "what was there before";
    REQUIRE(write(folder / name, weights.Tensors()).ok());
    const std::string first = Contents(folder / name);
    REQUIRE(write(folder / name, weights.Tensors()).ok());
    CHECK(Contents(folder / name) == first);
    weights.bias[0] += 1;
    REQUIRE(write(folder / name, weights.Tensors()).ok());
    CHECK(Contents(folder / name) != first);
    CHECK(Contents(folder / name).size() == first.size());
    CHECK(absl::IsInvalidArgument(write(folder / name, {})));
    CHECK(Contents(folder / name).size() == first.size());
  }
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("a failed write states the reason, keeps the old file and leaves nothing else") {
  const test::TempFolder folder;
  const Weights weights;
  for (const auto& write : {&WriteNpz, &WriteSafetensors}) {
    const absl::Status nowhere = write(folder / "none/w", weights.Tensors());
    CHECK(absl::IsNotFound(nowhere));
    CHECK(std::string(nowhere.message()).find(folder / "none/w") != std::string::npos);
    std::filesystem::create_directories(folder / "taken/by a folder");
    CHECK_FALSE(write(folder / "taken", weights.Tensors()).ok());
    CHECK(std::filesystem::is_directory(folder / "taken"));
    // A write to /dev/full fails as a write to a file on a full disk does.
    std::filesystem::create_directories(folder / "full");
    std::error_code error;
    std::filesystem::create_symlink(
        "/dev/full", folder / ("full/w." + std::to_string(::getpid()) + ".tmp"), error);
    CHECK(absl::IsResourceExhausted(write(folder / "full/w", weights.Tensors())));
    CHECK_FALSE(std::filesystem::exists(folder / "full/w"));
    std::filesystem::remove_all(folder / "full");
  }
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("tensors filled in turns and in pieces give the same file, with ids beside values") {
  const test::TempFolder folder;
  const std::vector<std::int64_t> ids = {-5, 3, 1ll << 40};
  const std::vector<float> rows = {1, 2, 3, 4, 5, 6}, odd = {7};
  const std::vector<StreamedTensor> tensors = {{"odd", Element::kFloat32, tensor::Shape{1}},
                                               {"t/ids", Element::kInt64, tensor::Shape{3}},
                                               {"t/rows", Element::kFloat32, tensor::Shape{3, 2}},
                                               {"none/ids", Element::kInt64, tensor::Shape{0}}};
  const auto id_bytes = std::as_bytes(std::span(ids)), row_bytes = std::as_bytes(std::span(rows)),
             odd_bytes = std::as_bytes(std::span(odd));
  for (const Format format : {Format::kNpz, Format::kSafetensors}) {
    std::vector<std::string> files;
    for (const std::size_t piece : {std::size_t{1}, std::size_t{64}}) {
      auto stream = WeightStream::Create(folder / "w", format, tensors);
      REQUIRE(stream.ok());
      for (std::size_t at = 0; at < 24; at += piece) {
        const auto cut = [&](std::span<const std::byte> all) {
          const std::size_t from = std::min(at, all.size());
          return all.subspan(from, std::min(piece, all.size() - from));
        };
        REQUIRE((*stream)->Append(2, cut(row_bytes)).ok());
        REQUIRE((*stream)->Append(0, cut(odd_bytes)).ok());
        REQUIRE((*stream)->Append(1, cut(id_bytes)).ok());
        REQUIRE((*stream)->Append(3, {}).ok());
      }
      CHECK_FALSE(std::filesystem::exists(folder / "w"));
      REQUIRE((*stream)->Finish().ok());
      files.push_back(Contents(folder / "w"));
      CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
      if (format == Format::kNpz) {
        const auto entries = Unzip(folder / "w");
        CHECK(entries.size() == 4);
        CHECK(entries.at("t/ids.npy")
                  .find("'descr': '<i8', 'fortran_order': False, 'shape': (3,), }") !=
              std::string::npos);
        CHECK(entries.at("t/ids.npy").substr(entries.at("t/ids.npy").size() - 24) ==
              std::string(reinterpret_cast<const char*>(ids.data()), 24));
        CHECK(entries.at("t/rows.npy").substr(entries.at("t/rows.npy").size() - 24) == Bytes(rows));
        CHECK(entries.at("none/ids.npy").find("'shape': (0,), }") != std::string::npos);
      } else {
        // Tensors of wider types come first in the file, so that each tensor begins at a multiple
        // of its element size.
        CHECK(
            files.back().find(
                R"("t/ids":{"dtype":"I64","shape":[3],"data_offsets":[0,24]},"none/ids":{"dtype":"I64","shape":[0],"data_offsets":[24,24]},)"
                R"("odd":{"dtype":"F32","shape":[1],"data_offsets":[24,28]},"t/rows":{"dtype":"F32","shape":[3,2],"data_offsets":[28,52]}})") !=
            std::string::npos);
        CHECK(files.back().substr(files.back().size() - 24) == Bytes(rows));
      }
      std::filesystem::remove(folder / "w");
    }
    CHECK(files[0] == files[1]);
    // A stream that is destroyed before all bytes were written must leave no file.
    { REQUIRE((*WeightStream::Create(folder / "w", format, tensors))->Append(0, odd_bytes).ok()); }
    CHECK(std::filesystem::is_empty(folder.path()));
  }
  CHECK(absl::IsInvalidArgument(
      WeightStream::Create(folder / "w", Format::kNpz, {tensors[0], tensors[0]}).status()));
}

// The file contains four gigabytes of zeros. It is sparse, so it takes little space on the disk.
TEST_CASE("another program can read an entry larger than four gigabytes, and the entries behind it",
          "[.large]") {
  const test::TempFolder folder;
  const std::uint64_t rows = (1ull << 30) + 7;
  auto stream = WeightStream::Create(folder / "w.npz", Format::kNpz,
                                     {{"big", Element::kFloat32, tensor::Shape{rows}},
                                      {"small", Element::kFloat32, tensor::Shape{1}}});
  REQUIRE(stream.ok());
  const std::vector<float> piece(1 << 20, 1.5f), one = {2};
  for (std::uint64_t at = 0; at < rows; at += piece.size())
    REQUIRE((*stream)
                ->Append(0, std::as_bytes(std::span(piece).first(
                                std::min<std::uint64_t>(piece.size(), rows - at))))
                .ok());
  REQUIRE((*stream)->Append(1, std::as_bytes(std::span(one))).ok());
  REQUIRE((*stream)->Finish().ok());
  const auto entries = Unzip(folder / "w.npz");
  CHECK(entries.at("big.npy").size() > (4ull << 30));
  CHECK(entries.at("small.npy").substr(entries.at("small.npy").size() - 4) == Bytes(one));
}

}  // namespace
}  // namespace evergrad::weights
