#!/usr/bin/env python3
"""Tests preemption notices with real daemons, and with imitations of the clouds' metadata services.

  preemption_test.py --bin build/release/bin [Settings|Workers|Recommendations|…]
"""
import http.server
import json
import os
import sys
import threading
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from support import (  # noqa: E402
    COORDINATOR,
    COUNTING,
    PS_SERVER,
    WORKER,
    Case,
    main,
    read,
    wait_for,
    write,
)

MACHINE = "spot_3"
EVENT = "602d9444-d2cd-49c7-8624-8643e7171297"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.fake.answer(self)

    do_PUT = do_POST = do_GET

    def log_message(self, *arguments):
        pass


class Fake:
    """The imitated metadata service of one cloud. `state` says what it announces: "none", "notice"
    or "recommended". The other states are faults: "silent", "garbage" or an HTTP status. The
    service counts its answers, separately for each state."""

    def __init__(self, test):
        self.state, self.answered, self.acknowledged = "none", {}, []
        self.changed = threading.Condition()
        self.ended = False
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.fake = self
        self.url = "http://127.0.0.1:%d" % self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, name="metadata")
        self.thread.start()
        test.addCleanup(self.end)

    def end(self):
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def enter(self, state):
        with self.changed:
            self.state = state
            self.answered[state] = 0
            self.changed.notify_all()

    def wait_answers(self, count):
        """Waits until the service has answered `count` requests since its present state began."""
        with self.changed:
            state = self.state
        wait_for(
            "%d answers in the state %s" % (count, state),
            lambda: self.answered.get(state, 0) >= count,
        )

    def wait_change(self, before, seconds):
        """Holds back an answer until the state is no longer `before`. The service calls this method
        for a request that waits for a change."""
        with self.changed:
            self.changed.wait_for(lambda: self.ended or self.state != before, seconds)

    def answer(self, request):
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length).decode()
        with self.changed:
            state = self.state
            self.answered[state] = self.answered.get(state, 0) + 1
            self.changed.notify_all()
        if state == "silent":
            self.wait_change(state, 600)
            return
        if state == "garbage":
            status, text, headers = 200, "\x01<html>{[" * 50, {}
        elif isinstance(state, int):
            status, text, headers = state, "TRUE", {}
        else:
            status, text, headers = self.reply(state, request, body)
        data = text.encode()
        try:
            request.send_response(status)
            for name, value in headers.items():
                request.send_header(name, value)
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)
        except OSError:
            pass  # the daemon has ended


class Gce(Fake):
    source = "gce"
    notice = "preemption notice: Compute Engine reclaims this machine within 30 s"

    def reply(self, state, request, body):
        if request.headers.get("Metadata-Flavor") != "Google":
            return 403, "", {}
        path, _, query = request.path.partition("?")
        if path != "/computeMetadata/v1/instance/preempted":
            return 404, "", {"Metadata-Flavor": "Google"}
        value = "TRUE" if state == "notice" else "FALSE"
        # A request that names the current etag waits for the next change.
        if "wait_for_change=true" in query and "last_etag=%s" % value in query:
            self.wait_change(state, 60)
            value = "TRUE" if self.state == "notice" else "FALSE"
        return 200, value, {"Metadata-Flavor": "Google", "ETag": value}


class Aws(Fake):
    source = "aws"
    notice = "preemption notice: EC2 reclaims this machine: action=terminate time=2026-11-26T21:00"
    recommendation = "EC2 recommends to leave this machine: rebalance recommendation of 2026-11-26"

    def __init__(self, test):
        super().__init__(test)
        self.tokens = set()

    def reply(self, state, request, body):
        if (request.command, request.path) == ("PUT", "/latest/api/token"):
            if not request.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
                return 400, "", {}
            token = "token-%d" % len(self.tokens)
            self.tokens.add(token)
            return 200, token, {}
        if request.headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            return 401, "", {}
        if request.path == "/latest/meta-data/instance-id":
            return 200, "i-0123456789abcdef0", {}
        if request.path == "/latest/meta-data/spot/instance-action" and state == "notice":
            return 200, '{"action": "terminate", "time": "2026-11-26T21:00:00Z"}', {}
        recommends = request.path == "/latest/meta-data/events/recommendations/rebalance"
        if recommends and state in ("recommended", "notice"):
            return 200, '{"noticeTime": "2026-11-26T20:50:00Z"}', {}
        return 404, "", {}


