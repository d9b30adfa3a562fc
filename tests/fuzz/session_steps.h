// The kinds of steps that the fuzz targets for sessions and calls read from their inputs. The
// targets and the program that makes their seeds use them.
#pragma once

#include <cstddef>

namespace evergrad::fuzz {

enum class SessionStep { kWorker, kServer, kPeer, kEnd, kTime };
inline constexpr std::size_t kSessionSteps = 5;

enum class OrderStep { kMessage, kBatch, kRegistered, kLost, kRequest, kSettle };
inline constexpr std::size_t kOrderSteps = 6;

enum class RequestStep { kFrame, kBuilt };
inline constexpr std::size_t kRequestSteps = 2;

// The numbers after these stand for the methods (control_methods.h).
enum class CallStep { kTime, kNamed };
inline constexpr std::size_t kCallSteps = 2;

}  // namespace evergrad::fuzz
