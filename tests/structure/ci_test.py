#!/usr/bin/env python3
"""Tests deploy/scripts/ci.py with programs that imitate its tools. The subjects are the plan for a
change, failures, and checks for which too little time is left.

  ci_test.py
"""
import os
import re
import select
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "deploy", "scripts"))
import ci  # noqa: E402

# Each of these programs records how it was called, and then runs the commands in $DO_<tool>.
# Without such commands it succeeds.
TOOL = """#!/bin/bash
echo "${0##*/} $*" >>"$SAID"
name=DO_${0##*/}; name=${name//[^A-Za-z_]/_}
eval "${!name:-true}"
"""
CMAKE = """mkdir -p build/$2 && cat >build/$2/compile_commands.json <<TEXT
[{"directory": "$PWD/build/$2", "file": "$PWD/common/fs/disk.cc",
  "command": "c++ -c -o common/fs/disk.o x"},
 {"directory": "$PWD/build/$2", "file": "$PWD/common/fs/fill.cu",
  "command": "nvcc -c -o common/fs/fill.o x"},
 {"directory": "$PWD/build/$2", "file": "$PWD/tests/unit/common/fs/disk_test.cc",
  "command": "c++ -o tests/disk_test.o x"},
 {"directory": "$PWD/build/$2", "file": "$PWD/worker/data/csv.cc",
  "command": "c++ -o worker/data/csv.o x"}]
TEXT"""
FILES = {
    "common/fs/disk.cc": "",
    "common/fs/README.md": "",
    "worker/data/csv.cc": "",
    "worker/worker.cc": "",
    "protos/evergrad/v1/a.proto": "",
    "docs/a.md": "",
    "tests/unit/common/fs/disk_test.cc": "",
    "tests/unit/common/fs/CMakeLists.txt": "eg_tests(ROOM common/fs)\n",
    "tests/unit/worker/data/CMakeLists.txt": "eg_tests(ROOM worker/data DEPS x)\n",
    "tests/unit/worker/daemon/CMakeLists.txt": "eg_tests(ROOM worker/daemon)\n",
    "tests/fuzz/CMakeLists.txt": "eg_fuzz(NAME paths ROOMS common/fs worker DEPS common_fs)\n",
    ".gitignore": "/build/\n",
    "evergrad": TOOL,
    "deploy/scripts/setup.sh": TOOL,
    "deploy/scripts/checks.sh": TOOL,
}


class Clock:
    def __init__(self, now=0):
        self.now = now

    def __call__(self):
        return self.now


