// Silences protobuf, which otherwise logs a line for each string that is not valid UTF-8.
#pragma once

#include <google/protobuf/stubs/logging.h>

namespace evergrad::fuzz {

inline google::protobuf::LogHandler* const kFormerLogHandler =
    google::protobuf::SetLogHandler(nullptr);

}  // namespace evergrad::fuzz
