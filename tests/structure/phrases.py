#!/usr/bin/env python3
"""Counts phrases that messages, comments and documents should avoid. phrases.txt beside this file
has the pattern of each phrase, better words, the reason and the present count.

The tree still has many of these phrases. Each has its present count in the list, and a count may
only fall. The check reads comments and string literals of C++, CUDA, protobuf and Python, and the
whole text of documents, scripts, configurations and build files. A comment of several lines, a
string of several literals, and a paragraph each count as one text, in which a line break is a
space; ^ in a pattern is the beginning of such a text. In a document the check skips text between
backticks, which is a name, and paragraphs that begin with "Before, ", which quote a sentence that
is corrected there.

  phrases.py              fails if a count has risen. It shows the phrase in the lines that changed
                          since phrases.txt changed. If git does not know these lines, it shows the
                          phrase everywhere
  phrases.py --show NAME  shows every place of one phrase
  phrases.py --write      writes the present counts into the list; a review must notice a count that
                          has risen
  phrases.py --self-test  shows that a count that has risen is found, in each kind of file
"""
import bisect
import io
import os
import re
import subprocess
import sys
import tempfile
import tokenize

import repository

HERE = os.path.dirname(os.path.abspath(__file__))
LIST = os.path.join(HERE, "phrases.txt")
KEYS = ("phrase", "pattern", "better", "reason", "present")
SHOWN = 40
CODE = (".cc", ".h", ".cu", ".cuh", ".inc", ".c", ".proto")
TEXT = (".md", ".sh", ".yaml", ".yml", ".cmake", "CMakeLists.txt", "evergrad", "Makefile")
# Matches comments, strings and character literals of C++ and protobuf. Raw strings are tried first.
TOKEN = re.compile(
    r'(?P<raw>\bR"(?P<mark>[^()\\\s]{0,16})\((?P<inner>.*?)\)(?P=mark)")'
    r"|(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)"
    r"|(?P<string>\"(?:[^\"\\\n]|\\.)*\")|(?P<char>(?<![0-9A-Fa-f])'(?:[^'\\\n]|\\.)+')",
    re.DOTALL,
)
LEAD = re.compile(r"(?m)^[ \t]*(?://+|#+|\*+|[-*] |>|\|)?[ \t]*")


class Text:
    """What a reader reads as one text. It is stored as one line, with the line of the file for each
    part."""

    def __init__(self, kind, line, text):
        self.kind, self.text, self.marks, self.last = kind, "", [], line
        self.add(line, text, "")

    def add(self, line, text, between):
        for i, part in enumerate(text.split("\n")):
            self.text += between if i == 0 else " "
            self.marks.append((len(self.text), line + i))
            self.text += part
            self.last = line + i

    def line(self, offset):
        return self.marks[bisect.bisect_right(self.marks, (offset, 1 << 30)) - 1][1]


def code_texts(source):
    starts = [m.end() for m in re.finditer("\n", source)]
    texts, end = [], 0
    for m in TOKEN.finditer(source):
        if m.group("char"):
            continue
        line, gap = bisect.bisect_right(starts, m.start()) + 1, source[end : m.start()].strip()
        end = m.end()
        before = texts[-1] if texts and not gap else None
        if m.group("line"):
            said = m.group().lstrip("/").strip()
            # Comments on consecutive lines are one text, even if the first of them follows code on
            # its line.
            if before and before.kind == "line" and before.last + 1 == line:
                before.add(line, said, " ")
            else:
                texts.append(Text("line", line, said))
        elif m.group("block"):
            texts.append(Text("block", line, LEAD.sub("", m.group()[2:-2])))
        elif m.group("raw"):
            texts.append(Text("raw", line, m.group("inner")))
        elif before and before.kind == "string":
            before.add(line, m.group()[1:-1], "")
        else:
            texts.append(Text("string", line, m.group()[1:-1]))
    return texts


def python_texts(source):
    texts, before = [], None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            continue
        if token.type == tokenize.COMMENT:
            said = token.string.lstrip("#!").strip()
            if before and before.kind == "comment" and before.last + 1 == line:
                before.add(line, said, " ")
                continue
            before = Text("comment", line, said)
        elif token.type == tokenize.STRING:
            said = re.sub(r"^\w*('{3}|\"{3}|'|\")|('{3}|\"{3}|'|\")$", "", token.string)
            if before and before.kind == "string":
                before.add(line, said, "")
                continue
            before = Text("string", line, said)
        else:
            before = None
            continue
        texts.append(before)
    return texts


