#!/usr/bin/env python3
"""A real Prometheus scrapes a cluster with TLS while a job runs and tasks die. Every query of the
Grafana board must return data, and every alert must fire.

  prometheus_test.py --bin build/release/bin [unittest arguments]

The alert rules of deploy/prometheus wait for minutes. The test divides every time in them by FASTER
(function `faster`), and scrapes five times a second. The file runs in a network namespace with an
address that is not loopback, because the metrics of a daemon are HTTPS only there. The namespaces
need root or `unshare -Urnm`.
"""
import glob
import itertools
import json
import math
import os
import re
import resource
import signal
import ssl
import subprocess
import sys
import unittest
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "kubernetes")]
from fake_api import FakeApi, Rule  # noqa: E402
from machines import INSIDE, run_as_machine  # noqa: E402
from support import (  # noqa: E402
    COORDINATOR,
    PS_SERVER,
    ROOT,
    WORKER,
    Case,
    Process,
    main,
    read,
    wait_for,
    write,
)

ADDRESS = "10.213.79.1"
OPERATOR = "evergrad-operator"
FASTER = 100
SCRAPE_MS = 250
RULES = os.path.join(ROOT, "deploy", "prometheus", "evergrad.rules.yaml")
RULE_TESTS = os.path.join(ROOT, "deploy", "prometheus", "evergrad.rules.test.yaml")
BOARD = os.path.join(ROOT, "deploy", "grafana", "evergrad.json")
PROMETHEUS, PROMTOOL = (
    os.path.join(ROOT, "build", "tools", name) for name in ("prometheus", "promtool")
)
NO_PROMETHEUS = "no prometheus (deploy/scripts/tools.sh puts it into build/tools)"


def faster(rules, by):
    """Returns the alert rules with every time in them divided by `by`: each `for`, each range in
    brackets, and each bound of a metric in seconds. Raises ValueError if a time has another form,
    or if the result is not a whole number of milliseconds."""
    unit_ms = {"s": 1000, "m": 60 * 1000, "h": 3600 * 1000}

    def ms(number, unit):
        result, rest = divmod(int(number) * unit_ms[unit], by)
        if rest or not result:
            raise ValueError("%s%s is not divisible by %d" % (number, unit, by))
        return "%dms" % result

    lines = []
    for line in rules.splitlines():
        if re.match(r" *(#|(summary|description):)", line):
            lines.append(line)
            continue
        line = re.sub(
            r"^( *for: )(\d+)([smh])$", lambda m: m.group(1) + ms(m.group(2), m.group(3)), line
        )
        line = re.sub(r"\[(\d+)([smh])\]", lambda m: "[%s]" % ms(m.group(1), m.group(2)), line)
        line = re.sub(
            r"(_seconds [<>]=? )(\d+)",
            lambda m: m.group(1) + "%g" % (int(m.group(2)) / by),
            line,
        )
        lines.append(line)
    text = "\n".join(lines) + "\n"
    left = re.search(r"(?m)^ *for: (?!\d+ms$).*|\[(?!\d+ms\])\w*\d\w*[\]:]|\boffset\b", text)
    if left:
        raise ValueError("a time that is not divided: %s" % left.group(0).strip())
    return text


class Faster(unittest.TestCase):
    """Tests `faster` without a cluster."""

    def test_every_time_of_the_rules_is_divided_and_nothing_else_changes(self):
        before, after = read(RULES).splitlines(), faster(read(RULES), FASTER).splitlines()
        self.assertEqual(len(before), len(after))
        changed = [(b, a) for b, a in zip(before, after) if b != a]
        times = r"\bfor: \d|\[\d+m\]|_seconds > \d"
        self.assertEqual([b for b in before if re.search(times, b)], [b for b, _ in changed])
        self.assertGreater(len(changed), 15)
        for b, a in changed:
            # Each time in the rules must have been divided by FASTER.
            for of, divided in zip(re.findall(r"(\d+)m\b", b), re.findall(r"(\d+)ms\b", a)):
                self.assertEqual(int(of) * 60 * 1000, int(divided) * FASTER, b)

    def test_a_time_in_another_form_is_refused(self):
        for line in ("for: 1h30m", "expr: rate(x[1h30m])", "expr: x offset 5m", "expr: x[5m:1m]"):
            with self.subTest(line), self.assertRaisesRegex(ValueError, "not divided"):
                faster(line, 10)
        with self.assertRaisesRegex(ValueError, "5s is not divisible by 10000"):
            faster("for: 5s", 10000)


