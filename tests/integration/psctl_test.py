#!/usr/bin/env python3
"""psctl over real daemons: local runs, Ctrl-C on a terminal and without one, supervision, clusters in the background.

  psctl_test.py --bin build/release/bin [names …]

Counting jobs: they need no data. After each test no process of it is left.
"""
import argparse
import glob
import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
JOB = os.path.join(ROOT, "configs", "examples", "counting.yaml")
TESTS = []


class Failure(Exception):
    pass


def test(function):
    TESTS.append(function)
    return function


def require(condition, text):
    if not condition:
        raise Failure(text)


def wait_for(what, condition, seconds=30):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        select.select([], [], [], 0.02)
    raise Failure("waited %g s for %s" % (seconds, what))


def processes(folder):
    """Daemons and psctl whose command line names `folder`, zombies left out: {pid: arguments}."""
    found = {}
    for path in glob.glob("/proc/[0-9]*"):
        try:
            with open(path + "/cmdline", "rb") as f:
                arguments = f.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if os.path.basename(arguments[0]) in ("evergrad-coordinator", "evergrad-ps-server", "evergrad-worker", "psctl") and any(folder in a for a in arguments):
            found[int(os.path.basename(path))] = arguments
    return found


def of_role(folder, name):
    return {pid: a for pid, a in processes(folder).items() if os.path.basename(a[0]) == name}


def none_left(folder):
    wait_for("every process to be gone", lambda: not processes(folder), 10)


def local_run(stage, *extra):
    return [stage.psctl, "job", "run", JOB, "--local", "--workers", "2", "--servers", "2", "--failpoints", "none", "--runs", os.path.join(stage.folder, "runs")] + list(extra)


LONG = ["--set", "spec.training.epochs=1000", "--set", "spec.counting.step_ms=5"]


