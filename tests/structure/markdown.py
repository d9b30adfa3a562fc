#!/usr/bin/env python3
"""Finds lines of Markdown that are too long to read. The limit is 100 columns outside of code
blocks and tables, and 200 columns for rows of tables.

  markdown.py [--self-test]

A column is a character. The check skips code blocks (fenced, or indented by four after a blank
line), generated parts (between `<!-- generated: NAME -->` and `<!-- end -->`), and lines that
cannot be broken, because one link or one code span is too long by itself.
"""
import os
import re
import sys

import repository

LINE_MAX, ROW_MAX = 100, 200
MARK = re.compile(r"\s*(?:(?:[-*+>]|\d+[.)])\s+)*")
# A line cannot be broken inside a code span or a link.
WHOLE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)|!?\[[^\]]*\]\([^)]*\)")


def breakable(line):
    """Returns whether the line has a space between two words, where it could be broken."""
    text = WHOLE.sub(lambda m: "x" * len(m.group()), line[MARK.match(line).end() :])
    return " " in text.strip()


def findings(text):
    """Returns [(line, finding)]."""
    found, fenced, generated, before = [], False, False, ""
    indented = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if line.startswith("<!-- "):
            generated = line.startswith("<!-- generated: ")
        indented = line.startswith("    ") and (indented or not before.strip())
        before = line
        if fenced or generated:
            continue
        if line.lstrip().startswith("|"):
            if len(line) > ROW_MAX:
                found.append((number, "row of a table: columns=%d max=%d" % (len(line), ROW_MAX)))
        elif len(line) > LINE_MAX and not indented and breakable(line):
            found.append((number, "line: columns=%d max=%d" % (len(line), LINE_MAX)))
    return found


def check(texts):
    """Returns the lines to print for the files {path: text}. Each line is one failure."""
    return [
        "%s:%d: %s" % (path, number, what)
        for path, text in sorted(texts.items())
        for number, what in findings(text)
    ]


def self_test():
    long = "word " * 21
    cases = (
        (long, 1),
        ("word " * 19 + "words", 0),
        ("ä" * 49 + " " + "ä" * 50, 0),
        ("- " + long, 1),
        ("```\n" + long + "\n```\n" + long, 1),
        ("text\n\n    " + long, 0),
        ("text\n    " + long, 1),
        ("    code\n\n    " + long + "\n    " + long, 0),
        ("<!-- generated: x -->\n" + long + "\n<!-- end -->\n" + long, 1),
        ("- [" + "a b" * 30 + "](" + "c" * 30 + ")", 0),
        ("see [" + "a b" * 30 + "](" + "c" * 30 + ")", 1),
        ("`" + "a b " * 30 + "`.", 0),
        ("| " + long + "|", 0),
        ("| " + long * 2 + "|", 1),
    )
    for text, want in cases:
        assert len(findings(text)) == want, (text, findings(text))
    assert findings("text\n\n" + long) == [(3, "line: columns=105 max=100")]
    assert check({"b.md": long, "a.md": "short"}) == ["b.md:1: line: columns=105 max=100"]
    print("each kind of long line is seen")
    return 0


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    texts = {}
    for path in repository.files(".", (".md",)):
        with open(path, encoding="utf-8") as f:
            texts[path] = f.read()
    said = check(texts)
    for line in said:
        print(line)
    print("%d long lines in %d pages" % (len(said), len(texts)))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