class Rooms(unittest.TestCase):
    def test_sources_and_their_unit_tests_belong_to_one_room(self):
        rooms = ci.rooms_of(FILES)
        self.assertEqual(
            rooms, ["common/fs", "coordinator", "kubernetes", "ps_server", "worker", "worker/data"]
        )
        for path, want in (
            ("common/fs/disk.cc", "common/fs"),
            ("common/fs/CMakeLists.txt", "common/fs"),
            ("tests/unit/common/fs/disk_test.cc", "common/fs"),
            ("tests/unit/worker/data/deep/x_test.cc", "worker/data"),
            ("worker/worker.cc", "worker"),
            ("tests/unit/worker/daemon/x_test.cc", "worker"),
            ("common/fs/README.md", None),
            ("tests/integration/jobs_test.py", None),
            ("docs/a.md", None),
            ("evergrad", None),
        ):
            self.assertEqual(ci.room_of(path, rooms), want, path)

    def test_what_all_rooms_depend_on_changes_all_of_them(self):
        rooms = ["common/fs", "worker"]
        for path in (
            "protos/evergrad/v1/a.proto",
            "cmake/rooms.cmake",
            "CMakeLists.txt",
            "tests/support/paths.h",
        ):
            self.assertEqual(ci.changed_rooms([path], rooms), rooms, path)
        for path in (
            "docs/a.md",
            "tests/CMakeLists.txt",
            "common/CMakeLists.txt",
            "common/gone/x.cc",
        ):
            self.assertEqual(ci.changed_rooms([path], rooms), [], path)

    def test_the_rooms_are_those_of_the_tree(self):
        here = ci.Ci(os.path.join(HERE, "..", ".."))
        rooms = ci.rooms_of(here.files())
        self.assertIn("common/base", rooms)
        self.assertEqual(
            here.test_programs("common/base", rooms), {"common/base: ": "common_base_test"}
        )
        self.assertEqual(
            here.test_programs("common/wire", rooms)["fuzz: data_frames replays"],
            "fuzz_data_frames",
        )
        # Every unit test and every fuzz target must belong to a room.
        programs = {name for room in rooms for name in here.test_programs(room, rooms)}
        with open(os.path.join(here.root, ci.FUZZ_TARGETS)) as f:
            targets = re.findall(r"^eg_fuzz\(NAME (\S+)", f.read(), re.M)
        self.assertEqual(
            {name[len("fuzz: ") : -len(" replays")] for name in programs if name[:5] == "fuzz:"},
            set(targets),
        )
        named = {name[: -len(": ")] for name in programs if name[:5] != "fuzz:"}
        every = subprocess.run(
            ["git", "grep", "-hoP", r"eg_tests\(ROOM \K[^\s)]+", "--", "tests/unit"],
            cwd=HERE + "/../..",
            capture_output=True,
            text=True,
        ).stdout
        self.assertEqual(named, set(every.split()))


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root, tools = os.path.join(folder.name, "clone"), os.path.join(folder.name, "tools")
        os.mkdir(tools)
        for path, text in list(FILES.items()) + [
            (os.path.join(tools, name), TOOL)
            for name in ("cmake", "ninja", "ctest", "clang-tidy-14")
        ]:
            self.write(path, text)
        self.said = os.path.join(folder.name, "said")
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ.update(PATH=tools + ":" + os.environ["PATH"], SAID=self.said, DO_cmake=CMAKE)
        self.git("init", "-q")
        self.commit()
        self.lines = []

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, 0o755)

    def git(self, *arguments):
        options = [
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b.invalid",
            "-c",
            "commit.gpgsign=false",
        ]
        return subprocess.run(
            ["git", *options, *arguments], cwd=self.root, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x", "--allow-empty")
        return self.git("rev-parse", "HEAD")

    def checked(self, path="common/fs/disk.cc"):
        """Makes a repository whose last full check was at the previous commit. The file `path` has
        changed since then."""
        self.write(".ci/checked", self.git("rev-parse", "HEAD") + "\n")
        self.write(path, "// changed\n")
        self.commit()

    def run_ci(self, want, **options):
        """Runs ci.py and checks its exit code. Returns its output, and the commands that it ran."""
        self.lines = []
        run = ci.Ci(self.root, say=self.lines.append, **options)
        run.jobs = 2
        self.assertEqual(run.run(), want, "\n".join(self.lines))
        commands = []
        if os.path.exists(self.said):
            with open(self.said) as f:
                commands = f.read().splitlines()
            os.remove(self.said)
        return "\n".join(self.lines), commands

    def test_the_changed_room_is_checked_after_checks_and_tests(self):
        self.checked()
        said, commands = self.run_ci(0)
        self.assertEqual(
            commands,
            [
                "setup.sh lint",
                "checks.sh ",
                "evergrad test",
                "cmake --preset thread-safety --log-level=WARNING",
                "ninja -C build/thread-safety -k 0 -j 2 common/fs/disk.o common/fs/fill.o "
                "tests/disk_test.o",
                "clang-tidy-14 -p build/thread-safety --quiet common/fs/disk.cc",
                "cmake --preset asan --log-level=WARNING",
                "ninja -C build/asan -t commands common_fs_test fuzz_paths",
                "ninja -C build/asan -k 0 -j 2 common_fs_test fuzz_paths",
                "ctest --test-dir build/asan --output-on-failure --no-tests=error -j 2"
                " -R ^(common/fs:\\ |fuzz:\\ paths\\ replays)",
            ],
        )
        self.assertIn("1 of 6 rooms have changed since", said)
        self.assertRegex(said, r"0 min 0\d s  asan common/fs: tests +passed\n")
        self.assertTrue(said.endswith("== ci: passed"), said)

    def test_until_everything_has_been_checked_once_step_3_is_listed_as_not_done(self):
        said, commands = self.run_ci(0)
        self.assertEqual(commands, ["setup.sh lint", "checks.sh ", "evergrad test"])
        self.assertIn("step 3: there is no .ci/checked", said.split("== not done")[1])
        self.assertTrue(said.endswith("== ci: passed"), said)

    def test_which_rooms_count_as_changed(self):
        rooms = ["common/fs", "coordinator", "kubernetes", "ps_server", "worker", "worker/data"]
        scope = ci.Ci(self.root).scope
        self.assertEqual(
            scope(),
            (None, "there is no .ci/checked: ./evergrad ci full checks all 6 rooms and writes it"),
        )
        for unknown in ("0" * 40, "main", ""):
            self.write(".ci/checked", unknown + "\n")
            self.assertEqual(
                scope(),
                (rooms, "all 6 rooms: the commit in .ci/checked is unknown here: " + unknown),
            )
        self.write(".ci/checked", self.git("rev-parse", "HEAD") + "\n")
        self.assertEqual(scope()[0], [])
        self.write("docs/a.md", "changed\n")
        self.assertEqual(scope()[0], [])
        self.write("worker/data/new.cc", "not committed\n")
        self.write("worker/worker.cc", "changed\n")
        self.assertEqual(scope()[0], ["worker", "worker/data"])
        self.write("protos/evergrad/v1/a.proto", "changed\n")
        self.assertEqual(scope()[0], rooms)
        self.assertEqual(ci.Ci(self.root, full=True).scope()[0], rooms)

    def test_checks_that_fail_are_told_at_the_end_and_the_tests_run_all_the_same(self):
        os.environ["DO_checks_sh"] = "echo 'a.cc: F is too long'; exit 1"
        said, commands = self.run_ci(1)
        self.assertEqual(commands, ["setup.sh lint", "checks.sh ", "evergrad test"])
        self.assertIn("F is too long", said.split("== failed: checks")[1])
        self.assertIn("step 3: step 1 or 2 has failed", said.split("== not done")[1])
        self.assertTrue(said.endswith("== ci: failed: checks"), said)

    def test_tests_that_fail_leave_step_3_undone(self):
        os.environ["DO_evergrad"] = "exit 8"
        said, commands = self.run_ci(1)
        self.assertEqual(commands[-1], "evergrad test")
        self.assertTrue(said.endswith("== ci: failed: build and tests"), said)

    def test_errors_of_step_3_fail_and_findings_of_clang_tidy_do_not(self):
        self.checked()
        os.environ[
            "DO_clang_tidy___"
        ] = "echo $PWD/common/fs/disk.cc:1:1: warning: a loop copies [performance-x]"
        said, _ = self.run_ci(0)
        self.assertIn("common/fs/disk.cc:1:1: warning: a loop copies [performance-x]", self.lines)
        self.assertRegex(said, r"clang-tidy common/fs +passed: 1 findings")
        for tool, name in (
            ("ninja", "thread-safety common/fs, asan common/fs: build"),
            ("ctest", "asan common/fs: tests"),
            ("clang_tidy___", "clang-tidy common/fs"),
        ):
            os.environ["DO_" + tool] = "exit 1"
            self.assertTrue(self.run_ci(1)[0].endswith("== ci: failed: " + name))
            del os.environ["DO_" + tool]

    def test_a_command_is_cut_off_with_what_it_started_and_is_not_done(self):
        self.checked()
        os.environ["DO_ninja"] = "sleep 100 & echo $! >>$SAID; wait"
        clock = Clock()
        run = ci.Ci(self.root, clock=clock, limit=4200, say=self.lines.append)
        run.jobs = 2
        clock.now = 4197  # only three seconds are left
        self.assertFalse(run.step("slow", ["ninja"], timeout=run.left()))
        self.assertEqual(
            [(name, result, why) for name, result, _, why in run.results],
            [("slow", ci.NOT_DONE, "stopped at the limit of 70 minutes")],
        )
        with open(self.said) as f:
            child = f.read().split("\n")[1]
        # After SIGKILL, the kernel needs a moment to end the process. On a busy machine this takes
        # longer.
        try:
            process = os.pidfd_open(int(child))
        except ProcessLookupError:
            return  # the process has ended, and its parent has waited for it
        try:
            self.assertTrue(select.select([process], [], [], 30)[0], "still running: " + child)
        finally:
            os.close(process)

    def test_what_has_no_time_left_is_not_begun(self):
        self.checked()
        clock = Clock()
        # After the tests, 20 minutes are left. This is enough to build one room with clang, and not
        # enough for a sanitizer build in a new folder.
        for left, missed in (
            (26, []),
            (20, ["asan"]),
            (0.6, ["clang-tidy common/fs", "asan"]),
            (0.1, ["configure thread-safety", "asan"]),
            (-9, ["configure thread-safety", "asan"]),
        ):
            lines = []
            run = ci.Ci(self.root, clock=clock, say=lines.append)
            run.jobs = 2
            run.begin = clock.now - (ci.LIMIT - left * 60)
            ci.TIDY_SECONDS, before = (100 if left == 0.6 else ci.TIDY_SECONDS), ci.TIDY_SECONDS
            run.rest()
            ci.TIDY_SECONDS = before
            self.assertEqual(
                [name for name, result, _, _ in run.results if result == ci.NOT_DONE],
                missed,
                (left, lines),
            )
            self.assertNotIn(ci.FAILED, [result for _, result, _, _ in run.results])
            subprocess.run(["rm", "-rf", os.path.join(self.root, "build")], check=True)

    def test_a_warm_build_with_sanitizers_needs_time_for_its_missing_objects(self):
        self.checked()
        self.write("build/asan/.ninja_log", "")
        clock = Clock()
        self.write("build/asan/there.o", "")
        for name, begun in (("there", True), ("missing", False)):
            os.environ["DO_ninja"] = (
                "[[ $* != *' -t '* ]] || for i in {1..200}; do echo 'c++ -o %s.o -c x.cc'; done"
                % name
            )
            run = ci.Ci(self.root, clock=clock, say=self.lines.append)
            run.jobs = 2
            run.begin = clock.now - (ci.LIMIT - 600)
            run.asan(["common/fs"], ci.rooms_of(run.files()))
            self.assertEqual(
                "asan common/fs: tests" in [name for name, _, _, _ in run.results],
                begun,
                run.results,
            )

    def test_full_runs_everything_and_names_the_commit_when_all_has_passed(self):
        checked = os.path.join(self.root, ".ci", "checked")
        self.write(".ci/run", "")
        head = self.commit()
        os.environ["DO_evergrad"] = "[[ $1 != tsan ]]"
        self.assertTrue(self.run_ci(1, full=True)[0].endswith("== ci: failed: tsan"))
        self.assertFalse(os.path.exists(checked))
        del os.environ["DO_evergrad"]
        said, commands = self.run_ci(0, full=True)
        self.assertEqual(
            [c for c in commands if c.startswith("evergrad")],
            ["evergrad test", "evergrad asan", "evergrad tsan"],
        )
        self.assertIn("ninja -C build/thread-safety -k 0 -j 2", commands)
        self.assertIn(".ci/checked now names %s: commit the file" % head[:12], said)
        with open(checked) as f:
            self.assertEqual(f.read(), head + "\n")
        # The record of checks names a commit. A working tree with changes has no such name, so the
        # record must not change.
        self.write("docs/a.md", "changed\n")
        said = self.run_ci(0, full=True)[0]
        self.assertIn("not changed, because the working tree has changes", said)

    def test_a_dry_run_says_the_plan_and_runs_nothing(self):
        self.checked()
        said, commands = self.run_ci(0, dry=True)
        self.assertEqual(commands, [])
        self.assertRegex(
            said, r"   common/fs +thread-safety, clang-tidy, asan: common_fs_test fuzz_paths\n"
        )
        self.assertIn("in the remaining part of 70 min 00 s", said)
        self.assertIn("no time limit", self.run_ci(0, dry=True, full=True)[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
