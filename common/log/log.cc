#include "common/log/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <ctime>
#include <deque>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "common/base/escape.h"
#include "common/base/mutex.h"
#include "common/time/clock.h"

namespace evergrad::log {
namespace {

std::string Cut(absl::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  return absl::StrCat(text.substr(0, bytes_max - 3), "...");
}

std::string TimeText(std::int64_t wall_ms) {
  const std::time_t seconds = static_cast<std::time_t>(wall_ms / 1000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900, utc.tm_mon + 1,
                         utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                         static_cast<int>(wall_ms % 1000));
}

// Returns `text` as a JSON string without hidden characters. Bytes that are not UTF-8 become
// U+FFFD.
std::string JsonString(absl::string_view text) {
  return JsonWithoutHidden(nlohmann::json(std::string(text))
                               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string Format(const Line& line, bool json) {
  if (json) {
    return absl::StrCat(
        "{\"time\":\"", TimeText(line.wall_ms), "\",\"level\":\"", LevelName(line.level),
        "\",\"task\":", JsonString(line.task), ",\"job\":", JsonString(line.job),
        ",\"closure\":", JsonString(line.closure), ",\"text\":", JsonString(line.text), "}");
  }
  // Text from outside may contain line ends or escape sequences, but one entry must stay one line.
  return absl::StrCat(TimeText(line.wall_ms), " ", LevelName(line.level), " ",
                      line.task.empty() ? "-" : Escaped(line.task),
                      " job=", line.job.empty() ? "-" : Escaped(line.job),
                      " closure=", line.closure.empty() ? "-" : Escaped(line.closure), " ",
                      Escaped(line.text));
}

spdlog::level::level_enum SpdLevel(Level level) {
  switch (level) {
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarning: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

absl::string_view LevelName(Level level) {
  switch (level) {
    case Level::kDebug: return "debug";
    case Level::kInfo: return "info";
    case Level::kWarning: return "warning";
    case Level::kError: return "error";
  }
  return "unknown";
}

struct Logger::Impl {
  explicit Impl(Options o) : options(std::move(o)) {}
  const Options options;
  RealClock clock;
  std::unique_ptr<spdlog::logger> out;
  mutable Mutex mu;
  std::string task ABSL_GUARDED_BY(mu);
  std::deque<Line> ring ABSL_GUARDED_BY(mu);
  std::uint64_t last_number ABSL_GUARDED_BY(mu) = 0;
};

Logger::Logger(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {
  spdlog::sink_ptr sink;
  std::string trouble;
  if (!impl_->options.file.empty()) {
    try {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(impl_->options.file);
    } catch (const std::exception& e) {
      trouble = e.what();
    }
  }
  if (!sink) sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  impl_->out = std::make_unique<spdlog::logger>("evergrad", std::move(sink));
  impl_->out->set_pattern("%v");
  impl_->out->set_level(spdlog::level::debug);
  // Every line is flushed, so a killed daemon loses no line.
  impl_->out->flush_on(spdlog::level::debug);
  if (!trouble.empty())
    Error(absl::StrCat("cannot write the log file, logging to standard error: ", trouble));
}

Logger::~Logger() = default;

void Logger::SetTask(absl::string_view task) {
  MutexLock lock(&impl_->mu);
  impl_->task = Cut(task, kContextBytesMax);
}

void Logger::Write(Level level, absl::string_view text, const Context& context) {
  if (level < impl_->options.level) return;
  Line line;
  line.wall_ms = impl_->clock.WallMillis();
  line.level = level;
  line.text = Cut(text, kTextBytesMax);
  line.job = Cut(context.job, kContextBytesMax);
  line.closure = Cut(context.closure, kContextBytesMax);
  {
    MutexLock lock(&impl_->mu);
    line.task = impl_->task;
    line.number = ++impl_->last_number;
    impl_->ring.push_back(line);
    while (impl_->ring.size() > impl_->options.ring_lines_max) impl_->ring.pop_front();
  }
  impl_->out->log(SpdLevel(level), spdlog::string_view_t(Format(line, impl_->options.json)));
}

std::vector<Line> Logger::Read(std::uint64_t after, std::int64_t since_wall_ms,
                               absl::string_view job, std::size_t lines_max) const {
  std::vector<Line> lines;
  {
    MutexLock lock(&impl_->mu);
    for (auto it = impl_->ring.rbegin();
         it != impl_->ring.rend() && it->number > after && lines.size() < lines_max; ++it) {
      if (it->wall_ms >= since_wall_ms && (job.empty() || it->job == job)) lines.push_back(*it);
    }
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace evergrad::log
