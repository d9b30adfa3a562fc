#!/usr/bin/env python3
"""Tests models that are larger than a server's memory budget, with real processes on loopback and
without fixed ports.

  large_models_test.py --bin build/release/bin [unittest arguments]
"""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "chaos"))
from cluster import Cluster, wait_for  # noqa: E402

BIN = os.environ.get("EVERGRAD_BIN_DIR", "build/release/bin")
BUDGET = 16 << 20
SCALE = float(os.environ.get("EVERGRAD_TIME_SCALE", "1"))

# The job has three training steps and an evaluation. 784 features and 51,000 units make 160 MB of
# values.
JOB = """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: %(name)s}
spec:
  data:
    train: {format: synthetic, examples: 24, seed: 7}
    eval: {format: synthetic, examples: 8, seed: 7, skip: 1000}
    fields: {x: {type: float, size: %(features)d}, label: {type: label, classes: 10}}
    batch_size: 8
  model:
    inputs: {x: {shape: [%(features)d]}}
    layers:
      - {name: wide, type: dense, units: %(units)d, activation: relu, input: x}
      - {name: logits, type: dense, units: 10}
    losses:
      {type: sparse_categorical_crossentropy, from_logits: true, output: logits, labels: label}
    metrics: [accuracy]
  optimizer: {type: sgd, learning_rate: 0.01}
  training: {epochs: 1, steps_per_closure: 3}
"""


def has_ended(status):
    return status["state"] not in ("QUEUED", "STARTING", "RUNNING")


class LargeModels(unittest.TestCase):
    def cluster(self):
        cluster = Cluster(BIN, servers=0, workers=1, scale=SCALE)
        cluster.coordinator.start()
        cluster.add(
            "ps_server",
            "0",
            ["--index", "0", "--budget-bytes-max", str(BUDGET), "--metrics-listen", "127.0.0.1:0"],
        )
        for worker in cluster.workers:
            worker.start()
        cluster.wait_tasks()
        return cluster

    def run_job(self, c, name, features, units, seconds=200):
        path = os.path.join(c.folder, name + ".yaml")
        with open(path, "w") as f:
            f.write(JOB % {"name": name, "features": features, "units": units})
        c.psctl("job", "submit", path)
        return wait_for(
            "%s to end" % name,
            lambda: (lambda s: s if has_ended(s) else None)(c.psctl_json("job", "show", name)),
            seconds * SCALE,
        )

    def test_160_mb_of_dense_values_train_with_a_budget_of_16_mib(self):
        with self.cluster() as c:
            status = self.run_job(c, "large", 784, 51000)
            self.assertEqual(status["state"], "SUCCEEDED", status.get("first_cause"))
            self.assertEqual(status["steps_done"], 3)
            with open(os.path.join(status["runs_folder"], "result.json")) as f:
                shards = json.load(f)["shards"]
            self.assertGreater(len(shards), 100)
            self.assertEqual({s["updates_applied"] for s in shards}, {3})
            with open(os.path.join(status["runs_folder"], "weights.npz"), "rb") as f:
                self.assertGreater(os.fstat(f.fileno()).st_size, 784 * 51000 * 4)

    def test_a_row_above_the_request_limit_is_refused_when_the_job_is_planned(self):
        with self.cluster() as c:
            status = self.run_job(c, "never", 7, 5000000)
            self.assertEqual(status["state"], "FAILED")
            cause = status["first_cause"]
            self.assertEqual(cause["kind"], "user")
            self.assertEqual(
                cause["message"],
                "variable wide/kernel: one row exceeds the limit of one request to ps_server/0: "
                "row_bytes=20000000 max=%d; raise the limit of that server, "
                "now --budget-bytes-max %d" % (BUDGET - (64 << 10), BUDGET),
            )
            self.assertEqual(status["steps_done"], 0)
            self.assertFalse(any("again" in e["text"] for e in status["events"]), status["events"])


if __name__ == "__main__":
    if "--bin" in sys.argv:
        at = sys.argv.index("--bin")
        BIN = os.environ["EVERGRAD_BIN_DIR"] = sys.argv[at + 1]
        del sys.argv[at : at + 2]
    unittest.main(verbosity=2)
