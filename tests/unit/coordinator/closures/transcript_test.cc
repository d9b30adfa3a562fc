// Runs the scripts testdata/*.txt against the closure book. A line is a command. The lines after it
// that begin with "> " are the complete output of this command. The test plays the part of the
// journal: it keeps every record, and after every command a replay of the records must give the
// book's state.
//
// In the commands, P is a shard, C is a closure, and V, V0 and V1 are map versions. The text 1.6 is
// the pair (term, n) = (1, 6), and 0-4,7 is a set of closures.
//
//   job CLOSURES SHARDS OPEN_MAX       makes a new book
//   life TERM                          begins the first life of the coordinator
//   restart TERM                       begins a later life, with a book from the journal
//   tear N                             removes the last N records of the journal
//   window                             closes the start-up window
//   rollback P SERVER [done=SET] [refused=SET]
//                                      rolls a shard back to a snapshot with these closures
//   move P FROM_EPOCH SERVER           moves a shard
//   unmap P                            takes a shard away from its server
//   grant WORKER [repairs]             grants the next closure, or only a repair
//   done C ATTEMPT V0 V1               reports an attempt as done
//   fail C ATTEMPT                     ends a repair with a user's error
//   drop C ATTEMPT                     gives an attempt back
//   gone WORKER                        gives all attempts of a worker back
//   cancel C                           cancels a closure
//   server NAME [P@EPOCH/START[/DONE[/REFUSED]]]...
//                                      registers a server with the shards that it holds
//   worker ID [C:ATTEMPT:V1[:TARGETS]]...
//                                      registers a worker with the attempts that it holds
//   closes SESSION SERVER              prints the Closes that are due in a server's session
//   closed SESSION P EPOCH taken|ignored
//                                      gives the server's answer to a Close
//   end SESSION                        ends a server's session
//   expect todo|lost P                 prints the closures that the shard lacks, or has lost
//   expect succeeded | dead | map | version | current
//                                      prints this part of the book's state
//   expect quiet                       prints whether the book is quiet (ClosureBook::Quiet)
//   expect refused C                   prints whether every owner refuses the closure
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "coordinator/closures/closure_book.h"
#include "tests/support/paths.h"

namespace evergrad::coordinator {
namespace {

std::uint64_t Number(absl::string_view text) {
  std::uint64_t n = 0;
  if (!absl::SimpleAtoi(text, &n)) FAIL("not a number: " << std::string(text));
  return n;
}

template <class Stamp>
Stamp StampFrom(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '.');
  if (parts.size() != 2) FAIL("not a pair: " << std::string(text));
  return {Number(parts[0]), Number(parts[1])};
}

// Parses a set such as "0-4,7".
IntervalSet SetFrom(absl::string_view text) {
  IntervalSet set;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    set.AddRange(Number(ends[0]), Number(ends.back()) + 1);
  }
  return set;
}

std::set<ShardId> ShardsFrom(absl::string_view text) {
  std::set<ShardId> shards;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty()))
    shards.insert(ShardId(static_cast<std::uint32_t>(Number(part))));
  return shards;
}

std::string Text(const std::set<ShardId>& shards) {
  return absl::StrJoin(shards, ",",
                       [](std::string* out, ShardId p) { absl::StrAppend(out, p.value()); });
}

class Transcript {
 public:
  // Runs the command `line`. Returns the lines of its output.
  std::vector<std::string> Run(const std::string& line) {
    words_ = absl::StrSplit(line, ' ', absl::SkipEmpty());
    out_.clear();
    Dispatch();
    DurableState replayed;
    for (const Record& record : journal_) ApplyRecord(record, &replayed);
    replayed.map.resize(options_.shards);
    replayed.todo.resize(options_.shards);
    replayed.lost.resize(options_.shards);
    replayed.snapshots.resize(options_.shards);
    if (!tearing_) CHECK(replayed == book_->durable());
    return out_;
  }

 private:
  const std::string& Word(std::size_t i) {
    if (i >= words_.size()) FAIL("too few words: " << absl::StrJoin(words_, " "));
    return words_[i];
  }
  std::string Option(absl::string_view name) {
    for (const std::string& word : words_) {
      if (word.size() > name.size() && absl::string_view(word).substr(0, name.size()) == name)
        return word.substr(name.size());
    }
    return "";
  }
  ShardId Shard(std::size_t i) { return ShardId(static_cast<std::uint32_t>(Number(Word(i)))); }
  ClosureId Closure(std::size_t i) { return ClosureId(Number(Word(i))); }
  TaskId Task(std::size_t i) { return TaskId(Number(Word(i))); }
  void Keep(const Record& record) {
    if (!record.empty()) journal_.push_back(record);
  }

