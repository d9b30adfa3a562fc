#!/usr/bin/env python3
"""Tests who may call what. The table of docs/security.md is compared with the RPCs of the protos,
and every RPC is called on real daemons, under every role, with right and wrong certificates.

  rights_test.py --bin build/release/bin [unittest arguments]
"""
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from machines import signed_by_openssl  # noqa: E402
from support import (  # noqa: E402
    COORDINATOR,
    COUNTING,
    PS_SERVER,
    ROOT,
    WORKER,
    Case,
    binary,
    main,
    read,
    wait_for,
    write,
)

PAGE = os.path.join(ROOT, "docs", "security.md")
PROTOS = os.path.join(ROOT, "protos", "evergrad", "v1")
# An RPC without a declaration: the service Data uses gRPC's generic API, and the health protocol is
# gRPC's.
UNDECLARED = {"/evergrad.v1.Data/Stream", "/grpc.health.v1.Health/Check"}
NOBODY = "none"  # a certificate that names no task
ADDRESS = "127.0.0.1"


def rights(*arguments, calls=()):
    r = subprocess.run(
        [binary("evergrad-rights"), *arguments],
        input="".join(json.dumps(call) + "\n" for call in calls),
        capture_output=True,
        text=True,
        timeout=500,
    )
    if r.returncode != 0:
        raise AssertionError("evergrad-rights %s: %s" % (" ".join(arguments), r.stderr))
    return r.stdout


def make(calls):
    """Makes the calls, and returns the result of each."""
    results = [json.loads(line) for line in rights("call", calls=calls).splitlines()]
    if len(results) != len(calls):
        raise AssertionError("%d results of %d calls" % (len(results), len(calls)))
    return results


def declared_methods():
    """Returns the paths of all RPCs that the protos declare."""
    found = set()
    for name in sorted(os.listdir(PROTOS)):
        text = re.sub(r"//[^\n]*", "", read(os.path.join(PROTOS, name)))
        package = re.search(r"(?m)^package ([\w.]+);", text).group(1)
        for service, body in re.findall(r"\bservice (\w+) \{([^}]*)\}", text):
            for method in re.findall(r"\brpc (\w+)\(", body):
                found.add("/%s.%s/%s" % (package, service, method))
    return found


def documented():
    """Returns the table of docs/security.md: {(method, kind): {role: cell}}."""
    block = re.search(r"(?s)<!-- generated: rights -->\n(.*?)<!-- end -->", read(PAGE)).group(1)
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in block.splitlines()]
    table = [line for line in lines if len(line) > 3]
    roles = table[0][2:-1]
    found = {}
    for row in table[2:]:
        method, kind = re.fullmatch(r"`(\S+)`(?: \((\w+ session)\))?", row[0]).groups()
        found["/" + method, kind] = dict(zip(roles, row[2:-1]))
    return found


def task_of(role):
    return role if role == "coordinator" else role + "/9"


class Cluster(Case):
    """One daemon of each kind on loopback, with TLS."""

    def setUp(self):
        super().setUp()
        self.psctl("cert", "init", "--folder", "certs")
        self.issue("coordinator", "coordinator")
        self.start_coordinator()

    def issue(self, name, task, folder="certs"):
        self.psctl("cert", "issue", name, "--task", task, "--folder", folder)

    def files(self, name, folder="certs"):
        return [
            "--tls-ca",
            self.path(folder, "ca.pem"),
            "--tls-cert",
            self.path(folder, name + ".pem"),
            "--tls-key",
            self.path(folder, name + ".key"),
        ]

    def start_coordinator(self):
        self.coordinator, self.address = self.start_listening(
            COORDINATOR,
            "coordinator",
            "--listen",
            ADDRESS + ":0",
            "--runs",
            self.path("runs"),
            "--state-dir",
            self.path("state"),
            "--failpoints",
            "none",
            *self.files("coordinator"),
            address_file=self.path("address-%d" % len(self.processes))
        )

    def start_task(self, program, name, *flags):
        return self.start_listening(
            program,
            name,
            "--listen",
            ADDRESS + ":0",
            "--coordinator",
            self.address,
            *flags,
            *self.files(name)
        )

    def start_worker(self):
        self.issue("worker-0", "worker/0")
        flags = ["--name", 0, "--threads", 1, "--device", "cpu", "--failpoints", "none"]
        return self.start_task(WORKER, "worker-0", *flags)

    def as_user(self, name, *arguments, **kw):
        """Runs psctl with the certificate `name`."""
        return self.psctl(
            *arguments, "--coordinator", self.address, *self.files(name), timeout=120, **kw
        )

    def call(self, method, certificate, kind="unary"):
        return {
            "address": self.address,
            "method": method,
            "kind": kind,
            "ca": self.path("certs", "ca.pem"),
            "cert": self.path("certs", certificate + ".pem"),
            "key": self.path("certs", certificate + ".key"),
        }