class Azure(Fake):
    source = "azure"
    notice = "preemption notice: Azure reclaims this machine: event=Preempt not_before=Thu, 26 Nov"

    def reply(self, state, request, body):
        if request.headers.get("Metadata") != "true":
            return 400, "", {}
        path = request.path.partition("?")[0]
        if "api-version=" not in request.path:
            return 400, "", {}
        if path == "/metadata/instance/compute/name":
            return 200, MACHINE, {}
        if path == "/metadata/instance/compute/azEnvironment":
            return 200, "AzurePublicCloud", {}
        if path != "/metadata/scheduledevents":
            return 404, "", {}
        if request.command == "POST":
            self.acknowledged.append(json.loads(body))
            return 200, "", {}
        events = []
        if state == "notice":
            for machine, event in (("spot_4", "another"), (MACHINE, EVENT)):
                events.append(
                    {
                        "EventId": event,
                        "EventType": "Preempt",
                        "ResourceType": "VirtualMachine",
                        "Resources": [machine],
                        "EventStatus": "Scheduled",
                        "NotBefore": "Thu, 26 Nov 2026 21:00:30 GMT",
                    }
                )
        return 200, json.dumps({"DocumentIncarnation": 1, "Events": events}), {}


def watch(fake, source=None):
    return ["--preemption-source", source or fake.source, "--preemption-metadata-url", fake.url]


class Daemons(Case):
    """Tests that start a coordinator and add tasks to it."""

    def coordinator(self, *arguments):
        # With failpoints the coordinator accepts jobs of the type counting.
        process, address = self.start_listening(
            COORDINATOR,
            "coordinator",
            *("--runs", self.path("runs"), "--state-dir", self.path("state")),
            *("--failpoints", "none", "--metrics-listen", "127.0.0.1:0"),
            *("--lease", "30s"),  # so that no task is lost on a busy machine
            *arguments
        )
        self.to = ["--coordinator", address]
        return process

    def worker(self, name, *arguments):
        return self.start_listening(
            WORKER,
            "worker-" + name,
            *("--name", name, "--threads", 1, "--failpoints", "none"),
            *("--metrics-listen", "127.0.0.1:0", *self.to),
            *arguments
        )[0]

    def server(self, index, *arguments):
        return self.start_listening(
            PS_SERVER,
            "server-%d" % index,
            *("--index", index, "--metrics-listen", "127.0.0.1:0", *self.to),
            *arguments
        )[0]

    def counter(self, process, name, **labels):
        """Returns the value of a counter of a daemon."""
        process.wait_log("metrics at ")
        url = process.log().split("metrics at ", 1)[1].split()[0]
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
        series = name + "{%s}" % ",".join('%s="%s"' % pair for pair in labels.items())
        for line in text.splitlines():
            if line.startswith(series + " "):
                return float(line.split()[-1])
        self.fail("no series %s in:\n%s" % (series, text))

    def submit(self):
        """Submits a job whose steps take 5 ms. It does not end while a test runs."""
        job = write(self.path("job.yaml"), COUNTING % ("long", 100000, 5, 1000))
        self.psctl("job", "submit", job, *self.to)

    def job(self):
        return self.psctl_json("job", "show", "long", *self.to)

    def wait_steps(self, more):
        begin = self.job()["steps_done"]
        wait_for("%d more steps" % more, lambda: self.job()["steps_done"] >= begin + more)

    def wait_event(self, kind, text):
        def there():
            return [e for e in self.job()["events"] if e["kind"] == kind and text in e["text"]]

        wait_for("an event %s: %s" % (kind, text), there)

    def wait_tasks(self, count):
        def there():
            tasks = self.psctl_json("task", "list", *self.to)["tasks"]
            return len([t for t in tasks if t["state"] == "alive"]) == count and tasks

        return wait_for("%d tasks" % count, there)

    def end_job(self):
        self.psctl("job", "cancel", "long", *self.to)

    def wait_left(self, process, fake):
        """Checks that the daemon ends with exit code 0 because of the notice."""
        wait_for(process.name + " to leave", lambda: process.process.poll() is not None)
        self.assertEqual(process.process.returncode, 0, process.log())
        self.assertIn("leaving: " + fake.notice, process.log())


