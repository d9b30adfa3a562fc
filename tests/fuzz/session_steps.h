// The steps that the session and call targets read from their inputs. The targets and their seeds
// use them.
#pragma once

#include <cstddef>

namespace evergrad::fuzz {

enum class SessionStep { kWorker, kServer, kPeer, kEnd, kTime };
inline constexpr std::size_t kSessionSteps = 5;

enum class OrderStep { kMessage, kBatch, kRegistered, kLost, kRequest, kSettle };
inline constexpr std::size_t kOrderSteps = 6;

enum class RequestStep { kFrame, kBuilt };
inline constexpr std::size_t kRequestSteps = 2;

// After these numbers come those of the methods (control_methods.h).
enum class CallStep { kTime, kNamed };
inline constexpr std::size_t kCallSteps = 2;

}  // namespace evergrad::fuzz
