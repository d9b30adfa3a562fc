// How many deaths a job has borne without getting further. Pure.
//
// A job fails when its tasks die more than `--deaths-max` times while it does not get further; over
// a long life any number of machines may die. It gets further
//   - when a closure succeeds for the first time, and
//   - when less is left of a piece of work that is done again after a loss (repair runs, an
//   evaluation, an export) than was ever left of it since
//     the last such success. "Less than ever" is what makes this end: a server that dies and is
//     rolled back again and again makes the job repeat the same repairs without end, and each of
//     them succeeds.
// Deaths of tasks that held nothing of the job are never reported to this class.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

namespace evergrad::coordinator {

class DeathLimit {
 public:
  enum class Again { kRepairs, kEvaluation, kExport };

  void OnDeaths(std::uint32_t deaths) { deaths_ += deaths; }
  // A closure succeeded for the first time.
  void OnFirstSuccess() {
    deaths_ = 0;
    least_.fill(kUnknown);
  }
  // So much is left of work that is done again. Whether the job got further by it.
  bool OnLeft(Again work, std::uint64_t left) {
    std::uint64_t& least = least_[static_cast<std::size_t>(work)];
    if (left >= least) return false;
    least = left;
    deaths_ = 0;
    return true;
  }

  std::uint32_t deaths() const { return deaths_; }
  // From the journal. What was left of repeated work is not kept: the first piece of it that ends
  // in the next life of the coordinator counts.
  void Restore(std::uint32_t deaths) { deaths_ = deaths; }

 private:
  static constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

  std::uint32_t deaths_ = 0;
  std::array<std::uint64_t, 3> least_{kUnknown, kUnknown, kUnknown};
};

}  // namespace evergrad::coordinator
