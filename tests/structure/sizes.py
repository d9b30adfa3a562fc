#!/usr/bin/env python3
"""Checks the sizes of functions, classes and test cases. sizes.txt beside this file lists those
that are larger, and why.

  functions    70 lines, from the line of the name to the closing brace; a lambda counts as a part
               of the function around it
  classes     400 lines: the definition, and all member functions that are defined outside it, in
               any file
  test cases  100 lines: a table or a transcript is read from top to bottom, so it may be longer
               than a function; a SECTION is a part of its case

universal-ctags finds functions and classes, but not test cases, which are macros. A TEST_CASE ends
at the first closing brace in column 0, which the format check guarantees.

  sizes.py              fails if an item above its limit is not in the list, if a listed item has
                        grown by more than 10 lines or is no longer above its limit, and if an item
                        has no reason
  sizes.py --write      updates the numbers of the list; a new item gets no reason, so the check
                        fails until someone writes one
  sizes.py --self-test  shows that each of these failures is found
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import repository

FUNCTION_LINES, CLASS_LINES, CASE_LINES = 70, 400, 100
GROWTH = 10
HERE = os.path.dirname(os.path.abspath(__file__))
LIST = os.path.join(HERE, "sizes.txt")
CTAGS = [
    "ctags-universal",
    "--options=NONE",
    "-L",
    "-",
    "--output-format=json",
    "--languages=C++",
    "--langmap=C++:+.cu.cuh",
    "--fields=+neKsS",
    "--kinds-C++=fcs",
    "-f",
    "-",
]
ITEM = re.compile(r"^(\S+) (\S+) (\d+)(?:  (.*))?$")
STRING = r'"(?:[^"\\]|\\.)*"'
# Matches the macro and the title of a case. The title consists of one or several strings, which may
# begin on the line of the macro or on the next line.
CASE = re.compile(r"(?:TEST_CASE|TEMPLATE_\w*TEST_CASE|SCENARIO)\w*\(((?:\s*%s)*)" % STRING)
HEADER = """# What is larger than tests/structure/sizes.py allows: path symbol lines  reason
# Split it and remove its line; `sizes.py --write` brings the numbers up to date.
"""


def symbol_of(scope, name):
    """Returns the name of an item without its namespaces, named or unnamed. The list has the path
    in any case, and ctags numbers unnamed namespaces differently when a file is moved."""
    parts = [
        p
        for p in (scope or "").split("::")
        if p and not p.startswith("__anon") and not p[0].islower()
    ]
    return "::".join(parts + [name]).replace(" ", "")


def cases_of(text):
    """Yields (symbol, lines) of each test case."""
    lines = text.split("\n")
    first = 0
    while first < len(lines):
        if not CASE.match(lines[first]):
            first += 1
            continue
        last = first
        while (
            last < len(lines) - 1
            and not lines[last].startswith("}")
            and not (last == first and lines[last].endswith("}"))
        ):
            last += 1
        title = CASE.match("\n".join(lines[first : last + 1])).group(1)
        name = "".join(string[1:-1] for string in re.findall(STRING, title)).replace(" ", "_")
        yield "TEST_CASE:" + name, last - first + 1
        first = last + 1


def measure(root, files):
    """Returns {(path, symbol): (lines, limit)} for every function, class and test case. Overloads
    have the same symbol. It stands for the longest of them; if several are above the limit, the
    second one is SYMBOL#2."""
    out = subprocess.run(
        CTAGS, cwd=root, input="\n".join(files), capture_output=True, text=True, check=True
    ).stdout
    tags = [
        tag
        for tag in map(json.loads, out.splitlines())
        if tag.get("_type") == "tag" and "end" in tag
    ]
    sizes = {}

    def add(path, symbol, lines, limit):
        name, number = symbol, 1
        while (path, name) in sizes and min(lines, sizes[path, name][0]) > limit:
            number += 1
            name = "%s#%d" % (symbol, number)
        sizes[path, name] = max(sizes.get((path, name), (0, limit)), (lines, limit))

    def full(tag):
        return (tag.get("scope", "") + "::" + tag["name"]).lstrip(":")

    functions = [tag for tag in tags if tag["kind"] == "function"]
    outside = {}  # {scope: the lines of the functions that belong to it}
    for tag in functions:
        if not tag["name"].startswith("__anon"):
            add(
                tag["path"],
                symbol_of(tag.get("scope"), tag["name"]),
                tag["end"] - tag["line"] + 1,
                FUNCTION_LINES,
            )
            outside.setdefault(tag.get("scope", ""), []).append(tag)
    for tag in tags:
        if tag["kind"] == "function" or tag["name"].startswith("__anon"):
            continue
        lines = tag["end"] - tag["line"] + 1
        for member in outside.get(full(tag), []):
            if member["path"] != tag["path"] or not tag["line"] <= member["line"] <= tag["end"]:
                lines += member["end"] - member["line"] + 1
        add(tag["path"], symbol_of(tag.get("scope"), tag["name"]), lines, CLASS_LINES)
    for path in files:
        with open(os.path.join(root, path), encoding="utf-8") as f:
            for symbol, lines in cases_of(f.read()):
                add(path, symbol, lines, CASE_LINES)
    return sizes


