#!/usr/bin/env python3
"""Tests two machines that share no folder. A job must report where its files are, and psctl must
send them to the user.

  no_shared_folder_test.py --bin build/release/bin [unittest arguments]

Each machine has a network, a mount and a UTS namespace. The machines have different host names and,
under the same path, different disks (tmpfs). machines.py says what they need.
"""
import hashlib
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from machines import Machine, can, run_inside_if_needed, skip_without_namespaces, wire  # noqa: E402
from support import (
    COORDINATOR,
    PS_SERVER,
    WORKER,
    Case,
    data_folder,
    job_yaml,
    main,
    write,
)  # noqa: E402


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class NoSharedFolder(Case):
    NEAR, FAR = "10.213.78.1", "10.213.78.2"

    def setUp(self):
        super().setUp()
        skip_without_namespaces("-m", "-u")
        self.data = data_folder()
        self.disk = self.path("disk")
        os.mkdir(self.disk)
        self.near, self.far = Machine(self, "near", self.disk), Machine(self, "far", self.disk)
        wire((self.near, self.NEAR), (self.far, self.FAR))
        self.shared = self.path("shared")  # not on the machines' own disks, so both see it
        os.mkdir(self.shared)
        root = ["--checkpoint-root", self.shared, "--checkpoint-root", self.disk]
        # The coordinator and one server run on one machine. The other server, the only worker and
        # the user are on the other machine.
        _, self.coordinator = self.listen(
            self.near,
            COORDINATOR,
            "coordinator",
            "--insecure-listen",
            self.NEAR + ":0",
            "--runs",
            os.path.join(self.disk, "runs"),
            *root
        )
        to = ["--coordinator", self.coordinator]
        self.listen(
            self.near,
            PS_SERVER,
            "server near",
            "--insecure-listen",
            self.NEAR + ":0",
            "--index",
            0,
            *to,
            *root
        )
        self.listen(
            self.far,
            PS_SERVER,
            "server far",
            "--insecure-listen",
            self.FAR + ":0",
            "--index",
            1,
            *to,
            *root
        )
        self.start(
            WORKER,
            "worker far",
            "--name",
            0,
            "--threads",
            1,
            "--data-root",
            self.data,
            *to,
            prefix=self.far.prefix
        )

    def listen(self, machine, program, name, *arguments):
        return self.start_listening(program, name, *arguments, prefix=machine.prefix)

    def user(self, *arguments, machine=None, **kw):
        return self.psctl(
            *arguments,
            "--coordinator",
            self.coordinator,
            prefix=(machine or self.far).prefix,
            env={"EVERGRAD_DATA": self.data},
            **kw
        )

    def job(self, **settings):
        return write(self.path("job.yaml"), job_yaml(deterministic=True, **settings))

    def run_of(self, machine, folder="runs"):
        found = [d for d in os.listdir(machine.path(folder)) if not d.startswith(".")]
        self.assertEqual(len(found), 1, found)
        return machine.path(folder, found[0])

    def test_the_files_of_a_run_reach_the_user_and_no_unreadable_checkpoint_is_complete(self):
        job = self.job()
        r = self.user("job", "run", job)
        # The report must not claim success: no checkpoint could be read completely. It must say on
        # which disk each file is.
        self.assertNotIn("(complete)", r.stdout)
        self.assertIn(
            "no checkpoint: the checkpoint folder is not shared: "
            "the coordinator on host near cannot see",
            r.stdout,
        )
        self.assertIn("written on host far", r.stdout)
        there = self.run_of(self.near)
        self.assertIn(
            "no checkpoints",
            self.psctl("checkpoint", "list", self.disk + "/runs", prefix=self.near.prefix).stdout,
        )
        # The files must have been sent, and the output must say where they are.
        here = self.run_of(self.far)
        name = os.path.basename(here)
        self.assertIn(
            "the run's files, copied from host near: runs/%s/   (report.html, result.json" % name,
            r.stdout,
        )
        for file in (
            "report.html",
            "result.json",
            "metrics.jsonl",
            "job.yaml",
            "weights.npz",
            "weights.safetensors",
            "model/model.json",
            "model/load.py",
            "model/README.md",
        ):
            self.assertEqual(
                sha256(os.path.join(here, file)), sha256(os.path.join(there, file)), file
            )
        with open(os.path.join(here, "result.json")) as f:
            result = json.load(f)
        self.assertIsNone(result["checkpoint"])
        self.assertEqual(
            {f["name"]: f["sha256"] for f in result["files"]},
            {n: sha256(os.path.join(here, n)) for n in ("weights.npz", "weights.safetensors")},
        )
        # The files must be the trained weights. Bit for bit, they must equal those of an ordinary
        # run on one machine.
        ordinary = self.path("ordinary")
        self.psctl(
            "job",
            "run",
            job,
            "--local",
            "--workers",
            1,
            "--servers",
            2,
            "--threads",
            1,
            "--runs",
            ordinary,
            env={"EVERGRAD_DATA": self.data},
        )
        self.assertEqual(
            sha256(os.path.join(here, "weights.npz")),
            sha256(os.path.join(self.run_folder(ordinary), "weights.npz")),
        )
        self.assertEqual(
            os.listdir(self.far.path("runs")), [name], "the worker left something on its own disk"
        )

        with self.subTest("job show says on which host the files are"):
            text = self.user("job", "show", "small").stdout
            self.assertIn("the run's files: on host near: %s/runs/%s/" % (self.disk, name), text)
            self.assertIn("psctl job fetch", text)
            local = self.user("job", "show", "small", machine=self.near).stdout
            self.assertIn("the run's files: runs/%s/" % name, local)
            self.assertNotIn("psctl job fetch", local)
        with self.subTest("job fetch brings them again, and not twice"):
            first = json.loads(
                self.user("job", "fetch", "small", "--to", "brought", "--output", "json").stdout
            )
            self.assertEqual((first["host"], first["state"]), ("near", "SUCCEEDED"))
            self.assertEqual(
                sha256(self.far.path("brought", "weights.npz")),
                sha256(os.path.join(there, "weights.npz")),
            )
            os.unlink(self.far.path("brought", "result.json"))
            again = json.loads(
                self.user("job", "fetch", "small", "--to", "brought", "--output", "json").stdout
            )
            self.assertEqual(again["files"], first["files"])
            self.assertEqual(again["bytes"], os.path.getsize(os.path.join(there, "result.json")))
            self.assertEqual(
                [f for f in os.listdir(self.far.path("brought")) if f.endswith(".tmp")], []
            )
        with self.subTest("a model can be used from its folder alone"):
            if not can("/usr/bin/python3", "-c", "import numpy"):
                self.skipTest("NumPy is not installed")
            images, labels = (
                os.path.join(self.data, "fashion-mnist-12k", "t10k-%s-ubyte.gz" % n)
                for n in ("images-idx3", "labels-idx1")
            )
            alone = self.path("alone")
            subprocess.run(["cp", "-r", os.path.join(here, "model"), alone], check=True)
            measured = json.loads(
                subprocess.run(
                    [
                        "/usr/bin/python3",
                        os.path.join(alone, "load.py"),
                        "--evaluate",
                        images,
                        "--labels",
                        labels,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    check=True,
                    timeout=90,
                ).stdout
            )
            self.assertAlmostEqual(
                measured["accuracy"], result["metrics"]["accuracy"], delta=1.5e-3
            )
            self.assertAlmostEqual(measured["loss"], result["metrics"]["loss"], delta=1e-4)

    def test_files_stay_on_their_host_if_the_user_asks_for_it(self):
        r = self.user("job", "run", self.job(extra="  checkpoint: off\n"), "--fetch", "never")
        self.assertFalse(os.path.exists(self.far.path("runs")))
        self.assertIn("the run's files: on host near: ", r.stdout)
        self.assertRegex(r.stdout, r"psctl job fetch [0-9a-f]{16} --to DIR")

    def test_a_shared_checkpoint_folder_holds_a_complete_checkpoint_that_verifies(self):
        shared = self.shared
        r = self.user(
            "job", "run", self.job(extra='  checkpoint: {every: 60s, directory: "%s"}\n' % shared)
        )
        self.assertIn("(complete): on host near: " + shared, r.stdout)
        folder = os.path.join(shared, os.listdir(shared)[0])
        for machine in (self.near, self.far):
            self.assertIn(
                "whole", self.psctl("checkpoint", "list", shared, prefix=machine.prefix).stdout
            )
            self.psctl("checkpoint", "verify", folder, prefix=machine.prefix)

    def test_a_job_that_asks_for_checkpoints_fails_if_they_cannot_be_read(self):
        r = self.user("job", "run", self.job(extra="  checkpoint: {every: 60s}\n"), expect=1)
        self.assertIn("the checkpoint folder is not shared", r.stdout)
        self.assertIn("written on host far", r.stdout)
        self.assertNotIn("(complete)", r.stdout)


if __name__ == "__main__":
    run_inside_if_needed()
    main()