def plain_texts(path, source):
    """Yields the paragraphs of a document. For a script, yields its comments, and each other line
    as a text of its own."""
    texts, before, fenced = [], None, False
    document = path.endswith(".md")
    for number, line in enumerate(source.split("\n"), 1):
        fenced ^= document and line.lstrip().startswith("```")
        if document and not fenced:
            line = re.sub(r"`[^`\n]*`", "``", line)
        bare = LEAD.sub("", line, count=1)
        if document:
            kind = "fenced" if fenced else "paragraph"
            opens = re.match(r"\s*([-*|#>]|\d+\.) ?", line)
        else:
            kind = "comment" if line.lstrip().startswith("#") else "code"
            opens = kind == "code"
        if not bare:
            before = None
        elif before and before.kind == kind and not opens:
            before.add(number, bare, " ")
        else:
            before = Text(kind, number, bare)
            texts.append(before)
    return [t for t in texts if not (document and t.text.startswith("Before, "))]


def texts_of(path, source):
    if path.endswith(CODE):
        return code_texts(source)
    if path.endswith(".py"):
        return python_texts(source)
    return plain_texts(path, source)


def repository_files(root):
    # phrases.txt quotes the phrases, and this file has them as test cases.
    return [
        f
        for f in repository.files(root, CODE + TEXT + (".py",))
        if "/testdata/" not in f and f != "tests/structure/phrases.py"
    ]


def read_list(text):
    phrases = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = [line for line in paragraph.split("\n") if line and not line.startswith("#")]
        if not lines:
            continue
        entry = dict((line.split(None, 1) + [""])[:2] for line in lines)
        if tuple(entry) != KEYS or not all(entry.values()) or not entry["present"].isdigit():
            raise SystemExit(
                "phrases.txt: an entry has %s, each with a value, "
                "and a number of those that are present: %s" % (", ".join(KEYS), lines[0])
            )
        entry["regex"] = re.compile(entry["pattern"], re.ASCII)
        phrases.append(entry)
    return phrases


def places(root, files, phrases):
    """Returns {phrase: [(path, line, the words around it)]}."""
    found = {entry["phrase"]: [] for entry in phrases}
    for path in files:
        with open(os.path.join(root, path), encoding="utf-8") as f:
            source = f.read()
        for text in texts_of(path, source):
            for entry in phrases:
                for m in entry["regex"].finditer(text.text):
                    found[entry["phrase"]].append(
                        (
                            path,
                            text.line(m.start()),
                            text.text[max(0, m.start() - 40) : m.end() + 40].strip(),
                        )
                    )
    return found


def changed_lines(root):
    """Returns {path: lines} with the lines that have changed since phrases.txt was last committed,
    or None if git does not know."""

    def git(*arguments):
        return subprocess.run(
            ["git", "-C", root, *arguments], capture_output=True, text=True
        ).stdout

    commit = git("log", "-1", "--format=%H", "--", "tests/structure/phrases.txt").strip()
    if not commit:
        return None
    changed, path = {}, None
    for line in git("diff", "-U0", "--no-color", "--no-ext-diff", commit).split("\n"):
        if line.startswith("+++ "):
            path = line[6:]
        hunk = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if hunk:
            first, count = int(hunk.group(1)), int(hunk.group(2) or 1)
            changed.setdefault(path, set()).update(range(first, first + count))
    for path in git("ls-files", "--others", "--exclude-standard").split("\n"):
        changed[path] = range(1, 1 << 30)
    return changed


def check(found, phrases, changed=None):
    """Returns the lines to print, and how many counts have risen."""
    said, risen = [], 0
    for entry in phrases:
        now, then = len(found[entry["phrase"]]), int(entry["present"])
        if now > then:
            risen += 1
            said.append(
                "%s: present=%d allowed=%d; better: %s (%s)"
                % (entry["phrase"], now, then, entry["better"], entry["reason"])
            )
            new = [
                place
                for place in found[entry["phrase"]]
                if changed is not None and place[1] in changed.get(place[0], ())
            ]
            shown = new or found[entry["phrase"]]
            said += ["  %s:%d: %s" % place for place in shown[:SHOWN]]
            if len(shown) > SHOWN:
                said.append(
                    '  … and %d more: phrases.py --show "%s"'
                    % (len(shown) - SHOWN, entry["phrase"])
                )
    lower = sum(len(found[entry["phrase"]]) < int(entry["present"]) for entry in phrases)
    if lower:
        said.append("%d counts have fallen: phrases.py --write keeps them there" % lower)
    return said, risen


def rewrite(found, text):
    name = None
    lines = []
    for line in text.split("\n"):
        if line.startswith("phrase "):
            name = line.split(None, 1)[1]
        if line.startswith("present "):
            line = "present  %d" % len(found[name])
        lines.append(line)
    return "\n".join(lines)