  void Print(const ClosureBook::MapChange& change) {
    Keep(change.record);
    for (const auto& [p, epoch] : change.drops)
      out_.push_back(absl::StrCat("drop p=", p.value(), " epoch=", epoch.ToString()));
    for (const auto& a : change.assigns) {
      out_.push_back(absl::StrCat("assign p=", a.shard.value(), " to ", a.server,
                                  " epoch=", a.epoch.ToString(), " start=", a.start.ToString(),
                                  " V=", a.version.ToString(), " refused=", a.refused.ToString()));
    }
    if (change.map_changed)
      out_.push_back(absl::StrCat("map V=", book_->durable().version.ToString()));
  }

  void Dispatch() {
    const std::string& command = Word(0);
    if (command == "job") {
      options_ = {Number(Word(1)), static_cast<std::uint32_t>(Number(Word(2))),
                  static_cast<std::uint32_t>(Number(Word(3)))};
      journal_.clear();
      book_ = std::make_unique<ClosureBook>(options_, DurableState{});
      return;
    }
    if (book_ == nullptr) FAIL("job comes first");
    if (command == "tear") {
      journal_.resize(journal_.size() - Number(Word(1)));
      tearing_ = true;
    } else if (command == "life" || command == "restart") {
      if (command == "restart") {
        DurableState state;
        for (const Record& record : journal_) ApplyRecord(record, &state);
        book_ = std::make_unique<ClosureBook>(options_, std::move(state));
        tearing_ = false;
      }
      Keep(book_->BeginLife(Term(Number(Word(1)))));
    } else if (command == "window") {
      book_->CloseWindow();
    } else if (command == "rollback") {
      Snapshot state;
      state.done = SetFrom(Option("done="));
      state.refused = SetFrom(Option("refused="));
      Print(book_->RollbackTo(Shard(1), Word(2), &state));
    } else if (command == "move") {
      const auto change = book_->Move(Shard(1), StampFrom<ShardEpoch>(Word(2)), Word(3));
      Print(change);
      if (!change.map_changed) out_.push_back("void");
    } else if (command == "unmap") {
      Print(book_->Unmap(Shard(1)));
    } else if (command == "grant") {
      const auto granted = book_->NextGrant(Task(1), words_.size() < 3);
      if (!granted) {
        out_.push_back("nothing");
      } else {
        out_.push_back(absl::StrCat(
            "c=", granted->closure.value(), " attempt=", granted->attempt.ToString(),
            granted->all_targets ? "" : absl::StrCat(" targets=", Text(granted->targets)),
            granted->repair ? " repair" : ""));
      }
    } else if (command == "done") {
      const auto result =
          book_->OnDone(Closure(1), StampFrom<Attempt>(Word(2)), StampFrom<MapVersion>(Word(3)),
                        StampFrom<MapVersion>(Word(4)));
      Keep(result.record);
      out_.push_back(result.deferred
                         ? "deferred"
                         : absl::StrCat(result.acknowledged ? "acknowledged" : "superseded",
                                        result.counted ? " counted" : ""));
    } else if (command == "fail") {
      Keep(book_->FailRepair(Closure(1), StampFrom<Attempt>(Word(2))));
    } else if (command == "drop") {
      book_->ReleaseAttempt(Closure(1), StampFrom<Attempt>(Word(2)));
    } else if (command == "gone") {
      out_.push_back(absl::StrCat("released ", absl::StrJoin(book_->ReleaseWorker(Task(1)), ",",
                                                             [](std::string* s, ClosureId c) {
                                                               absl::StrAppend(s, c.value());
                                                             })));
    } else if (command == "cancel") {
      Keep(book_->Cancel(Closure(1)));
    } else if (command == "server") {
      std::vector<ClosureBook::HeldShard> held;
      for (std::size_t i = 2; i < words_.size(); ++i) {
        const std::vector<std::string> at = absl::StrSplit(words_[i], '@');
        std::vector<std::string> parts = absl::StrSplit(at.at(1), '/');
        parts.resize(4);
        held.push_back({ShardId(static_cast<std::uint32_t>(Number(at[0]))),
                        StampFrom<ShardEpoch>(parts[0]), StampFrom<MapVersion>(parts[1]),
                        SetFrom(parts[2]), SetFrom(parts[3])});
      }
      Print(book_->RegisterServer(Word(1), held).change);
    } else if (command == "worker") {
      std::vector<ClosureBook::HeldAttempt> held;
      for (std::size_t i = 2; i < words_.size(); ++i) {
        const std::vector<std::string> parts = absl::StrSplit(words_[i], ':');
        ClosureBook::HeldAttempt h{ClosureId(Number(parts.at(0))),
                                   StampFrom<Attempt>(parts.at(1)),
                                   parts.size() < 4,
                                   {},
                                   StampFrom<MapVersion>(parts.at(2))};
        if (parts.size() == 4) h.targets = ShardsFrom(parts[3]);
        held.push_back(std::move(h));
      }
      for (const auto& h : book_->RegisterWorker(Task(1), held))
        out_.push_back(
            absl::StrCat("adopted c=", h.closure.value(), " attempt=", h.attempt.ToString()));
    } else if (command == "closes") {
      for (const auto& order : book_->MakeCloses(Task(1), Word(2))) {
        out_.push_back(
            absl::StrCat("p=", order.shard.value(), " epoch=", order.epoch.ToString(),
                         " V=", order.version.ToString(), " done=", order.done.ToString(),
                         " refused=", order.refused.ToString(), order.whole ? " whole" : ""));
      }
    } else if (command == "closed") {
      book_->OnClosed(Task(1), Shard(2), StampFrom<ShardEpoch>(Word(3)), Word(4) == "taken");
    } else if (command == "end") {
      book_->EndServerSession(Task(1));
    } else if (command == "expect") {
      Expect(Word(1));
    } else {
      FAIL("unknown command: " << command);
    }
  }

