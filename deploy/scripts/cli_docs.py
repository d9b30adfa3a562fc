#!/usr/bin/env python3
"""Updates the files that show the output of the binaries: docs/cli.md and docs/security.md between
their `<!-- generated: NAME -->` marks, and configs/daemons/*.yaml below the line that begins with
"# The other settings".

  cli_docs.py --bin build/release/bin            rewrites the files
  cli_docs.py --bin build/release/bin --check    changes nothing; prints a diff and ends with 1 if
                                                 a file is stale

Help texts are the output of --help. Metrics are the HELP and TYPE lines of the daemons on
loopback that have trained a small job. The table of rights is the output of `evergrad-rights
table` (tests/integration/rights.cc).
"""
import argparse
import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCS = os.path.join(ROOT, "docs")
SETTINGS = os.path.join(ROOT, "configs", "daemons")
DAEMONS = ("evergrad-coordinator", "evergrad-ps-server", "evergrad-worker")
# The daemon that needs an API server of Kubernetes. The page has its flags. It has no settings file
# in configs/daemons, because it runs in a pod (deploy/kubernetes/components/operator).
OPERATOR = "evergrad-operator"
# A small job, whose data the worker generates.
JOB = [
    "--set",
    "spec.data.train.examples=2000",
    "--set",
    "spec.data.eval.examples=500",
    "--set",
    "spec.training.epochs=1",
]
# Flags that are not settings of the --config file, and the certificates, which are a mapping there.
NO_SETTINGS = ("config", "help", "version", "list-devices", "tls-ca", "tls-cert", "tls-key")
DEADLINE = 120 * float(os.environ.get("EVERGRAD_TIME_SCALE", "1"))


class Stale(Exception):
    """The page or a binary differs from the expectations of this script."""


def wait_for(what, condition):
    """Polls `condition`. Between two polls it waits for an event that is never set."""
    pause, end = threading.Event(), time.monotonic() + DEADLINE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Stale("waited %.0f s for: %s" % (DEADLINE, what))
        pause.wait(0.05)


