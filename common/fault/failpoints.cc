#include "common/fault/failpoints.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/mutex.h"
#include "common/base/nearest_name.h"
#include "common/base/status.h"
#include "common/random/philox.h"

namespace evergrad::fault {
namespace {

constexpr std::int64_t kDelayMsMax = 600'000;

enum class Verb { kKill, kStop, kError, kUserError, kDrop, kDelay, kOn };
constexpr struct {
  absl::string_view word;
  Verb verb;
} kVerbs[] = {{"kill", Verb::kKill},   {"stop", Verb::kStop},
              {"error", Verb::kError}, {"user_error", Verb::kUserError},
              {"drop", Verb::kDrop},   {"delay", Verb::kDelay},
              {"on", Verb::kOn}};
enum class When { kAlways, kOnlyNth, kFromNth, kPercent };

struct Rule {
  When when = When::kAlways;
  std::uint64_t nth = 0;
  double percent = 0;
  Verb verb = Verb::kOn;
  std::int64_t delay_ms = 0;
};

struct Site {
  std::vector<Rule> rules;
  std::uint64_t hits = 0;
  std::uint64_t key = 0;
};

bool Fires(const Rule& rule, const Site& site) {
  switch (rule.when) {
    case When::kAlways: return true;
    case When::kOnlyNth: return site.hits == rule.nth;
    case When::kFromNth: return site.hits >= rule.nth;
    case When::kPercent:
      return static_cast<double>(random::Uniform(site.key, site.hits)) * 100.0 < rule.percent;
  }
  return false;
}

constexpr KnownFailpoint kKnown[] = {
#define EG_FAILPOINT(name, actions, explanation) {name, actions, explanation},
#include "common/fault/known_failpoints.inc"
#undef EG_FAILPOINT
};

const KnownFailpoint* Find(absl::string_view name) {
  const auto* known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                   [&](const auto& k) { return k.name == name; });
  return known == std::end(kKnown) ? nullptr : known;
}

absl::Status Bad(absl::string_view why, absl::string_view entry) {
  return absl::InvalidArgumentError(absl::StrCat("bad failpoint: ", why, ": entry=", entry));
}

absl::Status Unknown(absl::string_view name, absl::string_view entry) {
  std::vector<std::string> names;
  for (const KnownFailpoint& known : kKnown) names.emplace_back(known.name);
  const std::string nearest = NearestName(name, names);
  return Bad(nearest.empty() ? "unknown name"
                             : absl::StrCat("unknown name, did you mean `", nearest, "`?"),
             entry);
}

absl::StatusOr<Rule> ParseRule(const KnownFailpoint& known, absl::string_view text,
                               absl::string_view entry) {
  Rule rule;
  text = absl::StripAsciiWhitespace(text);
  const std::size_t digits = text.find_first_not_of("0123456789.");
  if (digits != 0 && digits != absl::string_view::npos) {
    const absl::string_view number = text.substr(0, digits);
    switch (text[digits]) {
      case '*': rule.when = When::kOnlyNth; break;
      case '+': rule.when = When::kFromNth; break;
      case '%': rule.when = When::kPercent; break;
      default: return Bad("a number must be followed by *, + or %", entry);
    }
    if (rule.when == When::kPercent) {
      if (!absl::SimpleAtod(number, &rule.percent) || !(rule.percent >= 0 && rule.percent <= 100))
        return Bad("a percentage must lie between 0 and 100", entry);
    } else if (!absl::SimpleAtoi(number, &rule.nth) || rule.nth == 0) {
      return Bad("a hit number must be an integer of at least 1", entry);
    }
    text.remove_prefix(digits + 1);
  }
  const absl::string_view word = text.substr(0, text.find('('));
  const auto verb = std::find_if(std::begin(kVerbs), std::end(kVerbs),
                                 [&](const auto& v) { return v.word == word; });
  if (verb == std::end(kVerbs) || (word.size() == text.size()) != (verb->verb != Verb::kDelay))
    return Bad("unknown action, expected kill, error, user_error, drop, delay(MS), stop or on",
               entry);
  rule.verb = verb->verb;
  if (rule.verb == Verb::kDelay) {
    text.remove_prefix(word.size() + 1);
    if (!absl::ConsumeSuffix(&text, ")") || !absl::SimpleAtoi(text, &rule.delay_ms) ||
        rule.delay_ms < 0 || rule.delay_ms > kDelayMsMax) {
      return Bad(absl::StrCat("the MS of delay(MS) must be from 0 to ", kDelayMsMax), entry);
    }
  }
  const std::string actions = absl::StrCat("kill stop ", known.actions);
  for (const absl::string_view action : absl::StrSplit(actions, ' '))
    if (action == word) return rule;
  return Bad(absl::StrCat("`", known.name, "` does not perform `", word, "`, only ",
                          absl::StripAsciiWhitespace(actions)),
             entry);
}

}  // namespace

