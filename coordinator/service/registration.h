// Registers the task that sent a Hello, or refuses the Hello, in these steps:
//
//   identify    the certificate and the Hello give the task; membership accepts or refuses it
//   fence       the former session of the same identity ends
//   enter       the session and the task are in the tables
//   reconcile   the task's shards or attempts are compared with those of the jobs
//   welcome     Registered is sent, then the end of shards and attempts that the task may not keep;
//               then the jobs may use the task
//
// Not thread-safe: the control executor owns it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/membership/identity_contest.h"
#include "coordinator/service/service_parts.h"
#include "coordinator/service/task_ends.h"

namespace evergrad::coordinator {

class Registrar {
 public:
  Registrar(ServiceParts parts, TaskEnds* ends) : parts_(parts), ends_(ends) {}

  // Checks whether the certificate of the session permits the task that the Hello names. If not,
  // rejects the session and returns false. Nothing of a Hello may be used before this check.
  bool CheckCertificate(const Session& session, const v1::Hello& hello);

  // Registers the task of a pending session by the session's Hello, or rejects the session. Does
  // nothing if the session has ended or has been registered.
  void Register(std::uint64_t session);

 private:
  struct Registration;
  // The steps of Register. Identify and Reconcile return false if they have rejected the session.
  bool Identify(Registration& one);
  bool CheckEndpoint(const Registration& one, const std::string& claimed);
  void Fence(Registration& one);
  void Enter(Registration& one);
  bool Reconcile(Registration& one);
  void AdmitWorker(Registration& one);
  Job* JobFor(const Registration& one) const;  // the job that the worker is to serve, or null
  void Welcome(Registration& one);
  void EndHeld(Registration& one);
  void SayRefused(const TaskHello& said, const RegisterVerdict& verdict);

  const ServiceParts parts_;
  TaskEnds* const ends_;
  IdentityContest contest_;
  std::uint64_t too_often_ = 0;  // registrations refused since the last log line about refusals
  std::optional<MonoTime> too_often_said_;
};

}  // namespace evergrad::coordinator
