#include "common/client/log_lines.h"

#include <cstddef>
#include <limits>
#include <utility>

#include "common/base/text.h"

namespace evergrad::client {
namespace {

constexpr std::size_t kMessageBytesMax = 512u << 10;

}  // namespace

void FillLogLine(const log::Line& line, v1::LogLine* to) {
  to->set_wall_ms(line.wall_ms);
  to->set_level(std::string(log::LevelName(line.level)));
  to->set_text(CleanText(line.text, log::kTextBytesMax));
  to->set_job(CleanText(line.job, log::kContextBytesMax));
  to->set_task(CleanText(line.task, log::kContextBytesMax));
}

void AnswerReadLogs(const log::Logger& logger, const v1::ReadLogs& request,
                    const std::function<void(v1::TaskMessage)>& send) {
  const std::size_t lines_max =
      request.lines_max() == 0 ? std::numeric_limits<std::size_t>::max() : request.lines_max();
  v1::TaskMessage message;
  std::size_t bytes = 0;
  const auto flush = [&](bool end) {
    message.mutable_log_lines()->set_request_id(request.request_id());
    message.mutable_log_lines()->set_end(end);
    send(std::exchange(message, {}));
    bytes = 0;
  };
  for (const log::Line& line : logger.Read(0, request.since_wall_ms(), request.job(), lines_max)) {
    v1::LogLine* to = message.mutable_log_lines()->add_lines();
    FillLogLine(line, to);
    bytes += to->ByteSizeLong();
    if (bytes >= kMessageBytesMax) flush(false);
  }
  flush(true);
}

}  // namespace evergrad::client