JOB = """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: %s}
spec:
  data:
    train: {format: synthetic, examples: 1000000, seed: 7}
    fields:
      features: {type: float, size: 64}
      click: {type: label}
      %s
    batch_size: 256
  model:
    inputs: {features: {shape: [64]}}
    layers:
      - {name: hidden, type: dense, units: 128, input: features}
      - {name: score, type: dense, units: 1, input: hidden}
    losses: {type: mean_squared_error, output: score, labels: click}
  optimizer: {type: sgd, learning_rate: %s}
  training: {epochs: 1000, steps_per_closure: 8}
  checkpoint: {every: 500ms}
"""


class Server:
    """The Prometheus of the test. It reads its targets from files, so that daemons can be added
    later."""

    ROLES = (COORDINATOR, PS_SERVER, WORKER, OPERATOR)

    def __init__(self, test):
        self.test, self.targets = test, {role: [] for role in self.ROLES}
        config = {
            "global": {
                "scrape_interval": "%dms" % SCRAPE_MS,
                "scrape_timeout": "%dms" % SCRAPE_MS,
                "evaluation_interval": "%dms" % SCRAPE_MS,
            },
            "rule_files": [test.path("rules.yaml")],
            "scrape_configs": [
                {
                    "job_name": role,
                    "scheme": "https",
                    "tls_config": {
                        "ca_file": test.path("certs", "ca.pem"),
                        "cert_file": test.path("certs", "prometheus.pem"),
                        "key_file": test.path("certs", "prometheus.key"),
                    },
                    "file_sd_configs": [{"files": [self.file(role)], "refresh_interval": "1s"}],
                }
                for role in self.ROLES
            ],
        }
        for role in self.ROLES:
            self.write_targets(role)
        write(test.path("prometheus.yaml"), json.dumps(config))  # every JSON text is also YAML
        self.process = Process(
            test,
            "prometheus",
            [
                PROMETHEUS,
                "--config.file=" + test.path("prometheus.yaml"),
                "--storage.tsdb.path=" + test.path("tsdb"),
                "--web.listen-address=127.0.0.1:0",
            ],
            test.folder,
        )
        self.process.wait_log("ready to receive web requests")
        self.url = "http://" + re.search(
            r'msg="Listening on" address=(\S+)', self.process.log()
        ).group(1)

    def file(self, role):
        return self.test.path("%s.targets.json" % role)

    def write_targets(self, role):
        # The file is replaced by a rename, so that Prometheus never reads half of it.
        new = write(self.file(role) + ".new", json.dumps([{"targets": self.targets[role]}]))
        os.rename(new, self.file(role))

    def scrape(self, role, daemon):
        self.targets[role].append(daemon.instance)
        self.write_targets(role)

    def query(self, expression):
        """Returns the samples of a query as a list of (labels, value)."""
        url = "%s/api/v1/query?%s" % (self.url, urllib.parse.urlencode({"query": expression}))
        with urllib.request.urlopen(url, timeout=60) as answer:
            result = json.load(answer)["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]

    def firing(self, name=".+", **labels):
        """Returns the alerts with these labels that are firing now."""
        labels = "".join(',%s="%s"' % label for label in labels.items())
        return self.query('ALERTS{alertstate="firing",alertname=~"%s"%s}' % (name, labels))

    def wait_alert(self, name, **labels):
        wait_for("the alert %s %s" % (name, labels), lambda: self.firing(name, **labels))

    def fired(self):
        """Returns the names of all alerts that have fired since the start."""
        samples = self.query(
            'count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1h]))'
        )
        return [labels["alertname"] for labels, _ in samples]


class Daemon:
    """A daemon with a certificate. `instance` is the address of its metrics."""

    def __init__(self, test, program, name, *arguments, certificate=None, task=None):
        certificate = certificate or name
        if not os.path.exists(test.path("certs", certificate + ".pem")):
            extra = ["--task", task] if task else []
            test.psctl("cert", "issue", certificate, "--folder", "certs", "--host", ADDRESS, *extra)
        flags = ["--metrics-listen", ADDRESS + ":0", *test.tls(certificate), *arguments]
        if program == OPERATOR:  # serves metrics only
            self.process = test.start(program, name, *flags)
        else:
            self.process, self.address = test.start_listening(
                program, name, "--listen", ADDRESS + ":0", *flags
            )
        self.process.wait_log("metrics at ")
        url = self.process.log().split("metrics at ", 1)[1].split()[0]
        self.instance = re.fullmatch(r"https://(.+)/metrics", url).group(1)
        self.url, self.context = url, test.context

    @property
    def pid(self):
        return self.process.process.pid

    def metrics(self):
        with urllib.request.urlopen(self.url, timeout=60, context=self.context) as answer:
            return answer.read().decode()

    def value(self, metric):
        return float(re.search(r"(?m)^%s (\S+)" % metric, self.metrics()).group(1))

    def steps(self):
        return self.value("evergrad_worker_steps_total")

    def kill(self):
        self.process.process.kill()
        self.process.process.wait()


@unittest.skipUnless(os.access(PROMETHEUS, os.X_OK), NO_PROMETHEUS)
@unittest.skipUnless(
    os.environ.get(INSIDE), "namespaces need root or `unshare -Urnm`, and neither is to be had here"
)
class Alerts(Case):
    def tls(self, name):
        return [
            *("--tls-ca", self.path("certs", "ca.pem")),
            *("--tls-cert", self.path("certs", name + ".pem")),
            *("--tls-key", self.path("certs", name + ".key")),
        ]

    def setUp(self):
        super().setUp()
        self.psctl("cert", "init", "--folder", "certs")
        self.psctl("cert", "issue", "prometheus", "--folder", "certs", "--host", ADDRESS)
        self.context = ssl.create_default_context(cafile=self.path("certs", "ca.pem"))
        self.context.load_cert_chain(
            self.path("certs", "prometheus.pem"), self.path("certs", "prometheus.key")
        )
        write(self.path("rules.yaml"), faster(read(RULES), FASTER))
        self.prometheus = Server(self)

    def daemon(self, program, name, *arguments, **kw):
        daemon = Daemon(self, program, name, *arguments, **kw)
        self.prometheus.scrape(program, daemon)
        return daemon

    def coordinator(self, name, *arguments):
        return self.daemon(
            COORDINATOR,
            name,
            *("--runs", self.path(name, "runs"), "--state-dir", self.path(name, "state")),
            *("--checkpoint-root", self.folder),
            *("--lease", "5s", "--window", "200ms", "--server-lost-after", "5s"),
            *arguments,
            task="coordinator"
        )

    def submit(self, name, to, fields="", rate="0.001", expect=0):
        job = write(self.path(name + ".yaml"), JOB % (name, fields, rate))
        self.psctl(
            *("job", "submit", job, "--coordinator", to.address),
            *self.tls("prometheus"),
            expect=expect
        )

    def wait_value(self, expression):
        """Waits until the query returns a sample."""
        return wait_for(expression, lambda: self.prometheus.query(expression))

    def test_every_query_of_the_board_has_data_and_every_alert_fires(self):
        alerts = re.findall(r"(?m)^ *- alert: (\w+)$", read(RULES))
        self.assertGreater(len(alerts), 10)
        first = self.coordinator("coordinator")
        to = ["--coordinator", first.address]
        root = ["--checkpoint-root", self.folder]
        servers = [
            self.daemon(PS_SERVER, "ps-server-%d" % i, "--index", i, *to, *root) for i in range(2)
        ]
        worker = ["--threads", 1, "--not-finite", "skip", *to]
        workers = [self.daemon(WORKER, "worker-%d" % i, "--name", i, *worker) for i in range(2)]
        self.submit("watched", first)
        self.submit("waits", first)
        self.wait_value("evergrad_coordinator_job_steps_done > 100")
        self.wait_value("evergrad_coordinator_job_checkpoint_age_seconds < 2")
        wait_for("no alert of a healthy cluster", lambda: not self.prometheus.firing())
        self.promtool_accepts_the_metrics_of([first, *servers, *workers])

        self.a_worker_is_slow(workers)
        self.a_server_and_a_worker_die(servers, workers)
        self.every_query_of_the_board_returns_data()
        self.data_are_slow_and_values_not_finite(first)
        self.a_process_runs_out_of_descriptors(servers[0])
        self.a_certificate_expires_and_its_renewal_is_useless(worker)
        self.the_journal_fails()
        self.checkpoints_fail_and_the_last_worker_dies(workers[0])
        self.workers_die_again_and_again(worker)
        self.an_operator_cannot_work(to)
        self.coordinators_die()
        self.assertEqual(sorted(self.prometheus.fired()), sorted(alerts))

    def promtool_accepts_the_metrics_of(self, daemons):
        for daemon in daemons:
            r = subprocess.run(
                [PROMTOOL, "check", "metrics"],
                input=daemon.metrics(),
                capture_output=True,
                text=True,
                timeout=90,
            )
            self.assertEqual((r.returncode, r.stdout + r.stderr), (0, ""), daemon.instance)

    def a_worker_is_slow(self, workers):
        """Stops worker 1 for 24 of about every 27 steps of worker 0. It is usually stopped while it
        computes a gradient, which is then 24 updates old when it is pushed."""
        fast, slow = workers

        def turns():
            slow.process.process.send_signal(signal.SIGSTOP)
            until = fast.steps() + 24
            wait_for("steps of the fast worker", lambda: fast.steps() >= until)
            slow.process.process.send_signal(signal.SIGCONT)
            until = slow.steps() + 1
            wait_for("a step of the slow worker", lambda: slow.steps() >= until)
            return self.prometheus.firing("EvergradGradientsStale", exported_job="watched")

        wait_for("EvergradGradientsStale", turns)

    def a_server_and_a_worker_die(self, servers, workers):
        servers[1].kill()
        workers[1].kill()
        for daemon in (servers[1], workers[1]):
            self.prometheus.wait_alert("EvergradTaskDown", instance=daemon.instance)
        self.prometheus.wait_alert("EvergradServerLost")
        self.wait_value("evergrad_coordinator_workers_gone_total > 0")

    def every_query_of_the_board_returns_data(self):
        panels = json.loads(read(BOARD))["panels"]
        queries = [(panel["title"], t["expr"]) for panel in panels for t in panel["targets"]]
        self.assertGreater(len(queries), len(panels))
        for title, query in queries:
            query = query.replace("$__rate_interval", "%dms" % (20 * SCRAPE_MS))
            query = re.sub(r" or vector\(0\)$", "", query)  # It would always return data.
            with self.subTest(panel=title, query=query):
                wait_for(
                    "data of the panel %s: %s" % (title, query),
                    lambda: any(math.isfinite(v) for _, v in self.prometheus.query(query)),
                )

    def data_are_slow_and_values_not_finite(self, coordinator):
        """Runs a job whose data has a large field that the model does not use. Reading a batch then
        takes longer than its step. The learning rate makes the updates infinite."""
        for job in ("waits", "watched"):
            self.psctl(
                *("job", "cancel", job, "--coordinator", coordinator.address),
                *self.tls("prometheus")
            )
        self.submit(
            "hungry",
            coordinator,
            fields="unused: {type: float, size: 4096}",
            rate="1e6",
        )
        self.prometheus.wait_alert("EvergradUpdatesNotFinite")
        self.prometheus.wait_alert("EvergradWorkersWaitForData")

    def a_process_runs_out_of_descriptors(self, daemon):
        """Leaves only two descriptors of the daemon free. They are needed to read the metric
        itself."""
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)

        def short():
            used = len(os.listdir("/proc/%d/fd" % daemon.pid))
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (used + 2, before[1]))
            return self.prometheus.firing("EvergradDescriptorsShort", instance=daemon.instance)

        wait_for("EvergradDescriptorsShort", short)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)

    def a_certificate_expires_and_its_renewal_is_useless(self, arguments):
        """Starts a worker whose certificate is valid for one day, and replaces the certificate by
        one that belongs to another key."""
        for name, days in (("worker-3", 1), ("another", 365)):
            self.psctl(
                *("cert", "issue", name, "--folder", "certs", "--host", ADDRESS, "--days", days)
            )
        worker = self.daemon(WORKER, "worker-3", "--name", 3, *arguments)
        self.prometheus.wait_alert("EvergradCertificateExpires", instance=worker.instance)
        os.rename(self.path("certs", "another.pem"), self.path("certs", "worker-3.pem"))
        self.prometheus.wait_alert("EvergradCertificatesNotReloaded", instance=worker.instance)
        worker.kill()

    def the_journal_fails(self):
        """Starts a second coordinator with a low limit for its journal. Then another program fills
        the disk of the journal."""
        disk = self.path("second")
        os.mkdir(disk)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", disk], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", disk], check=True)
        second = self.coordinator("second", "--state-bytes-max", "160KiB")
        many = "\n      ".join("field_%d: {type: float, size: 1}" % i for i in range(400))
        for job in itertools.count():
            self.submit("queued-%d" % job, second, fields=many)
            size = "evergrad_coordinator_journal_file_bytes_"
            if second.value(size + "current") > 0.8 * second.value(size + "limit"):
                break
        self.prometheus.wait_alert("EvergradJournalFull", instance=second.instance)
        with open(os.path.join(disk, "other"), "wb", buffering=0) as other:
            with self.assertRaises(OSError):
                while True:
                    other.write(bytes(4096))
        self.submit("refused", second, expect=None)
        self.prometheus.wait_alert("EvergradJournalFails", instance=second.instance)

    def checkpoints_fail_and_the_last_worker_dies(self, worker):
        """Puts a file in the place of the folder of the checkpoints, so that no checkpoint can be
        written."""
        (folder,) = glob.glob(self.path("coordinator", "runs", "hungry-*", "checkpoint"))
        os.rename(folder, folder + ".away")
        write(folder, "")
        worker.kill()
        for alert in ("CheckpointOld", "JobWithoutWorkers", "JobStalled"):
            self.prometheus.wait_alert("Evergrad" + alert, exported_job="hungry")

    def workers_die_again_and_again(self, arguments):
        starts = itertools.count()

        def dies():
            worker = Daemon(
                self,
                WORKER,
                "dies-%d" % next(starts),
                *("--name", 2, *arguments),
                certificate="worker-2"
            )
            worker.process.wait_log("registered with the coordinator")
            worker.kill()
            return self.prometheus.firing("EvergradManyWorkersGone")

        wait_for("EvergradManyWorkersGone", dies)

    def an_operator_cannot_work(self, to):
        """Starts an operator whose API server first refuses all changes, and then disappears."""
        with FakeApi("alerts") as api:
            api.set_rules(*(Rule("error-500", kind, times=None) for kind in ("patch", "status")))
            api.apply("stuck", {})
            at = ["--api-server", api.url, "--namespace", "alerts"]
            operator = self.daemon(OPERATOR, "operator", *at, *to, task="operator")
            self.prometheus.wait_alert("EvergradObjectsFail", instance=operator.instance)
            api.stop_listening()
            self.prometheus.wait_alert("EvergradOperatorCutOff", instance=operator.instance)
            operator.kill()

    def coordinators_die(self):
        for process in self.processes:
            if process.name in ("coordinator", "second"):
                process.process.kill()
                process.process.wait()
        self.prometheus.wait_alert("EvergradCoordinatorDown")


if __name__ == "__main__":
    run_as_machine(ADDRESS)
    main()
