#!/usr/bin/env python3
"""Tests embedding tables on a real cluster: the matrix factorization of the examples, without
faults and with deaths of tasks.

  tables_test.py --bin DIR [Class[.test]]"""
import ast
import collections
import json
import os
import re
import struct
import sys
import unittest
import zipfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402
from cluster import MASK, Cluster, Failure, mix, wait_for  # noqa: E402
from limits import Group  # noqa: E402
from stage import Skipped  # noqa: E402
from support import has_ended  # noqa: E402

EXAMPLE = os.path.join(
    os.path.dirname(os.path.abspath(__file__)),
    "..",
    "..",
    "configs",
    "examples",
    "matrix_factorization.yaml",
)
RMSE_MAX = 0.640  # a model with the biases alone reaches 0.786 on these ratings


def needs_data(path):
    """Skips the calling test if a file of the data folder is missing."""
    if not os.path.exists(os.path.join(support.data_folder(), path)):
        raise unittest.SkipTest("%s is missing (./evergrad data makes it)" % path)


def server_dies(c, name):
    """Kills server 0 and starts it again. Returns whether the job still had steps to do when the
    server was killed."""
    c.servers[0].kill()
    status = c.psctl_json("job", "show", name)
    c.servers[0].start()
    return status["state"] == "RUNNING" and status["steps_done"] < status["steps_total"]


