// Measures the closure book alone, without network and disk: the grant and the Done of every
// closure of a plan. The rival is the simplest loop that hands out numbers from a queue and
// remembers which worker has which number. It has no ledger, no repair and no fencing.
#include <algorithm>
#include <chrono>
#include <deque>
#include <unordered_map>
#include <vector>

#include "coordinator/closures/closure_book.h"
#include "tests/bench/figures.h"

namespace evergrad {
namespace {

using bench::Median;

constexpr std::uint64_t kClosures = 200'000;
constexpr std::uint32_t kShards = 64;
constexpr std::size_t kInHand = 128;  // 64 workers, two closures each

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double OfTheBook() {
  coordinator::ClosureBook book({.closures = kClosures, .shards = kShards}, {});
  book.BeginLife(Term(1));
  book.CloseWindow();
  for (std::uint32_t p = 0; p < kShards; ++p) book.Rollback(ShardId(p), "0");
  const MapVersion version = book.durable().version;
  std::deque<coordinator::ClosureBook::Granted> in_hand;
  const double begin = Seconds();
  std::uint64_t ended = 0;
  while (ended < kClosures) {
    while (in_hand.size() < kInHand) {
      auto granted = book.NextGrant(TaskId(in_hand.size() % 64));
      if (!granted) break;
      in_hand.push_back(*std::move(granted));
    }
    if (!book.OnDone(in_hand.front().closure, in_hand.front().attempt, version, version).counted)
      std::abort();
    in_hand.pop_front();
    ++ended;
  }
  return static_cast<double>(kClosures) / (Seconds() - begin);
}

double OfTheQueue() {
  std::deque<std::uint64_t> queue;
  for (std::uint64_t c = 0; c < kClosures; ++c) queue.push_back(c);
  std::unordered_map<std::uint64_t, std::uint64_t> running;
  std::deque<std::uint64_t> in_hand;
  const double begin = Seconds();
  std::uint64_t ended = 0;
  while (ended < kClosures) {
    while (in_hand.size() < kInHand && !queue.empty()) {
      running[queue.front()] = in_hand.size() % 64;
      in_hand.push_back(queue.front());
      queue.pop_front();
    }
    if (running.erase(in_hand.front()) != 1) std::abort();
    in_hand.pop_front();
    ++ended;
  }
  return static_cast<double>(kClosures) / (Seconds() - begin);
}

int Main() {
  std::vector<double> ours, theirs;
  for (int round = 0; round < 7; ++round) {
    ours.push_back(OfTheBook());
    theirs.push_back(OfTheQueue());
  }
  bench::Print("closures through the queue core, 128 in hand, 64 shards", Median(ours),
               "closures/s", "a bare queue and a map of who has what", Median(theirs),
               Median(ours) / Median(theirs), bench::kNoReach);
  return 0;
}

}  // namespace
}  // namespace evergrad

int main() { return evergrad::Main(); }
