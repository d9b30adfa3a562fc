// Tests, with a manual clock, which files count as a preemption notice and which do not.
#include "common/preemption/notice_file.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "common/time/clock.h"
#include "tests/support/manual_executor.h"
#include "tests/support/temp_folder.h"

namespace evergrad::preemption {
namespace {

struct Watch {
  ManualClock clock;
  runtime::ManualExecutor executor{&clock};
  int noticed = 0;
  std::vector<std::string> warnings;
  NoticeFile file;
  explicit Watch(const std::string& path)
      : file(
            path, &executor, [this] { ++noticed; },
            [this](const std::string& text) { warnings.push_back(text); }) {}
  int After(std::chrono::milliseconds time) {
    executor.Advance(time);
    return noticed;
  }
};

void Write(const std::string& path, const std::string& text, int seconds) {
  std::ofstream(path) << text;
  struct timespec times[2] = {{seconds, 0}, {seconds, 0}};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

TEST_CASE(
    "the appearance of the file is the notice, once and within 250 ms, whatever its content") {
  for (const char* text : {"", "TERMINATE\n"}) {
    const test::TempFolder folder;
    const std::string path = folder.path() + "/notice";
    Watch watch(path);
    CHECK_FALSE(watch.file.was_there());
    CHECK(watch.After(std::chrono::seconds(10)) == 0);
    Write(path, text, 1000);
    CHECK(watch.After(kNoticeEvery) == 1);
    Write(path, "again", 2000);
    CHECK(watch.After(std::chrono::seconds(10)) == 1);
    CHECK(watch.warnings.empty());
  }
}

TEST_CASE("an existing file is no notice until it is rewritten or created again") {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/notice";
  Write(path, "old", 1000);
  Watch written(path);
  CHECK(written.file.was_there());
  CHECK(written.After(std::chrono::seconds(10)) == 0);
  Write(path, "old", 1001);
  CHECK(written.After(kNoticeEvery) == 1);

  Watch again(path);
  REQUIRE(::unlink(path.c_str()) == 0);
  CHECK(again.After(kNoticeEvery) == 0);
  Write(path, "old", 1001);
  CHECK(again.After(kNoticeEvery) == 1);
}

TEST_CASE("a missing folder is waited for, and an unreadable folder causes one warning") {
  const test::TempFolder folder;
  Watch watch(folder.path() + "/later/notice");
  CHECK(watch.After(std::chrono::seconds(1)) == 0);
  REQUIRE(::mkdir((folder.path() + "/later").c_str(), 0700) == 0);
  Write(folder.path() + "/later/notice", "", 1000);
  CHECK(watch.After(kNoticeEvery) == 1);
  CHECK(watch.warnings.empty());

  Watch impossible("/" + std::string(5000, 'x'));  // no file can have such a long name
  CHECK(impossible.After(std::chrono::seconds(10)) == 0);
  REQUIRE(impossible.warnings.size() == 1);
  CHECK_THAT(impossible.warnings[0], Catch::Matchers::Contains("preemption notice file"));
}

}  // namespace
}  // namespace evergrad::preemption
