#!/usr/bin/env python3
"""Packs a folder as an OCI image with umoci, with the user, volumes, labels and command that the
Containerfile beside this file names.

  image.py --root FOLDER --layout FOLDER --name NAME --version V --commit C --epoch SECONDS

LAYOUT becomes an OCI image layout with the tag V. Needs no daemon and no root. The same files give
the same bytes: names are sorted, every time is SECONDS, and files belong to root, except the
folders that the image's user may write to.
"""
import argparse
import datetime
import json
import os
import re
import shlex
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CONTAINERFILE = os.path.join(HERE, "Containerfile")
KNOWN = "FROM ARG COPY LABEL ENV USER WORKDIR STOPSIGNAL VOLUME CMD".split()


def containerfile(arguments):
    """Returns the instructions of the Containerfile as (name, text), with its arguments filled
    in."""
    with open(CONTAINERFILE) as f:
        lines = f.read().replace("\\\n", " ").splitlines()
    found = []
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        name, text = line.split(None, 1)
        if name not in KNOWN:
            raise SystemExit("image.py: Containerfile: unknown instruction " + name)
        found.append((name, re.sub(r"\$\{(\w+)\}", lambda m: arguments[m.group(1)], text)))
    return found


def settings(instructions):
    """Returns the arguments of `umoci config` for the instructions."""
    given = []
    for name, text in instructions:
        if name == "CMD":
            given += [word for part in json.loads(text) for word in ("--config.cmd", part)]
        elif name in ("FROM", "ARG", "COPY"):
            continue
        else:
            flag = {"WORKDIR": "workingdir"}.get(name, name.lower())
            given += ["--config." + flag, " ".join(shlex.split(text))]
    return given


def writable(instructions):
    """Returns (user, folders): the user of the image, and the folders that belong to it."""
    user = next(text for name, text in instructions if name == "USER").split(":")
    return user, [text.strip("/") for name, text in instructions if name == "VOLUME"]


def main():
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag in "root layout name version commit epoch".split():
        flags.add_argument("--" + flag, required=True)
    given = flags.parse_args()
    instructions = containerfile(
        {"NAME": given.name, "VERSION": given.version, "COMMIT": given.commit}
    )
    (uid, gid), folders = writable(instructions)
    created = datetime.datetime.fromtimestamp(int(given.epoch), datetime.timezone.utc).isoformat()

    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(given.layout))) as work:
        layer = os.path.join(work, "layer.tar")
        same = ["--sort=name", "--format=posix", "--mtime=@" + given.epoch, "--numeric-owner"]
        same += ["--pax-option=delete=atime,delete=ctime", "-C", given.root]
        left_out = ["--exclude=./" + folder for folder in folders]
        owned = ["--owner=" + uid, "--group=" + gid] + folders
        subprocess.run(
            ["tar", *same, "--owner=0", "--group=0", *left_out, "-cf", layer, "."], check=True
        )
        subprocess.run(["tar", *same, "-rf", layer, *owned], check=True)

        def umoci(*words):
            subprocess.run(["umoci", *words], check=True, stdout=subprocess.DEVNULL)

        image = given.layout + ":" + given.version
        history = ["--history.created", created]
        umoci("init", "--layout", given.layout)
        umoci("new", "--image", image)
        by = ["--history.created_by", given.name + ": files"]
        umoci("raw", "add-layer", "--image", image, *history, *by, layer)
        umoci(
            "config", "--image", image, "--created", created, "--architecture", "amd64", "--os",
            "linux", "--no-history", *settings(instructions),
        )  # fmt: skip
        umoci("gc", "--layout", given.layout)


if __name__ == "__main__":
    main()
