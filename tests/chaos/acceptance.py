#!/usr/bin/env python3
"""Trains real data on real local clusters and holds the accuracy lines.

  acceptance.py --bin build/release/bin --data data [--quick] [names …]

Full size: the MLP on Fashion-MNIST with 1+1, 2+2 and 2 workers + 3 servers (>= 86.0 %), and with 2+2 on a copy of the training file sorted by class
(>= 85.5 %). `--quick` is what `./evergrad test` runs: the 12k subset, 2+2 (>= 83.5 %), median of three seeds, for its test split has 2,000 images only and
asynchronous runs differ. In a 2+2 run each worker did >= 30 % of the steps and each server holds >= 30 % of the bytes.
"""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")

#        name            job                              data set         workers servers accuracy seeds
FULL = [("mlp-1+1", "configs/quickstart.yaml", "fashion-mnist", 1, 1, 0.860, 1),
        ("mlp-2+2", "configs/quickstart.yaml", "fashion-mnist", 2, 2, 0.860, 1),
        ("mlp-2+3", "configs/quickstart.yaml", "fashion-mnist", 2, 3, 0.860, 1),
        ("mlp-sorted", "configs/quickstart.yaml", "fashion-mnist-sorted", 2, 2, 0.855, 1)]
QUICK = [("mlp-12k", "configs/examples/mlp-12k.yaml", "fashion-mnist-12k", 2, 2, 0.835, 3)]


def run(case, bin_folder, data, runs):
    """True, False, or None when its data is not there."""
    name, _, data_set, workers, servers, line, seeds = case
    if not os.path.exists(os.path.join(data, data_set, "train-images-idx3-ubyte.gz")):
        print("skipped: %s: no %s in %s (./evergrad data)" % (name, data_set, data))
        return None
    results = []
    for seed in range(1, seeds + 1):
        result = train(case, seed, bin_folder, data, os.path.join(runs, "%s-%d" % (name, seed)))
        if result is None:
            return False
        results.append(result)
    problems = []
    accuracy = statistics.median(r["metrics"]["accuracy"] for r in results)
    if accuracy < line:
        problems.append("accuracy: want >= %g got %g, the median of %s" % (line, accuracy, [r["metrics"]["accuracy"] for r in results]))
    for result in results:
        steps = {t["identity"]: t["steps"] for t in result["tasks"] if t["role"] == "worker"}
        held = {}
        for shard in result["shards"]:
            held[shard["server"]] = held.get(shard["server"], 0) + shard["bytes"]
        if workers == 2 and servers == 2:
            if len(steps) != 2 or min(steps.values()) < 0.3 * sum(steps.values()):
                problems.append("each worker does >= 30 %% of the steps: %s" % steps)
            if len(held) != 2 or min(held.values()) < 0.3 * sum(held.values()):
                problems.append("each server holds >= 30 %% of the bytes: %s" % held)
    for problem in problems:
        print("FAILED %s: %s" % (name, problem))
    if not problems:
        print("ok     %-10s accuracy %.4f (line %.3f), %.0f examples/s, steps %s, bytes %s" % (
            name, accuracy, line, statistics.median(r["examples_per_second"] for r in results), steps, held))
    sys.stdout.flush()
    return not problems


def train(case, seed, bin_folder, data, runs):
    """One job on a local cluster of its own; result.json, or None when psctl did not end with 0."""
    name, job, data_set, workers, servers, _, _ = case
    command = [os.path.join(bin_folder, "psctl"), "job", "run", os.path.join(ROOT, job), "--local", "--workers", str(workers), "--servers", str(servers),
               "--runs", runs, "--set", "spec.data.shuffle.seed=%d" % seed, "--set", "spec.training.seed=%d" % seed]
    folder = os.path.join(data, data_set)
    for part, prefix in (("train", "train"), ("eval", "t10k")):
        for kind, suffix in (("images", "images-idx3-ubyte.gz"), ("labels", "labels-idx1-ubyte.gz")):
            command += ["--set", "spec.data.%s.%s=%s" % (part, kind, json.dumps(os.path.abspath(os.path.join(folder, "%s-%s" % (prefix, suffix)))))]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ended.returncode != 0:
        print("FAILED %s: psctl ended with %d\n%s\n%s" % (name, ended.returncode, ended.stdout[-3000:], ended.stderr[-3000:]))
        return None
    with open(glob.glob(os.path.join(runs, "*", "result.json"))[0]) as f:
        return json.load(f)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--data", default=os.environ.get("EVERGRAD_DATA", os.path.join(ROOT, "data")))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("names", nargs="*")
    a = parser.parse_args()
    cases = [c for c in (QUICK if a.quick else FULL) if not a.names or c[0] in a.names]
    with tempfile.TemporaryDirectory(prefix="evergrad acceptance ") as runs:  # With a space: paths may have them.
        outcomes = [run(c, os.path.abspath(a.bin), a.data, runs) for c in cases]
    print("%d passed, %d failed, %d skipped" % (outcomes.count(True), outcomes.count(False), outcomes.count(None)))
    if outcomes.count(False):
        return 1
    return 77 if outcomes and all(o is None for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
