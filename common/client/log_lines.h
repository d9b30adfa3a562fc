// What a task and the coordinator tell of their newest log lines (psctl logs).
#pragma once

#include <functional>

#include "common/log/log.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::client {

// Texts are cut and made fit for a proto3 string (CleanText), so that the coordinator's longest
// answer fits one message.
void FillLogLine(const log::Line& line, v1::LogLine* to);

// Hands the lines that `request` asks for (0 lines: as many as are kept) to `send`, in messages far
// below the transport's limit; the last one, which may have none, is marked as the end.
void AnswerReadLogs(const log::Logger& logger, const v1::ReadLogs& request,
                    const std::function<void(v1::TaskMessage)>& send);

}  // namespace evergrad::client
