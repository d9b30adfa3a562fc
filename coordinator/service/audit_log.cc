#include "coordinator/service/audit_log.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/escape.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kValueCharactersMax = 200, kResultCharactersMax = 400;

// Returns `text` as one value of the line. Text of a caller could contain " result=ok" and so look
// like more than one value; such text is quoted.
std::string Value(absl::string_view text) {
  if (text.empty()) return "-";
  const std::string escaped = Quoted(text, kValueCharactersMax);
  const bool plain = std::all_of(escaped.begin(), escaped.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '"' && c != '=';
  });
  if (plain) return escaped;
  return absl::StrCat("\"", absl::StrReplaceAll(escaped, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

// Returns the name under which repeated calls of a caller are remembered. Each connection has
// another port, so the port is no part of the name.
absl::string_view NameOf(const Caller& caller) {
  if (!caller.task.empty()) return caller.task;
  return absl::string_view(caller.address).substr(0, caller.address.rfind(':'));
}

class AuditedResponder final : public transport::UnaryResponder {
 public:
  AuditedResponder(std::shared_ptr<AuditLog> log, const ControlCall& call, AuditLog::Entry entry,
                   Responder inner)
      : log_(std::move(log)), call_(call), entry_(std::move(entry)), inner_(std::move(inner)) {}
  ~AuditedResponder() override {
    if (!answered_ && call_.audited)
      log_->Write(entry_, absl::UnknownError("the call ended without an answer"));
  }
  void Answer(absl::StatusOr<std::string> response) override {
    answered_ = true;
    if (response.ok() && call_.made != nullptr) entry_.object = call_.made(*response);
    if (call_.audited || absl::IsPermissionDenied(response.status()))
      log_->Write(entry_, response.status());
    inner_->Answer(std::move(response));
  }

 private:
  const std::shared_ptr<AuditLog> log_;
  const ControlCall& call_;  // a row of the constant table
  AuditLog::Entry entry_;
  const Responder inner_;
  bool answered_ = false;
};

}  // namespace

void AuditLog::Write(const Entry& entry, const absl::Status& result) {
  std::uint64_t left_out = 0;
  const std::string caller(NameOf(entry.caller));
  {
    MutexLock lock(&mu_);
    const MonoTime now = clock_->Now();
    if (result.ok() && IsRepeated(entry, now)) return;
    if (!result.ok()) {
      Bucket& bucket = BucketOf(caller, now);
      if (!TakeToken(&bucket, now)) {
        ++bucket.left_out;
        return;
      }
      left_out = std::exchange(bucket.left_out, 0);
    }
  }
  if (left_out > 0) WriteLeftOut(caller, left_out);
  logger_->Info(
      absl::StrCat("audit: action=", Value(entry.action), " caller=", Value(entry.caller.task),
                   " peer=", Value(entry.caller.address), " object=", Value(entry.object),
                   entry.detail.empty() ? "" : absl::StrCat(" ", entry.detail), " result=",
                   result.ok() ? "ok"
                               : absl::StrCat(absl::StatusCodeToString(result.code()), ": ",
                                              Quoted(result.message(), kResultCharactersMax))));
}

void AuditLog::Tick() {
  std::map<std::string, std::uint64_t> left_out;
  {
    MutexLock lock(&mu_);
    const MonoTime now = clock_->Now();
    for (auto& [caller, bucket] : buckets_) {
      if (bucket.left_out > 0 && TakeToken(&bucket, now))
        left_out[caller] = std::exchange(bucket.left_out, 0);
    }
  }
  for (const auto& [caller, number] : left_out) WriteLeftOut(caller, number);
}

bool AuditLog::IsRepeated(const Entry& entry, MonoTime now) {
  const std::string call = absl::StrCat(entry.action, " ", NameOf(entry.caller), " ", entry.detail);
  const auto found = remembered_.find(entry.object);
  if (found != remembered_.end() && found->second.call == call &&
      now - found->second.at < limits_.repeated_within)
    return true;
  if (found == remembered_.end() && remembered_.size() >= limits_.remembered_max) {
    std::erase_if(remembered_,
                  [&](const auto& one) { return now - one.second.at >= limits_.repeated_within; });
    // A call that is forgotten too early only has one line more.
    if (remembered_.size() >= limits_.remembered_max) remembered_.clear();
  }
  remembered_[entry.object] = {call, now};
  return false;
}

AuditLog::Bucket& AuditLog::BucketOf(const std::string& caller, MonoTime now) {
  const auto found = buckets_.find(caller);
  if (found != buckets_.end()) return found->second;
  if (buckets_.size() >= limits_.callers_max) {
    // A caller whose bucket is full needs none.
    for (auto one = buckets_.begin(); one != buckets_.end();) {
      Fill(&one->second, now);
      const bool idle = one->second.left_out == 0 && one->second.tokens >= limits_.failed_burst;
      one = idle ? buckets_.erase(one) : std::next(one);
    }
  }
  const bool shared = buckets_.size() >= limits_.callers_max;
  return buckets_.try_emplace(shared ? "other callers" : caller, Bucket{limits_.failed_burst, now})
      .first->second;
}

void AuditLog::Fill(Bucket* bucket, MonoTime now) const {
  const double seconds = std::chrono::duration<double>(now - bucket->filled_at).count();
  bucket->tokens =
      std::min(limits_.failed_burst, bucket->tokens + seconds * limits_.failed_per_second);
  bucket->filled_at = now;
}

bool AuditLog::TakeToken(Bucket* bucket, MonoTime now) const {
  Fill(bucket, now);
  if (bucket->tokens < 1) return false;
  bucket->tokens -= 1;
  return true;
}

void AuditLog::WriteLeftOut(const std::string& caller, std::uint64_t left_out) {
  logger_->Info(absl::StrCat("audit: lines about refused or failed calls were left out: caller=",
                             Value(caller), " left_out=", left_out));
}

Responder Audited(std::shared_ptr<AuditLog> log, const ControlCall& call, AuditLog::Entry entry,
                  Responder responder) {
  return std::make_shared<AuditedResponder>(std::move(log), call, std::move(entry),
                                            std::move(responder));
}

}  // namespace evergrad::coordinator
