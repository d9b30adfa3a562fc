#!/usr/bin/env python3
"""Tests every command of psctl on real clusters, and provokes each exit code.

  psctl_test.py --bin build/release/bin [unittest arguments]
"""
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import zipfile

import numpy

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from support import (
    COORDINATOR,
    COUNTING,
    PSCTL,
    ROOT,
    Case,
    alive,
    binary,
    data_folder,
    job_yaml,
    main,
    processes_naming,
    read,
    read_json_lines,
    wait_for,
    write,
)  # noqa: E402
from cluster import mix  # noqa: E402

RESULT_KEYS = {
    "schema_version",
    "name",
    "uid",
    "start",
    "end",
    "seconds",
    "state",
    "first_cause",
    "metrics",
    "examples_per_second",
    "tasks",
    "closures",
    "duplicates_refused",
    "lost",
    "repair",
    "checkpoint",
    "checkpoint_trouble",
    "resumed_from",
    "lines_lost",
    "deaths",
    "shards",
    "tables",
    "updates_exact",
    "files",
}
VARIABLES = {
    "dense1/kernel": (784, 32),
    "dense1/bias": (32,),
    "logits/kernel": (32, 10),
    "logits/bias": (10,),
}
MASK = (1 << 64) - 1


def npz(path):
    with zipfile.ZipFile(path) as z:
        return {n[:-4]: numpy.load(io.BytesIO(z.read(n)), allow_pickle=False) for n in z.namelist()}