def read_list(text):
    """Returns {(path, symbol): (lines, reason)}, and the mistakes in the list itself."""
    items, wrong = {}, []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = ITEM.match(line)
        if not found:
            wrong.append("sizes.txt:%d: want `path symbol lines  reason`: %s" % (number, line))
            continue
        path, symbol, lines, reason = found.groups()
        if (path, symbol) in items:
            wrong.append("sizes.txt:%d: duplicate item: %s %s" % (number, path, symbol))
        if not (reason or "").strip():
            wrong.append("sizes.txt:%d: item without a reason: %s %s" % (number, path, symbol))
        items[path, symbol] = (int(lines), (reason or "").strip())
    return items, wrong


def check(sizes, text):
    listed, wrong = read_list(text)
    for (path, symbol), (lines, limit) in sorted(sizes.items()):
        if (path, symbol) not in listed:
            if lines > limit:
                wrong.append("%s: %s is too long: lines=%d limit=%d" % (path, symbol, lines, limit))
        elif lines <= limit:
            wrong.append(
                "%s: %s is within its limit, remove its line from sizes.txt: lines=%d limit=%d"
                % (path, symbol, lines, limit)
            )
        elif lines > listed[path, symbol][0] + GROWTH:
            wrong.append(
                "%s: %s has grown: lines=%d listed=%d limit=%d"
                % (path, symbol, lines, listed[path, symbol][0], limit)
            )
    for path, symbol in sorted(set(listed) - set(sizes)):
        wrong.append("%s: %s no longer exists, remove its line from sizes.txt" % (path, symbol))
    return wrong


def rewrite(sizes, text):
    listed, _ = read_list(text)
    items = sorted(
        (path, symbol, lines) for (path, symbol), (lines, limit) in sizes.items() if lines > limit
    )
    return HEADER + "".join(
        ("%s %s %d  %s" % (path, symbol, lines, listed.get((path, symbol), (0, ""))[1])).rstrip()
        + "\n"
        for path, symbol, lines in items
    )