def self_test():
    phrases = read_list(open(LIST, encoding="utf-8").read())
    by_name = {entry["phrase"]: entry for entry in phrases}
    one = dict(by_name["goes on"], present="1")

    def count(path, source, entry=one):
        with tempfile.TemporaryDirectory() as root:
            with open(os.path.join(root, path), "w") as f:
                f.write(source)
            return len(places(root, [path], [entry])[entry["phrase"]])

    kinds = {
        "a.cc": (
            "// The job goes\n// on.\nint goes_on = 0;\n"
            'Say("it goes "\n    "on");\nauto goes on = \'"\';\n',
            2,
        ),
        "b.h": (
            '/* It goes on. */\nconst char* k = R"(it goes on)";\n'
            "int x;  // it goes\nint y;\n// on\n",
            2,
        ),
        "c.py": ('"""It goes on."""\ngoes = on  # it goes on\nsay("it goes "\n    "on")\n', 3),
        "d.md": ("It goes\non. `it goes on`\n\n- it goes\n- on\n", 1),
        "g.md": ("- Before, `a.h`: it goes\n  on\n- After: it goes on\n", 1),
        "e.sh": ("# It goes\n# on.\nsay it goes on\n", 2),
        "f.proto": ("// It goes on.\nmessage M {}\n", 1),
    }
    for path, (source, want) in kinds.items():
        got = count(path, source)
        assert got == want, (path, got, want)
    # The cases are: the count has risen, is equal, has fallen.
    for number, risen, words in (
        (2, 1, "goes on: present=2 allowed=1"),
        (1, 0, ""),
        (0, 0, "1 counts have fallen"),
    ):
        found = {"goes on": [("a.cc", 3 + i, "it goes on") for i in range(number)]}
        said, got = check(found, [one])
        assert got == risen and words in "\n".join(said) and bool(said) == bool(words), (
            number,
            said,
        )
    # If the changed lines are known, only those are shown for a count that has risen.
    said, _ = check({"goes on": [("a.cc", 3, "x"), ("b.cc", 9, "y")]}, [one], {"b.cc": {9}})
    assert said[1:] == ["  b.cc:9: y"], said
    # Each phrase must be found in its own example, and not in its better words.
    examples = {
        "no memory": ("there is no memory for the index", "out of memory: what=index"),
        "no room": ("Once there is room the job resumes", "each room has a README"),
        "away": ("ps_server/1 is away since 3 s", "far away from here"),
        "is there twice": ("a row is there twice: id=3", "an update is applied twice"),
        "goes on": ("the job goes on", "the job continues"),
        "takes up": ("A restart takes the job up again", "it takes 3 s"),
        "Of X: Y": ("Of a slot: the moment is taken", "The moment of a slot: now"),
        "who clause": ("Who has it open reads on", "the worker who asked"),
        "what clause": ("What is queued reads the memory", "What is a closure?"),
        "whoever": ("from whoever listens", "from the listener"),
    }
    assert set(examples) == set(by_name), set(examples) ^ set(by_name)
    for name, (bad, good) in examples.items():
        assert count("a.cc", "// %s\n" % bad, by_name[name]) == 1, (name, bad)
        assert count("a.cc", "// %s\n" % good, by_name[name]) == 0, (name, good)
    assert rewrite({"a": [1, 2]}, "phrase   a\npresent  9\n") == "phrase   a\npresent  2\n"
    print("each phrase is seen, and so is a count that rises")
    return 0


def main():
    if "--self-test" in sys.argv:
        return self_test()
    root = os.path.abspath(os.path.join(HERE, "..", ".."))
    with open(LIST, encoding="utf-8") as f:
        text = f.read()
    phrases = read_list(text)
    found = places(root, repository_files(root), phrases)
    if "--show" in sys.argv:
        name = sys.argv[-1]
        if name not in found:
            raise SystemExit(
                "phrases.py: unknown phrase: %s (want one of: %s)" % (name, ", ".join(found))
            )
        for place in found[name]:
            print("%s:%d: %s" % place)
        return 0
    if "--write" in sys.argv:
        with open(LIST, "w", encoding="utf-8") as f:
            f.write(rewrite(found, text))
        return 0
    said, risen = check(found, phrases, changed_lines(root))
    for line in said:
        print(line)
    print(
        "%d phrases have risen, %d are still present: %s"
        % (
            risen,
            sum(map(len, found.values())),
            ", ".join("%s %d" % (n, len(p)) for n, p in found.items()),
        )
    )
    return 1 if risen else 0


if __name__ == "__main__":
    sys.exit(main())
