// Tests that plain and gzip files are read to their last byte. A file of any other kind must be
// refused, and the message must name the kind.
#include "worker/data/data_file.h"

#include <sys/stat.h>
#include <zlib.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/support/temp_folder.h"

namespace evergrad::worker {
namespace {

using test::TempFolder;

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string Gzip(const std::string& text) {
  TempFolder folder;
  gzFile file = gzopen((folder / "x").c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  std::ifstream in(folder / "x", std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns all bytes of the file, or the error. The file is read `step` bytes at a time.
absl::StatusOr<std::string> All(const std::string& path, std::size_t step = 7,
                                const fs::Roots& roots = {}) {
  auto file = DataFile::Open(path, {.roots = roots}, "a csv file");
  if (!file.ok()) return file.status();
  std::string all(step, '\0');
  for (std::size_t size = 0;; all.resize(size + step)) {
    const auto got = (*file)->Read(all.data() + size, step);
    if (!got.ok()) return got.status();
    size += *got;
    CHECK((*file)->offset() == size);
    if (*got < step) {
      all.resize(size);
      return all;
    }
  }
}

std::string Refusal(const std::string& bytes) {
  TempFolder folder;
  Write(folder / "x.csv", bytes);
  const auto all = All(folder / "x.csv");
  REQUIRE_FALSE(all.ok());
  CHECK(BlameOf(all.status()) == Blame::kUser);
  CHECK_THAT(std::string(all.status().message()), Catch::Contains(folder / "x.csv"));
  return std::string(all.status().message());
}

TEST_CASE("plain and gzip files are read whole, also with several members and trailing zeros") {
  std::string text;
  for (int i = 0; i < 100000; ++i) absl::StrAppend(&text, i, ",", i * 7919 % 1000, "\n");
  TempFolder folder;
  for (const auto& [stored, want] : std::vector<std::pair<std::string, std::string>>{
           {text, text},
           {"", ""},
           {"\x1f", "\x1f"},
           {Gzip(text), text},
           {Gzip(""), ""},
           {Gzip(text) + Gzip("x") + Gzip(""), text + "x"},
           {Gzip("x") + std::string(300000, '\0'), "x"}}) {
    Write(folder / "x", stored);
    for (const std::size_t step : {std::size_t{997}, std::size_t{1} << 20}) {
      const auto all = All(folder / "x", step);
      REQUIRE(all.ok());
      CHECK((*all == want));
    }
  }
}

TEST_CASE("garbage after a gzip member, a truncated member and a damaged member are refused") {
  for (const std::string& rest : {std::string("garbage"), std::string("\n"),
                                  std::string("\0\0x", 3), std::string(300000, 'x')}) {
    const std::string refusal = Refusal(Gzip("1,2\n") + rest);
    CHECK_THAT(refusal, Catch::Contains("there are bytes after the end of the gzip data") &&
                            Catch::Contains("offset=4"));
  }
  const std::string gz = Gzip("1,2\n3,4\n");
  CHECK_THAT(Refusal(gz + gz.substr(0, 12)), Catch::Contains("the gzip data is truncated"));
  CHECK_THAT(Refusal(gz + "\x1fxyz"), Catch::Contains("damaged data file"));
  for (std::size_t bytes = 2; bytes < gz.size(); ++bytes)
    CHECK_THAT(Refusal(gz.substr(0, bytes)), Catch::Contains("the gzip data is truncated"));
  std::string flipped = gz;
  flipped[gz.size() - 6] = static_cast<char>(flipped[gz.size() - 6] ^ 1);
  CHECK_THAT(Refusal(flipped), Catch::Contains("incorrect data check"));
}

TEST_CASE(
    "a file with another compression is refused, and the error names a program that unpacks it") {
  const std::pair<std::string, std::string> cases[] = {
      {std::string("\xfd"
                   "7zXZ\0\0\x04\xe6\xd6\xb4\x46",
                   12),
       "got=xz (`xz -d` decompresses it"},
      {"BZh91AY&SY\x01\x02", "got=bzip2 (`bzip2 -d` decompresses it"},
      {std::string("BZh9\x17\x72\x45\x38\x50\x90\0\0\0\0", 14), "got=bzip2"},
      {"PK\x03\x04\x14", "got=zip (`unzip` decompresses it"},
      {"\x28\xb5\x2f\xfd\x04", "got=zstd (`zstd -d` decompresses it"},
      {"\x37\x7a\xbc\xaf\x27\x1c", "got=7z"},
  };
  for (const auto& [bytes, want] : cases)
    CHECK_THAT(Refusal(bytes), Catch::Contains("data file has an unsupported compression") &&
                                   Catch::Contains("want=a csv file, gzip (.gz) or plain") &&
                                   Catch::Contains(want));
  TempFolder folder;
  Write(folder / "x", "BZh,b,c\n");  // this is text, although it begins like a bzip2 file
  CHECK(*All(folder / "x") == "BZh,b,c\n");
}

TEST_CASE(
    "folders, named pipes and files outside of the roots are refused, and errors reveal nothing of "
    "a file outside") {
  TempFolder folder;
  std::filesystem::create_directory(folder / "data");
  CHECK_THAT(std::string(All(folder / "data").status().message()),
             Catch::Contains("data file is a folder"));
  REQUIRE(::mkfifo((folder / "data/pipe").c_str(), 0600) == 0);
  CHECK_THAT(std::string(All(folder / "data/pipe").status().message()),
             Catch::Contains("data file is not a regular file"));
  Write(folder / "data/x", "1\n");
  Write(folder / "secret", std::string("PK\x03\x04") + "root:$6$hash");
  std::filesystem::create_symlink(folder / "secret", folder / "data/link");
  const fs::Roots roots =
      fs::Roots::Only({folder / "data"}, "start the worker with --data-root FOLDER");
  CHECK(*All(folder / "data/x", 7, roots) == "1\n");
  std::set<std::string> said;
  for (const char* name : {"secret", "absent", "data/link", "data/../secret"}) {
    const absl::Status status = All(folder / name, 7, roots).status();
    CHECK(absl::IsPermissionDenied(status));
    said.insert(std::string(status.message())
                    .replace(std::string(status.message()).find(folder / name),
                             (folder / name).size(), "PATH"));
  }
  REQUIRE(said.size() == 1);  // one message is logged for all files
  CHECK_THAT(
      *said.begin(),
      Catch::Contains(
          "the data file lies outside of the allowed folders (after following links): path=PATH") &&
          Catch::Contains("start the worker with --data-root FOLDER"));
}

TEST_CASE("the fingerprint belongs to the opened file, even if its path now has another file") {
  TempFolder folder;
  Write(folder / "x", "one");
  auto file = DataFile::Open(folder / "x", {}, "a csv file");
  REQUIRE(file.ok());
  const std::string before = *(*file)->Fingerprint();
  CHECK_THAT(before, Catch::StartsWith("size=3 sha256="));
  std::filesystem::rename(folder / "x", folder / "y");
  Write(folder / "x", "another");
  CHECK(*(*file)->Fingerprint() == before);
}

}  // namespace
}  // namespace evergrad::worker
