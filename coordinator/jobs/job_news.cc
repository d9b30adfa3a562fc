#include "coordinator/jobs/job_news.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {
namespace {

constexpr std::chrono::milliseconds kProgressEvery{100};

}  // namespace

void JobNews::AddEvent(absl::string_view kind, const std::string& text) {
  const v1::Event& event = events_.Add(kind, text, host_->WallMillis(), job_.NoteIfJournaled());
  host_->Log(kind == "warning" || kind == "death" ? log::Level::kWarning : log::Level::kInfo,
             absl::StrCat(kind, ": ", event.text()), id_.spec.name);
  output_.AddEvent(event);
  TellChange();
}

void JobNews::SayNotReproducible(const std::string& why) {
  if (!id_.spec.strategy.deterministic) return;
  AddEvent("warning",
           absl::StrCat(
               "deterministic: ", why,
               "; the results may differ in bits from those of an undisturbed run, because updates "
               "that had reached only some shards are completed with values that were read later"));
}

void JobNews::AddRefusal(const std::string& refusal) {
  const v1::Event& event = events_.Add(
      "warning", absl::StrCat("restored from the journal without its variables: ", refusal),
      host_->WallMillis(), nullptr);
  host_->Log(log::Level::kWarning, absl::StrCat("an ended job is ", event.text()), id_.spec.name);
}

void JobNews::BeginLife(Term term) {
  revision_ = std::max<std::uint64_t>(revision_, term.value() << 32);
}

void JobNews::Tick(MonoTime now) {
  if (!touched_ || now < next_) return;
  next_ = now + kProgressEvery;
  touched_ = false;
  TellChange();
}

void JobNews::TellChange() {
  ++revision_;
  host_->JobChanged(id_.uid);
}

}  // namespace evergrad::coordinator
