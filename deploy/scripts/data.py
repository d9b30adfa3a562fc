#!/usr/bin/env python3
"""Fills the data folder, without a network: from Debian's dataset packages, from the packed files
in examples/data, from data derived from these, and from a seed. Existing files are not changed. If
a set is not available, the script prints its name and the reason, and makes no substitute.

  data.py --out data [set ...]             fills these sets; without a set, all except
                                           ml-latest-small, whose file is only checked
  data.py --out data --for JOB.yaml        fills the sets that the job names below
                                           ${EVERGRAD_DATA}, and those in the text of --beside, for
                                           example `--set …`

Sets: fashion-mnist fashion-mnist-12k fashion-mnist-sorted adult ratings ml-latest-small
"""
import argparse
import gzip
import hashlib
import lzma
import os
import re
import struct
import sys

import ratings as made_ratings

PACKAGE = "/usr/share/datasets/fashion-mnist"
PACKED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "data")
FILES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]
SHA256 = {
    "adult/adult.data": "df25a4e32ed6f1bd4b3910d21a7bd661a09061eced7cb45555a519d9667cc87b",
    "adult/adult.test": "5c8e678e04c82a07182bbcb6667c9a06faaba123a55b409af7c5d21fb45784b3",
    "ratings/ratings.csv": "618850443e5c8cc8442f7ee8477cf46794a53c5b535cfa6bf0870243a1825a17",
    "ml-latest-small/ratings.csv": (
        "aa289ca83157595d0df6aea1be6a4ded676ddc4385472e8313a8ed9805352646"
    ),
}
MOVIELENS = """\
MovieLens may not be passed on or used commercially, so it is not part of this project.
  Get ml-latest-small.zip from https://grouplens.org/datasets/movielens/ and unpack it in %s.
  SHA-256 of ratings.csv: %s"""


def idx(name):
    """Returns the magic number, dimensions, bytes per row and body of a file of the package."""
    path = os.path.join(PACKAGE, name + ".gz")
    with gzip.open(path, "rb") as f:
        raw = f.read()
    rank = raw[3]
    dims = struct.unpack(">%dI" % rank, raw[4 : 4 + 4 * rank])
    row = 1
    for d in dims[1:]:
        row *= d
    body = raw[4 + 4 * rank :]
    if len(body) != dims[0] * row:
        raise ValueError("%s: want %d bytes of data, got %d" % (path, dims[0] * row, len(body)))
    return raw[:4], dims, row, body


def write_idx(folder, name, magic, dims, body):
    target = os.path.join(folder, name + ".gz")
    with open(target + ".partial", "wb") as out, gzip.GzipFile(
        filename="", fileobj=out, mode="wb", mtime=0, compresslevel=6
    ) as f:
        f.write(magic + struct.pack(">%dI" % len(dims), *dims) + body)
    os.replace(target + ".partial", target)


def absent(folder, names):
    return [n for n in names if not os.path.exists(os.path.join(folder, n + ".gz"))]


def link(folder, names):
    for name in absent(folder, names):
        target = os.path.join(folder, name + ".gz")
        if os.path.islink(target):
            os.unlink(target)
        os.symlink(os.path.join(PACKAGE, name + ".gz"), target)


def fashion_mnist(folder):
    link(folder, FILES)


def fashion_mnist_12k(folder):
    """A smaller Fashion-MNIST: its first 10,000 training images and its first 2,000 test images."""
    for name in absent(folder, FILES):
        magic, dims, row, body = idx(name)
        n = 10000 if name.startswith("train") else 2000
        write_idx(folder, name, magic, (n,) + dims[1:], body[: n * row])


def fashion_mnist_sorted(folder):
    """Fashion-MNIST with its training set ordered by class. Training on it without shuffling gives
    a bad model. The test files are unchanged."""
    if absent(folder, FILES[:2]):
        magic, dims, row, body = idx(FILES[0])
        label_magic, label_dims, _, labels = idx(FILES[1])
        order = sorted(range(dims[0]), key=lambda i: labels[i])
        write_idx(folder, FILES[1], label_magic, label_dims, bytes(labels[i] for i in order))
        write_idx(
            folder, FILES[0], magic, dims, b"".join(body[i * row : (i + 1) * row] for i in order)
        )
    link(folder, FILES[2:])