class Matrix(Cluster):
    def setUp(self):
        if not shutil.which("openssl"):
            self.skipTest("no openssl to make certificates that psctl does not make")
        super().setUp()
        self.table = json.loads(rights("table"))
        self.roles = self.table["roles"]
        self.psctl("cert", "init", "--folder", "others")
        for role in self.roles:
            for folder in ("certs", "others"):
                self.issue("right-" + role, task_of(role), folder)
            self.sign("expired-" + role, -1, "evergrad://" + task_of(role))
        for folder in ("certs", "others"):
            self.sign("right-" + NOBODY, 1, None, folder)
        self.sign("expired-" + NOBODY, -1, None)
        self.sign("right-unknown", 1, "evergrad://scheduler/9")

    def sign(self, name, days, uri, folder="certs"):
        signed_by_openssl(self.path(folder), name, ADDRESS, days, uri)

    def certificates(self):
        """Yields (kind, identity, members of the call) for each certificate, and for clients
        without one."""
        authority = self.path("certs", "ca.pem")
        for identity in self.roles + [NOBODY]:
            for kind, folder, name in (
                ("right CA", "certs", "right-"),
                ("other CA", "others", "right-"),
                ("expired", "certs", "expired-"),
            ):
                path = self.path(folder, name + identity)
                yield kind, identity, {
                    "ca": authority,
                    "cert": path + ".pem",
                    "key": path + ".key",
                }
        unknown = self.path("certs", "right-unknown")
        yield "right CA", "unknown", {
            "ca": authority,
            "cert": unknown + ".pem",
            "key": unknown + ".key",
        }
        yield "no certificate", NOBODY, {"ca": authority}
        yield "plaintext", NOBODY, {}

    def want(self, row, daemon, kind, identity):
        """Returns the results that the documents permit."""
        if kind != "right CA":
            return ["no connection"]
        if identity not in self.roles:
            return ["PERMISSION_DENIED"]
        if row["daemon"] == "every daemon":
            return ["OK"]
        if row["daemon"] != daemon:
            # A worker ends a malformed data stream without having served anything.
            served = row["kind"] == "data" and daemon == "worker"
            return ["UNIMPLEMENTED", "INVALID_ARGUMENT"] if served else ["UNIMPLEMENTED"]
        cells = self.documented[row["method"], row["kind"] if "session" in row["kind"] else None]
        may = cells[identity] in ("yes", "own")
        if "session" in row["kind"]:
            return ["registered" if may else "rejected: certificate"]
        # A handler refuses the bytes of these calls as malformed.
        return ["INVALID_ARGUMENT"] if may else ["PERMISSION_DENIED"]

    def test_every_rpc_of_the_protos_has_a_row_and_every_row_is_an_rpc(self):
        rows = {row["method"] for row in self.table["rows"]}
        self.assertEqual(rows, declared_methods() | UNDECLARED)
        self.assertEqual({method for method, _ in documented()}, rows)
        for cells in documented().values():
            self.assertEqual(list(cells), self.roles)
            self.assertLessEqual(set(cells.values()), {"yes", "own", ""})

    def test_every_rpc_under_every_role_and_certificate_on_every_daemon(self):
        self.documented = documented()
        self.issue("ps-server-0", "ps_server/0")
        _, server = self.start_task(PS_SERVER, "ps-server-0", "--index", 0)
        _, worker = self.start_worker()
        self.issue("admin", "admin/carol")
        wait_for(
            "three tasks to register",
            lambda: self.as_user("admin", "task", "list").stdout.count("alive") == 3,
        )
        cases, calls = [], []
        for daemon, address in (
            ("coordinator", self.address),
            ("ps_server", server),
            ("worker", worker),
        ):
            for kind, identity, certificate in self.certificates():
                for row in self.table["rows"]:
                    cases.append((row, daemon, kind, identity))
                    calls.append(
                        dict(certificate, address=address, method=row["method"], kind=row["kind"])
                    )
        wrong, counts = [], {}
        for case, result in zip(cases, make(calls)):
            row, daemon, kind, identity = case
            counts[result["result"]] = counts.get(result["result"], 0) + 1
            want = self.want(*case)
            if result["result"] not in want:
                wrong.append(
                    "%s %s at the %s as %s (%s): want=%s got=%s %s"
                    % (
                        row["kind"],
                        row["method"],
                        daemon,
                        identity,
                        kind,
                        want,
                        result["result"],
                        result["message"],
                    )
                )
        print("results of %d calls: %s" % (len(calls), counts))
        self.assertEqual(wrong, [], "\n".join(wrong[:40]))
        # Every kind of result must occur, because otherwise the calls would not be told apart.
        self.assertEqual(
            set(counts) - {"OK"},
            {
                "no connection",
                "PERMISSION_DENIED",
                "INVALID_ARGUMENT",
                "UNIMPLEMENTED",
                "registered",
                "rejected: certificate",
            },
        )
        # No call has changed anything.
        jobs = json.loads(self.as_user("admin", "job", "list", "--output", "json").stdout)["jobs"]
        self.assertEqual(jobs, [])
        # The audit log has a line for each call that was refused to a role, or has counted it.
        refused = sum(
            1
            for row, daemon, kind, identity in cases
            if (daemon, kind) == ("coordinator", "right CA")
            and "/evergrad.v1.Control/" in row["method"]
            and identity in self.roles
            and identity not in row["roles"]
        )

        def logged():
            log = self.coordinator.log()
            left_out = re.findall(r"audit: lines about .* left_out=(\d+)", log)
            return log.count("result=PERMISSION_DENIED: certificate is for ") + sum(
                int(n) for n in left_out
            )

        wait_for("%d refusals in the audit log" % refused, lambda: logged() == refused)
        self.assertGreater(refused, 50)


