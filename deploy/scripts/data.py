#!/usr/bin/env python3
"""Fills the data folder: from Debian's dataset packages, from what can be derived from them, and from ../shared/data when it lies
beside the checkout (each file checked by SHA-256). What is already there is left alone; a set that cannot be had is named, not invented.

  data.py --out data [set ...]        sets: fashion-mnist fashion-mnist-12k fashion-mnist-sorted adult ml-latest-small
"""
import argparse
import gzip
import hashlib
import os
import shutil
import struct
import sys

PACKAGE = "/usr/share/datasets/fashion-mnist"
FILES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
SHARED = {
    "ml-latest-small/ratings.csv": "aa289ca83157595d0df6aea1be6a4ded676ddc4385472e8313a8ed9805352646",
    "ml-latest-small/README.txt": "fe08d190801ea01a1832ad5d9a6248f54ef6b58b53a794636595d2b50f874f94",
    "adult/adult.data": "df25a4e32ed6f1bd4b3910d21a7bd661a09061eced7cb45555a519d9667cc87b",
    "adult/adult.test": "5c8e678e04c82a07182bbcb6667c9a06faaba123a55b409af7c5d21fb45784b3",
}


def idx(name):
    """Magic, dimensions, bytes a row and body of one of the package's files."""
    path = os.path.join(PACKAGE, name + ".gz")
    with gzip.open(path, "rb") as f:
        raw = f.read()
    rank = raw[3]
    dims = struct.unpack(">%dI" % rank, raw[4:4 + 4 * rank])
    row = 1
    for d in dims[1:]:
        row *= d
    body = raw[4 + 4 * rank:]
    if len(body) != dims[0] * row:
        raise ValueError("%s: want %d bytes of data, got %d" % (path, dims[0] * row, len(body)))
    return raw[:4], dims, row, body


def write_idx(folder, name, magic, dims, body):
    target = os.path.join(folder, name + ".gz")
    with open(target + ".partial", "wb") as out, gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0, compresslevel=6) as f:
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
    """The first 10,000 training and the first 2,000 test images."""
    for name in absent(folder, FILES):
        magic, dims, row, body = idx(name)
        n = 10000 if name.startswith("train") else 2000
        write_idx(folder, name, magic, (n,) + dims[1:], body[:n * row])


def fashion_mnist_sorted(folder):
    """The whole training set ordered by class: what a reader that does not shuffle stumbles over. Test files as they are."""
    if absent(folder, FILES[:2]):
        magic, dims, row, body = idx(FILES[0])
        label_magic, label_dims, _, labels = idx(FILES[1])
        order = sorted(range(dims[0]), key=lambda i: labels[i])
        write_idx(folder, FILES[1], label_magic, label_dims, bytes(labels[i] for i in order))
        write_idx(folder, FILES[0], magic, dims, b"".join(body[i * row:(i + 1) * row] for i in order))
    link(folder, FILES[2:])


def from_package(fill):
    def guarded(folder):
        if not os.path.isdir(PACKAGE):
            return "Debian's package dataset-fashion-mnist is not installed (deploy/scripts/setup.sh installs it)"
        return fill(folder)
    return guarded


def from_shared(name):
    def fill(folder):
        shared = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "shared", "data")
        for path, digest in SHARED.items():
            target = os.path.join(os.path.dirname(folder), path)
            if not path.startswith(name + "/") or os.path.exists(target):
                continue
            source = os.path.join(shared, path)
            if not os.path.exists(source):
                return "no copy of %s lies in ../shared/data" % path
            with open(source, "rb") as f:
                got = hashlib.sha256(f.read()).hexdigest()
            if got != digest:
                return "%s: SHA-256 want %s got %s" % (source, digest, got)
            shutil.copyfile(source, target + ".partial")
            os.replace(target + ".partial", target)
        return None
    return fill


SETS = {
    "fashion-mnist": from_package(fashion_mnist),
    "fashion-mnist-12k": from_package(fashion_mnist_12k),
    "fashion-mnist-sorted": from_package(fashion_mnist_sorted),
    "adult": from_shared("adult"),
    "ml-latest-small": from_shared("ml-latest-small"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("sets", nargs="*", metavar="set")
    arguments = parser.parse_args()
    unknown = [s for s in arguments.sets if s not in SETS]
    if unknown:
        parser.error("unknown set %s; there are: %s" % (", ".join(unknown), ", ".join(SETS)))
    for name in arguments.sets or SETS:
        folder = os.path.join(arguments.out, name)
        os.makedirs(folder, exist_ok=True)
        why = SETS[name](folder)
        if why:
            print("data: %s: left out: %s" % (name, why))
            if not os.listdir(folder):
                os.rmdir(folder)
            if arguments.sets:
                return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
