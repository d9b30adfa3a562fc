#include "common/metrics/process_metrics.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace evergrad::metrics {
namespace {

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Returns the words of the first line of `text` that begins with `key`, without the key.
std::vector<std::string> WordsAfter(const std::string& text, const std::string& key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, key))
      return absl::StrSplit(line.substr(key.size()), ' ', absl::SkipEmpty());
  }
  return {};
}

bool Read(const std::vector<std::string>& words, std::size_t i, double* out) {
  return i < words.size() && absl::SimpleAtod(words[i], out);
}

double TicksPerSecond() { return static_cast<double>(::sysconf(_SC_CLK_TCK)); }

// Indexes into the result of StatFields. Each is the number of the field in proc(5) minus 3,
// because the result begins with field 3.
constexpr std::size_t kUtime = 14 - 3, kStime = 15 - 3, kStart = 22 - 3, kVirtual = 23 - 3,
                      kResident = 24 - 3;

// Returns the fields of `stat` from field 3 of proc(5) on, or none if the file is missing or
// malformed. Field 2 is the name of the program in parentheses, which may contain spaces and
// parentheses.
std::vector<std::string> StatFields(const std::string& folder) {
  const std::string stat = TextOf(folder + "/stat");
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {};
  return absl::StrSplit(absl::StripAsciiWhitespace(stat.substr(name_end + 1)), ' ');
}

bool ReadCpuSeconds(const std::vector<std::string>& fields, double* seconds) {
  double user = 0, system = 0;
  if (!Read(fields, kUtime, &user) || !Read(fields, kStime, &system)) return false;
  *seconds = (user + system) / TicksPerSecond();
  return true;
}

}  // namespace

std::optional<ProcessNumbers> ReadProcessNumbers(const std::string& proc,
                                                 const std::string& process) {
  const std::string folder = absl::StrCat(proc, "/", process);
  const std::vector<std::string> fields = StatFields(folder);
  double start = 0, pages = 0, booted = 0;
  ProcessNumbers numbers;
  if (!ReadCpuSeconds(fields, &numbers.cpu_seconds) || !Read(fields, kStart, &start) ||
      !Read(fields, kVirtual, &numbers.virtual_bytes) || !Read(fields, kResident, &pages) ||
      !Read(WordsAfter(TextOf(proc + "/stat"), "btime "), 0, &booted))
    return std::nullopt;
  numbers.resident_bytes = pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
  numbers.start_seconds = booted + start / TicksPerSecond();
  const std::vector<std::string> limit = WordsAfter(TextOf(folder + "/limits"), "Max open files ");
  if (!limit.empty() && limit[0] == "unlimited")
    numbers.max_fds = std::numeric_limits<double>::infinity();
  else if (!Read(limit, 0, &numbers.max_fds))
    return std::nullopt;
  std::error_code error;
  std::filesystem::directory_iterator open(folder + "/fd", error);
  if (error) return std::nullopt;
  for (; open != std::filesystem::directory_iterator(); open.increment(error)) {
    if (error) return std::nullopt;
    ++numbers.open_fds;
  }
  if (process == "self") --numbers.open_fds;  // the descriptor that this listing itself uses
  return numbers;
}

void AddProcessMetrics(Registry& registry, const std::string& proc) {
  registry.AddCallbackGauges(
      {{"process_resident_memory_bytes", "Resident memory size in bytes."},
       {"process_virtual_memory_bytes", "Virtual memory size in bytes."},
       {"process_start_time_seconds", "Start time of the process since unix epoch in seconds."},
       {"process_open_fds", "Number of open file descriptors."},
       {"process_max_fds", "Maximum number of open file descriptors."}},
      [proc] {
        std::vector<Registry::Samples> samples(5);
        if (const auto numbers = ReadProcessNumbers(proc, "self")) {
          const double values[] = {numbers->resident_bytes, numbers->virtual_bytes,
                                   numbers->start_seconds, numbers->open_fds, numbers->max_fds};
          for (std::size_t i = 0; i < std::size(values); ++i)
            samples[i].emplace_back(Labels{}, values[i]);
        }
        return samples;
      });
  registry.AddCallbackTotal("process_cpu_seconds_total",
                            "Total user and system CPU time spent in seconds.", {},
                            [proc, last = std::make_shared<std::atomic<double>>(0)] {
                              double seconds = 0;
                              if (ReadCpuSeconds(StatFields(proc + "/self"), &seconds))
                                last->store(seconds);
                              return last->load();
                            });
}

}  // namespace evergrad::metrics