class Settings(Daemons):
    def test_settings_without_effect_are_refused_by_every_daemon(self):
        url = ("--preemption-metadata-url", "http://127.0.0.1:1")
        for words, arguments in (
            ("needs --preemption-notice-file", ["--preemption-source", "file"]),
            ("expected one of none, file, gce", ["--preemption-source", "gcp"]),
            (
                "belongs to --preemption-source file",
                ["--preemption-source", "gce", "--preemption-notice-file", "/n"],
            ),
            (
                "belongs to --preemption-source file",
                ["--preemption-source", "none", "--preemption-notice-file", "/n"],
            ),
            ("--preemption-metadata-url needs --preemption-source", url),
            ("got file", [*url, "--preemption-notice-file", "/n"]),
            (
                "expected http://ADDRESS",
                ["--preemption-source", "gce", "--preemption-metadata-url", "https://127.0.0.1"],
            ),
            (
                "expected http://ADDRESS",
                ["--preemption-source", "aws", "--preemption-metadata-url", "http://metadata"],
            ),
            ("only EC2 sends", ["--preemption-source", "gce", "--on-rebalance", "drain"]),
            ("only EC2 sends", ["--on-rebalance", "drain"]),
            (
                "expected one of ignore, drain",
                ["--preemption-source", "aws", "--on-rebalance", "leave"],
            ),
        ):
            for program in (COORDINATOR, PS_SERVER, WORKER):
                with self.subTest(program + " " + " ".join(arguments)):
                    to = [] if program == COORDINATOR else ["--coordinator", "127.0.0.1:1"]
                    process = self.start(program, "refused", *to, *arguments)
                    self.assertEqual(process.process.wait(60), 2)
                    self.assertIn(words, process.log())
                    os.unlink(process.log_path)

    def test_the_help_has_every_flag(self):
        for program in (COORDINATOR, PS_SERVER, WORKER):
            process = self.start(program, "help-" + program, "--help")
            self.assertEqual(process.process.wait(60), 0)
            for flag in ("source", "notice-file", "metadata-url"):
                self.assertRegex(process.log(), r"(?m)^  --preemption-%s " % flag)
            self.assertRegex(process.log(), r"(?m)^  --on-rebalance ignore\|drain .*default ignore")
            self.assertRegex(
                process.log(),
                r"(?m)^  --preemption-source none\|file\|gce\|aws\|azure\|auto .*default none",
            )

    def test_only_a_source_that_is_a_cloud_starts_the_thread_that_sends_requests(self):
        self.coordinator()
        path = self.path("notice")
        fake = Gce(self)
        workers = {
            "none": self.worker("none"),
            "file": self.worker("file", "--preemption-notice-file", path),
            "gce": self.worker("gce", *watch(fake)),
        }
        self.wait_tasks(4)
        fake.wait_answers(1)
        workers["file"].wait_log("listening on ")

        def threads(name):
            folder = "/proc/%d/task" % workers[name].process.pid
            return [read(os.path.join(folder, t, "comm")).strip() for t in os.listdir(folder)]

        wait_for("the watch of the file", lambda: "notice-file" in threads("file"))
        self.assertIn("notices", threads("gce"))
        for name in ("none", "file"):
            self.assertNotIn("notices", threads(name))
        write(path, "")
        wait_for("the worker to leave", lambda: workers["file"].process.poll() is not None)
        self.assertEqual(workers["file"].process.returncode, 0, workers["file"].log())
        self.assertIn("leaving: preemption notice", workers["file"].log())


