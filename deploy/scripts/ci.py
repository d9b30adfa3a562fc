#!/usr/bin/env python3
"""Runs continuous integration, in a fresh clone or in a folder that was built before
(./evergrad ci).

  ci.py [full] [--dry-run]

  1  checks.sh (and the packages that it needs)
  2  build and every test, as ./evergrad test does
  3  in the remaining part of 70 minutes, for the rooms that have changed since the commit in
     .ci/checked: clang's thread-safety errors, clang-tidy, and under AddressSanitizer and UBSan
     the unit tests and the corpora of fuzz targets

Step 3 begins when steps 1 and 2 have passed. If time runs out, the remaining checks and the
interrupted command are listed as not done, which is not a failure. An error in step 3 is a
failure, and so is a finding of a clang-tidy check that .clang-tidy turns into an error. If the
commit in .ci/checked is unknown (a shallow clone), every room counts as changed. If there is no
.ci/checked, step 3 is listed as not done until a `full` run has passed. A room that only includes
a changed room is not checked again; a `full` run checks it.

full runs all checks for all rooms, with ThreadSanitizer and without the time limit, and writes the
commit into .ci/checked if all checks passed.
--dry-run prints the plan and runs nothing. Ends with 0 if nothing failed, otherwise with 1.
"""
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

LIMIT = 70 * 60
# The tests of one room, built under the sanitizers in a new build folder, compile most of the rooms
# on which this room depends.
COLD_ASAN = 25 * 60
# Estimates of the CPU seconds that a command needs. They decide whether there is still time for the
# command. (A release object takes 4 s on a machine that builds everything in 18 minutes.) A command
# that runs longer than its estimate is stopped only at the time limit.
OBJECT_SECONDS, TIDY_SECONDS, ASAN_OBJECT_SECONDS, TESTS_SECONDS = 5, 12, 8, 60
ROLES = ("common", "coordinator", "kubernetes", "ps_server", "worker")
# A change of one of these files counts as a change of every room.
EVERYWHERE = ("protos/", "cmake/", "tests/support/", "CMakeLists.txt", "CMakePresets.json")
SOURCES = (".cc", ".h", ".cu", ".cuh", ".inc", ".c", "CMakeLists.txt")
FUZZ_TARGETS = "tests/fuzz/CMakeLists.txt"
FINDINGS_SHOWN = 30
PASSED, FAILED, NOT_DONE = "passed", "failed", "not done"