def safetensors(path):
    """Reads a .safetensors file according to its documented format: the length of a JSON header,
    the header, and the bytes of the arrays."""
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    header, body, arrays = json.loads(data[8 : 8 + size]), data[8 + size :], {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        assert tensor["dtype"] == "F32", tensor
        begin, end = tensor["data_offsets"]
        arrays[name] = numpy.frombuffer(body[begin:end], "<f4").reshape(tensor["shape"])
    return arrays


def digest(array):
    """Returns the digest that common/base/mix.h defines, of the bits of the values."""
    return "%016x" % (
        sum(mix(i, int(b)) for i, b in enumerate(array.ravel().astype("<f4").view("<u4"))) & MASK
    )


class WithCluster(Case):
    """Each test has a background cluster. `psctl cluster up` makes it in a folder whose name has a
    space."""

    SERVERS, WORKERS = 2, 2

    def up(self, *arguments, folder="the cluster", servers=None, workers=None):
        """Starts a cluster that ends with the test, however the test ends."""
        self.addCleanup(self.psctl, "cluster", "down", "--folder", folder, expect=None)
        return self.psctl_json(
            "cluster",
            "up",
            "--folder",
            folder,
            "--runs",
            "all runs",
            "--servers",
            self.SERVERS if servers is None else servers,
            "--workers",
            self.WORKERS if workers is None else workers,
            "--threads",
            1,
            "--failpoints",
            "none",
            *arguments
        )

    def pids(self, folder="the cluster"):
        return {
            t["task"]: t["pid"]
            for t in self.psctl_json("cluster", "status", "--folder", folder, expect=None)[
                "processes"
            ]
            if t["alive"]
        }

    def living(self, *to):
        """Returns how many servers and workers are alive, or 0 if the coordinator does not
        answer."""
        text = self.psctl("task", "list", *to, "--output", "json", expect=None).stdout
        return sum(
            t["state"] == "alive"
            for t in json.loads(text or '{"tasks": []}')["tasks"]
            if t["role"] != "coordinator"
        )

    def assert_nothing_left(self, folder, pids):
        self.assertEqual([p for p in pids if alive(p)], [])
        self.assertEqual(processes_naming(self.folder), {})
        left = [n for n in os.listdir(self.path(folder)) if not n.endswith((".log", ".json"))]
        self.assertEqual(left, ["state"], "left behind in the cluster folder")
        self.assertEqual(
            os.listdir(self.path(folder, "state")),
            ["journal.sqlite"],
            "a journal that was closed is one file, and nobody holds it",
        )


class Clusters(WithCluster):
    def test_up_status_restart_and_down_leave_no_process_and_no_file(self):
        up = self.up(servers=1, workers=1)
        self.assertEqual((up["servers"], up["workers"]), (1, 1))
        pids = self.pids()
        self.assertEqual(set(pids), {"coordinator", "ps_server/0", "worker/0"})
        self.assertIn("worker/0", self.psctl("cluster", "status", "--folder", "the cluster").stdout)
        again = self.psctl("cluster", "up", "--folder", "the cluster", expect=2)
        self.assertIn("runs already", again.stderr)
        every = set(pids.values())
        for task, extra in (("worker/0", []), ("ps_server/0", ["--kill"]), ("coordinator", [])):
            self.psctl("cluster", "restart", task, "--folder", "the cluster", *extra)
            now = self.pids()
            self.assertNotEqual(now[task], pids[task], task)
            self.assertEqual(
                {t: p for t, p in now.items() if t != task},
                {t: p for t, p in pids.items() if t != task},
                "somebody else was restarted with " + task,
            )
            pids = now
            every |= set(pids.values())
            to = ["--folder", "the cluster"]
            wait_for(
                "both tasks to be alive after a restart of " + task, lambda: self.living(*to) == 2
            )
        wrong = self.psctl("cluster", "restart", "worker/1", "--folder", "the cluster", expect=2)
        self.assertIn("worker/0", wrong.stderr)
        # The cluster must still work after each of its tasks was restarted.
        job = write(self.path("count.yaml"), COUNTING % ("count", 200, 0, 1))
        self.psctl("job", "run", job, "--folder", "the cluster")
        self.assertIn(
            "cluster down: 3 processes",
            self.psctl("cluster", "down", "--folder", "the cluster").stdout,
        )
        self.assert_nothing_left("the cluster", every)
        self.psctl("cluster", "down", "--folder", "nowhere", expect=2)
        self.psctl("cluster", "status", "--folder", "the cluster", expect=4)

    def test_psctl_prints_why_a_coordinator_does_not_restart(self):
        self.up(servers=1, workers=1)
        os.kill(self.pids()["coordinator"], signal.SIGKILL)
        state = self.path("the cluster", "state")
        shutil.copytree(state, self.path("copy"))
        for name in os.listdir(state):
            with open(os.path.join(state, name), "r+b") as f:
                f.write(b"x" * os.path.getsize(f.name))
        said = self.psctl(
            "cluster", "restart", "coordinator", "--folder", "the cluster", expect=1
        ).stderr
        self.assertIn("the coordinator does not answer: log=", said)
        self.assertIn("the coordinator's journal is damaged: restore the folder from a copy", said)
        shutil.rmtree(state)
        shutil.copytree(self.path("copy"), state)
        self.psctl("cluster", "restart", "coordinator", "--folder", "the cluster")
        wait_for("both tasks to be alive", lambda: self.living("--folder", "the cluster") == 2)

    def test_supervise_restarts_killed_tasks_and_ends_with_down(self):
        self.up("--supervise", servers=1, workers=1)
        before = self.pids()
        every = set(before.values())
        for task in ("worker/0", "ps_server/0", "coordinator"):
            os.kill(before[task], signal.SIGKILL)
            wait_for(
                "the supervisor to start %s again" % task,
                lambda t=task: self.pids().get(t, before[t]) != before[t],
            )
            every |= set(self.pids().values())
        wait_for("both tasks to be alive", lambda: self.living("--folder", "the cluster") == 2)
        job = write(self.path("count.yaml"), COUNTING % ("count", 200, 0, 1))
        self.psctl("job", "run", job, "--folder", "the cluster")
        self.psctl("cluster", "down", "--folder", "the cluster")
        self.assert_nothing_left("the cluster", every)

    def test_the_clusters_limit_of_jobs_side_by_side_holds_supervised_or_not(self):
        for arguments in ((), ("--supervise",)):
            with self.subTest(arguments):
                folder = "cluster of two" + "".join(arguments)
                self.up("--jobs-running-max", 2, *arguments, folder=folder, servers=1, workers=2)
                to = ["--folder", folder]
                wait_for("all tasks to be alive", lambda: self.living(*to) == 3)
                for name in ("one", "two", "three"):
                    self.psctl(
                        "job",
                        "submit",
                        write(self.path(name + ".yaml"), COUNTING % (name, 20000, 20, 5)),
                        *to
                    )
                jobs = wait_for(
                    "two jobs to run",
                    lambda: (
                        lambda all: all
                        if sum(j["state"] == "RUNNING" for j in all.values()) == 2
                        else None
                    )({j["name"]: j for j in self.psctl_json("job", "list", *to)["jobs"]}),
                )
                self.assertEqual(jobs["three"]["state"], "QUEUED")
                self.assertEqual(
                    jobs["three"]["waiting_for"],
                    "the end of a running job: 2 of 2 jobs run (--jobs-running-max)",
                )
                self.psctl("cluster", "down", *to)

    def test_run_keeps_a_cluster_in_the_foreground_until_sigterm(self):
        process = self.start(
            PSCTL,
            "foreground",
            "cluster",
            "run",
            "--folder",
            "front",
            "--runs",
            "runs",
            "--servers",
            1,
            "--workers",
            1,
            "--failpoints",
            "none",
        )
        process.wait_log("cluster: coordinator")
        job = write(self.path("count.yaml"), COUNTING % ("count", 100, 0, 1))
        self.psctl("job", "run", job, "--folder", "front")
        pids = set(self.pids("front").values())
        self.assertEqual(process.end(), 0)
        self.assertEqual([p for p in pids if alive(p)], [])
        self.assertEqual(processes_naming(self.folder), {})


class Jobs(WithCluster):
    def test_submit_list_show_watch_cancel_logs_and_tasks(self):
        self.up()
        to = ["--folder", "the cluster"]
        slow = write(self.path("slow.yaml"), COUNTING % ("slow", 20000, 20, 5))
        quick = write(self.path("quick.yaml"), COUNTING % ("quick", 100, 0, 1))
        submitted = self.psctl_json("job", "submit", slow, *to)
        self.assertEqual(submitted["name"], "slow")
        self.assertRegex(submitted["job_uid"], r"^[0-9a-f]{16}$")
        wait_for(
            "the slow job to run",
            lambda: self.psctl_json("job", "show", "slow", *to)["steps_done"] > 0,
        )
        self.assertIn("slow", self.psctl("job", "show", submitted["job_uid"], *to).stdout)
        twice = self.psctl("job", "submit", slow, *to, expect=2)
        self.assertIn("slow", twice.stderr)
        self.assertIn("quick", self.psctl("job", "submit", quick, *to).stdout)
        jobs = {j["name"]: j["state"] for j in self.psctl_json("job", "list", *to)["jobs"]}
        self.assertEqual(jobs, {"slow": "RUNNING", "quick": "QUEUED"})
        self.assertRegex(self.psctl("job", "list", *to).stdout, r"(?m)^slow .*RUNNING")

        tasks = self.psctl_json("task", "list", *to)["tasks"]
        self.assertEqual(
            {"%s/%s" % (t["role"], t["identity"]) for t in tasks},
            {"coordinator/0", "ps_server/0", "ps_server/1", "worker/0", "worker/1"},
        )
        self.assertTrue(all(t["state"] == "alive" and alive(t["pid"]) for t in tasks), tasks)
        variables = {
            v["name"]: v
            for v in self.psctl_json("variable", "list", "--job", "slow", *to)["variables"]
        }
        self.assertEqual(variables["counting/samples"]["shape"], [20000, 1])
        shards = variables["counting/samples"]["shards"]
        self.assertEqual(shards[0]["rows"][0], 0)
        self.assertEqual(shards[-1]["rows"][1], 20000)
        self.assertLess(
            {"shard", "variable", "rows", "bytes", "server", "lsn", "updates_applied"},
            set(shards[0]),
        )
        self.assertIn(
            "counting/samples",
            self.psctl("variable", "list", "--shards", "--job", "slow", *to).stdout,
        )

        # One psctl watches a job, and another one cancels it. The watcher must end with 3, and the
        # next job of the queue must run.
        watcher = self.start(PSCTL, "watcher", "job", "watch", "slow", *to)
        watcher.wait_log("RUNNING")
        follower = self.start(PSCTL, "follower", "logs", "-f", "--job", "quick", *to)
        self.assertIn("slow", self.psctl("job", "cancel", "slow", *to).stdout)
        self.assertEqual(watcher.process.wait(60), 3, watcher.log())
        self.assertEqual(self.psctl_json("job", "watch", "quick", *to)["state"], "SUCCEEDED")
        self.assertEqual(
            self.psctl_json("job", "cancel", "quick", *to, expect=None).get("state", "SUCCEEDED"),
            "SUCCEEDED",
        )
        missing = self.psctl("job", "show", "quickk", *to, expect=2)
        self.assertIn("quickk", missing.stderr)

        # A psctl that follows the log must show a job that began later, and Ctrl-C must end it.
        follower.wait_log("quick")
        self.assertNotIn("job=slow", follower.log())
        follower.process.send_signal(signal.SIGINT)
        self.assertEqual(follower.process.wait(60), 130)

        def lines(*arguments):
            return [
                json.loads(line)
                for line in self.psctl(
                    "logs", *arguments, *to, "--output", "json"
                ).stdout.splitlines()
            ]

        one = lines("worker/0")
        self.assertTrue(one)
        self.assertEqual({line["task"] for line in one} - {"-"}, {"worker/0"})
        self.assertLess(
            {"worker/0", "worker/1", "ps_server/0", "ps_server/1"},
            {line["task"] for line in lines()},
        )
        self.assertEqual({line["job"] for line in lines("--job", "quick")}, {"quick"})
        self.assertEqual(len(lines("--lines", "2")), 2)
        self.assertGreaterEqual(len(lines("worker/0", "--since", "1h")), len(one))
        # After a while, all log lines of the same task are older than 300 ms.
        wait_for(
            "the worker's lines to be older than 300 ms",
            lambda: not lines("worker/0", "--since", "300ms"),
        )
        self.assertTrue(lines("worker/0"))
        self.assertIn("worker/7", self.psctl("logs", "worker/7", *to, expect=2).stderr)

    def test_an_interrupted_run_cancels_its_job_only_and_a_watcher_outlives_the_coordinator(self):
        self.up(servers=1, workers=1)
        to = ["--folder", "the cluster"]
        slow = write(self.path("slow.yaml"), COUNTING % ("slow", 20000, 20, 5))
        runner = self.start(PSCTL, "runner", "job", "run", slow, *to)
        runner.wait_log("RUNNING")
        runner.process.send_signal(signal.SIGINT)
        self.assertEqual(runner.process.wait(60), 130, runner.log())
        self.assertEqual(self.psctl_json("job", "show", "slow", *to)["state"], "CANCELLED")
        self.assertEqual(
            len(self.pids()), 3, "a cluster that psctl did not bring is not its to end"
        )
        # If a psctl that only watches is interrupted, the job must continue.
        self.psctl("job", "submit", slow, *to)
        watcher = self.start(PSCTL, "watcher", "job", "watch", "slow", *to)
        watcher.wait_log("RUNNING")
        watcher.process.send_signal(signal.SIGINT)
        self.assertEqual(watcher.process.wait(60), 130, watcher.log())
        self.assertEqual(self.psctl_json("job", "show", "slow", *to)["state"], "RUNNING")
        # The next process of the coordinator must continue the job, and the watcher must continue
        # to watch.
        uid = self.psctl_json("job", "show", "slow", *to)["job_uid"]
        second = self.start(PSCTL, "second watcher", "job", "watch", "slow", *to)
        second.wait_log("RUNNING")
        self.psctl("cluster", "restart", "coordinator", "--kill", *to)
        second.wait_log(
            "the coordinator restarted"
        )  # An event of the job says this. The gap may be too short for psctl to see it.
        shown = self.psctl_json("job", "show", "slow", *to)
        self.assertEqual((shown["job_uid"], shown["state"]), (uid, "RUNNING"))
        self.psctl("job", "cancel", "slow", *to)
        self.assertEqual(second.process.wait(60), 3, second.log())
        # With a reconnect timeout of 0 the watcher must not wait.
        self.psctl("job", "submit", slow, *to)
        third = self.start(
            PSCTL, "third watcher", "job", "watch", "slow", "--reconnect-timeout", "0ms", *to
        )
        third.wait_log("RUNNING")
        os.kill(self.pids()["coordinator"], signal.SIGKILL)
        self.assertEqual(third.process.wait(60), 4, third.log())

    def test_digests_are_equal_for_1_2_and_3_servers_and_every_partitioner(self):
        data = data_folder()
        partitioners = (
            "{type: fixed_shards, num_shards: 5}",
            "{type: min_size, min_shard_bytes: 1KiB, max_shards: 9}",
            "{type: max_size, max_shard_bytes: 3KiB}",
        )
        seen = {}
        for servers, partitioner in zip((1, 2, 3), partitioners):
            folder = "with %d" % servers
            self.up(folder=folder, servers=servers, workers=1)
            for i, cut in enumerate((partitioner, "{type: fixed_shards, num_shards: 1}")):
                name = "digest-%d-%d" % (servers, i)
                job = write(self.path(name + ".yaml"), job_yaml(name, batch=1000, partitioner=cut))
                self.psctl("job", "run", job, "--folder", folder, env={"EVERGRAD_DATA": data})
                variables = self.psctl_json("variable", "list", "--job", name, "--folder", folder)[
                    "variables"
                ]
                self.assertEqual({v["name"] for v in variables}, set(VARIABLES))
                if i == 0:
                    self.assertGreater(
                        sum(len(v["shards"]) for v in variables),
                        len(variables),
                        "nothing was cut by " + cut,
                    )
                    self.assertEqual(
                        len({s["server"] for v in variables for s in v["shards"]}), servers
                    )
                for v in variables:
                    seen.setdefault(v["name"], {}).setdefault(
                        (v["digest"], v["slot_digest"]), []
                    ).append((servers, cut))
                    self.assertTrue(all(s["updates_applied"] == 10 for s in v["shards"]), v)
            runs = self.path("all runs")
            [last] = [d for d in os.listdir(runs) if d.startswith("digest-%d-1-" % servers)]
            for name, array in npz(os.path.join(runs, last, "weights.npz")).items():
                self.assertIn(digest(array), {d for d, _ in seen[name]}, name)
            self.psctl("cluster", "down", "--folder", folder)
        for name, groups in seen.items():
            self.assertEqual(len(groups), 1, "%s differs: %s" % (name, groups))

    def test_an_unreachable_coordinator_is_named_with_exit_code_4(self):
        with socket.socket() as taken:
            # The socket is bound but not listening. Therefore no other process gets this port, and
            # no process answers there.
            taken.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            for verb in (
                ["task", "list"],
                ["job", "list"],
                ["variable", "list"],
                ["logs"],
                ["job", "show", "x"],
                ["job", "cancel", "x"],
            ):
                r = self.psctl(
                    *verb, "--coordinator", address, "--timeout", "2s", "--wait", "0ms", expect=4
                )
                self.assertIn(address, r.stderr, verb)
        r = self.psctl(
            "task", "list", "--folder", "no folder", expect=2, env={"EVERGRAD_COORDINATOR": ""}
        )
        self.assertIn("--coordinator", r.stderr)

    def test_a_failed_connection_is_retried(self):
        library = binary("libevergrad-lost-errno.so")
        if not os.path.exists(library):
            self.skipTest("no libevergrad-lost-errno.so: the sanitizers' builds have none")
        _, address = self.start_listening(COORDINATOR, "coordinator", "--runs", self.path("runs"))
        preloaded = {"LD_PRELOAD": library, "EVERGRAD_LOST_ERRNO": "2"}
        r = self.psctl(
            "task", "list", "--coordinator", address, "--wait", "0ms", env=preloaded, expect=4
        )
        self.assertIn("No such file or directory", r.stderr)  # the imitated error has happened
        r = self.psctl("task", "list", "--coordinator", address, env=preloaded)
        self.assertIn("coordinator/0", r.stdout)
        self.assertEqual(r.stderr, "")


class Files(Case):
    """Tests the commands and calls that need no cluster: commands on files, overrides of settings,
    and wrong usage."""

    def test_validate_prints_every_mistake_of_the_file_with_line_and_column(self):
        folder = os.path.join(ROOT, "tests", "unit", "common", "config", "testdata")
        wanted = read(os.path.join(folder, "twelve.txt")).splitlines()
        self.assertGreaterEqual(len(wanted), 12)
        r = self.psctl("job", "validate", "twelve.yaml", cwd=folder, expect=2)
        said = r.stderr.splitlines()
        for line in wanted:
            self.assertRegex(line, r"^twelve\.yaml:\d+:\d+: ")
            self.assertIn(line, said)
        self.assertIn("%d mistakes" % len(wanted), r.stderr)
        found = json.loads(
            self.psctl(
                "job", "validate", "twelve.yaml", "--output", "json", cwd=folder, expect=2
            ).stdout
        )
        self.assertEqual(
            [
                "twelve.yaml:%d:%d: %s" % (m["line"], m["column"], m["text"])
                for m in found["mistakes"]
            ],
            wanted,
        )

    def test_keys_and_modes_that_are_not_built_yet_are_refused_by_name(self):
        file = write(self.path("later.yaml"), job_yaml(extra="  export: {format: npz}\n"))
        r = self.psctl("job", "validate", file, expect=2)
        self.assertRegex(r.stderr, r"later\.yaml:\d+:3: not built yet: key `export`")
        r = self.psctl(
            "job",
            "validate",
            write(self.path("good.yaml"), job_yaml()),
            "--set",
            "spec.strategy.mode=allreduce",
            expect=2,
        )
        self.assertIn("not built yet: strategy.mode `allreduce`", r.stderr)

    def test_yaml_bombs_large_files_and_deep_nesting_are_refused_at_once(self):
        bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
            "%s: &%s [%s]\n" % (chr(i + 1), chr(i + 1), ",".join(["*" + chr(i)] * 9))
            for i in range(ord("a"), ord("h"))
        )
        for name, text, words in (
            ("bomb", bomb, "aliases"),
            ("giant", "# " + "x" * (1 << 20) + "\n" + job_yaml(), "too large|limit"),
            ("deep", "a: " + "[" * 5000 + "]" * 5000 + "\n", "deep|nest"),
        ):
            began = time.monotonic()
            r = self.psctl("job", "validate", write(self.path(name + ".yaml"), text), expect=2)
            self.assertRegex(r.stderr.lower(), words)
            self.assertLess(time.monotonic() - began, 20, name)
            self.assertLess(len(r.stderr), 20000, name)

    def test_overrides_are_typed_and_their_mistakes_name_the_flag(self):
        good = write(self.path("good.yaml"), job_yaml())
        self.assertIn("valid", self.psctl("job", "validate", good).stdout)
        r = self.psctl(
            "job",
            "validate",
            good,
            "--set",
            "spec.data.batch_size=50",
            "--set",
            "spec.training.epochs=three",
            "--set",
            "spec.training.epoch=3",
            expect=2,
        )
        self.assertRegex(r.stderr, r"(?m)^<--set 2>:1:\d+: `epochs`: expected an integer")
        self.assertRegex(r.stderr, r"(?m)^<--set 3>.*`epoch`.*did you mean `epochs`")
        self.assertNotIn("<--set 1>", r.stderr)
        layers = write(
            self.path("layers.yaml"),
            "- {name: flat, type: flatten, input: image}\n"
            "- {name: logits, type: dense, units: 10}\n",
        )
        r = self.psctl(
            "job",
            "validate",
            good,
            "--set",
            "spec.training.epochs=3",
            "--set-file",
            "spec.model.layers=" + layers,
            "--effective",
        )
        self.assertRegex(r.stdout, r"epochs: 3\b")
        self.assertNotIn("dense1", r.stdout)
        write(
            layers,
            "- {name: flat, type: flatten, input: image}\n"
            "- {name: logits, type: dense, units: ten}\n",
        )
        r = self.psctl(
            "job", "validate", good, "--set-file", "spec.model.layers=layers.yaml", expect=2
        )
        self.assertRegex(r.stderr, r"(?m)^layers\.yaml:2:\d+: `units`: expected an integer")
        r = self.psctl("job", "validate", good, "--set", "novalue", expect=2)
        self.assertIn("<--set 1>", r.stderr)

    def test_usage_help_version_reference_and_certificates(self):
        self.assertRegex(self.psctl("version").stdout, r"^psctl 0\.\d+")
        self.assertIn("version", self.psctl_json("version"))
        overview = self.psctl("--help").stdout
        verbs = re.findall(
            r"(?m)^  (job|cluster|task|variable|cert|logs|version) ?(\w*)  ", overview
        )
        self.assertGreaterEqual(len(verbs), 18, overview)
        for noun, verb in verbs:
            help_text = self.psctl(*[w for w in (noun, verb, "--help") if w]).stdout
            self.assertIn("usage: psctl " + noun, help_text)
        for wrong, hint in (
            (["jbo", "run"], "job"),
            (["job", "rnu"], "run"),
            (["job", "run"], "JOB.yaml"),
            (["job", "list", "--outptu", "json"], "output"),
            (["job", "run", "x.yaml", "--workers", "2"], "--local"),
        ):
            self.assertIn(hint, self.psctl(*wrong, expect=2).stderr, wrong)
        self.assertIn("steps_per_closure", self.psctl("job", "reference").stdout)
        self.assertIn(
            "missing.yaml", self.psctl("job", "validate", "missing.yaml", expect=2).stderr
        )
        self.assertIn(
            "METRIC>=NUMBER",
            self.psctl(
                "job",
                "run",
                write(self.path("a.yaml"), job_yaml()),
                "--local",
                "--require",
                "accuracy",
                expect=2,
            ).stderr,
        )
        self.assertIn(
            "all three",
            self.psctl(
                "task", "list", "--coordinator", "127.0.0.1:1", "--tls-ca", "ca.pem", expect=2
            ).stderr,
        )
        self.psctl("cert", "init", "--folder", "the certs")
        self.assertIn(
            "refusing to overwrite",
            self.psctl("cert", "init", "--folder", "the certs", expect=2).stderr,
        )
        self.psctl("cert", "issue", "worker-0", "--folder", "the certs", "--host", "localhost")
        self.assertEqual(os.stat(self.path("the certs", "worker-0.key")).st_mode & 0o777, 0o600)
        self.psctl(
            "cert", "issue", "worker-1", "--folder", "the certs", "--host", "a,DNS:b", expect=2
        )


