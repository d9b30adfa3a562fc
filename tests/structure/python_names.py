#!/usr/bin/env python3
"""Finds errors that Python finds only at run time or never: undefined names and unused imports.

  python_names.py [--self-test]

pyflakes checks every Python file of the repository. Lines that end in a `noqa` comment are skipped.
"""
import os
import subprocess
import sys
import tempfile

import repository

PYFLAKES = ["/usr/bin/python3", "-m", "pyflakes"]


def is_excused(finding):
    """Returns whether the line to which `finding` (path:line:column: text) refers has a `noqa`
    comment."""
    path, line = finding.split(":")[:2]
    if not line.isdigit():
        return False
    with open(path) as f:
        lines = f.readlines()
    return int(line) <= len(lines) and "# noqa" in lines[int(line) - 1]


def findings(paths):
    out = subprocess.run(
        PYFLAKES + paths,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if out.returncode not in (0, 1):
        sys.exit("pyflakes ended with %d: %s" % (out.returncode, out.stdout))
    said = [line for line in out.stdout.splitlines() if line.strip()]
    if out.returncode != 0 and not said:
        sys.exit("pyflakes ended with 1 and said nothing")
    return [line for line in said if not is_excused(line)]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.py")
        for text, found in (
            ("def f():\n    return wire(1)\n", 1),
            ("import os\n", 1),
            ("import os  # noqa: F401\n", 0),
            ("print(1)\n", 0),
        ):
            with open(path, "w") as f:
                f.write(text)
            said = findings([path])
            if len(said) != found:
                sys.exit("%r: wanted %d findings, got %s" % (text, found, said))
    return 0


def main():
    if (
        subprocess.run(
            PYFLAKES + ["--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ).returncode
        != 0
    ):
        print("skipped: pyflakes is not installed (deploy/scripts/setup.sh test)")
        return 77
    if "--self-test" in sys.argv[1:]:
        return self_test()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    found = findings(repository.files(".", (".py",)))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
