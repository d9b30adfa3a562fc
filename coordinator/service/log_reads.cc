#include "coordinator/service/log_reads.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/client/log_lines.h"
#include "coordinator/service/life.h"

namespace evergrad::coordinator {
namespace {

constexpr std::uint64_t kPerMs = 100'000;  // lines per millisecond that a cursor can count
constexpr char kOwnName[] = "coordinator/0";

bool IsWanted(const v1::ReadTaskLogsRequest& request, const std::string& name) {
  return request.tasks().empty() ||
         std::any_of(request.tasks().begin(), request.tasks().end(), [&](const std::string& task) {
           return task == name || (task == "coordinator" && name == kOwnName);
         });
}

std::int64_t SinceOf(const v1::ReadTaskLogsRequest& request, const std::string& name) {
  const auto cursor = request.cursors().find(name);
  return std::max<std::int64_t>(
      request.since_wall_ms(),
      cursor == request.cursors().end() ? 0 : static_cast<std::int64_t>(cursor->second / kPerMs));
}

}  // namespace

bool LogReads::Knows(const std::string& task) const {
  if (task == "coordinator" || task == kOwnName) return true;
  const std::vector<std::string> parts = absl::StrSplit(task, absl::MaxSplits('/', 1));
  if (parts.size() != 2) return false;
  for (const Role role : {Role::kWorker, Role::kPsServer}) {
    if (parts[0] == RoleName(role) && parts_.membership->FindIdentity(role, parts[1]) != nullptr)
      return true;
  }
  return false;
}

void LogReads::Begin(MonoTime now, std::uint64_t number, const v1::ReadTaskLogsRequest& request,
                     Responder responder) {
  for (const std::string& task : request.tasks()) {
    if (!Knows(task))
      return responder->Answer(
          UserError(absl::NotFoundError(absl::StrCat("no such task: task=", task.substr(0, 200)))));
  }
  Read read;
  read.request = request;
  read.request.set_lines_max(request.lines_max() == 0
                                 ? options_.lines_max
                                 : std::min(request.lines_max(), options_.lines_max));
  read.deadline = now + options_.timeout;
  read.responder = std::move(responder);
  Ask(number, read);
  const bool at_once = read.waiting.empty();
  reads_.emplace(number, std::move(read));
  if (at_once) Finish(number);
}

void LogReads::Ask(std::uint64_t number, Read& read) {
  const v1::ReadTaskLogsRequest& request = read.request;
  if (IsWanted(request, kOwnName)) {
    for (const log::Line& line :
         parts_.logger->Read(0, SinceOf(request, kOwnName), request.job(), request.lines_max())) {
      v1::LogLine out;
      client::FillLogLine(line, &out);
      out.set_task(kOwnName);
      read.lines.push_back(std::move(out));
    }
  }
  for (const auto& [task, session] : parts_.sessions->tasks()) {
    const TaskEntry* entry = parts_.membership->Find(task);
    if (entry == nullptr) continue;
    const std::string name = TaskName(entry->role, entry->identity);
    if (!IsWanted(request, name)) continue;
    read.waiting.insert(task);
    read.names[task] = name;
    v1::CoordinatorMessage message;
    message.mutable_read_logs()->set_request_id(number);
    message.mutable_read_logs()->set_lines_max(request.lines_max());
    message.mutable_read_logs()->set_since_wall_ms(SinceOf(request, name));
    message.mutable_read_logs()->set_job(request.job());
    if (Session* to = parts_.sessions->Find(session)) parts_.sessions->Queue(*to, message);
  }
}

void LogReads::OnLines(TaskId task, const v1::LogLines& lines) {
  const auto found = reads_.find(lines.request_id());
  if (found == reads_.end() || !found->second.waiting.contains(task)) return;
  Read& read = found->second;
  std::uint32_t& taken = read.taken[task];  // number of lines over all messages of the task
  for (const v1::LogLine& line : lines.lines()) {
    if (taken >= options_.lines_max) break;
    ++taken;
    read.lines.push_back(line);
    read.lines.back().set_task(read.names[task]);  // replaces a name that the task has set
  }
  if (!lines.end()) return;
  read.waiting.erase(task);
  if (read.waiting.empty()) Finish(lines.request_id());
}

void LogReads::OnSessionClosed(TaskId task) {
  for (auto& [number, read] : reads_) read.waiting.erase(task);
}

void LogReads::Check(MonoTime now) {
  std::vector<std::uint64_t> over;
  for (const auto& [number, read] : reads_) {
    if (read.waiting.empty() || now >= read.deadline) over.push_back(number);
  }
  for (const std::uint64_t number : over) Finish(number);
}

void LogReads::Stop() {
  for (auto& [number, read] : reads_) read.responder->Answer(StoppingError());
  reads_.clear();
}

void LogReads::Finish(std::uint64_t number) {
  auto node = reads_.extract(number);
  Read& read = node.mapped();
  std::stable_sort(
      read.lines.begin(), read.lines.end(),
      [](const v1::LogLine& a, const v1::LogLine& b) { return a.wall_ms() < b.wall_ms(); });
  // Leaves out the lines of the previous answer. For each task these are the lines before the
  // cursor's millisecond, and the first lines of that millisecond, as many as the cursor counts.
  v1::ReadTaskLogsResponse response;
  // The newest millisecond of each task so far, and the number of lines of the task in that
  // millisecond.
  std::map<std::string, std::pair<std::int64_t, std::uint64_t>> at;
  std::vector<const v1::LogLine*> kept;
  for (const v1::LogLine& line : read.lines) {
    auto& [ms, count] = at[line.task()];
    if (line.wall_ms() != ms) {
      ms = line.wall_ms();
      count = 0;
    }
    ++count;
    const auto cursor = read.request.cursors().find(line.task());
    if (cursor != read.request.cursors().end()) {
      const std::int64_t seen_ms = static_cast<std::int64_t>(cursor->second / kPerMs);
      if (line.wall_ms() < seen_ms ||
          (line.wall_ms() == seen_ms && count <= cursor->second % kPerMs))
        continue;
    }
    kept.push_back(&line);
  }
  const std::size_t skip =
      kept.size() > read.request.lines_max() ? kept.size() - read.request.lines_max() : 0;
  for (std::size_t i = skip; i < kept.size(); ++i) *response.add_lines() = *kept[i];
  *response.mutable_cursors() = read.request.cursors();
  for (const auto& [task, newest] : at) {
    (*response.mutable_cursors())[task] =
        static_cast<std::uint64_t>(std::max<std::int64_t>(newest.first, 0)) * kPerMs +
        std::min<std::uint64_t>(newest.second, kPerMs - 1);
  }
  read.responder->Answer(response.SerializeAsString());
}

}  // namespace evergrad::coordinator