struct Failpoints::Impl {
  std::atomic<bool> any{false};
  mutable Mutex mu;
  std::map<std::string, Site, std::less<>> sites ABSL_GUARDED_BY(mu);
};

Failpoints::Failpoints() : impl_(std::make_unique<Impl>()) {}
Failpoints::~Failpoints() = default;

absl::Span<const KnownFailpoint> Failpoints::Known() { return kKnown; }

absl::Status Failpoints::Arm(absl::string_view spec, std::uint64_t seed) {
  std::map<std::string, Site, std::less<>> parsed;
  if (absl::StripAsciiWhitespace(spec) == "none") return absl::OkStatus();
  for (absl::string_view entry : absl::StrSplit(spec, ';')) {
    entry = absl::StripAsciiWhitespace(entry);
    if (entry.empty()) continue;
    const std::size_t equals = entry.find('=');
    if (equals == absl::string_view::npos) return Bad("expected name=action", entry);
    const std::string name(absl::StripAsciiWhitespace(entry.substr(0, equals)));
    const KnownFailpoint* const known = Find(name);
    if (known == nullptr) return Unknown(name, entry);
    Site site;
    site.key = random::KeyOf(seed, name);
    for (absl::string_view action : absl::StrSplit(entry.substr(equals + 1), ',')) {
      EG_ASSIGN_OR_RETURN(Rule rule, ParseRule(*known, action, entry));
      site.rules.push_back(rule);
    }
    if (!parsed.emplace(name, std::move(site)).second)
      return Bad("duplicate name, separate its actions by a comma", entry);
  }
  MutexLock lock(&impl_->mu);
  for (auto& [name, site] : parsed) impl_->sites[name] = std::move(site);
  impl_->any.store(!impl_->sites.empty(), std::memory_order_relaxed);
  return absl::OkStatus();
}

Hit Failpoints::At(absl::string_view name) {
  if (!AnyArmed()) return {};
  std::optional<Rule> fired;
  {
    MutexLock lock(&impl_->mu);
    const auto it = impl_->sites.find(name);
    if (it == impl_->sites.end()) return {};
    Site& site = it->second;
    ++site.hits;
    for (const Rule& rule : site.rules) {
      if (!Fires(rule, site)) continue;
      fired = rule;
      break;
    }
  }
  if (!fired) return {};
  switch (fired->verb) {
    // SIGKILL ends the process, so the return is not reached.
    case Verb::kKill: ::kill(::getpid(), SIGKILL); return {};
    case Verb::kStop:
      // raise() signals this thread, so that it does not continue while the other threads are being
      // stopped.
      ::raise(SIGSTOP);
      return {};
    case Verb::kError: return {Action::kError, 0};
    case Verb::kUserError: return {Action::kUserError, 0};
    case Verb::kDrop: return {Action::kDrop, 0};
    case Verb::kDelay: return {Action::kDelay, fired->delay_ms};
    case Verb::kOn: return {Action::kOn, 0};
  }
  return {};
}

absl::Status Failpoints::ErrorAt(absl::string_view name) {
  const Hit hit = At(name);
  if (hit.action == Action::kError)
    return absl::InternalError(absl::StrCat("failpoint: name=", name));
  if (hit.action == Action::kUserError)
    return UserError(absl::InvalidArgumentError(absl::StrCat("failpoint: name=", name)));
  return absl::OkStatus();
}

bool Failpoints::IsArmed(absl::string_view name) const {
  if (!AnyArmed()) return false;
  MutexLock lock(&impl_->mu);
  const auto it = impl_->sites.find(name);
  if (it == impl_->sites.end()) return false;
  return std::any_of(it->second.rules.begin(), it->second.rules.end(), [&](const Rule& rule) {
    return rule.when != When::kOnlyNth || it->second.hits < rule.nth;
  });
}

bool Failpoints::AnyArmed() const { return impl_->any.load(std::memory_order_relaxed); }

}  // namespace evergrad::fault
