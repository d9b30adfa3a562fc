#!/usr/bin/env python3
"""Tests servers that workers on other machines cannot reach, and servers on several machines that
take the same index.

  reach_test.py --bin build/release/bin [unittest arguments]

The machines are network namespaces; machines.py says what they need.
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from machines import Machine, run_inside_if_needed, skip_without_namespaces, wire  # noqa: E402
from support import (
    COORDINATOR,
    PS_SERVER,
    WORKER,
    Case,
    binary,
    data_folder,
    job_yaml,
    main,
    wait_for,
    write,
)  # noqa: E402


class Reach(Case):
    NEAR, FAR = "10.213.78.1", "10.213.78.2"

    def setUp(self):
        super().setUp()
        skip_without_namespaces()
        self.near, self.far = Machine(self), Machine(self)
        wire((self.near, self.NEAR), (self.far, self.FAR))
        _, self.coordinator = self.start_listening(
            COORDINATOR,
            "coordinator",
            "--insecure-listen",
            self.NEAR + ":0",
            "--runs",
            self.path("runs"),
            "--reach-timeout",
            "2s",
            prefix=self.near.prefix,
        )
        self.to = ["--coordinator", self.coordinator]

    def test_a_server_that_would_advertise_loopback_to_another_machine_is_refused_at_start(self):
        for arguments in (
            [],
            ["--listen", "127.0.0.1:0"],
            ["--insecure-listen", self.FAR + ":0", "--advertise", "127.0.0.1:4000"],
        ):
            r = subprocess.run(
                self.far.prefix + [binary(PS_SERVER)] + self.to + arguments,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=90,
                cwd=self.folder,
            )
            self.assertEqual(r.returncode, 2, r.stderr)
            for words in ("--listen", "--advertise", "is on another host", self.coordinator):
                self.assertIn(words, r.stderr)

    def test_work_of_a_worker_that_cannot_reach_a_server_goes_to_a_worker_that_can(
        self,
    ):
        data = data_folder()
        # A server on the coordinator's machine may have a loopback address, because all workers may
        # be on that machine. In this test one worker is on another machine.
        self.start(PS_SERVER, "server", "--index", 0, *self.to, prefix=self.near.prefix)
        self.start(
            WORKER,
            "worker far",
            "--name",
            "far",
            "--threads",
            1,
            "--data-root",
            data,
            *self.to,
            prefix=self.far.prefix
        )
        here = dict(prefix=self.near.prefix, env={"EVERGRAD_DATA": data})
        self.psctl("job", "submit", write(self.path("job.yaml"), job_yaml()), *self.to, **here)

        def shown():
            return self.psctl("job", "show", "small", *self.to, prefix=self.near.prefix).stdout

        # While no other worker exists, the job must wait. It must report which worker cannot reach
        # which server.
        wait_for(
            "the job to say who cannot reach whom",
            lambda: "waiting for worker/far to reach ps_server/0 at 127.0.0.1:" in shown(),
        )
        self.assertIn("worker/far cannot reach ps_server/0 at 127.0.0.1:", shown())
        rows = self.psctl_json("job", "show", "small", *self.to, prefix=self.near.prefix)["workers"]
        self.assertEqual([u["server"] for r in rows for u in r.get("unreached", [])], ["0"])
        self.start(
            WORKER,
            "worker near",
            "--name",
            "near",
            "--threads",
            1,
            "--data-root",
            data,
            *self.to,
            prefix=self.near.prefix
        )
        wait_for(
            "the job to succeed",
            lambda: self.psctl_json("job", "show", "small", *self.to, prefix=self.near.prefix)[
                "state"
            ]
            == "SUCCEEDED",
        )
        self.assertIn("its work goes to workers that can", shown())

    def test_a_second_server_without_an_index_exits_and_names_the_host_of_index_0(self):
        def named(machine, name):
            return machine.prefix + [
                "unshare",
                "-u",
                "sh",
                "-c",
                'hostname %s && exec "$@"' % name,
                "sh",
            ]

        first = self.start(
            PS_SERVER,
            "first",
            "--insecure-listen",
            self.NEAR + ":0",
            *self.to,
            prefix=named(self.near, "box-a")
        )
        first.wait_log("registered with the coordinator")
        second = self.start(
            PS_SERVER,
            "second",
            "--insecure-listen",
            self.FAR + ":0",
            *self.to,
            prefix=named(self.far, "box-b")
        )
        wait_for("the second to end", lambda: second.process.poll() is not None)
        self.assertEqual(second.process.returncode, 11, second.log())
        for words in (
            "another running server has the index of this server: index=0 host=box-a",
            "--index 1",
        ):
            self.assertIn(words, second.log())
        # The suggested command must work.
        self.start(
            PS_SERVER,
            "third",
            "--index",
            1,
            "--insecure-listen",
            self.FAR + ":0",
            *self.to,
            prefix=named(self.far, "box-b")
        ).wait_log("registered with the coordinator")
        # A second server on the same host must wait, because the first server might be an earlier
        # process of the same task. It must report the same conflict.
        neighbour = self.start(
            PS_SERVER,
            "neighbour",
            "--insecure-listen",
            self.NEAR + ":0",
            *self.to,
            prefix=named(self.near, "box-a")
        )
        neighbour.wait_log("--index 2")
        self.assertIsNone(neighbour.process.poll())


if __name__ == "__main__":
    run_inside_if_needed()
    main()