class LocalRuns(Case):
    def run_job(self, *arguments, expect=0, runs="all runs", file=None):
        file = file or write(self.path("a job.yaml"), job_yaml())
        return self.psctl(
            "job",
            "run",
            file,
            "--local",
            "--workers",
            1,
            "--servers",
            1,
            "--threads",
            1,
            "--runs",
            runs,
            *arguments,
            expect=expect,
            env={"EVERGRAD_DATA": self.data}
        )

    def setUp(self):
        super().setUp()
        self.data = data_folder()

    def test_a_run_leaves_whole_files_and_its_yaml_gives_the_same_weights_again(self):
        out = self.run_job("--require", "accuracy>=0.4", "--set", "spec.training.epochs=2").stdout
        self.assertIn("report.html", out)
        folder = self.run_folder(self.path("all runs"))
        self.assertEqual(processes_naming(self.folder), {})
        self.assertEqual([n for n in os.listdir(self.path("all runs")) if n.startswith(".")], [])

        with open(os.path.join(folder, "result.json")) as f:
            result = json.load(f)
        self.assertEqual(set(result), RESULT_KEYS)
        self.assertEqual(
            (result["schema_version"], result["state"], result["first_cause"]),
            (1, "SUCCEEDED", None),
        )
        self.assertLessEqual({"accuracy", "loss"}, set(result["metrics"]))
        self.assertEqual(set(result["closures"]), {"succeeded", "failed", "cancelled", "attempts"})
        self.assertEqual(
            (result["closures"]["succeeded"], result["duplicates_refused"], result["deaths"]),
            (14, 0, []),
        )
        self.assertTrue(
            all(set(t) == {"role", "identity", "steps", "bytes"} for t in result["tasks"]),
            result["tasks"],
        )
        self.assertEqual([t["steps"] for t in result["tasks"] if t["role"] == "worker"], [100])
        self.assertTrue(
            all(
                set(s) == {"shard", "variable", "rows", "bytes", "server", "lsn", "updates_applied"}
                and s["updates_applied"] == 100
                for s in result["shards"]
            ),
            result["shards"],
        )

        lines = read_json_lines(os.path.join(folder, "metrics.jsonl"))
        steps = sorted(line["step"] for line in lines if line["kind"] == "step")
        self.assertEqual(steps, list(range(100)))
        epochs = [line for line in lines if line["kind"] == "epoch"]
        self.assertEqual([e["epoch"] for e in epochs], [1, 2])
        self.assertEqual(epochs[-1]["eval_accuracy"], result["metrics"]["accuracy"])
        self.assertEqual(lines[-1]["kind"], "end")

        arrays, tensors = npz(os.path.join(folder, "weights.npz")), safetensors(
            os.path.join(folder, "weights.safetensors")
        )
        self.assertEqual({n: a.shape for n, a in arrays.items()}, VARIABLES)
        self.assertEqual(set(tensors), set(arrays))
        for name in arrays:
            self.assertTrue(numpy.array_equal(arrays[name], tensors[name]), name)
            self.assertTrue(numpy.isfinite(arrays[name]).all() and arrays[name].any(), name)
        self.accuracy_by_numpy(arrays, result["metrics"]["accuracy"])

        page = read(os.path.join(folder, "report.html"))
        curves = json.loads(
            re.search(r"<script type=.application/json. id=data>(.*?)</script>", page, re.S).group(
                1
            )
        )
        self.assertEqual([m["name"] for m in curves["metrics_by_epoch"]], ["accuracy"])
        accuracy = curves["metrics_by_epoch"][0]["points"]
        self.assertEqual([p[0] for p in accuracy], [1, 2])
        self.assertEqual(accuracy[-1][1], result["metrics"]["accuracy"])
        self.assertEqual(curves["steps_by_worker"], [["worker/0", 100]])
        self.assertEqual(len(curves["loss_by_step"]), 100)
        self.assertIn("rate_by_time", curves)
        self.assertEqual(
            re.findall(
                r"""(?:src|href|action)\s*=\s*["']?(?!#|data:)[^"'\s>]+"""
                r"""|@import|url\((?!["']?(?:#|data:))""",
                page,
            ),
            [],
            "the page reaches outside itself",
        )

        # The effective YAML must contain all settings of the run, including those of --set. A run
        # of this YAML alone, with one worker, pipeline 0 and the same seed, must give the same
        # weights.
        self.assertRegex(read(os.path.join(folder, "job.yaml")), r"epochs: 2\b")
        self.run_job(file=os.path.join(folder, "job.yaml"), runs="more runs")
        again = npz(os.path.join(self.run_folder(self.path("more runs")), "weights.npz"))
        for name in arrays:
            self.assertTrue(numpy.array_equal(arrays[name], again[name]), name)

    def accuracy_by_numpy(self, w, told):
        """Checks that the reported accuracy belongs to the weights. The test computes the layers
        itself, for the test images."""
        import gzip

        folder = os.path.join(self.data, "fashion-mnist-12k")
        images = (
            numpy.frombuffer(
                gzip.open(os.path.join(folder, "t10k-images-idx3-ubyte.gz")).read()[16:],
                numpy.uint8,
            ).reshape(-1, 784)
            * 0.00392156862
        )
        labels = numpy.frombuffer(
            gzip.open(os.path.join(folder, "t10k-labels-idx1-ubyte.gz")).read()[8:], numpy.uint8
        )
        logits = (
            numpy.maximum(images @ w["dense1/kernel"] + w["dense1/bias"], 0) @ w["logits/kernel"]
            + w["logits/bias"]
        )
        self.assertAlmostEqual(
            float((logits.argmax(1) == labels).mean()), told, delta=1.5 / len(labels)
        )

    def test_exit_codes_of_failure_and_of_a_requirement(self):
        r = self.run_job("--require", "accuracy>=0.999", expect=5)
        self.assertRegex(r.stderr, r"accuracy.*0\.999")
        # The inputs exceed the range of float32, so the loss is not a number. The job must fail,
        # and name the worker that reported it.
        r = self.run_job(
            "--set",
            "spec.data.fields={image: {transforms: [{scale: 1e37}]}}",
            expect=1,
            runs="failed runs",
        )
        self.assertRegex(r.stdout + r.stderr, r"(?i)failed")
        with open(os.path.join(self.run_folder(self.path("failed runs")), "result.json")) as f:
            result = json.load(f)
        self.assertEqual(set(result), RESULT_KEYS)
        self.assertEqual(result["state"], "FAILED")
        self.assertIn("worker/0", result["first_cause"]["origin"])
        self.assertRegex(result["first_cause"]["message"].lower(), "nan|finite")
        self.assertEqual(processes_naming(self.folder), {})

    def test_supervise_restarts_dead_tasks_of_a_local_run(self):
        job = write(self.path("count.yaml"), COUNTING % ("count", 2000, 10, 1))
        psctl = self.start(
            PSCTL,
            "psctl",
            "job",
            "run",
            job,
            "--local",
            "--supervise",
            "--workers",
            1,
            "--servers",
            1,
            "--runs",
            "all runs",
            "--failpoints",
            "none",
        )
        psctl.wait_log("RUNNING")
        [worker] = [
            p for p, line in processes_naming(self.folder).items() if "evergrad-worker" in line
        ]
        os.kill(worker, signal.SIGKILL)
        psctl.wait_log("worker/0 restarted")
        self.assertEqual(psctl.process.wait(60), 0, psctl.log())
        with open(os.path.join(self.run_folder(self.path("all runs")), "result.json")) as f:
            result = json.load(f)
        self.assertEqual([d["task"].split("@")[0] for d in result["deaths"]], ["worker/0"])
        self.assertEqual(result["closures"]["succeeded"], 50)
        self.assertTrue(
            all(
                s["updates_applied"] == 200
                for s in result["shards"]
                if s["variable"] == "counting/updates"
            ),
            result["shards"],
        )
        self.assertEqual(processes_naming(self.folder), {})

    def test_a_missing_data_file_fails_the_job_and_is_named(self):
        os.mkdir(self.path("empty"))
        r = self.psctl(
            "job",
            "run",
            write(self.path("job.yaml"), job_yaml()),
            "--local",
            "--runs",
            "runs",
            env={"EVERGRAD_DATA": self.path("empty")},
            expect=None,
        )
        self.assertIn(r.returncode, (1, 2))
        self.assertIn("train-images-idx3-ubyte.gz", r.stdout + r.stderr)
        self.assertEqual(processes_naming(self.folder), {})