def said(bin_folder, program, *arguments):
    r = subprocess.run(
        [os.path.join(bin_folder, program), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    if r.returncode != 0:
        raise Stale(
            "%s %s ended with %d: %s" % (program, " ".join(arguments), r.returncode, r.stderr)
        )
    return r.stdout.strip("\n")


def verbs(bin_folder):
    """Returns the commands of psctl, in the order of psctl --help: ["job run", …]."""
    found = re.findall(r"^  (\w+(?: \w+)?)  +\S", said(bin_folder, "psctl", "--help"), re.M)
    if len(found) < 10:
        raise Stale("psctl --help lists %d verbs" % len(found))
    return [verb for verb in found if verb != "version"]


def block(text):
    return "```\n%s\n```" % text


def daemons_help(bin_folder):
    return "\n\n".join(
        "### %s\n\n%s" % (name, block(said(bin_folder, name, "--help")))
        for name in (*DAEMONS, OPERATOR)
    )


def psctl_help(bin_folder):
    parts = [block(said(bin_folder, "psctl", "--help"))]
    parts += [
        "### psctl %s\n\n%s" % (verb, block(said(bin_folder, "psctl", *verb.split(), "--help")))
        for verb in verbs(bin_folder)
    ]
    return "\n\n".join(parts)


class Cluster:
    """One daemon of each kind on loopback. At the end, each daemon is stopped by its pid."""

    def __init__(self, bin_folder):
        self.bin, self.folder, self.started = (
            bin_folder,
            tempfile.mkdtemp(prefix="evergrad-docs-"),
            [],
        )

    def start(self, program, *arguments):
        """Returns the address, "" for the operator, which serves none, and the URL of /metrics."""
        serves = program != OPERATOR
        name, log_path = program, os.path.join(self.folder, program + ".log")
        address_file = os.path.join(self.folder, program + ".address")
        with open(log_path, "wb") as log:
            process = subprocess.Popen(
                [
                    os.path.join(self.bin, program),
                    "--metrics-listen",
                    "127.0.0.1:0",
                    *(["--address-file", address_file] if serves else []),
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        self.started.append(process)

        def listening():
            if process.poll() is not None:
                with open(log_path, errors="replace") as f:
                    raise Stale("%s ended with %d:\n%s" % (name, process.returncode, f.read()))
            with open(log_path, errors="replace") as f:
                found = re.search(r"metrics at (http://\S+)", f.read())
            return found and (not serves or os.path.exists(address_file)) and found.group(1)

        url = wait_for(name + " to listen", listening)
        if not serves:
            return "", url
        with open(address_file) as f:
            return f.read().strip(), url

    def end(self):
        for process in reversed(self.started):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.started:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def scrape(url):
    with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
        return answer.read().decode()


def metrics(bin_folder):
    cluster = Cluster(bin_folder)
    try:
        address, coordinator = cluster.start(
            DAEMONS[0],
            "--runs",
            os.path.join(cluster.folder, "runs"),
            "--state-dir",
            os.path.join(cluster.folder, "state"),
        )
        _, server = cluster.start(DAEMONS[1], "--index", "0", "--coordinator", address)
        _, worker = cluster.start(
            DAEMONS[2], "--name", "0", "--device", "cpu", "--threads", "1", "--coordinator", address
        )
        said(
            bin_folder,
            "psctl",
            "job",
            "run",
            os.path.join(ROOT, "configs", "examples", "deepfm.yaml"),
            "--coordinator",
            address,
            *JOB
        )
        # No API server listens there. The metrics are the same without one.
        _, operator = cluster.start(
            OPERATOR,
            "--coordinator",
            address,
            "--api-server",
            "http://127.0.0.1:1",
            "--namespace",
            "docs",
        )
        parts = []
        for name, url in zip((*DAEMONS, OPERATOR), (coordinator, server, worker, operator)):
            rows = {}
            for kind, metric, rest in re.findall(r"^# (HELP|TYPE) (\w+) ?(.*)$", scrape(url), re.M):
                rows.setdefault(metric, {})[kind] = rest
            if len(rows) < 10:
                raise Stale("%s has %d metrics" % (name, len(rows)))
            lines = ["### %s\n" % name, "| metric | type | what it is |", "| --- | --- | --- |"]
            lines += [
                "| `%s` | %s | %s |" % (metric, row["TYPE"], row["HELP"].replace("|", "\\|"))
                for metric, row in sorted(rows.items())
            ]
            parts.append("\n".join(lines))
        return "\n\n".join(parts)
    finally:
        cluster.end()


def rights(bin_folder):
    """Returns the table of RPCs and roles. `own` stands for a call about jobs of the caller."""
    table = json.loads(said(bin_folder, "evergrad-rights", "table"))
    lines = [
        "| RPC | daemon | %s | audit log |" % " | ".join(table["roles"]),
        "| --- | --- |%s --- |" % (" --- |" * len(table["roles"])),
    ]
    for row in table["rows"]:
        cells = []
        for role in table["roles"]:
            may = "own" if row["owner_only"] and role != "admin" else "yes"
            cells.append(may if role in row["roles"] else "")
        kind = " (%s)" % row["kind"] if row["kind"].endswith("session") else ""
        lines.append(
            "| `%s`%s | %s | %s | %s |"
            % (
                row["method"].lstrip("/"),
                kind,
                row["daemon"],
                " | ".join(cells),
                "each call" if row["audited"] else "",
            )
        )
    return "\n".join(re.sub(r"  +", " ", line) for line in lines)


GENERATORS = {
    "cli.md": {"daemons": daemons_help, "psctl": psctl_help, "metrics": metrics},
    "security.md": {"rights": rights},
}


def rewritten(page, name_of_page, bin_folder):
    generators = GENERATORS[name_of_page]
    missing = set(generators)

    def replace(match):
        name = match.group(1)
        if name not in missing:
            raise Stale(
                "docs/%s: duplicate or unknown block `generated: %s`; want one each of: %s"
                % (name_of_page, name, ", ".join(sorted(generators)))
            )
        missing.discard(name)
        return "<!-- generated: %s -->\n%s\n<!-- end -->" % (name, generators[name](bin_folder))

    out = re.sub(r"<!-- generated: (\w+) -->\n.*?<!-- end -->", replace, page, flags=re.S)
    if missing:
        raise Stale(
            "docs/%s has no block `generated: %s`" % (name_of_page, ", ".join(sorted(missing)))
        )
    return out


def other_settings(given, text):
    """Returns the settings of a daemon that are not in `given`, as comments. `text` is its
    --help."""
    out = []
    for flag, kind, said_of_it in re.findall(r"(?m)^  --([\w-]+) +(?:(\S+)  )? *(.*)$", text):
        key = flag.replace("-", "_")
        if key in given or flag in NO_SETTINGS:
            continue
        default = re.search(r"[(; ]default ([^)]*)\)$", said_of_it)
        is_list = re.search(r"may be repeated|repeatable", said_of_it)
        value = default.group(1) if default else "[]" if is_list else '""'
        words = re.sub(
            r"(;| \()? ?default [^)]*\)$", lambda m: ")" if m[1] == ";" else "", said_of_it
        )
        if "|" in kind:
            words += " (%s)" % kind
        out.append("# %s: %s" % (key, value))
        out += textwrap.wrap(
            words,
            100,
            initial_indent="#     ",
            subsequent_indent="#     ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(out) + "\n"


def settings_file(page, name, bin_folder):
    above, mark, _ = page.partition("# The other settings")
    if not mark:
        raise Stale("%s has no line `# The other settings`" % name)
    head = (
        "# The other settings, with their defaults. `%s --help` has the same texts for its flags.\n"
        % name
    )
    given = re.findall(r"(?m)^(\w+):", above)
    return above + head + other_settings(given, said(bin_folder, name, "--help"))


def files(bin_folder):
    """Yields (path, contents, contents that the binaries generate) of each file."""
    for name in GENERATORS:
        path = os.path.join(DOCS, name)
        with open(path, encoding="utf-8") as f:
            page = f.read()
        yield path, page, rewritten(page, name, bin_folder)
    for name in DAEMONS:
        path = os.path.join(SETTINGS, name[len("evergrad-") :] + ".yaml")
        with open(path, encoding="utf-8") as f:
            page = f.read()
        yield path, page, settings_file(page, name, bin_folder)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bin",
        default=os.path.join(ROOT, "build", "release", "bin"),
        help="folder of the binaries",
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; end with 1 if a file is stale"
    )
    arguments = parser.parse_args()
    try:
        found = list(files(os.path.abspath(arguments.bin)))
    except Stale as why:
        print("cli_docs.py: %s" % why, file=sys.stderr)
        return 2
    stale = [one for one in found if one[1] != one[2]]
    for path, page, fresh in stale:
        name = os.path.relpath(path, ROOT)
        if arguments.check:
            sys.stdout.writelines(
                difflib.unified_diff(
                    page.splitlines(True),
                    fresh.splitlines(True),
                    name,
                    "output of the binaries",
                    n=1,
                )
            )
            print("%s is stale: `./evergrad docs` rewrites it" % name)
            continue
        with open(path, "w", encoding="utf-8") as f:
            f.write(fresh)
        print("%s was rewritten" % name)
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
