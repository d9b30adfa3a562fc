"""The deterministic quickstart, whose weights have the same bits on every machine. This module has
its settings, its data, and the digest of its weights, for the tests of the release artefacts and of
the bundle."""
import glob
import hashlib
import os
import shutil
import unittest

import support

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
QUICKSTART = os.path.join(ROOT, "configs", "quickstart.yaml")
DETERMINISTIC = [
    word
    for setting in ("strategy.deterministic=true", "strategy.pipeline=0", "training.epochs=1")
    for word in ("--set", "spec." + setting)
]
LOCAL = ["--local", "--workers", "1", "--servers", "2", "--threads", "1", *DETERMINISTIC]


def quickstart_data(target):
    """Copies the data of the quickstart to a folder. `./evergrad data` makes links to files
    elsewhere on this machine; the copy has files instead of links."""
    folder = os.path.abspath(os.environ.get("EVERGRAD_DATA") or os.path.join(ROOT, "data"))
    if not os.path.exists(os.path.join(folder, "fashion-mnist", "train-images-idx3-ubyte.gz")):
        raise unittest.SkipTest("no fashion-mnist in %s (./evergrad data makes it)" % folder)
    shutil.copytree(os.path.join(folder, "fashion-mnist"), os.path.join(target, "fashion-mnist"))
    return target


def digest(runs):
    """Returns the SHA-256 of the weights of the only run in the folder `runs`."""
    found = glob.glob(os.path.join(runs, "*", "weights.safetensors"))
    if len(found) != 1:
        raise AssertionError("want one run with weights in %s, got %s" % (runs, found))
    with open(found[0], "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class Trains(support.Case):
    """A test that compares the weights of the quickstart with those of an ordinary local run."""

    def ordinary(self, data):
        runs = self.path("ordinary")
        os.mkdir(runs)
        self.psctl("job", "run", QUICKSTART, *LOCAL, "--runs", runs, env={"EVERGRAD_DATA": data})
        return digest(runs)
