#!/usr/bin/env python3
"""Checks that the binaries that users run contain no mutant (tests/mutants): no symbol of a mutant,
no name of one, no sentence that describes one, and not the environment variable that chooses one.

  release_binaries.py --bin build/release/bin

The same search must find every mutant in the faulty daemons; otherwise it would prove nothing. A
missing program or tool is a failure, too.
"""
import argparse
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = (
    "evergrad-coordinator",
    "evergrad-ps-server",
    "evergrad-worker",
    "evergrad-operator",
    "psctl",
)
FAULTY = ("evergrad-coordinator-faulty", "evergrad-ps-server-faulty")
SYMBOL = re.compile(r"\bMutant\b|\bmutants::|\bBreakable\w*Rules\b")
VARIABLE = "EVERGRAD_MUTANT"


def mutants(text):
    """Returns the (name, description) of each mutant in mutants.inc."""
    entry = r'EG_MUTANT\(\s*\w+,\s*"([^"]+)",\s*"[^"]+",\s*"([^"]+)"\)'
    return re.findall(entry, text)


def output(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError("%s: %s" % (" ".join(command), done.stderr.strip()))
    return done.stdout


def symbols(path):
    # A shared library is searched only for the symbols of its interface, because it has no others.
    found = output("nm", "-C", *(["-D"] if ".so" in path else []), path)
    if not re.search(r" [Tt] ", found):
        raise RuntimeError("no symbols in %s: it was stripped, and nothing can be found" % path)
    return found


def traces(path, known):
    """Returns every part of a mutant that is found in the file `path`."""
    found = sorted(set(SYMBOL.findall(symbols(path))))
    text = output("strings", "-a", "-n", "4", path)
    lines = set(text.splitlines())
    found += [VARIABLE] if VARIABLE in text else []
    found += [name for name, _ in known if name in lines]
    found += [sentence for _, sentence in known if sentence in text]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    folder = parser.parse_args().bin
    with open(os.path.join(ROOT, "tests/mutants/mutants.inc")) as f:
        known = mutants(f.read())
    failures = [] if len(known) > 50 else ["mutants.inc has %d mutants" % len(known)]
    libraries = glob.glob(os.path.join(folder, "**", "libevergrad_*.so*"), recursive=True)
    try:
        for path in [os.path.join(folder, p) for p in PROGRAMS] + libraries:
            failures += ["%s contains: %s" % (path, what) for what in traces(path, known)]
        for path in [os.path.join(folder, p) for p in FAULTY]:
            found = traces(path, known)
            missing = [w for pair in known for w in pair if w not in found]
            if missing or VARIABLE not in found or not SYMBOL.search(" ".join(found)):
                failures.append("the search does not find in %s: %s" % (path, missing))
    except (OSError, RuntimeError) as why:
        failures.append(str(why))
    for failure in failures:
        print(failure)
    print("%d programs, %d libraries, %d mutants" % (len(PROGRAMS), len(libraries), len(known)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
