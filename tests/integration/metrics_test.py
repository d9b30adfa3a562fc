#!/usr/bin/env python3
"""Tests the metrics listeners of all three daemons. Off loopback, with and without TLS, only those
with the permission may read the metrics, and the text must pass Prometheus' checker.

  metrics_test.py --bin build/release/bin [unittest arguments]
"""
import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from machines import (
    Machine,
    run_inside_if_needed,
    signed_by_openssl,
    skip_without_namespaces,
)  # noqa: E402
from support import COORDINATOR, PS_SERVER, ROOT, WORKER, Case, binary, main, wait_for  # noqa: E402

ADDRESS = "10.213.78.1"


def fetch(scheme, address, path, authority=None, certificate=None):
    """Returns (status, text), or (None, the error) if no answer came. The caller must be in the
    daemons' network namespace."""
    host, port = address.rsplit(":", 1)
    try:
        if scheme == "https":
            context = ssl.create_default_context(cafile=authority)
            if certificate:
                context.load_cert_chain(certificate + ".pem", certificate + ".key")
            connection = http.client.HTTPSConnection(host, int(port), timeout=30, context=context)
        else:
            connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return None, repr(error)


class OffLoopback(Case):
    """A machine whose address is not loopback. The tests make the daemons there serve their metrics
    in each possible way."""

    def setUp(self):
        super().setUp()
        skip_without_namespaces()
        self.machine = Machine(self)
        self.machine.address("lo", ADDRESS + "/32")

    def get(self, *arguments):
        r = subprocess.run(
            self.machine.prefix
            + [sys.executable, os.path.abspath(__file__), "--fetch", *[a or "" for a in arguments]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(r.returncode, 0, r.stderr)
        return tuple(json.loads(r.stdout))

    def certificate(self, name, *extra, folder="certs"):
        self.psctl("cert", "issue", name, "--folder", folder, "--host", ADDRESS, *extra)
        return self.files(name, folder)

    def files(self, name, folder="certs"):
        return [
            "--tls-ca",
            self.path(folder, "ca.pem"),
            "--tls-cert",
            self.path(folder, name + ".pem"),
            "--tls-key",
            self.path(folder, name + ".key"),
        ]

    def daemons(self, listen, flags):
        """Starts the three daemons, each with the flags `listen(name)`. Yields (process, address of
        its metrics, scheme) for each, as its log reports them."""
        coordinator, address = self.start_listening(
            COORDINATOR,
            "coordinator",
            *listen("coordinator"),
            *flags,
            "--metrics-listen",
            ADDRESS + ":0",
            "--runs",
            self.path("runs"),
            prefix=self.machine.prefix
        )
        started = [coordinator]
        for program, name, more in (
            (PS_SERVER, "ps-server-0", ["--index", 0]),
            (WORKER, "worker-0", ["--name", 0, "--threads", 1]),
        ):
            process, _ = self.start_listening(
                program,
                name,
                *listen(name),
                *flags,
                *more,
                "--coordinator",
                address,
                "--metrics-listen",
                ADDRESS + ":0",
                prefix=self.machine.prefix
            )
            started.append(process)
        for process in started:
            process.wait_log("metrics at ")
            url = process.log().split("metrics at ", 1)[1].split()[0]
            self.assertTrue(url.endswith("/metrics"), url)
            scheme, rest = url.split("://")
            yield process, rest[: -len("/metrics")], scheme

    @unittest.skipUnless(
        shutil.which("openssl"), "no openssl to make a certificate that has expired"
    )
    def test_with_tls_healthz_answers_all_clients_and_metrics_need_a_certificate(
        self,
    ):
        self.psctl("cert", "init", "--folder", "certs")
        self.psctl("cert", "init", "--folder", "others")
        for name in ("coordinator", "ps-server-0", "worker-0", "prometheus"):
            self.certificate(name)
        self.certificate("stranger", folder="others")
        signed_by_openssl(self.path("certs"), "late", ADDRESS, -1, "evergrad://user/late")
        authority = self.path("certs", "ca.pem")
        for process, address, scheme in self.daemons(
            lambda name: ["--listen", ADDRESS + ":0"] + self.files(name), []
        ):
            self.assertEqual(scheme, "https", process.name)
            for certificate, said in (
                ("certs/prometheus", None),
                ("certs/worker-0", None),
                (None, "no certificate was given"),
                ("others/stranger", "certificate verify failed"),
                ("certs/late", "certificate has expired"),
            ):
                with self.subTest(daemon=process.name, certificate=certificate):
                    file = certificate and self.path(*certificate.split("/"))
                    self.assertEqual(
                        self.get("https", address, "/healthz", authority, file), (200, "ok\n")
                    )
                    status, text = self.get("https", address, "/metrics", authority, file)
                    if said is None:
                        self.assertEqual(status, 200, text)
                        self.assertIn("\nevergrad_", text)
                    else:
                        self.assertEqual(status, 403, text)
                        self.assertIn(said, text)
                        self.assertNotIn("evergrad_", text)
            with self.subTest(daemon=process.name, what="the daemon's certificate is checked, too"):
                status, text = self.get("https", address, "/healthz", self.path("others", "ca.pem"))
                self.assertIsNone(status)
                self.assertIn("CERTIFICATE_VERIFY_FAILED", text)
            with self.subTest(daemon=process.name, what="plain HTTP at a listener of HTTPS"):
                status, text = self.get("http", address, "/metrics")
                self.assertEqual(status, 400, text)
                self.assertIn("speaks HTTPS", text)
            with self.subTest(daemon=process.name, what="it becomes ready"):
                wait_for(
                    "%s to be ready" % process.name,
                    lambda: self.get("https", address, "/readyz", authority) == (200, "ok\n"),
                )
                self.assertEqual(self.get("https", address, "/livez", authority), (200, "ok\n"))
                of = process.log().split("listening on ", 1)[1].split(",")[0]
                probe = ["health", "--of", of]
                for flags in ([], ["--live"]):
                    self.psctl(
                        *probe, *flags, *self.files("prometheus"), prefix=self.machine.prefix
                    )
                # The listener for gRPC still requires a certificate.
                self.psctl(*probe, expect=1, prefix=self.machine.prefix)
            with self.subTest(daemon=process.name, what="it serves on"):
                self.assertEqual(self.get("https", address, "/healthz", authority), (200, "ok\n"))

    def test_insecure_metrics_serves_plain_http_beside_tls_with_a_warning(self):
        self.psctl("cert", "init", "--folder", "certs")
        for name in ("coordinator", "ps-server-0", "worker-0"):
            self.certificate(name)
        for process, address, scheme in self.daemons(
            lambda name: ["--listen", ADDRESS + ":0"] + self.files(name), ["--insecure-metrics"]
        ):
            self.check_plain(process, address, scheme, "--insecure-metrics")

    def test_insecure_listen_serves_metrics_over_plain_http_with_a_warning(self):
        for process, address, scheme in self.daemons(
            lambda name: ["--insecure-listen", ADDRESS + ":0"], []
        ):
            self.check_plain(process, address, scheme, "--insecure-listen")

    def test_insecure_metrics_opens_only_the_metrics_of_a_cluster_on_loopback(self):
        for process, address, scheme in self.daemons(lambda name: [], ["--insecure-metrics"]):
            self.check_plain(process, address, scheme, "--insecure-metrics")
            self.assertIn("listening on 127.0.0.1:", process.log())

    def check_plain(self, process, address, scheme, flag):
        with self.subTest(daemon=process.name):
            self.assertEqual(scheme, "http")
            self.assertEqual(self.get("http", address, "/healthz"), (200, "ok\n"))
            status, text = self.get("http", address, "/metrics")
            self.assertEqual(status, 200)
            self.assertIn("\nevergrad_", text)
            process.wait_log(
                "%s: any host that reaches %s can read this daemon's metrics" % (flag, address)
            )
            self.assertIsNone(self.get("https", address, "/healthz", self.path("none.pem"))[0])

    def test_metrics_off_loopback_without_permission_are_refused_with_the_name_of_the_flag(
        self,
    ):
        for name in (COORDINATOR, PS_SERVER, WORKER):
            extra = [] if name == COORDINATOR else ["--coordinator", "127.0.0.1:1"]
            r = subprocess.run(
                self.machine.prefix + [binary(name), "--metrics-listen", ADDRESS + ":0"] + extra,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=90,
                cwd=self.folder,
            )
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertIn("--insecure-metrics", r.stderr)
            self.assertIn("--tls-ca", r.stderr)
            r = subprocess.run(
                [binary(name), "--insecure-metrics"] + extra,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=90,
                cwd=self.folder,
            )
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertIn("give --metrics-listen", r.stderr)


PROMTOOL = next(
    (
        p
        for p in (os.path.join(ROOT, "build", "tools", "promtool"), shutil.which("promtool"))
        if p and os.access(p, os.X_OK)
    ),
    None,
)


NO_PROMTOOL = "no promtool (deploy/scripts/tools.sh puts it into build/tools)"
RULES = os.path.join(ROOT, "deploy", "prometheus", "evergrad.rules.yaml")
RULE_TESTS = os.path.join(ROOT, "deploy", "prometheus", "evergrad.rules.test.yaml")
DOCS = os.path.join(ROOT, "docs", "cli.md")
BOARD = os.path.join(ROOT, "deploy", "grafana", "evergrad.json")


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def metrics_in(text):
    """Returns the names of the metrics in a text of queries. The series of a histogram are counted
    as one metric."""
    names = re.findall(r"\b(?:evergrad|process)_[a-z0-9_]*[a-z0-9]\b", text)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def board_queries():
    return [
        target["expr"] for panel in json.loads(read(BOARD))["panels"] for target in panel["targets"]
    ]


class Board(unittest.TestCase):
    """Tests the Grafana board and the alert rules without a cluster. The names of metrics must be
    in docs/cli.md, which lists the metrics of the daemons. cli_docs_test.py compares that page with
    the daemons."""

    def test_board_and_rules_name_only_metrics_that_the_daemons_have(self):
        known = set(re.findall(r"(?m)^\| `((?:evergrad|process)_\w+)` \|", read(DOCS)))
        self.assertGreater(len(known), 100)
        rules = "\n".join(
            re.findall(r"(?m)^        expr:((?:.*\n)(?:          .*\n)*)", read(RULES))
        )
        for what, text in (("board", "\n".join(board_queries())), ("rules", rules)):
            found = metrics_in(re.sub(r"=~\"[^\"]*\"", "", text))
            self.assertGreater(len(found), 8, what)
            self.assertEqual(sorted(found - known), [], what)

    def test_the_board_is_one_page_without_overlaps(self):
        panels = json.loads(read(BOARD))["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        taken = set()
        for panel in panels:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            self.assertLessEqual(at["y"] + at["h"], 36, panel["title"])
            self.assertTrue(panel["description"], panel["title"])
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            self.assertEqual(cells & taken, set(), panel["title"])
            taken |= cells

    def test_each_rule_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(self):
        alerts = re.findall(r"(?m)^      - alert: (\w+)$", read(RULES))
        self.assertGreater(len(alerts), 10)
        self.assertEqual(len(set(alerts)), len(alerts))
        cases = re.findall(r"(?m)^  - name: (.+)$", read(RULE_TESTS))
        self.assertEqual(
            sorted(cases),
            sorted([a + " fires" for a in alerts] + [a + " does not fire" for a in alerts]),
        )

    @unittest.skipUnless(PROMTOOL, NO_PROMTOOL)
    def test_promtool_accepts_the_rules_and_their_tests_pass(self):
        for command in (["check", "rules", RULES], ["test", "rules", RULE_TESTS]):
            r = subprocess.run(
                [PROMTOOL] + command, stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)


class Prometheus(Case):
    @unittest.skipUnless(PROMTOOL, NO_PROMTOOL)
    def test_promtool_accepts_the_metrics_of_all_three_daemons_while_a_job_runs(self):
        flags = ["--metrics-listen", "127.0.0.1:0"]
        coordinator, address = self.start_listening(
            COORDINATOR,
            "coordinator",
            *flags,
            "--runs",
            self.path("runs"),
            "--state-dir",
            self.path("state")
        )
        server, _ = self.start_listening(
            PS_SERVER, "server", *flags, "--index", 0, "--coordinator", address
        )
        worker, _ = self.start_listening(
            WORKER, "worker", *flags, "--name", 0, "--threads", 1, "--coordinator", address
        )
        # The job has embedding tables and dense variables, and the workers generate its data.
        self.psctl(
            "job",
            "submit",
            os.path.join(ROOT, "configs", "examples", "deepfm.yaml"),
            "--set",
            "spec.training.epochs=10000",
            "--set",
            "metadata.name=checked",
            "--set",
            "spec.checkpoint.every=1s",
            "--coordinator",
            address,
        )

        def text(process):
            url = process.log().split("metrics at ", 1)[1].split()[0]
            with urllib.request.urlopen(url, timeout=60) as answer:
                return answer.read().decode()

        wait_for(
            "a snapshot that is on disk",
            lambda: re.search(
                r'(?m)^evergrad_ps_server_snapshots_total\{result="durable"\} [1-9]', text(server)
            ),
        )
        labels = r'\{job="checked",job_uid="[^"]+"\}'
        for process, counts in (
            (
                coordinator,
                [
                    "evergrad_coordinator_closure_seconds_count" + labels,
                    "evergrad_coordinator_grant_wait_seconds_count" + labels,
                ],
            ),
            (server, ["evergrad_ps_server_staleness_updates_count" + labels]),
            (
                worker,
                [
                    "evergrad_worker_%s_seconds_count" % what
                    for what in ("push", "pull", "step", "batch_wait")
                ],
            ),
        ):
            for count in counts + ["process_resident_memory_bytes", "process_open_fds"]:
                with self.subTest(daemon=process.name, metric=count):
                    wait_for(
                        count + " above 0",
                        lambda: re.search("(?m)^" + count + " [1-9]", text(process)),
                    )
            with self.subTest(daemon=process.name):
                scraped = text(process)
                self.assertGreater(scraped.count("# TYPE evergrad_"), 10)
                r = subprocess.run(
                    [PROMTOOL, "check", "metrics"],
                    input=scraped,
                    capture_output=True,
                    text=True,
                    timeout=90,
                )
                self.assertEqual((r.returncode, r.stdout + r.stderr), (0, ""))
        self.assertEqual(
            self.psctl_json("job", "show", "checked", "--coordinator", address)["state"], "RUNNING"
        )
        self.psctl("job", "cancel", "checked", "--coordinator", address)
        for process in (coordinator, server):
            wait_for(
                "no series of the ended job at the " + process.name,
                lambda: 'job="checked"' not in text(process),
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fetch"]:
        print(json.dumps(fetch(*[a or None for a in sys.argv[2:]])))
        sys.exit(0)
    run_inside_if_needed()
    main()
