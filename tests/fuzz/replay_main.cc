// Runs a fuzz target once for each file of the folders that are its arguments.
//
//   fuzz_NAME FOLDER...
//
// The exit code is 2 if a folder has no file, because a missing corpus must not count as a success.
// A finding ends the process as under libFuzzer: by a check, a signal or a sanitizer.
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

// The memory limit that ./evergrad fuzz gives libFuzzer (deploy/scripts/fuzz.py).
constexpr long kResidentKiBMax = 2L << 20;

std::vector<std::filesystem::path> FilesOf(const char* folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file(error)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s FOLDER...\n", argv[0]);
    return 2;
  }
  std::size_t replayed = 0;
  for (int i = 1; i < argc; ++i) {
    const auto files = FilesOf(argv[i]);
    if (files.empty()) {
      std::fprintf(stderr, "no files to replay: folder=%s\n", argv[i]);
      return 2;
    }
    for (const auto& path : files) {
      std::ifstream file(path, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      // If the process crashes, the last line names the input.
      std::printf("%s\n", path.c_str());
      std::fflush(stdout);
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
      ++replayed;
      rusage usage{};
      if (getrusage(RUSAGE_SELF, &usage) == 0 && usage.ru_maxrss > kResidentKiBMax) {
        std::fprintf(stderr, "out of bounds: resident_kib=%ld max=%ld\n", usage.ru_maxrss,
                     kResidentKiBMax);
        return 1;
      }
    }
  }
  std::printf("replayed %zu files\n", replayed);
  return 0;
}
