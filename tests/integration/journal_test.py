#!/usr/bin/env python3
"""Tests two cases with real processes: a coordinator whose journal has lost a job, and a server
that is restarted.

  journal_test.py --bin build/release/bin [unittest arguments]
"""
import os
import re
import shutil
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from support import (
    COORDINATOR,
    COUNTING,
    PS_SERVER,
    WORKER,
    Case,
    main,
    read,
    wait_for,
    write,
)  # noqa: E402

JOURNAL = 10  # common/daemon/exit_codes.h


class LostJournal(Case):
    """The coordinator loses its journal, while one server and one worker continue to run. The
    coordinator's address stays the same, so that they find the next coordinator process."""

    def coordinator(self, name, *arguments):
        return self.start(
            COORDINATOR,
            name,
            "--failpoints",
            "none",
            "--runs",
            self.path("runs"),
            "--state-dir",
            self.path("state"),
            "--address-file",
            self.path("address"),
            "--listen",
            self.address,
            "--window",
            "2s",
            *arguments
        )

    def setUp(self):
        super().setUp()
        self.address = "127.0.0.1:0"
        first = self.coordinator("coordinator")
        self.address = first.wait_address(self.path("address"))
        self.to = ["--coordinator", self.address]
        self.server = self.start(
            PS_SERVER, "server", "--failpoints", "none", "--index", 0, *self.to
        )
        self.worker = self.start(
            WORKER, "worker", "--failpoints", "none", "--name", 0, "--threads", 1, *self.to
        )
        job = write(self.path("job.yaml"), COUNTING % ("lives", 4000, 5, 1))
        self.psctl("job", "submit", job, *self.to)
        wait_for("the job to train", lambda: self.status()["steps_done"] > 10)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        self.database, self.wal = self.path("state", "journal.sqlite"), self.path(
            "state", "journal.sqlite-wal"
        )
        self.assertGreater(os.path.getsize(self.wal), 0)
        shutil.copytree(self.path("state"), self.path("backup"))

    def status(self):
        return self.psctl_json("job", "show", "lives", *self.to)

    def ends(self, process):
        return wait_for(
            "%s to end" % process.name,
            lambda: process.process.poll() is not None and (process.process.returncode,),
        )[0]

    def assert_goes_on(self):
        """With the restored journal the job must end as usual, because the server still holds its
        shards."""
        shutil.rmtree(self.path("state"))
        shutil.copytree(self.path("backup"), self.path("state"))
        self.coordinator("restored").wait_log("coordinating")
        wait_for("the job to succeed", lambda: self.status()["state"] == "SUCCEEDED")
        self.assertEqual(self.status()["shards_rolled_back"], 0)

    def test_an_empty_journal_beside_its_wal_file_is_refused_and_the_wal_file_stays(self):
        before = os.path.getsize(self.wal)
        for empty in (True, False):
            if empty:
                os.truncate(self.database, 0)
            else:
                os.remove(self.database)
            process = self.coordinator("empty %s" % empty)
            self.assertEqual(self.ends(process), JOURNAL, process.log())
            self.assertIn("journal is damaged", process.log())
            self.assertIn("--forget-unknown-jobs", process.log())
            self.assertEqual(os.path.getsize(self.wal), before)
        self.assert_goes_on()

    def test_a_missing_journal_stops_the_coordinator_before_servers_drop_the_job(self):
        shutil.rmtree(self.path("state"))
        for life in range(2):  # The second process finds the empty journal of the first.
            process = self.coordinator("gone %d" % life)
            self.assertEqual(self.ends(process), JOURNAL, process.log())
            self.assertIn("has lost jobs that still exist", process.log())
            self.assertIn("ps_server/0", process.log())
        self.assert_goes_on()

    def test_an_operator_abandons_lost_jobs(self):
        os.truncate(self.database, 0)
        self.coordinator("anew", "--forget-unknown-jobs").wait_log("coordinating")
        self.assertTrue(os.path.exists(self.wal + ".orphaned"))
        wait_for(
            "the server to have dropped the job",
            lambda: [
                t["shards"]
                for t in self.psctl_json("task", "list", *self.to)["tasks"]
                if t["role"] == "ps_server"
            ]
            == [0],
        )
        self.assertEqual(self.psctl_json("job", "list", *self.to)["jobs"], [])
        self.psctl(
            "job", "run", write(self.path("next.yaml"), COUNTING % ("next", 200, 0, 1)), *self.to
        )


class RestartedServer(Case):
    def test_a_restarted_server_does_not_wait_for_the_lease_of_its_former_process(self):
        # The lease is so long that the test would reach its own deadline if anything waited for the
        # end of a lease.
        process, address = self.start_listening(
            COORDINATOR,
            "coordinator",
            "--runs",
            self.path("runs"),
            "--lease",
            "300s",
            "--server-lost-after",
            "300s",
        )
        to = ["--coordinator", address]
        for life in range(3):
            server = self.start(PS_SERVER, "server %d" % life, "--index", 0, *to)
            begun = time.monotonic()
            server.wait_log("registered with the coordinator")
            print("registered after %.2f s" % (time.monotonic() - begun))
            if life > 0:
                self.assertLess(time.monotonic() - begun, 100, server.log())
                self.assertIn("its lease runs", server.log())
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
        ids = [
            int(n)
            for n in re.findall(
                r"registered: task=ps_server/0 registration=\d+\.(\d+)", read(process.log_path)
            )
        ]
        self.assertEqual(len(ids), 3, read(process.log_path))


if __name__ == "__main__":
    main()