class MatrixFactorization(unittest.TestCase):
    def submit(self, c, name, *settings):
        arguments = ["job", "submit", EXAMPLE, "--set", "metadata.name=" + name]
        for setting in settings:
            arguments += ["--set", setting]
        c.psctl(*arguments)

    def result(self, c, name):
        status = wait_for(
            "%s to end" % name,
            lambda: (lambda s: s if has_ended(s) else None)(c.psctl_json("job", "show", name)),
            120,
        )
        self.assertEqual(status["state"], "SUCCEEDED", status.get("first_cause"))
        with open(os.path.join(status["runs_folder"], "result.json")) as f:
            return json.load(f)

    def tables(self, c, name):
        rows = c.psctl_json("variable", "list", "--job", name)["variables"]
        return {v["name"]: (v["complete"], v["shape"]) for v in rows}

    def described(self, c, job, counts):
        users = c.psctl_json("variable", "describe", "users", "--job", job)
        table = users["table"]
        self.assertEqual((table["rows"], table["dimension"], table["admitted"]), (610, 16, 610))
        self.assertEqual(table["value_bytes"], 610 * 16 * 4)
        self.assertGreater(table["memory_bytes"], table["value_bytes"] + table["slot_bytes"])
        self.assertEqual((table["evicted_ttl"], table["evicted_lru"], table["refused"]), (0, 0, 0))
        # The traffic of each slot (the i-th partitions of all tables) must agree with its ledger.
        # The servers must have sent values for the pulls of training and of evaluation.
        self.assertEqual([s["pushes"] for s in users["shards"]], counts)
        self.assertTrue(
            all(
                s["pulls"] >= n and s["bytes_in"] > 0 and s["bytes_out"] > 0
                for s, n in zip(users["shards"], counts)
            )
        )
        traffic = users["traffic"]
        self.assertEqual(
            sorted((s["server"], s["shards"]) for s in traffic["servers"]), [("0", 64), ("1", 64)]
        )
        self.assertEqual(sum(s["pushes"] for s in traffic["servers"]), sum(counts))
        self.assertGreaterEqual(traffic["shard_skew"]["pushes"], 1)
        # `psctl` finds the ids that were pushed most often from a sample. These ids must be among
        # the users in the file of ratings.
        with open(os.path.join(support.data_folder(), "ratings", "ratings.csv")) as f:
            ratings = collections.Counter(int(line.split(",")[0]) for line in f.readlines()[1:])
        hottest = [hot["id"] for hot in users["table"]["hottest"]]
        self.assertTrue(hottest and set(hottest) <= set(ratings))
        text = c.psctl("variable", "describe", "users", "--job", job).stdout
        for words in (
            "users: embedding table of job %s" % job,
            "610 of 16 x float32",
            "hottest ids",
            "largest / median",
            "index load",
        ):
            self.assertIn(words, text)
        top = c.psctl_json("variable", "top", "movies", "--job", job, "--count", "5")
        self.assertEqual((top["seconds"], len(top["busiest_shards"])), (None, 5))
        self.assertEqual(sum(s["pushes"] for s in top["servers"]), sum(counts))
        self.assertIn(
            "since the servers got the shards",
            c.psctl("variable", "top", "movies", "--once", "--job", job).stdout,
        )
        refused = c.psctl("variable", "describe", "user", "--job", job, expect=2).stderr
        self.assertIn("no such variable: variable=user job=%s; it has" % job, refused)
        self.assertIn("users", refused)

    def test_16_bit_rows_on_the_wire_reach_the_target_and_halve_the_bytes_of_values(self):
        os.environ["EVERGRAD_DATA"] = support.data_folder()
        needs_data("ratings/ratings.csv")
        out, in_ = {}, {}
        with Cluster(support.BIN, servers=2, workers=2).up() as c:
            for wire in ("float32", "bf16", "[{match: \"*_biases\", dtype: fp16}]"):
                name = "wire-%d" % len(out)
                self.submit(c, name, "spec.training.wire_dtype=" + wire)
                result = self.result(c, name)
                self.assertLessEqual(result["metrics"]["root_mean_squared_error"], RMSE_MAX, wire)
                # Traffic is counted for each slot, that is, for all tables together. In the list,
                # each table therefore shows the numbers of its slots.
                shards = c.psctl_json("variable", "list", "--job", name)["variables"][0]["shards"]
                out[wire], in_[wire] = sum(s["bytes_out"] for s in shards), sum(
                    s["bytes_in"] for s in shards
                )
                self.assertEqual(self.tables(c, name)["users"], (True, [610, 16]))
            refused = c.psctl(
                "job",
                "run",
                EXAMPLE,
                "--set",
                "spec.training.wire_dtype=[{match: nobody, dtype: bf16}]",
                expect=1,
            )
            self.assertIn("no variable and no table of this name: match=nobody", refused.stdout)
        plain, half, mixed = out.values()
        self.assertAlmostEqual(
            2 * half / plain, 1, delta=0.01
        )  # a repeated pull is answered and counted once more
        # Together, a user id and a movie id have 34 elements. 17 of them belong to the user tables,
        # and 2 of the 34 are biases, which are sent with 16 bits.
        self.assertAlmostEqual(mixed / plain, 1 - 0.5 * 2 / 34, delta=0.01)
        plain, half, mixed = in_.values()
        self.assertLess(half, 0.7 * plain)
        self.assertLess(mixed, plain)

    def test_the_example_reaches_its_target_through_deaths_and_applies_each_update_once(self):
        os.environ["EVERGRAD_DATA"] = support.data_folder()
        needs_data("ratings/ratings.csv")
        with Cluster(support.BIN, servers=2, workers=2).up() as c:
            self.submit(c, "calm")
            calm = self.result(c, "calm")
            self.assertLessEqual(calm["metrics"]["root_mean_squared_error"], RMSE_MAX)
            counts = [s["updates_applied"] for s in calm["shards"]]
            self.assertEqual(len(counts), 128)
            self.assertEqual(calm["duplicates_refused"], 0)
            # The tables must have a row for each user and each movie of the training examples, and
            # no other row. Evaluation creates none.
            shapes = self.tables(c, "calm")
            self.assertEqual(shapes["users"], (True, [610, 16]))
            self.assertEqual(shapes["user_biases"], (True, [610, 1]))
            self.assertEqual(shapes["movies"][1][0], shapes["movie_biases"][1][0])
            self.described(c, "calm", counts)

            # How fast an epoch ends is not fixed. If all steps were done before the server died,
            # another job with twice as many epochs runs.
            for epochs in (10, 20, 40, 80, 160):
                name = "deaths-%d" % epochs
                self.submit(
                    c, name, "spec.checkpoint.every=100ms", "spec.training.epochs=%d" % epochs
                )
                show = lambda: c.psctl_json("job", "show", name)  # noqa: E731
                wait_for("the first epoch", lambda: show()["steps_done"] > 93)
                c.workers[0].kill()
                c.workers[0].start()
                wait_for(
                    "a checkpoint to begin from, or the end",
                    lambda: (lambda s: s["checkpoint"] or has_ended(s))(show()),
                )
                at = show()["steps_done"]
                wait_for(
                    "more steps, or the end",
                    lambda: (lambda s: s["steps_done"] > at or has_ended(s))(show()),
                )
                in_its_midst = server_dies(c, name)
                deaths = self.result(c, name)
                if in_its_midst:
                    break
            else:
                self.fail("five jobs had done their steps before the server died")
            self.assertEqual(
                [s["updates_applied"] for s in deaths["shards"]], [epochs // 5 * n for n in counts]
            )
            self.assertEqual(deaths["repair"]["shards_rolled_back"], 64)
            self.assertEqual(self.tables(c, name), shapes)

            # Several faults happen to one job: requests are sent twice and in another order, the
            # coordinator is killed, and a server is told to leave. The server's slots must be
            # moved, and no closure may be run again.
            for server in c.servers:
                server.kill()
                server.start("push.duplicate=20%on;push.reorder=20%on")
            c.wait_tasks()
            self.submit(c, "network", "spec.checkpoint.every=100ms", "spec.training.epochs=10")
            done = lambda: c.psctl_json("job", "show", "network")["steps_done"]  # noqa: E731
            wait_for("the first epoch", lambda: done() > 93)
            c.coordinator.kill()
            c.coordinator.start()
            c.wait_tasks()
            c.psctl("task", "drain", "ps_server/1")
            network = self.result(c, "network")
            self.assertEqual(
                [s["updates_applied"] for s in network["shards"]], [2 * n for n in counts]
            )
            self.assertGreater(network["duplicates_refused"], 0)
            self.assertEqual(network["repair"]["shards_rolled_back"], 0)
            self.assertEqual(self.tables(c, "network"), shapes)
            c.servers[0].kill()
            for server in c.servers:
                if not server.alive():
                    server.start()
            c.wait_tasks()

            # This job has the example's own number of epochs, so its error is checked, too.
            self.submit(c, "one-death")
            wait_for(
                "some steps", lambda: c.psctl_json("job", "show", "one-death")["steps_done"] > 20
            )
            c.workers[1].kill()
            c.workers[1].start()
            one = self.result(c, "one-death")
            self.assertLessEqual(one["metrics"]["root_mean_squared_error"], RMSE_MAX)
            self.assertEqual([s["updates_applied"] for s in one["shards"]], counts)


def digest_of(ids, rows):
    """Returns the digest of a table as `psctl variable list` shows it (DigestOfRow in
    ps_server/storage). The digest depends on the bits of the rows, but not on their order."""

    def mix64(x):  # common/sharding/slots.h
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return x ^ (x >> 31)

    total = 0
    for i, bits in zip(ids, rows):
        row = mix64(i & MASK)
        total += sum(mix((row + j) & MASK, b) for j, b in enumerate(bits))
    return "%016x" % (total & MASK)


def arrays(path):
    """Reads an .npz file with the standard library alone. Returns {name: (dtype, shape, numbers)}.
    For a float32 array, the numbers are the bits of the values."""
    found = {}
    with zipfile.ZipFile(path) as z:
        assert z.testzip() is None
        for name in z.namelist():
            raw = z.read(name)
            length = struct.unpack("<H", raw[8:10])[0]
            head = ast.literal_eval(raw[10 : 10 + length].decode())
            data = raw[10 + length :]
            kind = {"<i8": "q", "<f4": "I"}[head["descr"]]
            found[name[: -len(".npy")]] = (
                head["descr"],
                head["shape"],
                struct.unpack("<%d%s" % (len(data) // struct.calcsize(kind), kind), data),
            )
    return found


def parts_of(found, table):
    """Returns the ids of a table, and its rows as tuples of bits. The file may divide the table
    into any number of parts."""
    ids, rows = [], []
    for key in sorted(k for k in found if k == table + "/ids" or k.startswith(table + "/ids.")):
        _, (n,), numbers = found[key]
        _, (m, dimension), bits = found[table + "/rows" + key[len(table + "/ids") :]]
        assert n == m == len(numbers)
        ids += numbers
        rows += [bits[i * dimension : (i + 1) * dimension] for i in range(n)]
    return ids, rows


# The ids of one table are drawn uniformly. Nearly every example therefore has new ids, until all
# ids have a row.
WIDE = """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: %(name)s}
spec:
  data:
    train: {format: synthetic, examples: %(examples)d, seed: 7}
    fields:
      words: {type: ids, size: 8, ids: %(ids)d}
      click: {type: label}
    batch_size: 500
    shuffle: {seed: 7}
  model:
    inputs: {words: {shape: [8]}}
    tables:
      vectors: {dimension: %(dimension)d%(table)s}
    layers:
      - {name: bag, type: embedding, table: vectors, combiner: sum, input: words}
      - {name: logit, type: dense, units: 1}
    losses: {type: binary_crossentropy, from_logits: true, output: logit, labels: click}
  optimizer: {type: adagrad, learning_rate: 0.05}
  strategy: {table_slots: 4}
  training: {epochs: %(epochs)d, steps_per_closure: 4%(training)s}
  checkpoint: {every: 1h}
"""


class Tables(unittest.TestCase):
    def submit(self, c, name, **settings):
        values = dict(
            name=name, examples=10000, ids=20000, dimension=16, epochs=1, table="", training=""
        )
        values.update(settings)
        c.psctl(
            "job", "submit", support.write(os.path.join(c.folder, name + ".yaml"), WIDE % values)
        )

    def show(self, c, name):
        return c.psctl_json("job", "show", name)

    def ended(self, c, name, state="SUCCEEDED"):
        status = wait_for(
            "%s to end" % name,
            lambda: (lambda s: s if has_ended(s) else None)(self.show(c, name)),
            120,
        )
        self.assertEqual(status["state"], state, status.get("first_cause"))
        return status

    def table(self, c, name):
        return c.psctl_json("variable", "describe", "vectors", "--job", name)


class Examples(Tables):
    def run_example(self, c, example, name, *settings):
        arguments = [
            "job",
            "submit",
            os.path.join(os.path.dirname(EXAMPLE), example + ".yaml"),
            "--set",
            "metadata.name=" + name,
        ]
        for setting in settings:
            arguments += ["--set", setting]
        c.psctl(*arguments)

    def result(self, status):
        with open(os.path.join(status["runs_folder"], "result.json")) as f:
            return json.load(f)

    def test_a_model_of_clicks_over_csv_with_missing_values_reaches_the_published_target(self):
        os.environ["EVERGRAD_DATA"] = support.data_folder()
        needs_data("adult/adult.data")
        with Cluster(support.BIN, servers=2, workers=2).up() as c:
            self.run_example(c, "adult", "adult")
            metrics = self.result(self.ended(c, "adult"))["metrics"]
            self.assertGreaterEqual(
                metrics["auc"], 0.900
            )  # The published AUC of a DeepFM on these data. The bound of the accuracy is below.
            self.assertGreaterEqual(metrics["binary_accuracy"], 0.845)
            rows = {
                v["name"]: v["shape"][0]
                for v in c.psctl_json("variable", "list", "--job", "adult")["variables"]
                if v["name"].endswith("s")
            }
            # The column `works` has 8 values that occur more than once. Id 0 stands for a missing
            # value and for values that occur once.
            self.assertEqual((rows["works"], rows["maritals"], rows["relationships"]), (9, 7, 6))

    def test_two_towers_with_limits_count_each_update_once_through_the_death_of_a_server(self):
        with Cluster(support.BIN, servers=2, workers=2).up() as c:
            # How fast the steps end is not fixed. If all steps were done before the server died, a
            # job that is twice as long runs.
            for epochs in (2, 4, 8, 16):
                name = "towers-%d" % epochs
                self.run_example(
                    c,
                    "two_towers",
                    name,
                    "spec.data.train.examples=100000",
                    "spec.data.eval.examples=5000",
                    "spec.training.epochs=%d" % epochs,
                    "spec.checkpoint.every=100ms",
                    "spec.model.tables.users.ttl_steps=100",
                    "spec.model.tables.words.bytes_max=768KiB",
                )
                wait_for(
                    "a checkpoint after some steps, or the end",
                    lambda: (lambda s: (s["steps_done"] > 100 and s["checkpoint"]) or has_ended(s))(
                        self.show(c, name)
                    ),
                )
                in_its_midst = server_dies(c, name)
                status = self.ended(c, name)
                if in_its_midst:
                    break
            else:
                self.fail("four jobs had done their steps before the server died")
            result = self.result(status)
            self.assertGreater(result["repair"]["shards_rolled_back"], 0)
            counts = [s["updates_applied"] for s in result["shards"]]
            self.assertEqual(counts, [status["steps_total"]] * len(counts))
            words = c.psctl_json("variable", "describe", "words", "--job", name)["table"]
            users = c.psctl_json("variable", "describe", "users", "--job", name)["table"]
            self.assertGreater(words["evicted_lru"], 0)
            self.assertEqual((words["evicted_ttl"], words["refused"]), (0, 0))
            self.assertLessEqual(words["rows"] * (2 * 16 * 4 + 24), 768 << 10)
            self.assertGreater(users["evicted_ttl"], 0)
            self.assertGreater(users["gradients_dropped"], 0)
            self.assertEqual(users["evicted_lru"], 0)


class Export(Tables):
    def test_an_exported_table_has_rising_ids_and_the_bits_of_any_number_of_servers(self):
        with Cluster(support.BIN, servers=2, workers=2).up() as c:
            self.submit(c, "wide", examples=4000)
            status = self.ended(c, "wide")
            self.assertTrue(
                any("psctl checkpoint export" in e["text"] for e in status["events"]),
                status["events"],
            )
            with open(os.path.join(status["runs_folder"], "result.json")) as f:
                result = json.load(f)
            described = self.table(c, "wide")
            self.assertEqual(
                result["tables"],
                [{"table": "vectors", "dimension": 16, "rows": described["table"]["rows"]}],
            )
            # Each slot must be reported with the number of rows that it holds, and not with 0.
            self.assertEqual(
                sum(s["rows"] for s in result["shards"] if s["variable"].startswith("slot ")),
                described["table"]["rows"],
            )
            self.assertIn("psctl checkpoint export", c.psctl("job", "show", "wide").stdout)
            # The exported rows must be those that the servers reported.
            whole = os.path.join(c.folder, "whole.npz")
            said = json.loads(
                c.psctl_files(
                    "checkpoint", "export", status["runs_folder"], "--to", whole, "--output", "json"
                )
            )
            self.assertEqual(
                said["tables"],
                [
                    {
                        "name": "vectors",
                        "rows": described["table"]["rows"],
                        "dimension": 16,
                        "parts": 1,
                    }
                ],
            )
            found = arrays(whole)
            self.assertEqual(
                set(found), {"logit/kernel", "logit/bias", "vectors/ids", "vectors/rows"}
            )
            self.assertEqual((found["vectors/ids"][0], found["vectors/rows"][0]), ("<i8", "<f4"))
            ids, rows = parts_of(found, "vectors")
            self.assertEqual(len(ids), described["table"]["rows"])
            self.assertEqual(ids, sorted(set(ids)))
            self.assertEqual(digest_of(ids, rows), described["digest"])
            # An export in parts, and one as safetensors, must have the same rows.
            parted = os.path.join(c.folder, "parted.npz")
            c.psctl_files(
                "checkpoint",
                "export",
                status["runs_folder"],
                "--to",
                parted,
                "--part-bytes",
                "256KiB",
            )
            self.assertGreater(sum(k.startswith("vectors/ids.") for k in arrays(parted)), 3)
            self.assertEqual(parts_of(arrays(parted), "vectors"), (ids, rows))
            tensors = os.path.join(c.folder, "whole.safetensors")
            c.psctl_files("checkpoint", "export", status["runs_folder"], "--to", tensors)
            with open(tensors, "rb") as f:
                raw = f.read()
            size = struct.unpack("<Q", raw[:8])[0]
            head = json.loads(raw[8 : 8 + size])
            begin, end = head["vectors/ids"]["data_offsets"]
            self.assertEqual(head["vectors/ids"]["dtype"], "I64")
            self.assertEqual(
                list(struct.unpack("<%dq" % len(ids), raw[8 + size + begin : 8 + size + end])), ids
            )
            begin, end = head["vectors/rows"]["data_offsets"]
            self.assertEqual(
                raw[8 + size + begin : 8 + size + end],
                b"".join(struct.pack("<%dI" % len(bits), *bits) for bits in rows),
            )
            try:
                import numpy
            except ImportError:
                return
            with numpy.load(whole) as file:
                self.assertEqual(file["vectors/ids"].tolist(), ids)
                self.assertEqual(file["vectors/rows"].shape, (len(ids), 16))


class Room(Tables):
    """Tests pushes that the memory limit refuses, because another job uses the memory or because
    the limit is too low for the job."""

    def paused(self, c, name):
        def there():
            status = self.show(c, name)
            if has_ended(status):
                raise Failure("%s ended: %s %s" % (name, status["state"], status["first_cause"]))
            return status if status["waiting_for"].startswith("memory at ps_server/0") else None

        return wait_for("%s to wait for room" % name, there)

    def test_a_job_waits_for_the_memory_of_another_job_or_fails_and_says_what_to_do(self):
        with Cluster(
            support.BIN, servers=1, workers=2, coordinator_arguments=("--jobs-running-max", "2")
        ).up() as c:
            server = c.servers[0]
            # A job that runs alone shows how much memory such a job needs, and which result it must
            # reach.
            self.submit(c, "alone")
            alone = self.ended(c, "alone")
            need = self.table(c, "alone")["table"]["memory_bytes"]
            with open(os.path.join(alone["runs_folder"], "result.json")) as f:
                counts = [s["updates_applied"] for s in json.load(f)["shards"]]
            rows = self.table(c, "alone")["table"]["rows"]
            self.assertGreater(rows, 15000)
            server.kill()
            limit = int(1.5 * need)
            server.start(extra=["--memory-bytes-max", str(limit)])
            c.wait_tasks()

            # The first job holds the memory as long as it runs.
            self.submit(c, "holder", epochs=10000)
            # Before a worker has described the job, its tables are unknown.
            listed = lambda: c.psctl_json("variable", "list", "--job", "holder")[
                "variables"
            ]  # noqa: E731
            wait_for(
                "the first to have its rows",
                lambda: [rows, 16] in [v["shape"] for v in listed() if v["name"] == "vectors"],
            )
            # The server reports its memory by owner. The memory of the table must be reported for
            # the job that has the table.
            held = self.table(c, "holder")["table"]["memory_bytes"]
            wait_for(
                "the first's memory to be said",
                lambda: [s["bytes"] for s in self.show(c, "holder")["servers"]][0] >= held,
            )
            self.assertTrue(
                any(
                    j["name"] == "holder" and j["bytes"] >= held
                    for t in c.tasks()
                    if t["role"] == "ps_server"
                    for j in t["jobs"]
                ),
                c.tasks(),
            )
            self.submit(c, "waits", training=", on_over_budget: pause")
            status = self.paused(c, "waits")
            self.assertRegex(
                status["waiting_for"], r"table=vectors held=\d+ memory_bytes_max=%d " % limit
            )
            self.assertIn("paused", [w["state"] for w in status["workers"]])
            self.assertTrue(
                any(
                    "paused (on_over_budget: pause): worker/" in e["text"] for e in status["events"]
                ),
                status["events"],
            )
            self.assertIn(
                "waiting for memory at ps_server/0", c.psctl("job", "show", "waits").stdout
            )
            self.assertTrue(
                any(
                    t["activity"].startswith("paused, waits for memory at ps_server/0: ")
                    for t in c.tasks()
                    if t["role"] == "worker"
                ),
                c.tasks(),
            )
            self.assertGreater(self.table(c, "waits")["table"]["refused"], 0)
            before = self.show(c, "holder")["steps_done"]
            wait_for(
                "the first job to continue during the wait",
                lambda: self.show(c, "holder")["steps_done"] > before,
            )

            # The job that waits is cancelled. A third job must fail at once, because its settings
            # say that it must not wait.
            c.psctl("job", "cancel", "waits")
            self.ended(c, "waits", "CANCELLED")
            self.submit(c, "fails")
            cause = self.ended(c, "fails", "FAILED")["first_cause"]
            self.assertEqual((cause["kind"], cause["origin"]), ("user", "ps_server/0"))
            for words in (
                "out of memory at ps_server/0: ",
                "table=vectors",
                "held=",
                "memory_bytes_max=%d" % limit,
                "--memory-bytes-max",
                "on_over_budget: pause",
            ):
                self.assertIn(words, cause["message"])

            self.submit(c, "later", training=", on_over_budget: pause")
            self.paused(c, "later")
            c.psctl("job", "cancel", "holder")
            self.ended(c, "holder", "CANCELLED")
            status = self.ended(c, "later")
            self.assertTrue(
                any(e["text"].startswith("resumed: no push waits") for e in status["events"]),
                status["events"],
            )
            with open(os.path.join(status["runs_folder"], "result.json")) as f:
                self.assertEqual([s["updates_applied"] for s in json.load(f)["shards"]], counts)
            self.assertEqual(self.table(c, "later")["table"]["rows"], rows)

            # A job that is too large for the server waits. It must continue when a server with more
            # memory is started in its place. The updates that were lost with the old server must be
            # run again.
            server.kill()
            server.start(extra=["--memory-bytes-max", str(need // 2)])
            c.wait_tasks()
            self.submit(c, "grows", training=", on_over_budget: pause")
            self.paused(c, "grows")
            server.kill()
            server.start(extra=["--memory-bytes-max", str(2 * need)])
            status = self.ended(c, "grows")
            with open(os.path.join(status["runs_folder"], "result.json")) as f:
                self.assertEqual([s["updates_applied"] for s in json.load(f)["shards"]], counts)
            self.assertEqual(self.table(c, "grows")["table"]["rows"], rows)

    # Each example has one list of ids, and the examples are read in order. The first two steps
    # together bring more new ids than fit into memory. All other steps bring one id that already
    # has a row.
    TURNS = """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: turns}
spec:
  data:
    train: {format: csv, path: turns.csv}
    fields:
      words: {column: [w0, w1, w2, w3, w4, w5, w6, w7], type: int}
      click: {column: click, type: float}
    batch_size: 100
    shuffle: off
  model:
    inputs: {words: {shape: [8]}}
    tables:
      vectors: {dimension: 16, ttl_steps: 150, bytes_max: %(bytes_max)d}
    layers:
      - {name: bag, type: embedding, table: vectors, combiner: sum, input: words}
      - {name: logit, type: dense, units: 1}
    losses: {type: binary_crossentropy, from_logits: true, output: logit, labels: click}
  optimizer: {type: adagrad, learning_rate: 0.05}
  strategy: {table_slots: 1}
  training: {epochs: 1, steps_per_closure: 1, on_over_budget: %(at)s}
"""

    def test_a_paused_job_continues_when_old_rows_expire_and_each_update_counts_once(self):
        steps, new = 400, 800
        row = 2 * 16 * 4 + 24
        with Cluster(support.BIN, servers=1, workers=2).up() as c:
            # The steps take a while, so that the test can see the wait.
            for worker in c.workers:
                worker.kill()
                worker.start("worker.step=delay(5)")
            c.wait_tasks()
            lines = ["w0,w1,w2,w3,w4,w5,w6,w7,click"]
            for step in range(steps):
                for example in range(100):
                    ids = [step * new + 8 * example + j if step < 2 else 0 for j in range(8)]
                    lines.append(",".join(str(i) for i in ids) + ",%d" % (example % 2))
            support.write(os.path.join(c.folder, "turns.csv"), "\n".join(lines) + "\n")
            job = support.write(
                os.path.join(c.folder, "turns.yaml"),
                self.TURNS % dict(bytes_max=int(1.5 * new * row), at="pause"),
            )
            c.psctl("job", "submit", job)
            status = self.ended(c, "turns")
            texts = [e["text"] for e in status["events"]]
            waits = [t for t in texts if t.startswith("paused (on_over_budget: pause): worker/")]
            self.assertTrue(waits and "table is above bytes_max: table=vectors" in waits[0], texts)
            self.assertTrue(any(t.startswith("resumed: no push waits") for t in texts), texts)
            table = self.table(c, "turns")["table"]
            self.assertGreater(table["refused"], 0)
            # The rows of both steps must have been created. The rows of the second step must have
            # been created after the rows of the first had been removed.
            self.assertGreaterEqual(table["admitted"], 2 * new)
            self.assertGreaterEqual(table["evicted_ttl"], new - 1)
            with open(os.path.join(status["runs_folder"], "result.json")) as f:
                self.assertEqual(
                    [s["updates_applied"] for s in json.load(f)["shards"]], [steps] * 3
                )
            # If the job's settings do not say that it waits, it must fail and tell the user what to
            # do.
            c.psctl(
                "job",
                "submit",
                job,
                "--set",
                "metadata.name=fails",
                "--set",
                "spec.training.on_over_budget=fail",
            )
            cause = self.ended(c, "fails", "FAILED")["first_cause"]
            self.assertIn("ttl_steps", cause["message"])


class Mistakes(Tables):
    """Tests mistakes that are found at the submission, by a worker or in the plan. The message must
    name the place of the mistake, and the cluster must accept the next job."""

    def test_mistakes_in_layers_data_and_optimizers_name_the_place(self):
        with Cluster(support.BIN, servers=1, workers=1).up() as c:

            def cause(name, text, data=None):
                if data is not None:
                    support.write(os.path.join(c.folder, "data.csv"), data)
                c.psctl(
                    "job",
                    "submit",
                    support.write(
                        os.path.join(c.folder, name + ".yaml"),
                        text.replace("name: turns", "name: " + name).replace(
                            "turns.csv", "data.csv"
                        ),
                    ),
                )
                status = self.ended(c, name, "FAILED")
                self.assertEqual(status["first_cause"]["kind"], "user")
                return status, status["first_cause"]["message"]

            good = Room.TURNS % dict(bytes_max=0, at="fail")
            head, row = "w0,w1,w2,w3,w4,w5,w6,w7,click\n", "1,2,3,4,5,6,7,8,1\n"
            # The reported line must be that of the user's file.
            bad = good.replace(
                "{name: logit, type: dense, units: 1}",
                "{name: logit, type: dense, units: 1}\n"
                "      - {name: twice, type: add, input: [bag, logit]}",
            )
            refused = c.psctl(
                "job",
                "submit",
                support.write(os.path.join(c.folder, "layer.yaml"), bad),
                expect=2,
            )
            place = re.search(
                r"(\S*layer\.yaml):(\d+):\d+: layer `twice`: add needs inputs of the same shape",
                refused.stderr,
            )
            self.assertTrue(place, refused.stderr)
            with open(place.group(1)) as f:
                self.assertIn("name: twice", f.readlines()[int(place.group(2)) - 1])
            self.assertIn(
                "spec.optimizers: no variable and no table of this name: match=vecters; "
                "the model has ",
                cause(
                    "optimizers",
                    good.replace(
                        "optimizer: {type: adagrad, learning_rate: 0.05}",
                        "optimizers: [{match: vecters, type: adagrad}, {type: sgd}]",
                    ),
                    head + row,
                )[1],
            )
            self.assertIn(
                "data.csv:3:w2: field `words`: expected an integer of 64 bits, got `x`",
                cause("value", good, head + row + row.replace("3", "x"))[1],
            )
            self.assertIn(
                "data.csv:3: expected 9 columns as in the first record, got 8",
                cause("columns", good, head + row + "1,2,3,4,5,6,7,8\n")[1],
            )
            self.assertIn(
                "data.csv:2: a closing quote is missing",
                cause("quote", good, head + '"1,2,3,4,5,6,7,8,1\n')[1],
            )
            self.assertIn(
                "data.csv:2:w7: field `words`: "
                "the value is missing (``) and the field has no `default`",
                cause("missing", good, head + row.replace("8", ""))[1],
            )
            self.assertIn(
                "the header has no column `click`; did you mean `clic`?",
                cause("header", good, head.replace("click", "clic") + row)[1],
            )
            # None of these mistakes may have reached a server.
            c.psctl(
                "job",
                "submit",
                support.write(
                    os.path.join(c.folder, "good.yaml"), good.replace("turns.csv", "fine.csv")
                ),
            )
            self.ended(c, "turns", "FAILED")
            support.write(os.path.join(c.folder, "fine.csv"), head + row * 200)
            c.psctl("job", "submit", os.path.join(c.folder, "good.yaml"))
            self.ended(c, "turns")


class Budget(Tables):
    """Tests a table that would need ten times the server's memory limit. It must be refused at the
    limit, without any other effect on the server."""

    DIMENSION = 64
    # The bytes of a row: its values, its accumulators, and the least memory of its entry in the
    # index.
    ROW = DIMENSION * 4 * 2 + 16

    def rss(self, server):
        with open("/proc/%d/status" % server.pid) as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS:"))

    def oversized(self, limit):
        """Returns the settings of a job whose table would need ten times `limit`. Each example has
        8 ids. They are drawn from so many ids that few of them are drawn twice."""
        rows = 10 * limit // self.ROW
        return dict(dimension=self.DIMENSION, ids=rows, examples=-(-rows // 7))

    def shards(self, described):
        # The lsn is left out, because it also counts the Close of closures that ended before the
        # workers began to wait, and this Close may come late.
        return [
            (s["shard"], s["updates_applied"], s["digest"], s["slot_digest"])
            for s in described["shards"]
        ]

    def run_against(self, c, limit):
        server = c.servers[0]
        pid, idle = server.pid, self.rss(server)
        self.submit(c, "pauses", training=", on_over_budget: pause", **self.oversized(limit))

        def all_wait():
            status = self.show(c, "pauses")
            self.assertIn(status["state"], ("QUEUED", "STARTING", "RUNNING"), status["first_cause"])
            return [w["state"] for w in status["workers"]] == ["paused", "paused"]

        wait_for("both workers to wait for room", all_wait, 300)
        # A refused push must change nothing, even if it is repeated often. The rows, the slots, the
        # counters and the digests must stay the same.
        before = self.table(c, "pauses")
        after = wait_for(
            "pushes to be refused again and again",
            lambda: (
                lambda t: t if t["table"]["refused"] >= before["table"]["refused"] + 8 else None
            )(self.table(c, "pauses")),
        )
        self.assertTrue(before["complete"] and after["complete"])
        self.assertEqual(self.shards(after), self.shards(before))
        self.assertEqual(after["table"]["rows"], before["table"]["rows"])
        # Most of the memory limit must be used, but it must not be exceeded.
        self.assertGreater(after["table"]["memory_bytes"], 0.8 * limit)
        self.assertLessEqual(
            after["table"]["memory_bytes"], 1.05 * limit
        )  # the index asks for memory before it grows
        self.assertLess(after["table"]["rows"], 10 * limit // self.ROW // 5)
        self.assertLess(self.rss(server), idle + limit + (96 << 20))
        text = self.show(c, "pauses")["waiting_for"]
        self.assertRegex(
            text,
            r"^memory at ps_server/0: the server's tables are above memory_bytes_max: "
            r"table=vectors held=\d+ memory_bytes_max=%d " % limit,
        )
        c.psctl("job", "cancel", "pauses")
        self.ended(c, "pauses", "CANCELLED")
        self.submit(c, "fails", **self.oversized(limit))
        cause = self.ended(c, "fails", "FAILED")["first_cause"]
        self.assertIn("out of memory at ps_server/0: ", cause["message"])
        self.assertEqual(cause["kind"], "user")
        # The freed memory must be available for a job that fits, in the same server process.
        self.submit(c, "fits", examples=2000)
        self.ended(c, "fits")
        self.assertTrue(server.alive())
        self.assertEqual(server.pid, pid)
        self.assertEqual([t["registrations"] for t in c.tasks() if t["role"] == "ps_server"], [1])

    def test_by_memory_bytes_max(self):
        limit = 48 << 20
        c = Cluster(support.BIN, servers=1, workers=2)
        c.servers[0].arguments += ["--memory-bytes-max", str(limit)]
        with c.up():
            self.run_against(c, limit)

    def test_by_a_control_group_whose_limit_the_server_detects(self):
        try:
            group = Group("memory")
        except Skipped as why:
            self.skipTest(str(why))
        try:
            room = 384 << 20
            group.limit(room)
            c = Cluster(support.BIN, servers=1, workers=2)
            c.servers[0].prefix = group.starter()
            with c.up():
                self.run_against(c, room // 5 * 4)
                self.assertEqual(group.killed(), 0)
        finally:
            group.end()


if __name__ == "__main__":
    support.main()
