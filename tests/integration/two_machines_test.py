#!/usr/bin/env python3
"""Tests clusters across machines and users: TLS between two network namespaces, unix sockets, and
paths with spaces. Every kind of client that does not belong to the cluster must be refused with the
reason.

  two_machines_test.py --bin build/release/bin [unittest arguments]

The two machines are network namespaces that a veth pair connects. A process of this test holds each
namespace, so both namespaces end with the test. They need root or a user namespace (`unshare
-Urnm`). In the second case the test runs itself again inside the namespace. If neither is
available, the tests that need machines are skipped with the reason.
"""
import os
import pwd
import shutil
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from machines import (
    INSIDE,
    Machine,
    can,
    run_inside_if_needed,
    signed_by_openssl,
    skip_without_namespaces,
    wire,
)  # noqa: E402
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


class TwoMachines(Case):
    NEAR, FAR = "10.213.77.1", "10.213.77.2"

    def setUp(self):
        super().setUp()
        skip_without_namespaces()
        self.near, self.far = Machine(self), Machine(self)
        wire((self.near, self.NEAR), (self.far, self.FAR))

    def certificate(self, name, folder="certs", *hosts, task=None):
        self.psctl(
            "cert",
            "issue",
            name,
            "--folder",
            folder,
            *[a for h in hosts for a in ("--host", h)],
            *(["--task", task] if task else [])
        )
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

    def test_a_job_trains_on_two_machines_with_mutual_tls_and_strangers_are_refused_by_name(
        self,
    ):
        data = data_folder()
        self.psctl("cert", "init", "--folder", "certs")
        self.certificate("coordinator", "certs", self.NEAR)
        self.certificate("ps-near", "certs", self.NEAR, task="ps_server/0")
        self.certificate("ps-far", "certs", self.FAR, task="ps_server/1")
        self.certificate("worker-0", "certs", self.FAR)
        self.certificate("person", "certs", self.FAR)
        for secret in ("ca.key", "ps-far.key"):
            self.assertEqual(
                stat.S_IMODE(os.stat(self.path("certs", secret)).st_mode), 0o600, secret
            )

        runs = self.path("all runs")
        _, coordinator = self.start_listening(
            COORDINATOR,
            "coordinator",
            "--listen",
            self.NEAR + ":0",
            "--runs",
            runs,
            *self.files("coordinator"),
            prefix=self.near.prefix
        )
        self.assertTrue(coordinator.startswith(self.NEAR + ":"), coordinator)
        to = ["--coordinator", coordinator]
        self.start_listening(
            PS_SERVER,
            "ps near",
            "--listen",
            self.NEAR + ":0",
            "--index",
            0,
            *to,
            *self.files("ps-near"),
            prefix=self.near.prefix
        )
        _, ps_far = self.start_listening(
            PS_SERVER,
            "ps far",
            "--listen",
            self.FAR + ":0",
            "--index",
            1,
            *to,
            *self.files("ps-far"),
            prefix=self.far.prefix
        )
        self.start(
            WORKER,
            "worker far",
            "--name",
            0,
            "--threads",
            1,
            "--data-root",
            data,
            *to,
            *self.files("worker-0"),
            prefix=self.far.prefix
        )
        person = to + self.files("person")

        def registered():
            return (
                sum(
                    t["state"] == "alive"
                    for t in self.psctl_json("task", "list", *person, prefix=self.far.prefix)[
                        "tasks"
                    ]
                    if t["role"] != "coordinator"
                )
                == 3
            )

        wait_for("three tasks to register across the wire", registered)
        job = write(self.path("a job.yaml"), job_yaml())
        done = self.psctl_json(
            "job", "run", job, *person, prefix=self.far.prefix, env={"EVERGRAD_DATA": data}
        )
        self.assertEqual(done["state"], "SUCCEEDED")
        result = done["result"]
        self.assertEqual({s["server"] for s in result["shards"]}, {"0", "1"})
        self.assertTrue(all(s["updates_applied"] == 50 for s in result["shards"]), result["shards"])
        self.assertGreater(
            result["metrics"]["accuracy"], 0.4
        )  # the model must have learned; guessing gives 0.1
        self.assertTrue(os.path.exists(os.path.join(self.run_folder(runs), "weights.npz")))
        insecure = [
            t
            for t in self.psctl_json("task", "list", *person, prefix=self.far.prefix)["tasks"]
            if t["insecure_listen"]
        ]
        self.assertEqual(insecure, [])
        self.assertNotIn(
            "INSECURE", self.psctl("task", "list", *person, prefix=self.far.prefix).stdout
        )

        # Clients that do not belong to the cluster connect to the coordinator. Each must be refused
        # with the reason.
        host, port = coordinator.rsplit(":", 1)
        with self.subTest("no certificate"):
            r = self.psctl("task", "list", *to, "--timeout", "3s", prefix=self.far.prefix, expect=4)
            self.assertRegex(r.stderr.lower(), r"tls|certificate")
            daemon = self.start(WORKER, "worker without", "--name", 7, *to, prefix=self.far.prefix)
            daemon.wait_log("tls")
            self.assertRegex(self.knock(host, port, self.path("certs", "ca.pem")), REFUSED)
        with self.subTest("certificate of another authority"):
            self.psctl("cert", "init", "--folder", "others")
            self.certificate("stranger", "others", self.FAR)
            # This client trusts the right authority, but another authority signed its certificate.
            # psctl must notice this before it dials.
            files = [
                "--tls-ca",
                self.path("certs", "ca.pem"),
                "--tls-cert",
                self.path("others", "stranger.pem"),
                "--tls-key",
                self.path("others", "stranger.key"),
            ]
            r = self.psctl(
                "task", "list", *to, *files, "--timeout", "3s", prefix=self.far.prefix, expect=2
            )
            self.assertIn("certificate verify failed", r.stderr)
            self.assertIn("stranger.pem", r.stderr)
            # This client trusts only the other authority, so it refuses the coordinator itself.
            r = self.psctl(
                "task",
                "list",
                *to,
                *self.files("stranger", "others"),
                "--timeout",
                "3s",
                prefix=self.far.prefix,
                expect=4
            )
            self.assertIn("certificate", r.stderr.lower())
            daemon = self.start(
                WORKER,
                "worker of another authority",
                "--name",
                8,
                *to,
                *self.files("stranger", "others"),
                prefix=self.far.prefix
            )
            daemon.wait_log("certificate")
            # This client does not compare its certificate with the authority before it dials. The
            # coordinator must refuse it.
            self.assertRegex(
                self.knock(
                    host, port, self.path("certs", "ca.pem"), self.path("others", "stranger")
                ),
                REFUSED,
            )
        with self.subTest("expired certificate"):
            if not shutil.which("openssl"):
                self.skipTest("no openssl to make a certificate that has expired")
            self.expired("late", self.FAR)
            r = self.psctl(
                "task",
                "list",
                *to,
                *self.files("late"),
                "--timeout",
                "3s",
                prefix=self.far.prefix,
                expect=2
            )
            self.assertIn("certificate has expired", r.stderr)
            self.assertIn("late.pem", r.stderr)
            daemon = self.start(
                WORKER,
                "worker expired",
                "--name",
                9,
                *to,
                *self.files("late"),
                prefix=self.far.prefix
            )
            wait_for("the worker to give up", lambda: daemon.process.poll() is not None)
            self.assertNotEqual(daemon.process.returncode, 0)
            self.assertIn("certificate has expired", daemon.log())
            self.assertRegex(
                self.knock(host, port, self.path("certs", "ca.pem"), self.path("certs", "late")),
                REFUSED,
            )
        with self.subTest("a certificate of another task"):
            # A task with such a certificate must notice this before it serves or dials.
            for program, arguments, name, told in (
                (
                    COORDINATOR,
                    ["--listen", self.FAR + ":0"],
                    "worker-0",
                    "certificate is for worker/0, expected coordinator",
                ),
                (
                    WORKER,
                    ["--name", 0] + to,
                    "ps-far",
                    "certificate is for ps_server/1, expected worker",
                ),
            ):
                daemon = self.start(
                    program, "wrong " + name, *arguments, *self.files(name), prefix=self.far.prefix
                )
                wait_for("it to give up", lambda: daemon.process.poll() is not None)
                self.assertEqual(daemon.process.returncode, 2)
                self.assertIn(told, daemon.log())
            # The coordinator must not register a task under another task's name, and must not
            # accept a task's certificate as that of a person.
            daemon = self.start(
                WORKER,
                "worker 5",
                "--name",
                5,
                *to,
                *self.files("worker-0"),
                prefix=self.far.prefix
            )
            wait_for("the worker to be refused for good", lambda: daemon.process.poll() is not None)
            self.assertNotEqual(daemon.process.returncode, 0)
            self.assertIn("certificate is for worker/0, expected worker/5", daemon.log())
            r = self.psctl(
                "task",
                "list",
                *to,
                *self.files("worker-0"),
                "--timeout",
                "3s",
                prefix=self.far.prefix,
                expect=2
            )
            self.assertIn("certificate is for worker/0, expected user", r.stderr)
            # A client must not take a server for the coordinator. It must also refuse the
            # coordinator if its certificate does not name the dialed address.
            r = self.psctl(
                "task",
                "list",
                "--coordinator",
                ps_far,
                *self.files("person"),
                "--timeout",
                "3s",
                prefix=self.far.prefix,
                expect=4
            )
            self.assertIn("certificate is for ps_server/1, expected coordinator", r.stderr)
            subprocess.run(
                self.near.prefix + ["ip", "addr", "add", "10.213.77.3/24", "dev", "wire"],
                check=True,
            )
            _, other = self.start_listening(
                COORDINATOR,
                "coordinator elsewhere",
                "--listen",
                "10.213.77.3:0",
                "--runs",
                self.path("other runs"),
                *self.files("coordinator"),
                prefix=self.near.prefix
            )
            r = self.psctl(
                "task",
                "list",
                "--coordinator",
                other,
                *self.files("person"),
                "--timeout",
                "3s",
                prefix=self.far.prefix,
                expect=4
            )
            self.assertIn(
                "certificate is for %s, but the dialed host is 10.213.77.3" % self.NEAR, r.stderr
            )
        with self.subTest("a certificate that names no task"):
            if not shutil.which("openssl"):
                self.skipTest("no openssl to make a certificate of an older psctl")
            self.signed("old", self.FAR, 1)
            r = self.psctl(
                "task",
                "list",
                *to,
                *self.files("old"),
                "--timeout",
                "3s",
                prefix=self.far.prefix,
                expect=2
            )
            self.assertIn("certificate names no task", r.stderr)
            self.assertIn("old.pem", r.stderr)
        self.assertEqual(
            self.knock(host, port, self.path("certs", "ca.pem"), self.path("certs", "person")),
            "welcome",
        )
        names = {
            t["identity"]
            for t in self.psctl_json("task", "list", *person, prefix=self.far.prefix)["tasks"]
            if t["role"] == "worker"
        }
        self.assertEqual(names, {"0"}, "a stranger registered")

    def knock(self, host, port, authority, certificate=None):
        """Returns the coordinator's answer to a TLS client that does not check its own certificate:
        the name of the alert, or "welcome"."""
        script = """
import socket, ssl, sys
host, port, authority, certificate = sys.argv[1:5]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.load_verify_locations(authority)
context.set_alpn_protocols(["h2"])
if certificate:
    context.load_cert_chain(certificate + ".pem", certificate + ".key")
try:
    plain = socket.create_connection((host, int(port)), 10)
    with context.wrap_socket(plain, server_hostname=host) as s:
        s.settimeout(10)
        # The server's HTTP/2 settings come only to one whose certificate it took.
        s.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        print("welcome" if s.recv(9)[3:4] == bytes([4]) else "closed without a word")
except OSError as error:
    print(getattr(error, "reason", None) or error)
"""
        r = subprocess.run(
            self.far.prefix
            + [sys.executable, "-c", script, host, port, authority, certificate or ""],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )
        return (r.stdout + r.stderr).strip()

    def expired(self, name, host):
        """Makes a certificate that the right authority signs and that expired yesterday."""
        self.signed(name, host, -1, "evergrad://worker/9")

    def signed(self, name, host, days, uri=None):
        """Makes a certificate that the right authority signs. It uses openssl, because psctl makes
        no wrong certificates."""
        signed_by_openssl(self.path("certs"), name, host, days, uri)

    def test_insecure_listen_opens_a_cluster_and_warns_at_the_start_and_in_the_task_list(self):
        data = data_folder()
        process, coordinator = self.start_listening(
            COORDINATOR,
            "coordinator",
            "--insecure-listen",
            self.NEAR + ":0",
            "--runs",
            self.path("runs"),
            prefix=self.near.prefix,
        )
        process.wait_log("insecure-listen")
        self.assertIn("any host that reaches " + self.NEAR, process.log())
        to = ["--coordinator", coordinator]
        server, _ = self.start_listening(
            PS_SERVER,
            "server",
            "--insecure-listen",
            self.FAR + ":0",
            "--index",
            0,
            *to,
            prefix=self.far.prefix
        )
        server.wait_log("insecure-listen")
        self.start(
            WORKER,
            "worker",
            "--name",
            0,
            "--threads",
            1,
            "--data-root",
            data,
            *to,
            prefix=self.near.prefix
        )
        job = write(self.path("job.yaml"), job_yaml())
        self.psctl("job", "run", job, *to, prefix=self.far.prefix, env={"EVERGRAD_DATA": data})
        rows = {
            "%s/%s" % (t["role"], t["identity"]): t["insecure_listen"]
            for t in self.psctl_json("task", "list", *to, prefix=self.near.prefix)["tasks"]
        }
        self.assertEqual(rows, {"coordinator/0": True, "ps_server/0": True, "worker/0": False})
        text = self.psctl("task", "list", *to, prefix=self.near.prefix).stdout
        self.assertEqual(text.count("INSECURE: open without encryption"), 2, text)
        self.assertIn("warning: tasks marked INSECURE", text)

    def test_off_loopback_a_job_reads_and_writes_only_in_the_folders_of_the_flags(self):
        data, runs = self.path("data"), self.path("runs")
        os.makedirs(os.path.join(data, "sub"))
        write(
            os.path.join(data, "good.csv"), "".join("%d:%d\n" % (i % 7, i % 3) for i in range(64))
        )
        secret = write(self.path("secret.txt"), "root:$6$salt$0123456789abcdef:1\n")
        os.symlink(secret, os.path.join(data, "link.csv"))
        job = """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: %s}
spec:
  data:
    train: {format: csv, path: %s, header: false, separator: ":"}
    fields: {x: {column: [0], type: float}, y: {column: 1, type: float}}
    batch_size: 8
  model:
    inputs: {x: {shape: [1]}}
    layers: [{name: out, type: dense, units: 1}]
    losses: {type: mean_squared_error, output: out, labels: y}
  optimizer: {type: sgd, learning_rate: 0.001}
"""
        process, coordinator = self.start_listening(
            COORDINATOR,
            "coordinator",
            "--insecure-listen",
            self.NEAR + ":0",
            "--runs",
            runs,
            prefix=self.near.prefix,
        )
        to = ["--coordinator", coordinator]
        self.start_listening(
            PS_SERVER,
            "server",
            "--insecure-listen",
            self.NEAR + ":0",
            "--index",
            0,
            *to,
            prefix=self.near.prefix
        )

        def run(name, path, more="", expect=1):
            text = job % (name, path) + more
            r = self.psctl(
                "job",
                "run",
                write(self.path(name + ".yaml"), text),
                *to,
                prefix=self.near.prefix,
                expect=expect
            )
            for where in (r.stdout, r.stderr):
                self.assertNotIn("$6$", where)
            return r.stdout + r.stderr

        with self.subTest(
            "a worker that dials loopback reads nothing by default "
            "where its coordinator listens off loopback"
        ):
            _, everywhere = self.start_listening(
                COORDINATOR,
                "coordinator everywhere",
                "--insecure-listen",
                "0.0.0.0:0",
                "--runs",
                runs,
                prefix=self.near.prefix,
            )
            beside = self.start(
                WORKER,
                "worker beside",
                "--name",
                0,
                "--threads",
                1,
                "--coordinator",
                "127.0.0.1:" + everywhere.rsplit(":", 1)[1],
                prefix=self.near.prefix,
            )
            beside.wait_log("started without --data-root")
            self.assertEqual(beside.end(), 0)
        worker = self.start(
            WORKER, "worker closed", "--name", 0, "--threads", 1, *to, prefix=self.near.prefix
        )
        worker.wait_log("started without --data-root")
        self.assertIn(
            "start the worker with --data-root FOLDER",
            run("closed", os.path.join(data, "good.csv")),
        )
        self.assertEqual(worker.end(), 0)
        worker = self.start(
            WORKER,
            "worker open",
            "--name",
            1,
            "--threads",
            1,
            "--data-root",
            data,
            *to,
            prefix=self.near.prefix
        )
        worker.wait_log("registered")
        for name, path in (
            ("secret", secret),
            ("dots", os.path.join(data, "sub/../../secret.txt")),
            ("link", os.path.join(data, "link.csv")),
            ("absent", self.path("absent")),
        ):
            with self.subTest(name):
                self.assertIn("the data file lies outside of the allowed folders", run(name, path))
        self.assertNotIn("$6$", worker.log())
        run("good", os.path.join(data, "good.csv"), expect=0)
        with self.subTest("a header that looks like an example"):
            text = (job % ("headed", os.path.join(data, "good.csv"))).replace("header: false, ", "")
            r = self.psctl(
                "job", "run", write(self.path("headed.yaml"), text), *to, prefix=self.near.prefix
            )
            self.assertIn("the first record of a csv file looks like an example", r.stdout)
        with self.subTest("checkpoint.directory"):
            said = run(
                "elsewhere",
                os.path.join(data, "good.csv"),
                "  checkpoint: {directory: %s}\n" % self.path("elsewhere"),
                expect=2,
            )
            self.assertIn("checkpoint.directory is not allowed", said)
            self.assertIn("start it with --checkpoint-root FOLDER", said)
            self.assertFalse(os.path.exists(self.path("elsewhere")))

    def test_off_loopback_without_certificates_is_refused_on_a_real_address(self):
        for name, extra in ((COORDINATOR, []), (PS_SERVER, ["--coordinator", "127.0.0.1:1"])):
            r = subprocess.run(
                self.near.prefix + [binary(name), "--listen", self.NEAR + ":0"] + extra,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=90,
                cwd=self.folder,
            )
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertIn("insecure-listen", r.stderr)
            self.assertIn("psctl cert", r.stderr)


