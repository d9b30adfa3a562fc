#!/usr/bin/env python3
"""Tests liveness and readiness of real daemons: /livez and /readyz over HTTP, and `psctl health`,
which asks the gRPC health service.

  health_test.py --bin build/release/bin [unittest arguments]
"""
import os
import signal
import socket
import sys
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from support import COORDINATOR, PS_SERVER, ROOT, WORKER, Case, main, wait_for  # noqa: E402

OK = (200, "ok\n")


class Daemon:
    """A daemon, with the address of its listener and the URL of its metrics listener."""

    def __init__(self, test, program, name, *arguments):
        self.test = test
        self.process, self.address = test.start_listening(
            program, name, "--metrics-listen", "127.0.0.1:0", *arguments
        )
        self.process.wait_log("metrics at ")
        url = self.process.log().split("metrics at ", 1)[1].split()[0]
        self.url = url[: -len("/metrics")]

    def get(self, page):
        try:
            with urllib.request.urlopen(self.url + page, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def probe(self, *flags):
        """Returns the exit code of psctl health."""
        return self.test.psctl("health", "--of", self.address, *flags, expect=None).returncode

    def wait_ready(self):
        wait_for(self.process.name + " to be ready", lambda: self.get("/readyz") == OK)
        self.test.assertEqual(self.probe(), 0)
        self.check_live()

    def check_live(self):
        self.test.assertEqual(self.get("/livez"), OK)
        self.test.assertEqual(self.get("/healthz"), OK)
        self.test.assertEqual(self.probe("--live"), 0)

    def wait_not_ready(self, condition, reason):
        """Waits until a line of /readyz names this condition, and has `reason` in it."""
        beginning = "not ready: %s: " % condition

        def found():
            status, text = self.get("/readyz")
            lines = [line for line in text.splitlines() if line.startswith(beginning)]
            return status == 503 and [line for line in lines if reason in line]

        wait_for("%s to name `%s`" % (self.process.name, condition), found)

    def kill(self):
        self.process.process.send_signal(signal.SIGKILL)
        self.process.process.wait()


class Health(Case):
    def coordinator(self, name, *arguments, listen="127.0.0.1:0"):
        return Daemon(
            self,
            COORDINATOR,
            name,
            "--listen",
            listen,
            "--runs",
            self.path("runs"),
            "--state-dir",
            self.path("state"),
            *arguments
        )

    def tasks(self, address):
        to = ["--coordinator", address]
        return (
            Daemon(self, PS_SERVER, "server", "--index", 0, *to),
            Daemon(self, WORKER, "worker", "--name", 0, "--threads", 1, *to),
        )

    def test_tasks_without_a_coordinator_are_live_and_become_ready_when_it_comes(self):
        # The test reserves the port, and no process listens on it yet.
        with socket.socket() as kept:
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % kept.getsockname()[1]
            server, worker = self.tasks(address)
            server.wait_not_ready("registration", "waiting for the coordinator: reason=")
            worker.wait_not_ready("session", "waiting for the coordinator: reason=")
            for task in (server, worker):
                task.check_live()
                self.assertEqual(task.probe(), 1)
        coordinator = self.coordinator("coordinator", "--window", "5s", listen=address)
        coordinator.wait_not_ready("window", "the tasks of the cluster are registering")
        coordinator.check_live()
        self.assertEqual(coordinator.probe(), 1)
        for daemon in (coordinator, server, worker):
            daemon.wait_ready()

    def test_a_server_stays_ready_while_the_coordinator_is_away_and_a_worker_does_not(self):
        coordinator = self.coordinator("coordinator")
        server, worker = self.tasks(coordinator.address)
        for daemon in (coordinator, server, worker):
            daemon.wait_ready()
        coordinator.kill()
        self.assertEqual(coordinator.probe(), 1)
        worker.wait_not_ready("session", "")
        worker.check_live()
        self.assertEqual(worker.probe(), 1)
        server.process.wait_log("lost the connection to the coordinator")
        server.process.wait_log("waiting for the coordinator")
        self.assertEqual(server.get("/readyz"), OK)
        self.assertEqual(server.probe(), 0)
        again = self.coordinator("again", listen=coordinator.address)
        for daemon in (again, worker):
            daemon.wait_ready()
        self.assertEqual(server.get("/readyz"), OK)

    def test_a_server_is_not_ready_while_it_restores_its_shards(self):
        coordinator = self.coordinator("coordinator")
        server, worker = self.tasks(coordinator.address)
        worker.wait_ready()
        self.psctl(
            "job",
            "submit",
            os.path.join(ROOT, "configs", "examples", "deepfm.yaml"),
            "--set",
            "spec.training.epochs=10000",
            "--set",
            "metadata.name=restored",
            "--set",
            "spec.checkpoint.every=1s",
            "--coordinator",
            coordinator.address,
        )

        def snapshots():
            with urllib.request.urlopen(server.url + "/metrics", timeout=60) as answer:
                text = answer.read().decode()
            for line in text.splitlines():
                if line.startswith('evergrad_ps_server_snapshots_total{result="durable"} '):
                    return int(line.split()[1])
            return 0

        wait_for("snapshots of some shards", lambda: snapshots() >= 20)
        server.kill()
        restarted = Daemon(
            self,
            PS_SERVER,
            "restarted",
            "--index",
            0,
            "--coordinator",
            coordinator.address,
            # The failpoint delays the reading of the first shard by ten seconds.
            "--failpoints",
            "snapshot.restore=1*delay(10000)",
        )
        restarted.wait_not_ready("shards", "assigned shards are not restored yet: loading=")
        restarted.check_live()
        self.assertEqual(restarted.probe(), 1)
        restarted.wait_ready()
        self.assertIn("shard restored", restarted.process.log())
        self.psctl("job", "cancel", "restored", "--coordinator", coordinator.address)


if __name__ == "__main__":
    main()