class Workers(Daemons):
    """After a notice of each cloud, a worker must leave within one step, and the job must
    continue."""

    def notice(self, fake, source=None):
        self.coordinator()
        self.server(0)
        self.worker("stays")
        worker = self.worker("leaves", *watch(fake, source))
        self.wait_tasks(4)
        self.submit()
        self.wait_steps(20)
        fake.wait_answers(2)
        self.assertIsNone(worker.process.poll())
        notices = "evergrad_worker_preemption_notices_total"
        self.assertEqual(self.counter(worker, notices, source=fake.source), 0)
        fake.enter("notice")
        self.wait_left(worker, fake)
        self.wait_event("drain", "worker/leaves leaves: " + fake.notice)
        self.wait_steps(20)
        job = self.job()
        deaths = [e["text"] for e in job["events"] if e["kind"] == "death"]
        self.assertEqual([text for text in deaths if "worker/leaves" in text], [])
        self.end_job()
        return worker

    def test_gce(self):
        self.notice(Gce(self))

    def test_aws(self):
        self.notice(Aws(self))

    def test_azure_is_acknowledged_after_the_drain(self):
        fake = Azure(self)
        worker = self.notice(fake)
        self.assertEqual(fake.acknowledged, [{"StartRequests": [{"EventId": EVENT}]}])
        log = worker.log()
        self.assertLess(
            log.index("leaving: "), log.index("the cloud knows that this task has handed over")
        )

    def test_azure_gets_no_acknowledgement_of_a_worker_that_is_only_stopped(self):
        fake = Azure(self)
        self.coordinator()
        worker = self.worker("a", *watch(fake))
        fake.wait_answers(3)
        self.assertEqual(worker.end(), 0)
        self.assertEqual(fake.acknowledged, [])

    def test_an_acknowledgement_without_an_answer_does_not_hold_up_the_end(self):
        fake = Azure(self)
        self.coordinator()
        worker = self.worker("a", *watch(fake))
        fake.wait_answers(3)

        reply = fake.reply

        def silent_posts(state, request, body):
            if request.command == "POST":
                fake.wait_change(state, 600)
            return reply(state, request, body)

        fake.reply = silent_posts
        fake.enter("notice")
        self.wait_left(worker, fake)


class Recommendations(Daemons):
    def test_a_recommendation_is_logged_and_counted_and_a_notice_follows(self):
        fake = Aws(self)
        self.coordinator()
        self.server(0)
        worker = self.worker("a", *watch(fake))
        self.wait_tasks(3)
        self.submit()
        self.wait_steps(1)
        fake.enter("recommended")
        worker.wait_log(fake.recommendation)
        name = "evergrad_worker_preemption_recommendations_total"
        self.assertEqual(self.counter(worker, name, source="aws"), 1)
        self.wait_event("warning", "worker/a: " + fake.recommendation)
        self.wait_steps(20)  # the worker must not leave
        self.assertIn("; " + fake.recommendation, self.psctl("task", "list", *self.to).stdout)
        self.assertIsNone(worker.process.poll())
        self.assertEqual(self.counter(worker, name, source="aws"), 1)
        fake.enter("notice")
        self.wait_left(worker, fake)
        self.end_job()

    def test_a_recommendation_drains_if_the_flag_says_so(self):
        for source in ("aws", "auto"):
            with self.subTest(source):
                fake = Aws(self)
                if source == "aws":
                    self.coordinator()
                worker = self.worker(source, *watch(fake, source), "--on-rebalance", "drain")
                fake.wait_answers(3)
                fake.enter("recommended")
                wait_for("the worker to leave", lambda: worker.process.poll() is not None)
                self.assertEqual(worker.process.returncode, 0, worker.log())
                self.assertIn("leaving: " + fake.recommendation, worker.log())


class Servers(Daemons):
    def test_the_shards_of_a_server_are_with_others_before_it_is_out(self):
        fake = Azure(self)
        self.coordinator()
        leaves = self.server(0, *watch(fake))
        self.server(1)
        self.worker("a")
        self.wait_tasks(4)
        self.submit()
        self.wait_steps(20)
        fake.enter("notice")
        self.wait_left(leaves, fake)
        self.wait_event("drain", "ps_server/0 has handed over")
        self.wait_steps(20)
        job = self.job()
        bad = [e for e in job["events"] if e["kind"] in ("death", "lost", "rollback")]
        self.assertEqual(bad, [])
        self.assertEqual(fake.acknowledged, [{"StartRequests": [{"EventId": EVENT}]}])
        self.end_job()


