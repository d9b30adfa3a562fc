// Sends a task's newest log lines to the coordinator (psctl logs).
#pragma once

#include <functional>

#include "common/log/log.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::client {

// Copies a line. Texts are truncated and made valid for a proto3 string (CleanText), so that the
// coordinator's longest answer fits one message.
void FillLogLine(const log::Line& line, v1::LogLine* to);

// Passes the requested lines to `send`, in messages far below the transport's limit. A request for
// 0 lines asks for all kept lines. The last message is marked as the end and may have no lines.
void AnswerReadLogs(const log::Logger& logger, const v1::ReadLogs& request,
                    const std::function<void(v1::TaskMessage)>& send);

}  // namespace evergrad::client
