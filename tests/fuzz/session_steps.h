// The steps that the session and call targets read from their inputs, for the targets and for their
// seeds.
#pragma once

#include <array>
#include <cstddef>

#include "common/client/protocol.h"

namespace evergrad::fuzz {

enum class SessionStep { kWorker, kServer, kPeer, kEnd, kTime };
inline constexpr std::size_t kSessionSteps = 5;

enum class OrderStep { kMessage, kBatch, kRegistered, kLost, kRequest, kSettle };
inline constexpr std::size_t kOrderSteps = 6;

enum class RequestStep { kFrame, kBuilt };
inline constexpr std::size_t kRequestSteps = 2;

inline constexpr std::array kControlMethods = {
    client::kSubmitJob,      client::kGetJob,         client::kListJobs,
    client::kCancelJob,      client::kListTasks,      client::kListVariables,
    client::kReadTaskLogs,   client::kGetClusterInfo, client::kDrainTask,
    client::kListRunFiles,   client::kReadRunFile,    client::kScheduleClosure,
    client::kJoinClosures,   client::kClosuresDone,   client::kFetchResult,
    client::kCancelClosures, client::kReleaseResults, client::kFinishJob};
// Choices behind the methods: time passes, the bytes that follow are a method's name.
inline constexpr std::size_t kTimeStep = kControlMethods.size(), kNamedStep = kTimeStep + 1,
                             kCallSteps = kNamedStep + 1;

}  // namespace evergrad::fuzz
