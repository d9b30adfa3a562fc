// Tests idx files, which the test makes. Every fault must be a user error that names the file, the
// offset, and what was expected.
#include <zlib.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>

#include "common/base/status.h"
#include "tests/support/temp_folder.h"
#include "worker/data/openers.h"

namespace evergrad::worker {
namespace {

using test::TempFolder;

std::string BigEndian(std::uint32_t v) {
  return {static_cast<char>(v >> 24), static_cast<char>(v >> 16), static_cast<char>(v >> 8),
          static_cast<char>(v)};
}

std::string Idx(std::uint32_t magic, const std::vector<std::uint32_t>& dims, std::size_t elements,
                int modulo = 251) {
  std::string bytes = BigEndian(magic);
  for (const std::uint32_t d : dims) bytes += BigEndian(d);
  for (std::size_t i = 0; i < elements; ++i)
    bytes.push_back(static_cast<char>(i % static_cast<std::size_t>(modulo)));
  return bytes;
}
std::string Images() { return Idx(0x803, {5, 2, 3}, 30); }
std::string Labels() { return Idx(0x801, {5}, 5, 3); }

void WritePlain(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
void WriteGz(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}
std::string FileBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

config::SourceSpec Source(const TempFolder& folder) {
  config::SourceSpec source;
  source.images = folder / "images";
  source.labels = folder / "labels";
  return source;
}
config::FieldSpec Scaled(const std::string& name, std::vector<double> factors) {
  config::FieldSpec field;
  field.name = name;
  for (const double factor : factors) {
    config::Transform& transform = field.transforms.emplace_back();
    transform.type = "scale";
    transform.value = factor;
  }
  return field;
}
std::span<std::byte> Bytes(std::span<float> floats) { return std::as_writable_bytes(floats); }

TEST_CASE("gzip and plain files give equal examples, in any order, with transforms applied") {
  TempFolder folder;
  const bool gz = GENERATE(false, true);
  (gz ? WriteGz : WritePlain)(folder / "images", Images());
  (gz ? WriteGz : WritePlain)(folder / "labels", Labels());
  const auto data = OpenIdx(Source(folder), {Scaled("image", {0.5, 4.0})});
  REQUIRE(data.ok());
  CHECK((*data)->examples() == 5);
  REQUIRE((*data)->fields().size() == 2);
  CHECK((*data)->fields()[0].shape == tensor::Shape{2, 3, 1});
  CHECK((*data)->FindField("label") == 1u);
  CHECK_FALSE((*data)->FindField("labels"));
  std::vector<float> images(12), labels(2);
  REQUIRE((*data)->Read({4, 1}, {Bytes(images), Bytes(labels)}).ok());
  for (int i = 0; i < 6; ++i) {
    CHECK(images[static_cast<std::size_t>(i)] == 2.0f * static_cast<float>(24 + i));
    CHECK(images[static_cast<std::size_t>(6 + i)] == 2.0f * static_cast<float>(6 + i));
  }
  CHECK(labels == std::vector<float>{1, 1});
  CHECK_FALSE(
      (*data)
          ->Read({5}, {Bytes(std::span(images).first(6)), Bytes(std::span(labels).first(1))})
          .ok());
  CHECK_FALSE((*data)->Read({0}, {Bytes(images), Bytes(std::span(labels).first(1))}).ok());
}

TEST_CASE("every defect of a file is a user's error with file, offset and expectation") {
  struct Case {
    std::string name;
    std::function<void(const TempFolder&)> damage;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {"missing",
       [](const TempFolder& f) { std::filesystem::remove(f / "images"); },
       {"cannot open", "images", "No such file"}},
      {"a folder",
       [](const TempFolder& f) {
         std::filesystem::remove(f / "labels");
         std::filesystem::create_directory(f / "labels");
       },
       {"data file is a folder", "labels"}},
      {"empty",
       [](const TempFolder& f) { WritePlain(f / "images", ""); },
       {"too short", "images", "offset=0", "want=4 bytes of magic number", "got=0"}},
      {"labels given as images",
       [](const TempFolder& f) { WritePlain(f / "images", Labels()); },
       {"wrong magic", "images", "offset=0", "want=0x00000802 to 0x00000804", "got=0x00000801"}},
      {"images given as labels",
       [](const TempFolder& f) { WritePlain(f / "labels", Images()); },
       {"wrong magic", "labels", "want=0x00000801", "got=0x00000803"}},
      {"floats",
       [](const TempFolder& f) {
         WritePlain(f / "images", Idx(0x0D03, {5, 2, 3}, 120));
       },
       {"wrong magic", "unsigned bytes", "got=0x00000d03"}},
      {"text",
       [](const TempFolder& f) { WritePlain(f / "images", "label,pixel1,pixel2\n"); },
       {"wrong magic", "got=0x6c616265"}},
      {"cut in the dimensions",
       [](const TempFolder& f) { WritePlain(f / "images", Images().substr(0, 10)); },
       {"too short", "offset=10", "dimension 1 from offset 8"}},
      {"dimension of zero",
       [](const TempFolder& f) {
         WritePlain(f / "images", Idx(0x803, {5, 0, 3}, 0));
       },
       {"a dimension is zero", "offset=8", "dimension=1"}},
      {"last byte missing",
       [](const TempFolder& f) {
         const auto b = Images();
         WritePlain(f / "images", b.substr(0, b.size() - 1));
       },
       {"too short", "offset=45", "want=30 bytes of elements", "got=29"}},
      {"one byte too many",
       [](const TempFolder& f) { WritePlain(f / "images", Images() + "x"); },
       {"longer than its header states", "offset=46"}},
      {"counts differ",
       [](const TempFolder& f) { WritePlain(f / "labels", Idx(0x801, {4}, 4)); },
       {"number of labels differs", "labels", "want=5", "got=4"}},
      {"header promises the moon",
       [](const TempFolder& f) {
         WritePlain(f / "images", Idx(0x804, {5, 0xffffffff, 0xffffffff, 0xffffffff}, 30));
       },
       {"too large", "images", "limit="}},
      {"header promises more than a plain file holds",
       [](const TempFolder& f) {
         WritePlain(f / "images", Idx(0x803, {5, 1000, 1000}, 30));
       },
       {"too short", "want=5000000", "got=46 bytes stored"}},
      {"gzip cut in the middle",
       [](const TempFolder& f) {
         WriteGz(f / "images", Images());
         const auto b = FileBytes(f / "images");
         WritePlain(f / "images", b.substr(0, b.size() / 2));
       },
       {"images", "offset="}},
      {"gzip with a flipped bit",
       [](const TempFolder& f) {
         WriteGz(f / "images", Images());
         auto b = FileBytes(f / "images");
         b[b.size() - 6] = static_cast<char>(b[b.size() - 6] ^ 1);  // a bit of the CRC is wrong
         WritePlain(f / "images", b);
       },
       {"damaged", "images", "offset=", "incorrect data check"}},
  };
  for (const Case& c : cases) {
    INFO(c.name);
    TempFolder folder;
    WritePlain(folder / "images", Images());
    WritePlain(folder / "labels", Labels());
    c.damage(folder);
    const auto data = OpenIdx(Source(folder), {});
    REQUIRE_FALSE(data.ok());
    CHECK(BlameOf(data.status()) == Blame::kUser);
    for (const std::string& words : c.says)
      CHECK_THAT(std::string(data.status().message()), Catch::Contains(words));
  }
}

TEST_CASE("neither of the two idx files is read outside of the roots") {
  TempFolder folder;
  std::filesystem::create_directory(folder / "data");
  for (const char* name : {"images", "data/images"}) WritePlain(folder / name, Images());
  for (const char* name : {"labels", "data/labels"}) WritePlain(folder / name, Labels());
  const DataOptions options{.roots = fs::Roots::Only({folder / "data"}, "")};
  config::SourceSpec source;
  source.images = folder / "data/images";
  source.labels = folder / "data/labels";
  CHECK(OpenIdx(source, {}, nullptr, options).ok());
  source.images = folder / "images";
  CHECK(absl::IsPermissionDenied(OpenIdx(source, {}, nullptr, options).status()));
  source.images = folder / "data/images";
  source.labels = folder / "labels";
  CHECK(absl::IsPermissionDenied(OpenIdx(source, {}, nullptr, options).status()));
}

TEST_CASE("a transform or field that is not built is refused by name") {
  TempFolder folder;
  WritePlain(folder / "images", Images());
  WritePlain(folder / "labels", Labels());
  config::FieldSpec rotated = Scaled("image", {1});
  rotated.transforms[0].type = "rotate";
  const auto transform = OpenIdx(Source(folder), {rotated});
  REQUIRE_FALSE(transform.ok());
  CHECK_THAT(std::string(transform.status().message()), Catch::Contains("rotate"));
  const auto field = OpenIdx(Source(folder), {Scaled("pixels", {})});
  REQUIRE_FALSE(field.ok());
  CHECK_THAT(std::string(field.status().message()), Catch::Contains("pixels"));
}

TEST_CASE("a data set above the limit is refused before it is read") {
  TempFolder folder;
  WritePlain(folder / "images", Images());
  WritePlain(folder / "labels", Labels());
  const auto data = OpenIdx(Source(folder), {}, nullptr, {29});
  REQUIRE_FALSE(data.ok());
  CHECK_THAT(std::string(data.status().message()),
             Catch::Contains("too large") && Catch::Contains("limit=29"));
}

TEST_CASE("the fingerprint depends exactly on the contents of both files") {
  TempFolder folder;
  WritePlain(folder / "labels", Labels());
  WritePlain(folder / "images", Images());
  const auto first = OpenIdx(Source(folder), {});
  REQUIRE(first.ok());
  const std::string before = (*first)->Fingerprint();
  CHECK_THAT(before,
             Catch::Contains("images: size=46 sha256=") && Catch::Contains("labels: size="));
  // The copies of the files have a later modification time.
  TempFolder copy;
  WritePlain(copy / "labels", Labels());
  WritePlain(copy / "images", Images());
  std::filesystem::last_write_time(
      copy / "images", std::filesystem::last_write_time(folder / "images") + std::chrono::hours(1));
  const auto same = OpenIdx(Source(copy), {});
  REQUIRE(same.ok());
  CHECK((*same)->Fingerprint() == before);
  auto changed = Images();
  changed[changed.size() / 2] = 'x';
  const auto time = std::filesystem::last_write_time(folder / "images");
  WritePlain(folder / "images", changed);
  std::filesystem::last_write_time(folder / "images", time);
  const auto second = OpenIdx(Source(folder), {});
  REQUIRE(second.ok());
  CHECK((*second)->Fingerprint() != before);
}

}  // namespace
}  // namespace evergrad::worker
