#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/client/log_lines.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {
namespace {

// A cursor says how far a task's lines have been handed out: wall_ms * kPerMs + lines already seen
// of that millisecond.
constexpr std::uint64_t kPerMs = 100'000;
constexpr char kOwnName[] = "coordinator/0";

}  // namespace

// The newest lines of each task's ring, read through its session; the coordinator's own beside
// them. In order of wall time.
template <>
void ControlPlane::Serve(const v1::ReadTaskLogsRequest& request, Responder responder) {
  const std::uint32_t lines_max = request.lines_max() == 0
                                      ? options_.log_lines_max
                                      : std::min(request.lines_max(), options_.log_lines_max);
  const auto wanted = [&](const std::string& name) {
    if (request.tasks().empty()) return true;
    return std::any_of(request.tasks().begin(), request.tasks().end(),
                       [&](const std::string& task) {
                         return task == name || (task == "coordinator" && name == kOwnName);
                       });
  };
  for (const std::string& task : request.tasks()) {
    const std::vector<std::string> parts = absl::StrSplit(task, absl::MaxSplits('/', 1));
    const bool known =
        task == "coordinator" || task == kOwnName ||
        (parts.size() == 2 &&
         ((parts[0] == "worker" && membership_.FindIdentity(Role::kWorker, parts[1]) != nullptr) ||
          (parts[0] == "ps_server" &&
           membership_.FindIdentity(Role::kPsServer, parts[1]) != nullptr)));
    if (!known)
      return responder->Answer(
          UserError(absl::NotFoundError(absl::StrCat("no such task: task=", task.substr(0, 200)))));
  }
  const auto since_of = [&](const std::string& name) {
    const auto cursor = request.cursors().find(name);
    return std::max<std::int64_t>(
        request.since_wall_ms(),
        cursor == request.cursors().end() ? 0 : static_cast<std::int64_t>(cursor->second / kPerMs));
  };
  const std::uint64_t number = next_number_++;
  LogRead read;
  read.request = request;
  read.request.set_lines_max(lines_max);
  read.deadline = Now() + options_.query_timeout;
  read.responder = std::move(responder);
  if (wanted(kOwnName)) {
    for (const log::Line& line :
         parts_.logger->Read(0, since_of(kOwnName), request.job(), lines_max)) {
      v1::LogLine out;
      client::FillLogLine(line, &out);
      out.set_task(kOwnName);
      read.lines.push_back(std::move(out));
    }
  }
  for (const auto& [task, session_number] : sessions_.tasks()) {
    const TaskEntry* entry = membership_.Find(task);
    if (entry == nullptr) continue;
    const std::string name = absl::StrCat(RoleName(entry->role), "/", entry->identity);
    if (!wanted(name)) continue;
    read.waiting.insert(task);
    read.names[task] = name;
    v1::CoordinatorMessage message;
    message.mutable_read_logs()->set_request_id(number);
    message.mutable_read_logs()->set_lines_max(lines_max);
    message.mutable_read_logs()->set_since_wall_ms(since_of(name));
    message.mutable_read_logs()->set_job(request.job());
    Send(task, std::move(message));
  }
  const bool at_once = read.waiting.empty();
  log_reads_.emplace(number, std::move(read));
  if (at_once) FinishLogRead(number);
}

void ControlPlane::OnLogLines(TaskId task, const v1::LogLines& lines) {
  const auto found = log_reads_.find(lines.request_id());
  if (found == log_reads_.end() || found->second.waiting.count(task) == 0) return;
  LogRead& read = found->second;
  std::uint32_t& taken = read.taken[task];  // over all of its messages: it is not asked for more
  for (const v1::LogLine& line : lines.lines()) {
    if (taken >= options_.log_lines_max) break;
    ++taken;
    read.lines.push_back(line);
    read.lines.back().set_task(read.names[task]);  // whoever it says it is
  }
  if (!lines.end()) return;
  read.waiting.erase(task);
  if (read.waiting.empty()) FinishLogRead(lines.request_id());
}

void ControlPlane::CheckLogReads() {
  const MonoTime now = Now();
  std::vector<std::uint64_t> over;
  for (const auto& [number, read] : log_reads_) {
    if (read.waiting.empty() || now >= read.deadline) over.push_back(number);
  }
  for (const std::uint64_t number : over) FinishLogRead(number);
}

void ControlPlane::FinishLogRead(std::uint64_t number) {
  auto node = log_reads_.extract(number);
  LogRead& read = node.mapped();
  std::stable_sort(
      read.lines.begin(), read.lines.end(),
      [](const v1::LogLine& a, const v1::LogLine& b) { return a.wall_ms() < b.wall_ms(); });
  // What the former answer held is left out: of the cursor's millisecond its first lines, of each
  // task.
  v1::ReadTaskLogsResponse response;
  std::map<std::string, std::pair<std::int64_t, std::uint64_t>>
      at;  // newest millisecond of a task, and its lines
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
  AnswerWith(*read.responder, response);
}

}  // namespace evergrad::coordinator