def self_test():
    def function(name, lines):
        return "void %s() {\n%s}\n" % (name, "  Do();\n" * (lines - 2))

    def case(name, lines):
        return 'TEST_CASE("%s") {\n%s}\n' % (name, "  Do();\n" * (lines - 2))

    def seen(sources, text):
        with tempfile.TemporaryDirectory() as root:
            for path, source in sources.items():
                with open(os.path.join(root, path), "w") as f:
                    f.write(source)
            sizes = measure(root, sorted(sources))
            return check(sizes, text), rewrite(sizes, text)

    def passes(sources, text=""):
        wrong, _ = seen(sources, text)
        assert not wrong, wrong

    def fails(sources, text, *words):
        wrong, _ = seen(sources, text)
        assert len(wrong) == 1 and all(word in wrong[0] for word in words), (wrong, words)

    # The cases are at the limit, and one line above it.
    passes({"a.cc": function("F", 70)})
    fails({"a.cc": function("F", 71)}, "", "a.cc: F is too long: lines=71 limit=70")
    passes({"a.cc": case("a name", 100)})
    fails(
        {"a.cc": case("a name", 101) + function("F", 9)},
        "",
        "TEST_CASE:a_name is too long: lines=101 limit=100",
    )
    # The title may be on the next lines, in several strings.
    for title in ('\n    "a name"', '\n    "a "\n    "name"', '"a "\n          "name"'):
        text = case("a name", 101 - title.count("\n")).replace('"a name"', title)
        fails({"a.cc": text}, "", "TEST_CASE:a_name is too long: lines=101")
        passes({"a.cc": text}, "a.cc TEST_CASE:a_name 101  a table\n")
    # A listed item may grow by ten lines. It must be removed from the list when it is short enough
    # or no longer exists.
    passes({"a.cc": function("F", 90)}, "a.cc F 80  a table\n")
    fails({"a.cc": function("F", 91)}, "a.cc F 80  a table\n", "F has grown: lines=91 listed=80")
    fails({"a.cc": function("F", 70)}, "a.cc F 80  a table\n", "within its limit, remove its line")
    fails({"a.cc": function("G", 7)}, "a.cc F 80  a table\n", "no longer exists")
    # These cases are mistakes in the list itself.
    fails({"a.cc": function("F", 80)}, "a.cc F 80\n", "item without a reason")
    fails({"a.cc": function("F", 80)}, "a.cc F 80  one\na.cc F 80  two\n", "duplicate item")
    fails({"a.cc": function("F", 8)}, "a.cc F\n", "want `path symbol lines  reason`")
    fails(
        {"a.cc": function("F", 80) + function("F", 8).replace("()", "(int)")},
        "a.cc F 60  one\n",
        "F has grown: lines=80",
    )
    # Overloads are distinguished. A namespace is not a part of a name. A lambda belongs to the
    # function around it.
    fails(
        {
            "a.cc": "namespace x::y {\nnamespace {\n"
            + function("F", 80)
            + function("F", 81).replace("()", "(int)")
            + "}\n}\n"
        },
        "a.cc F 80  one\n",
        "F#2 is too long: lines=81",
    )
    passes(
        {"a.cc": "void F() {\n  auto run = [] {\n%s  };\n}\n" % ("    Do();\n" * 80)},
        "a.cc F 84  a lambda\n",
    )
    # The size of a class includes its definition and its members elsewhere, in any file. A member
    # inside the definition counts once.
    header = "namespace x {\nclass C {\n%s  void G();\n};\n}\n" % ("  int a;\n" * 340)
    passes({"c.h": header, "c.cc": "namespace x {\n%s}\n" % function("C::G", 57)})
    fails(
        {"c.h": header, "c.cc": "namespace x {\n%s}\n" % function("C::G", 58)},
        "",
        "c.h: C is too long: lines=401 limit=400",
    )
    inside = "struct S {\n%s};\n" % "".join(
        "  void F%d() {\n%s  }\n" % (i, "    Do();\n" * 38) for i in range(10)
    )
    fails({"s.cc": inside}, "", "S is too long: lines=402 limit=400")
    # --write keeps reasons, removes items that are short, and leaves a new item without a reason.
    wrong, written = seen(
        {"a.cc": function("F", 90) + function("G", 71)}, "a.cc F 80  a table\na.cc H 99  gone\n"
    )
    assert written == HEADER + "a.cc F 90  a table\na.cc G 71\n", written
    print("each failure of the sizes is seen")
    return 0


def main():
    if not shutil.which(CTAGS[0]):
        print("skipped: universal-ctags is not installed (deploy/scripts/setup.sh lint)")
        return 77 if "--self-test" in sys.argv else 2
    if "--self-test" in sys.argv:
        return self_test()
    root = os.path.abspath(os.path.join(HERE, "..", ".."))
    sizes = measure(root, repository.files(root, repository.CPP))
    text = open(LIST, encoding="utf-8").read() if os.path.exists(LIST) else ""
    if "--write" in sys.argv:
        with open(LIST, "w", encoding="utf-8") as f:
            f.write(rewrite(sizes, text))
        return 0
    wrong = check(sizes, text)
    for line in wrong:
        print(line)
    print("%d breaches, %d items listed" % (len(wrong), len(read_list(text)[0])))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