def cores():
    """Returns the number of parallel jobs of ./evergrad build, with 2 GiB for each."""
    number = len(os.sched_getaffinity(0))
    with open("/proc/meminfo") as f:
        gib = int(re.search(r"MemAvailable:\s+(\d+)", f.read()).group(1)) >> 20
    return max(1, min(number, gib // 2))


def minutes(seconds):
    return "%d min %02d s" % divmod(int(seconds + 0.5), 60)


def room_of(path, rooms):
    """Returns the room of a source file or of its unit test. For a file of a role that is in none
    of its rooms, returns the role, and for other files None."""
    parts = path.split("/")
    if parts[:2] == ["tests", "unit"]:
        parts = parts[2:]
    if parts[0] not in ROLES or not path.endswith(SOURCES):
        return None
    room = "/".join(parts[:2])
    return room if len(parts) > 2 and room in rooms else parts[0]


def rooms_of(files):
    """Returns all rooms: the folders of the roles that have sources, and the roles themselves,
    which stand for the files outside these folders."""
    rooms = {
        "/".join(path.split("/")[:2])
        for path in files
        if path.split("/")[0] in ROLES and path.count("/") > 1 and path.endswith(SOURCES)
    }
    return sorted(rooms | set(ROLES[1:]))


def changed_rooms(changed, rooms):
    if any(path.startswith(EVERYWHERE[:3]) or path in EVERYWHERE for path in changed):
        return list(rooms)
    return sorted({room_of(path, rooms) for path in changed} & set(rooms))


def killed(process):
    """Ends a command with all processes that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(10)
        except (subprocess.TimeoutExpired, ProcessLookupError):
            pass


class Ci:
    def __init__(self, root, full=False, dry=False, limit=LIMIT, clock=time.monotonic, say=print):
        self.root, self.full, self.dry, self.limit, self.clock, self.say = (
            root,
            full,
            dry,
            limit,
            clock,
            say,
        )
        self.begin = clock()
        self.jobs = cores()
        self.results = []  # (name, result, seconds, note)

    # The effects outside this program: commands, git, the clock.

    def left(self):
        return float("inf") if self.full else self.limit - (self.clock() - self.begin)

    def command(self, arguments, timeout=None, env=None, stdin=None, quiet=False):
        """Returns (exit code, output). The code is None if the timeout has passed. With `quiet`,
        the output is returned. Without it, the output is shown and the returned text is empty."""
        sys.stdout.flush()
        process = subprocess.Popen(
            arguments,
            cwd=self.root,
            env=dict(os.environ, **(env or {})),
            start_new_session=True,
            text=True,
            errors="replace",
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.STDOUT if quiet else None,
        )
        try:
            output, _ = process.communicate(
                stdin, None if timeout in (None, float("inf")) else max(timeout, 0)
            )
            return process.returncode, output or ""
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            if process.returncode is None:
                killed(process)

    def git(self, *arguments):
        r = subprocess.run(["git", *arguments], cwd=self.root, capture_output=True, text=True)
        return r.stdout if r.returncode == 0 else None

    # The plan.

    def files(self):
        return (self.git("ls-files", "--cached", "--others", "--exclude-standard") or "").split(
            "\n"
        )

    def scope(self):
        """Returns the rooms of step 3, and one line with the reason for the choice."""
        rooms = rooms_of(self.files())
        if self.full:
            return rooms, "all %d rooms" % len(rooms)
        try:
            with open(os.path.join(self.root, ".ci", "checked")) as f:
                commit = f.read().strip()
        except FileNotFoundError:
            return (
                None,
                "there is no .ci/checked: ./evergrad ci full checks all %d rooms and writes it"
                % len(rooms),
            )
        if (
            not re.fullmatch("[0-9a-f]{40}", commit)
            or self.git("cat-file", "-e", commit + "^{commit}") is None
        ):
            return rooms, "all %d rooms: the commit in .ci/checked is unknown here: %s" % (
                len(rooms),
                commit,
            )
        changed = (self.git("diff", "--name-only", "--no-renames", commit) or "") + (
            self.git("ls-files", "--others", "--exclude-standard") or ""
        )
        found = changed_rooms(changed.split(), rooms)
        return found, "%d of %d rooms have changed since %s: %s" % (
            len(found),
            len(rooms),
            commit[:12],
            " ".join(found) or "none",
        )

    def test_programs(self, room, rooms):
        """Returns {beginning of the tests' names in ctest: build target}, for a room's unit tests
        and for the fuzz targets whose corpora are replayed for the room."""
        found = {}
        for path in self.files():
            if (
                path.startswith("tests/unit/")
                and path.endswith("CMakeLists.txt")
                and room_of(path, rooms) == room
                and os.path.exists(os.path.join(self.root, path))
            ):
                with open(os.path.join(self.root, path)) as f:
                    for name in re.findall(r"eg_tests\(ROOM (\S+?)[\s)]", f.read()):
                        found[name + ": "] = name.replace("/", "_") + "_test"
        listed = os.path.join(self.root, FUZZ_TARGETS)
        if os.path.exists(listed):
            with open(listed) as f:
                targets = re.findall(r"^eg_fuzz\(NAME (\S+) ROOMS (.*?) DEPS", f.read(), re.M)
            for name, its_rooms in targets:
                if room in its_rooms.split():
                    found["fuzz: %s replays" % name] = "fuzz_" + name
        return found

    def compiled(self, preset, room, rooms):
        """Returns [(source, object)] of a room and of its unit tests, from the preset's compile
        commands."""
        with open(os.path.join(self.root, "build", preset, "compile_commands.json")) as f:
            commands = json.load(f)
        found = []
        for entry in commands:
            source = os.path.relpath(os.path.join(entry["directory"], entry["file"]), self.root)
            words = shlex.split(entry["command"])
            if room_of(source, rooms) == room and "-o" in words:
                found.append((source, words[words.index("-o") + 1]))
        return found

    # The steps.

    def note(self, name, result, begin, why=""):
        self.results.append((name, result, self.clock() - begin, why))

    def cut_off(self):
        return "stopped at the limit of %d minutes" % (self.limit // 60)

    def step(self, name, arguments, **options):
        """Runs one command and shows its output. In step 3, the remaining time is its limit."""
        begin = self.clock()
        self.say("== %s" % name)
        code, output = self.command(arguments, **options)
        if code:
            self.say(output)
        if code is None:
            self.note(name, NOT_DONE, begin, self.cut_off())
        else:
            self.note(name, PASSED if code == 0 else FAILED, begin)
        return code == 0

    def may_begin(self, name, needs):
        if needs <= self.left():
            return True
        self.note(
            name,
            NOT_DONE,
            self.clock(),
            "needs about %s, %s are left" % (minutes(needs), minutes(max(self.left(), 0))),
        )
        return False

    def configured(self, preset):
        name = "configure %s" % preset
        return self.may_begin(name, 30) and self.step(
            name,
            ["cmake", "--preset", preset, "--log-level=WARNING"],
            timeout=self.left(),
            quiet=True,
        )

    def thread_safety(self, rooms, all_rooms):
        """Compiles the sources of the rooms to find clang's thread-safety errors. Nothing is
        linked, because the compiler alone reports these errors."""
        if not self.configured("thread-safety"):
            return False
        for room in rooms:
            objects = [out for _, out in self.compiled("thread-safety", room, all_rooms)]
            name = "thread-safety %s" % room
            if objects and self.may_begin(name, 10 + OBJECT_SECONDS * len(objects) / self.jobs):
                self.step(
                    name,
                    [
                        "ninja",
                        "-C",
                        "build/thread-safety",
                        "-k",
                        "0",
                        "-j",
                        str(self.jobs),
                        *objects,
                    ],
                    timeout=self.left(),
                )
        return True

    def tidy(self, rooms, all_rooms):
        for room in rooms:
            sources = [
                source
                for source, _ in self.compiled("thread-safety", room, all_rooms)
                if not source.startswith("tests/") and not source.endswith(".cu")  # nvcc's options
            ]
            name = "clang-tidy %s" % room
            if not sources or not self.may_begin(name, 5 + TIDY_SECONDS * len(sources) / self.jobs):
                continue
            begin = self.clock()
            code, output = self.command(
                [
                    "xargs",
                    "-P",
                    str(self.jobs),
                    "-n",
                    "1",
                    "clang-tidy-14",
                    "-p",
                    "build/thread-safety",
                    "--quiet",
                ],
                timeout=self.left(),
                stdin="\n".join(sources),
                quiet=True,
            )
            if code is None:
                self.note(name, NOT_DONE, begin, self.cut_off())
                continue
            findings = sorted(
                {line for line in output.split("\n") if re.search(r": (warning|error): ", line)}
            )
            for line in findings[:FINDINGS_SHOWN]:
                self.say(line.replace(self.root + "/", ""))
            if len(findings) > FINDINGS_SHOWN:
                self.say("… and %d more" % (len(findings) - FINDINGS_SHOWN))
            if code and not findings:
                self.say(output)
            self.note(
                name,
                FAILED if code else PASSED,
                begin,
                "%d findings" % len(findings) if findings else "",
            )

    def asan(self, rooms, all_rooms):
        programs = {room: self.test_programs(room, all_rooms) for room in rooms}
        if not any(programs.values()):
            return
        cold = not os.path.exists(os.path.join(self.root, "build", "asan", ".ninja_log"))
        if (cold and not self.may_begin("asan", COLD_ASAN)) or not self.configured("asan"):
            return
        for room in rooms:
            if not programs[room]:
                continue
            targets, name = sorted(programs[room].values()), "asan %s" % room
            # A dry run of ninja cannot be used here. If CMake must run first to look for new source
            # files, a dry run ends there, before the tests' commands.
            _, commands = self.command(
                ["ninja", "-C", "build/asan", "-t", "commands", *targets], timeout=60, quiet=True
            )
            missing = [
                out
                for out in re.findall(r" -o (\S+\.o) ", commands)
                if not os.path.exists(os.path.join(self.root, "build", "asan", out))
            ]
            needs = TESTS_SECONDS + min(
                COLD_ASAN - TESTS_SECONDS, ASAN_OBJECT_SECONDS * len(missing) / self.jobs
            )
            if self.may_begin(name, needs) and self.step(
                name + ": build",
                ["ninja", "-C", "build/asan", "-k", "0", "-j", str(self.jobs), *targets],
                timeout=self.left(),
            ):
                prefix = "^(%s)" % "|".join(map(re.escape, sorted(programs[room])))
                self.step(
                    name + ": tests",
                    [
                        "ctest",
                        "--test-dir",
                        "build/asan",
                        "--output-on-failure",
                        "--no-tests=error",
                        "-j",
                        str(self.jobs),
                        "-R",
                        prefix,
                    ],
                    timeout=self.left(),
                    env={"ASAN_OPTIONS": "detect_leaks=1", "EVERGRAD_TIME_SCALE": "4"},
                )

    def rest(self):
        """Runs step 3, or the checks of `full` beyond steps 1 and 2."""
        rooms, why = self.scope()
        all_rooms = rooms_of(self.files())
        self.say("== step 3: %s" % why)
        if rooms is None:
            self.note("step 3", NOT_DONE, self.clock(), why)
        if not rooms:
            return
        if not self.full:
            if self.thread_safety(rooms, all_rooms):
                self.tidy(rooms, all_rooms)
            self.asan(rooms, all_rooms)
            return
        if self.configured("thread-safety") and self.step(
            "thread-safety", ["ninja", "-C", "build/thread-safety", "-k", "0", "-j", str(self.jobs)]
        ):
            self.tidy(rooms, all_rooms)
        self.step("asan", ["./evergrad", "asan"])
        self.step("tsan", ["./evergrad", "tsan"])

    def plan(self):
        rooms, why = self.scope()
        all_rooms = rooms_of(self.files())
        self.say("1  deploy/scripts/setup.sh lint, deploy/scripts/checks.sh")
        self.say("2  ./evergrad test")
        self.say("3  %s" % why)
        if self.full:
            self.say(
                "   thread-safety build, clang-tidy, ./evergrad asan, ./evergrad tsan; "
                "no time limit; .ci/checked is written at the end"
            )
        for room in () if self.full else rooms or ():
            self.say(
                "   %-24s thread-safety, clang-tidy, asan: %s"
                % (
                    room,
                    " ".join(sorted(self.test_programs(room, all_rooms).values()))
                    or "no unit tests",
                )
            )
        if not self.full:
            self.say("   in the remaining part of %s" % minutes(self.limit))

    def record(self):
        """Writes the commit at which all checks have passed into .ci/checked, unless the working
        tree has changes."""
        if self.git("status", "--porcelain") != "":
            self.say(".ci/checked is not changed, because the working tree has changes")
            return
        with open(os.path.join(self.root, ".ci", "checked"), "w") as f:
            f.write(self.git("rev-parse", "HEAD"))
        self.say(
            ".ci/checked now names %s: commit the file"
            % self.git("rev-parse", "--short=12", "HEAD").strip()
        )

    def run(self):
        if self.dry:
            self.plan()
            return 0
        self.say("== step 1: checks")
        # If a package cannot be installed, its check fails below, and the tests still run.
        self.step("set-up", ["bash", "deploy/scripts/setup.sh", "lint"])
        begin = self.clock()
        code, checks = self.command(["bash", "deploy/scripts/checks.sh"], quiet=True)
        self.say(checks.rstrip())
        self.note("checks", PASSED if code == 0 else FAILED, begin)
        self.say("== step 2: build and tests")
        self.step("build and tests", ["./evergrad", "test"])
        if any(result == FAILED for _, result, _, _ in self.results):
            self.note("step 3", NOT_DONE, self.clock(), "step 1 or 2 has failed")
        else:
            self.rest()
        failed = [name for name, result, _, _ in self.results if result == FAILED]
        if "checks" in failed:
            # The checks ran first, but a long log is read from its end. For this reason their last
            # lines are shown again.
            self.say(
                "== failed: checks; their last lines:\n%s"
                % "\n".join(checks.rstrip().split("\n")[-40:])
            )
        self.say("== times")
        for name, result, seconds, why in self.results:
            if result != NOT_DONE:
                self.say(
                    "%13s  %-32s %s%s" % (minutes(seconds), name, result, ": " + why if why else "")
                )
        self.say("%13s  together" % minutes(self.clock() - self.begin))
        missed = [(name, why) for name, result, _, why in self.results if result == NOT_DONE]
        if missed:
            self.say("== not done")
            for name, why in missed:
                self.say("%s: %s" % (name, why))
        if self.full and not failed and not missed:
            self.record()
        self.say("== ci: %s" % ("failed: " + ", ".join(failed) if failed else "passed"))
        return 1 if failed else 0


def main():
    wrong = [argument for argument in sys.argv[1:] if argument not in ("full", "--dry-run")]
    if wrong:
        sys.stderr.write("ci.py: unknown argument: %s (want: [full] [--dry-run])\n" % wrong[0])
        return 2
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # so that `finally` clauses end the running command
    root = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    return Ci(
        root,
        full="full" in sys.argv,
        dry="--dry-run" in sys.argv,
        say=lambda line: print(line, flush=True),
    ).run()


if __name__ == "__main__":
    sys.exit(main())