class Stage:
    def __init__(self, bin_folder):
        self.bin = bin_folder
        self.psctl = os.path.join(bin_folder, "psctl")
        self.temporary = tempfile.TemporaryDirectory(prefix="evergrad psctl ")
        self.folder = self.temporary.name

    def run(self, *arguments, expect=0, timeout=60):
        r = subprocess.run([self.psctl] + list(arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, cwd=self.folder)
        require(r.returncode == expect, "psctl %s: want %d got %d\n%s%s" % (" ".join(arguments), expect, r.returncode, r.stdout, r.stderr))
        return r


class Terminal:
    """psctl on a terminal of its own, in a session of its own: what is typed reaches the whole foreground group."""

    def __init__(self, command, cwd):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.environ["TERM"] = "xterm"
            os.execv(command[0], command)
        self.text = ""

    def read_until(self, wanted, seconds=30):
        until = time.monotonic() + seconds
        while wanted not in self.text:
            ready, _, _ = select.select([self.fd], [], [], max(0, until - time.monotonic()))
            require(ready, "no %r on the terminal within %g s:\n%s" % (wanted, seconds, self.text[-2000:]))
            try:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
            except OSError:
                raise Failure("the terminal closed before %r:\n%s" % (wanted, self.text[-2000:]))

    def type(self, keys):
        self.text = ""
        os.write(self.fd, keys.encode())

    def wait(self):
        while True:  # what it still writes must be read, or it waits for us
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


@test
def a_local_run_succeeds_and_leaves_its_files_and_no_process(stage):
    r = stage.run(*local_run(stage)[1:])
    require("each applied" in r.stdout or "steps" in r.stdout, r.stdout)
    folders = glob.glob(os.path.join(glob.escape(stage.folder), "runs", "*"))
    require(len(folders) == 1, "want one run's folder, got %s" % folders)
    for name in ("result.json", "report.html", "job.yaml", "metrics.jsonl", "logs/coordinator.log", "logs/worker-1.log"):
        require(os.path.exists(os.path.join(folders[0], name)), "no %s in the run's folder" % name)
    with open(os.path.join(folders[0], "result.json")) as f:
        require(json.load(f)["state"] == "SUCCEEDED", "result.json does not say SUCCEEDED")
    none_left(stage.folder)


@test
def ctrl_c_on_a_terminal_asks_once_no_goes_on_yes_cancels(stage):
    terminal = Terminal(local_run(stage, *LONG), stage.folder)
    terminal.read_until("RUNNING")
    daemons = set(processes(stage.folder)) - {terminal.pid}
    require(len(daemons) == 5, "want 5 daemons got %d" % len(daemons))
    terminal.type("\x03")
    terminal.read_until("cancel the job? [y/N]")
    terminal.type("n\n")
    terminal.read_until("the job goes on")
    terminal.read_until("RUNNING")
    require(set(processes(stage.folder)) - {terminal.pid} == daemons, "Ctrl-C reached the daemons")
    terminal.type("\x03")
    terminal.read_until("cancel the job? [y/N]")
    terminal.type("y\n")
    terminal.read_until("cancelled after")
    code = terminal.wait()
    require(code == 130, "want exit code 130 got %d" % code)
    none_left(stage.folder)


@test
def without_a_terminal_an_interrupt_of_the_group_cancels(stage):
    run = subprocess.Popen(local_run(stage, *LONG), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=stage.folder, start_new_session=True)
    wait_for("5 daemons", lambda: len(processes(stage.folder)) == 6)
    while "RUNNING" not in run.stdout.readline():
        pass
    os.killpg(run.pid, signal.SIGINT)
    output = run.communicate(timeout=30)[0]
    require(run.returncode == 130, "want exit code 130 got %d\n%s" % (run.returncode, output))
    require("cancelled after" in output, output)
    none_left(stage.folder)


@test
def when_psctl_is_killed_its_children_end(stage):
    run = subprocess.Popen(local_run(stage, *LONG), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=stage.folder)
    wait_for("5 daemons", lambda: len(processes(stage.folder)) == 6)
    run.kill()
    run.wait()
    none_left(stage.folder)


@test
def supervision_starts_again_what_is_killed_and_the_job_succeeds(stage):
    run = subprocess.Popen(local_run(stage, "--supervise", "--set", "spec.counting.step_ms=20", "--output", "json"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=stage.folder)
    for name in ("evergrad-worker", "evergrad-ps-server"):
        before = wait_for("two of %s" % name, lambda: (lambda f: f if len(f) == 2 else None)(of_role(stage.folder, name)))
        os.kill(min(before), signal.SIGKILL)
        wait_for("%s to be started again" % name, lambda: len(set(of_role(stage.folder, name)) - set(before)) == 1)
    output, errors = run.communicate(timeout=60)
    require(run.returncode == 0, "want exit code 0 got %d\n%s%s" % (run.returncode, output, errors))
    require(json.loads(output)["state"] == "SUCCEEDED", output)
    require("was killed by signal 9" in errors and "started again" in errors, errors)
    none_left(stage.folder)


@test
def a_dead_coordinator_ends_the_run_with_4(stage):
    run = subprocess.Popen(local_run(stage, *LONG), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=stage.folder)
    wait_for("5 daemons", lambda: len(processes(stage.folder)) == 6)
    while "RUNNING" not in run.stdout.readline():
        pass
    os.kill(min(of_role(stage.folder, "evergrad-coordinator")), signal.SIGKILL)
    output, errors = run.communicate(timeout=60)
    require(run.returncode == 4, "want exit code 4 got %d\n%s%s" % (run.returncode, output, errors))
    require("coordinator" in errors, errors)
    none_left(stage.folder)


@test
def a_cluster_in_the_background_comes_up_runs_jobs_and_goes_down(stage):
    for supervise in ([], ["--supervise"]):
        stage.run("cluster", "up", "--workers", "1", "--servers", "1", "--failpoints", "none", *supervise)
        status = json.loads(stage.run("cluster", "status", "--output", "json").stdout)
        require(all(p["alive"] for p in status["processes"]), str(status))
        stage.run("cluster", "up", expect=2)
        stage.run("job", "run", JOB, "--require", "examples>=0", expect=5)
        stage.run("cluster", "restart", "worker/0")
        stage.run("cluster", "restart", "ps_server/0", "--kill")
        wait_for("both tasks to be back", lambda: sum(t["state"] == "alive" for t in json.loads(stage.run("task", "list", "--output", "json").stdout)["tasks"]) == 3)
        stage.run("job", "run", JOB)
        require(len(json.loads(stage.run("job", "list", "--output", "json").stdout)["jobs"]) == 2, "want two jobs")
        logs = stage.run("logs", "worker/0", "coordinator/0").stdout
        require("worker/0" in logs and "coordinator/0" in logs, logs)
        follow = subprocess.Popen([stage.psctl, "logs", "-f"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=stage.folder)
        require(follow.stdout.readline() != "", "logs -f prints nothing")
        follow.send_signal(signal.SIGINT)
        follow.communicate(timeout=10)
        require(follow.returncode == 130, "logs -f: want exit code 130 got %d" % follow.returncode)
        stage.run("cluster", "down")
        none_left(stage.folder)
        stage.run("cluster", "status", expect=4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("names", nargs="*")
    a = parser.parse_args()
    failed = 0
    for function in TESTS:
        if a.names and function.__name__ not in a.names:
            continue
        stage = Stage(os.path.abspath(a.bin))
        begin = time.monotonic()
        try:
            function(stage)
            print("ok     %5.1f s  %s" % (time.monotonic() - begin, function.__name__.replace("_", " ")))
        except (Failure, subprocess.TimeoutExpired, OSError) as e:
            failed += 1
            print("FAILED %5.1f s  %s\n%s" % (time.monotonic() - begin, function.__name__.replace("_", " "), e))
            for log in sorted(glob.glob(os.path.join(glob.escape(stage.folder), "**", "*.log"), recursive=True) + glob.glob(os.path.join(glob.escape(stage.folder), "runs", ".local-*", "*.log"))):
                with open(log, errors="replace") as f:
                    print("---- %s\n%s" % (os.path.relpath(log, stage.folder), "".join(f.readlines()[-8:])))
        for pid in processes(stage.folder):  # ours alone: their arguments name this test's folder
            os.kill(pid, signal.SIGKILL)
        stage.temporary.cleanup()
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
