#!/usr/bin/env python3
"""Runs fuzz targets that are built in build/fuzz (./evergrad fuzz).

  fuzz.py [TARGET] [SECONDS]

Runs one target, or all of them one after another, for SECONDS each (60 by default). A target
starts from its seeds and from the inputs that earlier runs kept (build/fuzz/corpus/TARGET). One
line per target gives the number of executed inputs, their coverage (libFuzzer's counters of edges
and features) and the path of a finding (in build/fuzz/findings/TARGET/). Ends with 0 if there is
no finding, with 1 if there is one, and with 2 if a target cannot be run.
"""
import os
import re
import subprocess
import sys

SECONDS = 60
# tests/fuzz/replay_main.cc has the same memory limit (RSS_MB).
RSS_MB, ALLOCATION_MB, SECONDS_EACH, INPUT_BYTES = 2048, 512, 10, 65536


def targets_of(folder):
    """Returns {name: folders of seeds}, as written by CMake."""
    try:
        with open(os.path.join(folder, "fuzz_targets.txt")) as f:
            lines = [line.rstrip("\n").split("\t") for line in f]
    except FileNotFoundError:
        return {}
    return {line[0]: line[1:] for line in lines if line[0]}


def figures_of(log):
    """Returns (executions, edges, features), read from the last lines of libFuzzer's output that
    have these figures."""
    executions = re.findall(r"^stat::number_of_executed_units:\s+(\d+)", log, re.M)
    status = re.findall(r"^#(\d+)\s.*?\bcov: (\d+) ft: (\d+)", log, re.M)
    last = status[-1] if status else ("0", "0", "0")
    return int(executions[-1] if executions else last[0]), int(last[1]), int(last[2])


def run(folder, name, seeds, seconds, say=print):
    """Runs one target. Returns whether it has ended without a finding."""
    corpus = os.path.join(folder, "corpus", name)
    findings = os.path.join(folder, "findings", name)
    for needed in (corpus, findings):
        os.makedirs(needed, exist_ok=True)
    before = set(os.listdir(findings))
    process = subprocess.run(
        [
            os.path.join(folder, "bin", "fuzz_" + name),
            "-max_total_time=%d" % seconds,
            "-timeout=%d" % SECONDS_EACH,
            "-rss_limit_mb=%d" % RSS_MB,
            "-malloc_limit_mb=%d" % ALLOCATION_MB,
            "-max_len=%d" % INPUT_BYTES,
            "-print_final_stats=1",
            "-artifact_prefix=%s/" % findings,
            corpus,
            *seeds,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )
    with open(os.path.join(findings, "log"), "w") as f:
        f.write(process.stdout)
    executions, edges, features = figures_of(process.stdout)
    say(
        "%-16s executions %d  edges %d  features %d%s"
        % (name, executions, edges, features, "" if process.returncode == 0 else "  FAILED")
    )
    if process.returncode == 0:
        return True
    for found in sorted(set(os.listdir(findings)) - before - {"log"}):
        say("  finding: %s" % os.path.relpath(os.path.join(findings, found)))
    for line in re.findall(
        r"^(?:.*invariant broken.*|.*runtime error: .*|==\d+==\s*ERROR: .*|SUMMARY: .*)$",
        process.stdout,
        re.M,
    )[:6]:
        say("  " + line)
    say("  log: %s" % os.path.relpath(os.path.join(findings, "log")))
    return False


def chosen_of(arguments, known):
    """Returns (targets, seconds) of the command line, or None if it names an unknown target or has
    too many arguments."""
    seconds, left = SECONDS, list(arguments)
    if left and re.fullmatch("[1-9][0-9]*", left[-1]):
        seconds = int(left.pop())
    if len(left) > 1 or any(name not in known for name in left):
        return None
    return left or list(known), seconds


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    folder = os.path.normpath(os.path.join(here, "..", "..", "build", "fuzz"))
    known = targets_of(folder)
    chosen = chosen_of(sys.argv[1:], known)
    if not known or chosen is None:
        sys.stderr.write(
            "fuzz.py: want: [TARGET] [SECONDS], got: %s; targets: %s\n"
            % (" ".join(sys.argv[1:]) or "nothing", " ".join(sorted(known)) or "none is built")
        )
        return 2
    names, seconds = chosen
    return 0 if all([run(folder, name, known[name], seconds) for name in names]) else 1


if __name__ == "__main__":
    sys.exit(main())