class Coordinators(Daemons):
    def test_a_coordinator_flushes_its_journal_and_another_continues(self):
        fake = Gce(self)
        coordinator = self.coordinator(*watch(fake))
        self.server(0)
        self.worker("a")
        self.wait_tasks(3)
        self.submit()
        self.wait_steps(20)
        fake.enter("notice")
        self.wait_left(coordinator, fake)
        # Another coordinator process must continue the job from the journal.
        os.rename(coordinator.log_path, self.path("first.log"))
        address = self.to[1]
        os.unlink(self.path("coordinator.address"))
        self.coordinator("--listen", address)
        self.wait_steps(20)
        self.end_job()


class Services(Daemons):
    """Tests metadata services that answer slowly, not at all, with errors and with garbage."""

    def mistakes(self, fake, states):
        self.coordinator()
        worker = self.worker("a", *watch(fake))
        fake.wait_answers(2)
        failed = "evergrad_worker_preemption_requests_failed_total"
        for state in states:
            before = self.counter(worker, failed, source=fake.source)
            fake.enter(state)
            wait_for(
                "a failed request in the state %s" % state,
                lambda: self.counter(worker, failed, source=fake.source) > before,
            )
            self.assertIsNone(worker.process.poll(), worker.log())
        self.assertEqual(
            worker.log().count("the metadata service gives no usable answer"), 1, worker.log()
        )
        fake.enter("none")
        worker.wait_log("the metadata service answers again: source=" + fake.source)
        fake.enter("notice")
        self.wait_left(worker, fake)

    def test_gce(self):
        self.mistakes(Gce(self), ["garbage", 404, 503, 401])

    def test_aws(self):
        self.mistakes(Aws(self), ["garbage", 500, "silent"])

    def test_aws_gets_a_new_token_when_the_old_one_has_expired(self):
        fake = Aws(self)
        self.coordinator()
        worker = self.worker("a", *watch(fake))
        fake.wait_answers(3)
        fake.tokens.clear()
        fake.enter("none")
        fake.wait_answers(3)  # 401, a new token, and an answer with that token
        self.assertTrue(fake.tokens)
        self.assertNotIn("no usable answer", worker.log())
        fake.enter("notice")
        self.wait_left(worker, fake)

    def test_azure(self):
        self.mistakes(Azure(self), ["garbage", 410, 401, "silent"])

    def test_an_absent_service_is_reported_once_and_does_not_matter(self):
        self.coordinator()
        worker = self.worker(
            "a", "--preemption-source", "aws", "--preemption-metadata-url", "http://127.0.0.1:1"
        )
        worker.wait_log("reason=no token: cannot connect: reason=Connection refused")
        self.wait_tasks(2)
        self.assertEqual(worker.end(), 0)

    def test_a_daemon_ends_at_once_in_the_middle_of_a_request(self):
        for fake in (Gce(self), Azure(self)):
            with self.subTest(fake.source):
                fake.enter("silent")
                process = self.start_listening(COORDINATOR, fake.source, *watch(fake))[0]
                fake.wait_answers(1)
                self.assertEqual(process.end(), 0)

    def test_auto_finds_each_cloud_and_nothing_elsewhere(self):
        for kind in (Gce, Aws, Azure):
            with self.subTest(kind.source):
                fake = kind(self)
                process = self.start_listening(COORDINATOR, kind.source, *watch(fake, "auto"))[0]
                process.wait_log(
                    "found the cloud whose preemption notices are watched: source=" + kind.source
                )
                fake.enter("notice")
                self.wait_left(process, fake)
        process = self.start_listening(
            COORDINATOR,
            "none",
            *("--preemption-source", "auto", "--preemption-metadata-url", "http://127.0.0.1:1"),
            *("--metrics-listen", "127.0.0.1:0")
        )[0]
        process.wait_log("source=auto reason=no cloud's metadata service answers: gce: cannot ")
        failed = "evergrad_coordinator_preemption_requests_failed_total"
        self.assertGreaterEqual(self.counter(process, failed, source="auto"), 1)


if __name__ == "__main__":
    main()