  void Expect(const std::string& what) {
    const DurableState& state = book_->durable();
    if (what == "todo")
      out_.push_back(state.todo.at(Number(Word(2))).ToString());
    else if (what == "lost")
      out_.push_back(state.lost.at(Number(Word(2))).ToString());
    else if (what == "succeeded")
      out_.push_back(state.succeeded.ToString());
    else if (what == "dead")
      out_.push_back(state.dead.ToString());
    else if (what == "version")
      out_.push_back(state.version.ToString());
    else if (what == "quiet")
      out_.push_back(book_->Quiet() ? "yes" : "no");
    else if (what == "refused")
      out_.push_back(book_->RefusedEverywhere(Closure(2)) ? "everywhere" : "not everywhere");
    else if (what == "map") {
      for (const ShardOwner& o : state.map)
        out_.push_back(absl::StrCat(o.server.empty() ? "nobody" : o.server,
                                    " epoch=", o.epoch.ToString(), " start=", o.start.ToString()));
    } else if (what == "current") {
      for (const auto& [c, current] : book_->current())
        out_.push_back(absl::StrCat("c=", c.value(), " attempt=", current.attempt.ToString(),
                                    " worker=", current.worker.value()));
    } else {
      FAIL("unknown question: " << what);
    }
  }

  ClosureBook::Options options_;
  std::unique_ptr<ClosureBook> book_;
  std::vector<Record> journal_;
  bool tearing_ = false;
  std::vector<std::string> words_;
  std::vector<std::string> out_;
};

TEST_CASE("the closure book follows its transcripts") {
  const std::filesystem::path folder =
      std::filesystem::path(test::SourceDir()) / "tests/unit/coordinator/closures/testdata";
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= 8);
  for (const auto& file : files) {
    SECTION(file.filename().string()) {
      std::ifstream in(file);
      std::vector<std::string> lines;
      for (std::string line; std::getline(in, line);) lines.push_back(line);
      Transcript transcript;
      for (std::size_t i = 0; i < lines.size();) {
        const std::string command = lines[i];
        const std::size_t at = ++i;
        if (command.empty() || command[0] == '#') continue;
        std::vector<std::string> want;
        for (; i < lines.size() && lines[i].rfind("> ", 0) == 0; ++i)
          want.push_back(lines[i].substr(2));
        INFO(file.filename().string() << ":" << at << ": " << command);
        CHECK(absl::StrJoin(transcript.Run(command), "\n") == absl::StrJoin(want, "\n"));
      }
    }
  }
}

}  // namespace
}  // namespace evergrad::coordinator
