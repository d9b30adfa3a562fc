#!/usr/bin/env python3
"""Shows that the bounds of `acceptance.py --quality` catch errors. It puts one error of each kind
into a copy of the sources, builds the daemons, trains the example that must notice the error, and
expects the example to miss its bound.

  quality_errors.py --data data [--work build/quality-errors] [names …]

The release build needs minutes for the first error and seconds for each further one. The program
ends with 1 if an error was not caught, or if an example misses its bound without any error.
"""
import argparse
import os
import shutil
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
DAEMONS = ["evergrad-coordinator", "evergrad-ps-server", "evergrad-worker", "psctl"]

# The entries are name: (example, file, right text, wrong text).
ERRORS = {
    "batch-normalization-gradient": (
        "resnet-12k",
        "worker/backend/cpu/normalization.cc",
        "out[c] = a[c] * (g[c] - g_mean[c] - (in[c] - m[c]) * s[c]);",
        "out[c] = a[c] * (g[c] + g_mean[c] + (in[c] - m[c]) * s[c]);",
    ),
    "moving-average-stays": (
        "resnet-12k",
        "ps_server/optimizer/rules.h",
        "w = w - (w - g) * one_minus_momentum;",
        "w = w - (w - g) * 0.0f * one_minus_momentum;",
    ),
    "dropout-while-evaluating": (
        "cnn-dropout-12k",
        "worker/layers/dropout.cc",
        "if (pass.training && rate_ > 0) {",
        "if (rate_ > 0) {",
    ),
    "embedding-gradient-of-one-place": (
        "two_towers",
        "worker/backend/cpu/embedding.cc",
        "to[d] += factor * g[d];",
        "to[d] = factor * g[d];",
    ),
    "adam-without-second-moment": (
        "adult",
        "ps_server/optimizer/rules.h",
        "w = w - rate * m / (std::sqrt(v) + epsilon);",
        "w = w - rate * m;",
    ),
}


def read(path):
    with open(path) as f:
        return f.read()


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


def copy_sources(to):
    """Copies the files of the checkout. A file is written only if it differs from the copy, so that
    little must be built again."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = os.path.join(ROOT, name), os.path.join(to, name)
        if not os.path.isfile(source):
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(source, "rb") as f:
            wanted = f.read()
        if os.path.exists(target):
            with open(target, "rb") as f:
                if f.read() == wanted:
                    continue
        shutil.copy2(source, target)


def build(sources):
    if not os.path.exists(os.path.join(sources, "build", "release", "build.ninja")):
        subprocess.run(
            ["cmake", "--preset", "release", "-DEVERGRAD_BUILD_TESTS=OFF"],
            cwd=sources,
            stdout=subprocess.DEVNULL,
            check=True,
        )
    command = ["ninja", "-C", "build/release", *DAEMONS]
    built = subprocess.run(command, cwd=sources, capture_output=True, text=True)
    if built.returncode != 0:
        sys.exit("the build failed:\n" + built.stdout[-4000:])


def reaches_its_line(sources, data, example):
    """Returns whether the example reached its bound, or None when it was skipped."""
    command = [sys.executable, os.path.join(ROOT, "tests", "chaos", "acceptance.py"), "--quality"]
    command += ["--bin", os.path.join(sources, "build", "release", "bin"), "--data", data, example]
    ended = subprocess.run(command, capture_output=True, text=True)
    told = [line for line in ended.stdout.splitlines() if example in line]
    print("       " + "\n       ".join(told or [ended.stdout + ended.stderr]), flush=True)
    return {0: True, 1: False, 77: None}[ended.returncode]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=os.environ.get("EVERGRAD_DATA", ROOT + "/data"))
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "quality-errors"))
    parser.add_argument("names", nargs="*", help=", ".join(ERRORS))
    a = parser.parse_args()
    unknown = [n for n in a.names if n not in ERRORS]
    if unknown:
        parser.error("unknown errors: %s; there are: %s" % (" ".join(unknown), " ".join(ERRORS)))
    sources = os.path.join(os.path.abspath(a.work), "sources")
    copy_sources(sources)
    problems, checked = [], set()
    for name in a.names or ERRORS:
        example, file, right, wrong = ERRORS[name]
        path = os.path.join(sources, file)
        text = read(path)
        if right not in text:
            sys.exit("%s: the line of the error %s is not there any more: %s" % (file, name, right))
        if example not in checked:
            checked.add(example)
            build(sources)
            print("%s without an error" % example, flush=True)
            if reaches_its_line(sources, a.data, example) is not True:
                problems.append("%s falls short, or was skipped, without an error" % example)
                continue
        write(path, text.replace(right, wrong))
        try:
            build(sources)
            print("%s with the error %s" % (example, name), flush=True)
            if reaches_its_line(sources, a.data, example) is not False:
                problems.append("the error %s was not caught by %s" % (name, example))
        finally:
            write(path, text)
    for problem in problems:
        print("FAILED %s" % problem)
    print("%d errors, %d not caught" % (len(a.names or ERRORS), len(problems)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