class OneMachine(Case):
    """Tests two users on one machine, paths with spaces, and unix sockets."""

    def cluster(self, *server_arguments, worker_prefix=(), coordinator_prefix=()):
        _, self.coordinator = self.start_listening(
            COORDINATOR, "coordinator", "--runs", self.path("all runs"), prefix=coordinator_prefix
        )
        self.to = ["--coordinator", self.coordinator]
        server, self.server_address = self.start_listening(
            PS_SERVER, "server", "--index", 0, *self.to, *server_arguments
        )
        worker = self.start(
            WORKER, "worker", "--name", 0, "--threads", 1, *self.to, prefix=worker_prefix
        )
        return server, worker

    def train(self):
        job = write(self.path("a job.yaml"), job_yaml())
        done = self.psctl_json("job", "run", job, *self.to, env={"EVERGRAD_DATA": data_folder()})
        self.assertEqual(done["state"], "SUCCEEDED")
        self.assertTrue(all(s["updates_applied"] == 50 for s in done["result"]["shards"]))

    def sockets(self, folder):
        return [
            p
            for p in (os.path.join(folder, n) for n in sorted(os.listdir(folder)))
            if stat.S_ISSOCK(os.stat(p).st_mode)
        ]

    def test_a_unix_socket_in_a_folder_with_a_space_is_0600_and_is_removed_with_its_server(self):
        data_folder()
        folder = self.path("unix sockets")
        os.mkdir(folder)
        server, _ = self.cluster("--unix-dir", folder)
        server.wait_log("listening on unix socket " + folder)
        found = self.sockets(folder)
        self.assertEqual(len(found), 1)
        self.assertEqual(stat.S_IMODE(os.stat(found[0]).st_mode), 0o600)
        self.train()
        self.assertEqual(server.end(), 0)
        self.assertEqual(self.sockets(folder), [], "a socket is left behind")

    def test_a_socket_path_over_107_bytes_falls_back_to_tcp_with_a_message(self):
        data_folder()
        folder = self.path("a" * 120)
        os.mkdir(folder)
        server, _ = self.cluster("--unix-dir", folder)
        server.wait_log("TCP only")
        self.assertIn("max=107", server.log())
        self.assertEqual(self.sockets(folder), [])
        self.train()

    def test_two_users_on_one_machine_train_together(self):
        data = data_folder()
        if os.geteuid() != 0:
            raise unittest.SkipTest("a second user needs root")
        if os.environ.get(INSIDE):
            raise unittest.SkipTest("a user namespace of `unshare -Ur` has one user only")
        nobody = pwd.getpwnam("nobody")
        as_nobody = [
            "setpriv",
            "--reuid",
            str(nobody.pw_uid),
            "--regid",
            str(nobody.pw_gid),
            "--clear-groups",
        ]
        if not can(
            *as_nobody,
            "test",
            "-r",
            os.path.join(data, "fashion-mnist-12k", "train-images-idx3-ubyte.gz")
        ) or not can(*as_nobody, "test", "-x", binary(WORKER)):
            raise unittest.SkipTest("the user nobody cannot read the data or the binaries here")
        os.chmod(self.folder, 0o755)
        folder = self.path("unix")
        os.mkdir(folder)
        # The socket of the server belongs to the server's user. The worker of the other user cannot
        # open it, and must still reach the server. A worker writes the weights into the runs
        # folder, so the two users share a group there, as for any shared folder.
        shared = [
            "setpriv",
            "--regid",
            str(nobody.pw_gid),
            "--clear-groups",
            "sh",
            "-c",
            'umask 002 && exec "$@"',
            "sh",
        ]
        server, worker = self.cluster(
            "--unix-dir", folder, worker_prefix=as_nobody, coordinator_prefix=shared
        )
        self.train()
        pid = worker.process.pid
        self.assertEqual(os.stat("/proc/%d" % pid).st_uid, nobody.pw_uid)
        self.assertEqual(stat.S_IMODE(os.stat(self.sockets(folder)[0]).st_mode), 0o600)
        # In another case, one user cannot write into the other's runs folder, and must be told so
        # at once.
        runs = self.path("private runs")
        os.mkdir(runs, 0o700)
        r = subprocess.run(
            as_nobody
            + [
                binary(COORDINATOR),
                "--runs",
                os.path.join(runs, "mine"),
                "--address-file",
                "/dev/null",
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )
        self.assertNotEqual(
            r.returncode, 0, "a coordinator started that cannot write its runs folder"
        )
        self.assertIn(runs, r.stderr)


# gRPC closes the connection when it refuses a certificate. The TLS alert with the reason is then
# usually lost.
REFUSED = r"^closed without a word$|reset|CERTIFICATE|UNKNOWN_CA"

if __name__ == "__main__":
    run_inside_if_needed()
    main()