def from_package(fill):
    def guarded(folder):
        if not os.path.isdir(PACKAGE):
            return (
                "Debian's package dataset-fashion-mnist is not installed "
                "(deploy/scripts/setup.sh installs it)"
            )
        return fill(folder)

    return guarded


def place(folder, name, raw):
    """Writes the file `name` into the folder of the set, either the whole file or nothing. Returns
    an error message, or None."""
    want, got = SHA256[os.path.basename(folder) + "/" + name], hashlib.sha256(raw).hexdigest()
    if got != want:
        return "%s: SHA-256 want %s got %s" % (name, want, got)
    target = os.path.join(folder, name)
    with open(target + ".partial", "wb") as out:
        out.write(raw)
    os.replace(target + ".partial", target)
    return None


def adult(folder):
    """The two packed files of examples/data/adult (CC BY 4.0, see the README.md in that folder)."""
    for name in ("adult.data", "adult.test"):
        if os.path.exists(os.path.join(folder, name)):
            continue
        with lzma.open(os.path.join(PACKED, "adult", name + ".xz")) as packed:
            why = place(folder, name, packed.read())
        if why:
            return why
    return None


def ratings(folder):
    if os.path.exists(os.path.join(folder, "ratings.csv")):
        return None
    return place(folder, "ratings.csv", "".join(made_ratings.rows()).encode())


def ml_latest_small(folder):
    """Checks the file, which the user must have downloaded."""
    path, want = os.path.join(folder, "ratings.csv"), SHA256["ml-latest-small/ratings.csv"]
    if not os.path.exists(path):
        return MOVIELENS % (os.path.dirname(folder) or ".", want)
    with open(path, "rb") as f:
        got = hashlib.sha256(f.read()).hexdigest()
    return None if got == want else "%s: SHA-256 want %s got %s" % (path, want, got)


SETS = {
    "fashion-mnist": from_package(fashion_mnist),
    "fashion-mnist-12k": from_package(fashion_mnist_12k),
    "fashion-mnist-sorted": from_package(fashion_mnist_sorted),
    "adult": adult,
    "ratings": ratings,
    "ml-latest-small": ml_latest_small,
}
FETCHED_BY_USERS = ["ml-latest-small"]


def named_in(text):
    """Returns the sets that a job names below ${EVERGRAD_DATA}, in the order of SETS. Other folders
    below ${EVERGRAD_DATA} are the user's own."""
    named = set(re.findall(r"\$\{EVERGRAD_DATA(?::-[^}]*)?\}/([^/\s\"']+)/", text))
    return [name for name in SETS if name in named]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="the data folder")
    parser.add_argument(
        "--for", dest="job", metavar="JOB.yaml", help="job file; fills the sets that the job names"
    )
    parser.add_argument(
        "--beside",
        default="",
        metavar="TEXT",
        help="another text that may name sets, such as the options for the job",
    )
    parser.add_argument("sets", nargs="*", metavar="set")
    arguments = parser.parse_args()
    unknown = [s for s in arguments.sets if s not in SETS]
    if unknown:
        parser.error("unknown set %s; want: %s" % (", ".join(unknown), ", ".join(SETS)))
    wanted = arguments.sets or [name for name in SETS if name not in FETCHED_BY_USERS]
    if arguments.job is not None:
        with open(arguments.job, errors="replace") as f:
            text = re.sub(r"(^|\s)#.*", "", f.read(), flags=re.MULTILINE)
        named = named_in(text + "\n" + arguments.beside)
        wanted = arguments.sets + [name for name in named if name not in arguments.sets]
    for name in wanted:
        folder = os.path.join(arguments.out, name)
        os.makedirs(folder, exist_ok=True)
        why = SETS[name](folder)
        if why:
            print("data: %s: not available: %s" % (name, why))
            empty = not os.listdir(folder)
            if empty:
                os.rmdir(folder)
            # If only the job names the set, files that the user has put into its folder are
            # accepted in its place. A set that the command line names must be available.
            if name in arguments.sets or (arguments.job is not None and empty):
                return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
