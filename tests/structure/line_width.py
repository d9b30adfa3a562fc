#!/usr/bin/env python3
"""Finds lines of over 100 columns in C++, CUDA, protocol definitions, Python, CMake files and shell
scripts. clang-format and black do not break a long string, comment or name.

  line_width.py [--self-test]

A column is a character. Lines in a raw string of C++ are not checked, because the string is in
another language, in which a line break may have a meaning.
"""
import os
import subprocess
import sys
import tempfile

import phrases
import repository

COLUMNS_MAX = 100
CPP = repository.CPP + (".inc", ".c", ".proto")
OTHERS = (".py", ".cmake", "CMakeLists.txt", ".sh")


def is_script(root, path):
    """Returns whether a file whose name has no extension begins like a shell script."""
    if "." in os.path.basename(path):
        return False
    with open(os.path.join(root, path), "rb") as f:
        first = f.readline()
    return first.startswith(b"#!") and first.rstrip().endswith(b"sh")


def raw_lines(text):
    """Returns the numbers of the lines that contain a part of a raw string of C++."""
    lines = set()
    for token in phrases.TOKEN.finditer(text):
        if token.group("raw"):
            first = text.count("\n", 0, token.start()) + 1
            lines.update(range(first, first + token.group().count("\n") + 1))
    return lines


def findings(path, text):
    long = [
        (number, len(line))
        for number, line in enumerate(text.split("\n"), 1)
        if len(line) > COLUMNS_MAX
    ]
    raw = raw_lines(text) if long and path.endswith(CPP) else ()
    return [
        "%s:%d: columns=%d max=%d" % (path, number, columns, COLUMNS_MAX)
        for number, columns in long
        if number not in raw
    ]


def check(root):
    """Returns the findings below `root`, and the number of files that were read."""
    found, files = [], 0
    for path in repository.files(root, ("",)):
        if path.endswith(CPP + OTHERS) or is_script(root, path):
            with open(os.path.join(root, path), encoding="utf-8") as f:
                found += findings(path, f.read())
            files += 1
    return found, files


def self_test():
    long, fits = "x" * 101, "ä" * 100
    files = {
        "a.cc": 'f(R"(\n%s)");\n// %s\n' % (long, long),
        "b.py": "%s\n%s\n" % (fits, long),
        "c.proto": long,
        "d/CMakeLists.txt": long,
        "e.cmake": long,
        "f.sh": "%s\n%s\n" % (fits, fits),
        "run": "#!/bin/sh\n" + long,
        "notes": long,
        "g.md": long,
        "left_out.py": long,
        ".gitignore": "left_out.py\n",
    }
    with tempfile.TemporaryDirectory() as root:
        subprocess.run(["git", "init", "--quiet", root], check=True)
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(text)
        found, read = check(root)
    want = ["a.cc:3: columns=104", "b.py:2: columns=101", "c.proto:1: columns=101"]
    want += ["d/CMakeLists.txt:1: columns=101", "e.cmake:1: columns=101", "run:2: columns=101"]
    assert found == [line + " max=100" for line in want], found
    assert read == 7, read
    print("a long line of each kind of file is seen")
    return 0


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    found, files = check(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    for line in found:
        print(line)
    print("%d long lines in %d files" % (len(found), files))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
