#include "coordinator/jobs/unfit_workers.h"

#include <algorithm>

#include "common/client/protocol.h"

namespace evergrad::coordinator {
namespace {

constexpr std::chrono::milliseconds kAsideAtFirst{1000}, kKept{600'000};
constexpr std::size_t kWhyBytesMax = 1000;

}  // namespace

bool UnfitWorkers::IsAside(std::uint64_t process, MonoTime now) const {
  const auto found = records_.find(process);
  return found != records_.end() && now < found->second.again_at;
}

const UnfitWorkers::Record* UnfitWorkers::Of(std::uint64_t process) const {
  const auto found = records_.find(process);
  return found == records_.end() || found->second.fit ? nullptr : &found->second;
}

UnfitWorkers::Change UnfitWorkers::Add(std::uint64_t process, v1::Lack missing_ability,
                                       const std::string& why, MonoTime now) {
  std::erase_if(records_, [&](const auto& one) {
    return now > one.second.again_at + kKept && one.first != process;
  });
  Record& record = records_[process];
  Change change;
  change.news = record.missing_ability != missing_ability;
  change.aside = change.news || record.again_at <= now;
  record.fit = false;
  if (!change.aside) return change;
  record.again_at = now + std::min<std::chrono::milliseconds>(
                              aside_max_, kAsideAtFirst * (1u << std::min(record.times, 10u)));
  ++record.times;
  record.missing_ability = missing_ability;
  record.why = client::CleanText(why, kWhyBytesMax);
  return change;
}

void UnfitWorkers::SetUnreached(std::uint64_t process, const v1::UnreachedServer& server) {
  if (const auto found = records_.find(process); found != records_.end())
    found->second.unreached = server;
}

void UnfitWorkers::TryAgainBy(std::uint64_t process, MonoTime at) {
  if (const auto found = records_.find(process); found != records_.end())
    found->second.again_at = std::min(found->second.again_at, at);
}

void UnfitWorkers::SetFit(std::uint64_t process, MonoTime now) {
  const auto found = records_.find(process);
  if (found == records_.end()) return;
  found->second.fit = true;
  found->second.times = 0;
  found->second.again_at = now;
}

}  // namespace evergrad::coordinator