class Roles(Cluster):
    """Explicit cases with psctl: the rights of tasks and viewers, and the owners of jobs."""

    def setUp(self):
        super().setUp()
        for name in ("alice", "bob"):
            self.issue(name, "user/" + name)
        self.issue("viewer", "viewer/board")
        self.issue("admin", "admin/carol")
        self.job = write(self.path("job.yaml"), COUNTING % ("counted", 100, 0, 1))

    def submit(self, name, job="counted"):
        write(self.job, COUNTING % (job, 100, 0, 1))
        text = self.as_user(name, "job", "submit", self.job, "--output", "json").stdout
        return json.loads(text)["job_uid"]

    def refused(self, name, *arguments, told):
        r = self.as_user(name, *arguments, expect=2)
        self.assertIn(told, r.stderr)
        return r

    def test_a_viewer_can_look_and_nothing_else(self):
        uid = self.submit("alice")
        for arguments in (
            ["job", "list"],
            ["job", "show", uid],
            ["task", "list"],
            ["logs"],
        ):
            with self.subTest(" ".join(arguments)):
                self.as_user("viewer", *arguments)
        for arguments in (
            ["job", "submit", self.job],
            ["job", "cancel", uid],
            ["job", "delete", uid],
            ["task", "drain", "worker/0"],
            ["task", "cordon", "worker/0"],
        ):
            with self.subTest(" ".join(arguments)):
                self.refused("viewer", *arguments, told="certificate is for viewer/board, expected")

    def test_a_workers_certificate_cannot_submit_cancel_drain_or_register_as_a_server(self):
        worker, _ = self.start_worker()
        uid = self.submit("alice")
        for arguments in (
            ["job", "submit", self.job],
            ["job", "cancel", uid],
            ["task", "drain", "worker/0"],
            ["job", "list"],
        ):
            with self.subTest(" ".join(arguments)):
                self.refused("worker-0", *arguments, told="certificate is for worker/0, expected")
        session = self.call("/evergrad.v1.Coordinator/Session", "worker-0", "server session")
        self.assertEqual(
            make([session]),
            [
                {
                    "result": "rejected: certificate",
                    "message": "certificate is for worker/0, expected ps_server/9",
                }
            ],
        )
        self.assertIsNone(worker.process.poll())

    def test_a_user_changes_only_own_jobs_and_an_admin_all_also_after_a_restart(self):
        uid = self.submit("alice")
        told = (
            "the job belongs to another user: job=counted/%s owner=user/alice caller=user/bob" % uid
        )
        self.refused("bob", "job", "cancel", uid, told=told)
        self.assertRegex(
            self.as_user("bob", "job", "list").stdout, r"(?m)^counted +%s +user/alice " % uid
        )
        self.assertIn("submitted by user/alice", self.as_user("bob", "job", "show", uid).stdout)
        self.coordinator.end()
        self.start_coordinator()
        status = json.loads(self.as_user("bob", "job", "show", uid, "--output", "json").stdout)
        self.assertEqual(status["owner"], "user/alice")
        self.refused("bob", "job", "cancel", uid, told=told)
        self.as_user("alice", "job", "cancel", uid)
        self.refused("bob", "job", "delete", uid, told=told)
        other = self.submit("bob", "other")
        self.as_user("admin", "job", "cancel", other)
        log = self.coordinator.log()
        for line in (
            r"audit: action=SubmitJob caller=user/alice peer=ipv4:\S+ object=counted/%s result=ok",
            r"audit: action=CancelJob caller=user/bob peer=ipv4:\S+ object=counted/%s "
            r"result=PERMISSION_DENIED: the job belongs to another user: ",
            r"audit: action=CancelJob caller=user/alice peer=ipv4:\S+ object=counted/%s result=ok",
        ):
            self.assertRegex(log, line % uid)
        self.assertRegex(
            log,
            r"audit: action=CancelJob caller=admin/carol peer=\S+ object=other/%s result=ok"
            % other,
        )

    def test_only_an_admin_drains_a_task(self):
        worker, _ = self.start_worker()
        wait_for(
            "the worker to register",
            lambda: "worker/0" in self.as_user("alice", "task", "list").stdout,
        )
        drain = ["task", "drain", "worker/0"]
        self.refused("alice", *drain, told="certificate is for user/alice, expected admin")
        self.assertIsNone(worker.process.poll())
        self.as_user("admin", *drain)
        wait_for("the worker to leave", lambda: worker.process.poll() is not None)
        self.assertEqual(worker.process.returncode, 0)


if __name__ == "__main__":
    main()