class Interrupts(Case):
    """Tests Ctrl-C during `psctl job run --local`."""

    def command(self):
        job = write(self.path("long.yaml"), COUNTING % ("long", 100000, 20, 5))
        return [
            binary(PSCTL),
            "job",
            "run",
            job,
            "--local",
            "--workers",
            "1",
            "--servers",
            "1",
            "--runs",
            self.path("all runs"),
            "--failpoints",
            "none",
        ]

    def assert_cancelled_and_gone(self):
        with open(os.path.join(self.run_folder(self.path("all runs")), "result.json")) as f:
            self.assertEqual(json.load(f)["state"], "CANCELLED")
        self.assertEqual(processes_naming(self.folder), {})
        self.assertEqual([n for n in os.listdir(self.path("all runs")) if n.startswith(".")], [])

    def assert_logs_are_where_it_says(self, log):
        last = read(log).splitlines()[-1]
        self.assertRegex(last, r"^psctl: logs: all runs/long-[0-9a-f]{16}/logs$")
        self.assertIn("coordinator.log", os.listdir(self.path(last.split(": ")[2])))
        self.assertEqual([n for n in os.listdir(self.path("all runs")) if n.startswith(".")], [])

    def test_ctrl_c_at_a_terminal_asks_once_and_yes_cancels(self):
        arguments = self.command()
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execve(arguments[0], arguments, dict(os.environ, TERM="xterm"))
        ended, said = [], bytearray()

        def end():
            if not ended:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

        self.addCleanup(os.close, terminal)
        self.addCleanup(end)

        def pump():
            while select.select([terminal], [], [], 0)[0]:
                try:
                    data = os.read(terminal, 65536)
                except OSError:
                    return  # psctl has ended, so its terminal is closed
                if not data:
                    return
                said.extend(data)

        def says(text, times=1):
            pump()
            return said.count(text) >= times

        wait_for("the job to run; the terminal: %r" % bytes(said), lambda: says(b"RUNNING"))
        daemons = processes_naming(self.folder)
        del daemons[pid]
        names = sorted(os.path.basename(os.readlink("/proc/%d/exe" % d)) for d in daemons)
        self.assertEqual(names, ["evergrad-coordinator", "evergrad-ps-server", "evergrad-worker"])
        self.assertEqual(
            {os.getpgid(d) for d in daemons},
            {os.getpgid(pid)},
            "a daemon is in another process group than psctl",
        )
        self.assertEqual(
            {int(read("/proc/%d/stat" % d).rsplit(")", 1)[1].split()[1]) for d in daemons},
            {pid},
            "a daemon is not psctl's child",
        )
        os.write(terminal, b"\x03")  # Ctrl-C, for the whole foreground process group
        wait_for("the question", lambda: says(b"cancel the job?"))
        os.write(terminal, b"n\n")
        wait_for("the job to continue", lambda: says(b"the job continues"))
        self.assertEqual(
            set(processes_naming(self.folder)) - {pid}, set(daemons), "a no ended somebody"
        )
        os.write(terminal, b"\x03")
        wait_for("the second question", lambda: says(b"cancel the job?", 2))
        os.write(terminal, b"y\n")

        def over():
            pump()
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                ended.append(os.waitstatus_to_exitcode(status))
            return ended

        wait_for("psctl to end", over)
        pump()
        self.assertEqual(ended, [130], bytes(said).decode(errors="replace"))
        self.assertEqual(said.count(b"cancel the job?"), 2, "each Ctrl-C asks once")
        self.assert_cancelled_and_gone()

    def running(self):
        """Runs a local job, and yields in the middle of it: (the psctl process, its log, its
        daemons by name)."""
        log = self.path("psctl.log")
        with open(log, "wb") as f:
            process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=f, stderr=f, cwd=self.folder
            )
        self.addCleanup(lambda: process.poll() is None and (process.kill(), process.wait()))
        wait_for("the job to run", lambda: "RUNNING" in read(log) or process.poll() is not None)
        daemons = {
            os.path.basename(os.readlink("/proc/%d/exe" % d)): d
            for d in processes_naming(self.folder)
            if d != process.pid
        }
        self.assertEqual(len(daemons), 3, read(log))
        return process, log, daemons

    def test_the_daemons_of_a_killed_psctl_end(self):
        process, _, daemons = self.running()
        process.kill()
        process.wait()
        wait_for("the daemons to end", lambda: not any(alive(d) for d in daemons.values()))

    def test_a_dead_coordinator_of_a_local_run_gives_exit_code_4_with_the_cause(self):
        process, log, daemons = self.running()
        os.kill(daemons["evergrad-coordinator"], signal.SIGKILL)
        self.assertEqual(process.wait(60), 4, read(log))
        self.assertRegex(read(log), r"(?m)^psctl: the coordinator at .* has ended$")
        self.assert_logs_are_where_it_says(log)
        self.assertEqual(processes_naming(self.folder), {})

    def test_a_dead_server_of_a_local_run_gives_exit_code_1_unless_supervised(self):
        process, log, daemons = self.running()
        os.kill(daemons["evergrad-ps-server"], signal.SIGKILL)
        self.assertEqual(process.wait(60), 1, read(log))
        self.assertIn("ps_server/0 has ended", read(log))
        self.assert_logs_are_where_it_says(log)
        self.assertEqual(processes_naming(self.folder), {})

    def test_without_a_terminal_an_interrupt_cancels_without_a_question(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                log = self.path(number.name + ".log")
                with open(log, "wb") as f:
                    process = subprocess.Popen(
                        self.command(),
                        stdin=subprocess.DEVNULL,
                        stdout=f,
                        stderr=f,
                        cwd=self.folder,
                    )
                try:
                    wait_for(
                        "the job to run",
                        lambda: "RUNNING" in read(log) or process.poll() is not None,
                    )
                    process.send_signal(number)
                    self.assertEqual(process.wait(60), 130, read(log))
                finally:
                    if process.poll() is None:
                        process.kill()
                        process.wait()
                self.assertNotIn("cancel the job?", read(log))
                self.assert_cancelled_and_gone()
                os.rename(self.path("all runs"), self.path("runs of " + number.name))


if __name__ == "__main__":
    main()
