#!/usr/bin/env python3
"""Tests the daemons from the outside, as a user and an operator see them: real processes on
loopback, without fixed ports.

  daemons_test.py --bin build/release/bin [unittest arguments]
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "chaos"))
from cluster import Cluster, wait_for  # noqa: E402

BIN = os.environ.get("EVERGRAD_BIN_DIR", "build/release/bin")
CONFIGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "configs", "daemons")
DAEMONS = ["evergrad-coordinator", "evergrad-ps-server", "evergrad-worker"]


def run(*command, **kw):
    return subprocess.run(
        [os.path.join(BIN, command[0])] + list(command[1:]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        **kw
    )


class Doors(unittest.TestCase):
    def test_every_binary_answers_help_and_version(self):
        for name in DAEMONS + ["psctl"]:
            helped = run(name, "--help")
            self.assertEqual(helped.returncode, 0, name)
            self.assertIn("version", helped.stdout, name)
            version = run(name, "--version")
            self.assertEqual(version.returncode, 0, name)
            self.assertRegex(version.stdout, r"0\.\d+", name)

    def test_an_unknown_option_ends_with_2_and_the_nearest_name(self):
        for name in DAEMONS:
            r = (
                run(name, "--coordinator", "127.0.0.1:1", "--lissten", "127.0.0.1:0")
                if name != DAEMONS[0]
                else run(name, "--lissten", "127.0.0.1:0")
            )
            self.assertEqual(r.returncode, 2, name + r.stderr)
            self.assertIn("listen", r.stderr, name)

    def test_an_address_off_loopback_without_certificates_is_refused_with_the_remedy(self):
        for name in DAEMONS[:2]:
            extra = [] if name == DAEMONS[0] else ["--coordinator", "127.0.0.1:1"]
            r = run(name, "--listen", "0.0.0.0:0", "--advertise", "host:1", *extra)
            self.assertNotEqual(r.returncode, 0, name)
            self.assertIn("tls", r.stderr.lower(), name)
            self.assertIn("insecure-listen", r.stderr, name)

    def test_a_settings_file_works_like_flags_and_its_mistakes_have_positions(self):
        with tempfile.TemporaryDirectory() as folder:
            good = os.path.join(folder, "with space.yaml")
            with open(good, "w") as f:
                f.write("listen: 127.0.0.1:0\nbogus_key: 1\n")
            r = run(DAEMONS[0], "--config", good)
            self.assertEqual(r.returncode, 2)
            self.assertRegex(r.stderr, r"with space\.yaml:2:1")
            self.assertIn("bogus_key", r.stderr)

    def test_the_example_settings_name_every_setting_and_work_unchanged(self):
        for name in DAEMONS:
            with open(os.path.join(CONFIGS, name[len("evergrad-") :] + ".yaml")) as f:
                text = f.read()
            text = re.sub(
                r"^tls:\n(  .*\n)+", "", text, flags=re.M
            )  # certificates are tested in two_machines_test.py
            text = re.sub(
                r"^# (\w+: .*)$", r"\1", text, flags=re.M
            )  # every commented default becomes a setting
            keys = set(re.findall(r"^(\w+):", text, flags=re.M))
            flags = set(re.findall(r"^  --([\w-]+)", run(name, "--help").stdout, flags=re.M)) - {
                "help",
                "version",
                "list-devices",
                "config",
                "tls-ca",
                "tls-cert",
                "tls-key",
            }
            self.assertEqual(keys, {flag.replace("-", "_") for flag in flags}, name)
            with tempfile.TemporaryDirectory() as folder:
                address = os.path.join(folder, "address")
                for key, value in (
                    ("listen", "127.0.0.1:0"),
                    ("metrics_listen", "127.0.0.1:0"),
                    ("coordinator", "127.0.0.1:1"),
                    ("address_file", address),
                    ("runs", folder),
                    ("data_root", "[%s]" % folder),
                    ("checkpoint_root", "[%s]" % folder),
                ):
                    text = re.sub(r"^%s: .*$" % key, "%s: %s" % (key, value), text, flags=re.M)
                path = os.path.join(folder, "settings.yaml")
                with open(path, "w") as f:
                    f.write(text)
                with subprocess.Popen(
                    [os.path.join(BIN, name), "--config", path],
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                ) as daemon:
                    try:
                        wait_for(
                            name + " to listen",
                            lambda: os.path.exists(address) or daemon.poll() is not None,
                        )
                    finally:
                        daemon.terminate()
                    _, log = daemon.communicate(timeout=60)
                    self.assertEqual(daemon.returncode, 0, name + log)


class Running(unittest.TestCase):
    def test_tasks_start_in_any_order_and_report_the_reason_of_a_wait(self):
        with Cluster(BIN, 1, 1, seed=1) as c:
            # No process serves the coordinator's address yet. A first coordinator takes a free
            # address and ends; the real coordinator later gets the same address.
            c.coordinator.start()
            address = c.coordinator.address
            self.assertEqual(c.coordinator.terminate(), 0)
            for d in c.servers + c.workers:
                d.start()
            for d in c.servers + c.workers:
                wait_for(
                    "%s to say that it waits for the coordinator" % d.name,
                    lambda d=d: "waiting for the coordinator" in d.tail(30)
                    and address in d.tail(30),
                )
            c.coordinator.start()
            c.wait_tasks()
            for d in [c.coordinator] + c.servers + c.workers:
                self.assertEqual(d.terminate(), 0, d.name)

    def test_each_daemon_serves_prometheus_text_with_its_limits(self):
        with Cluster(BIN, 1, 1, seed=1) as c:
            for d in [c.coordinator] + c.servers + c.workers:
                d.arguments += ["--metrics-listen", "127.0.0.1:0"]
            c.up()
            c.submit(examples=100).finish()
            rows = {"%s/%s" % (t["role"], t["identity"]): t for t in c.tasks()}
            addresses = {
                n: rows[n]["metrics_address"] for n in rows if rows[n].get("metrics_address")
            }
            addresses["coordinator/0"] = re.search(
                r"http://([^/]+)/metrics", c.coordinator.tail(1000)
            ).group(1)
            for name in ("coordinator/0", "ps_server/0", "worker/0"):
                text = (
                    urllib.request.urlopen("http://%s/metrics" % addresses[name], timeout=60)
                    .read()
                    .decode()
                )
                role = name.split("/")[0]
                self.assertIn("evergrad_%s_" % role, text, name)
                limits = re.findall(r"^(evergrad_\w+)_limit(?:\{[^}]*\})? ", text, re.M)
                self.assertTrue(limits, name)
                for limit in limits:
                    self.assertRegex(text, r"(?m)^%s_current" % limit)
                    self.assertRegex(text, r"(?m)^%s_refused_total" % limit)

    def test_the_metrics_of_a_worker_name_the_job_that_it_serves(self):
        with Cluster(BIN, 1, 1, seed=1) as c:
            c.workers[0].arguments += ["--metrics-listen", "127.0.0.1:0"]
            c.up()

            def served():
                [address] = [t["metrics_address"] for t in c.tasks() if t["role"] == "worker"]
                text = (
                    urllib.request.urlopen("http://%s/metrics" % address, timeout=60)
                    .read()
                    .decode()
                )
                return re.findall(
                    r'^evergrad_worker_serves_job\{job="([^"]*)",job_uid="([^"]*)"\} 1$', text, re.M
                )

            self.assertEqual(served(), [])
            for name in ("this", "that"):
                job = c.submit(examples=20000, name=name)
                self.assertEqual(
                    wait_for("the worker to say that it serves %s" % name, served),
                    [(name, job.uid)],
                )
                c.psctl("job", "cancel", name)
                wait_for("the worker to serve none", lambda: not served())

    def test_a_job_above_the_coordinators_limit_of_bytes_on_servers_is_refused(self):
        with Cluster(
            BIN, 1, 1, seed=1, coordinator_arguments=("--job-server-memory-bytes-max", "4KiB")
        ).up() as c:
            small = c.submit(examples=100, shards=1)
            small.finish()
            large = c.submit(examples=10000, shards=4)
            status = wait_for(
                "the job to end",
                lambda: (lambda s: s if s["state"] == "FAILED" else None)(
                    c.psctl_json("job", "show", large.name)
                ),
            )
            self.assertEqual(status["first_cause"]["kind"], "user")
            self.assertIn(
                "coordinator's --job-server-memory-bytes-max=4096", status["first_cause"]["message"]
            )
            # If the job's limit is lower than the server's, the job's limit takes effect, and the
            # message names it.
            tighter = c.submit(examples=100, shards=1, resources="{server_memory_bytes_max: 100}")
            status = wait_for(
                "the job to end",
                lambda: (lambda s: s if s["state"] == "FAILED" else None)(
                    c.psctl_json("job", "show", tighter.name)
                ),
            )
            self.assertIn(
                "spec.resources.server_memory_bytes_max=100", status["first_cause"]["message"]
            )
            self.assertTrue(all(t["shards"] == 0 for t in c.tasks() if t["role"] == "ps_server"))

    def test_json_logs_carry_task_and_job(self):
        import json

        with Cluster(BIN, 1, 1, seed=1) as c:
            c.workers[0].arguments += ["--log-format", "json"]
            c.up()
            c.submit(examples=50).finish()
            lines = [
                json.loads(line) for line in open(c.workers[0].log_path) if line.startswith("{")
            ]
            self.assertTrue(any(line["task"] == "worker/0" for line in lines))
            self.assertTrue(any(line.get("job") for line in lines))

    def test_psctl_names_an_unreachable_coordinator_and_ends_with_4(self):
        with Cluster(BIN, 0, 0, seed=1) as c:
            c.coordinator.start()
            address = c.coordinator.address
            c.coordinator.terminate()
            r = c.psctl("task", "list", expect=4)
            self.assertIn(address, r.stderr)

    def test_logs_of_a_task_are_read_through_the_coordinator(self):
        with Cluster(BIN, 1, 1, seed=1) as c:
            c.up()
            job = c.submit(examples=50)
            job.finish()
            text = c.psctl("logs", "worker/0").stdout
            self.assertIn("worker/0", text)
            self.assertIn(job.name, c.psctl("logs", "--job", job.name).stdout)

    def test_cancel_ends_a_job_and_the_cluster_runs_the_next(self):
        with Cluster(BIN, 2, 2, seed=1) as c:
            c.up()
            job = c.submit(examples=50000, step_ms=5)
            job.wait_steps(10)
            queued = c.submit(examples=100)
            self.assertEqual(queued.show()["state"], "QUEUED")
            c.psctl("job", "cancel", job.name)
            self.assertEqual(
                job.wait_state("CANCELLED", "SUCCEEDED", "FAILED")["state"], "CANCELLED"
            )
            queued.finish()

    def test_a_counting_job_is_refused_by_daemons_without_failpoints(self):
        with Cluster(BIN, 1, 1, seed=1) as c:
            command = [
                os.path.join(BIN, "evergrad-coordinator"),
                "--runs",
                c.runs,
                "--address-file",
                os.path.join(c.folder, "plain.address"),
            ]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                path = os.path.join(c.folder, "plain.address")
                c.coordinator.address = wait_for(
                    "the address", lambda: os.path.exists(path) and open(path).read().strip()
                )
                job = os.path.join(c.folder, "counting.yaml")
                from cluster import CountingJob

                with open(job, "w") as f:
                    f.write(CountingJob(c, "refused", 10, 5, 1, 1, 0, 2, 1).yaml())
                r = c.psctl("job", "submit", job, expect=2)
                self.assertIn("counting", r.stderr)
            finally:
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(60), 0)


if __name__ == "__main__":
    if "--bin" in sys.argv:
        at = sys.argv.index("--bin")
        BIN = os.path.abspath(sys.argv[at + 1])
        del sys.argv[at : at + 2]
    unittest.main()
