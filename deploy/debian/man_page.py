#!/usr/bin/env python3
"""Writes the man page of a program from its --help: man_page.py PROGRAM SECTION DATE > PAGE

The first line of --help has the name and the purpose, `usage:` the synopsis, and an indented line
whose name and text are two spaces apart is a flag or a command. The page of psctl also has the
flags of each command.
"""
import datetime
import os
import re
import subprocess
import sys

ENTRY = re.compile(r"^  (\S.*?)  +(\S.*)$")


def helped(*command):
    """Returns the lines of a command's --help."""
    ended = subprocess.run(
        command + ("--help",), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    return ended.stdout.splitlines()


def roff(text):
    """Returns the text with the characters that roff reads as commands escaped."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return "\\&" + text if text[:1] in (".", "'") else text


def entries(lines):
    """Returns the roff lines of the lines after the usage."""
    made = []
    for line in lines:
        entry = ENTRY.match(line)
        if entry:
            made += [".TP", ".B " + roff(entry[1]), roff(entry[2])]
        elif line.strip():
            made += [".PP", roff(line.strip())]
    return made


def page(program, section, date):
    name = os.path.basename(program)
    lines = helped(program)
    purpose = lines[0].split(": ", 1)[1].rstrip(".")
    usage = next(line for line in lines if line.startswith("usage: "))[len("usage: ") :]
    version = subprocess.run(
        (program, "--version"), capture_output=True, text=True, check=True
    ).stdout.split()[1]
    day = datetime.datetime.fromtimestamp(int(date), datetime.timezone.utc).date().isoformat()
    made = ['.TH %s %s %s "Evergrad %s" "Evergrad"' % (name.upper(), section, day, version)]
    made += [".nh", ".SH NAME", "%s \\- %s" % (roff(name), roff(purpose))]
    made += [".SH SYNOPSIS", ".B " + roff(usage), ".SH DESCRIPTION"]
    at = lines.index("usage: " + usage)
    if name == "psctl":
        made += entries(lines[at + 1 :])
        for line in lines[at + 1 :]:
            entry = ENTRY.match(line)
            if entry and entry[1] != "version":
                own = helped(program, *entry[1].split())
                made += [".SH " + roff(entry[1].upper()), roff(own[0].split(": ", 1)[1])]
                made += entries(line for line in own[1:] if not line.startswith("usage: "))
    else:
        made += [roff(lines[0].split(": ", 1)[1]), ".SH OPTIONS"] + entries(lines[at + 1 :])
    return "\n".join(made) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.stdout.write(page(*sys.argv[1:]))
