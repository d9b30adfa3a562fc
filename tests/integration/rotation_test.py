#!/usr/bin/env python3
"""The authority of a cluster with TLS is replaced while a job runs, without a planned restart.

  rotation_test.py --bin build/release/bin [unittest arguments]

The file runs in a network namespace with an address that is not loopback, because the metrics of a
daemon are HTTPS only there. The namespaces need root or `unshare -Urnm`.
"""
import http.client
import os
import re
import shutil
import socket
import ssl
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402
from machines import INSIDE, run_as_machine  # noqa: E402
from support import main, read, wait_for, write  # noqa: E402

from cluster import Cluster, Daemon  # noqa: E402

ADDRESS = "10.213.81.1"
PERSON = "alice"
FILES = ("ca.pem", "tls.pem", "tls.key")
RELOADED = "reloaded the certificates, new connections use them"


class TlsFolder:
    """The folder with the three TLS files of one task.

    `replace` puts new files there, in one of the two usual ways. With `linked`, the files are links
    into a folder, to which the link ..data points, and this link is replaced, as Kubernetes does
    for a volume of a Secret. Otherwise each file is replaced by a rename."""

    def __init__(self, path, linked):
        self.path, self.linked, self.generation = path, linked, 0
        os.makedirs(path)
        if linked:
            for name in FILES:
                os.symlink(os.path.join("..data", name), os.path.join(path, name))

    def replace(self, sources):
        """`sources` has the contents of the files, in the order of FILES."""
        self.generation += 1
        if self.linked:
            folder = "..%d" % self.generation
            os.mkdir(os.path.join(self.path, folder))
            for name, text in zip(FILES, sources):
                write(os.path.join(self.path, folder, name), text)
            link = os.path.join(self.path, "..new")
            os.symlink(folder, link)
            os.rename(link, os.path.join(self.path, "..data"))
            if self.generation > 1:
                shutil.rmtree(os.path.join(self.path, "..%d" % (self.generation - 1)))
            return
        for name, text in zip(FILES, sources):
            new = write(os.path.join(self.path, name + ".new"), text)
            os.rename(new, os.path.join(self.path, name))

    def flags(self):
        return [
            word
            for flag, name in zip(("ca", "cert", "key"), FILES)
            for word in ("--tls-" + flag, os.path.join(self.path, name))
        ]


class TlsDaemon(Daemon):
    def start(self, failpoints=None, extra=(), mutant=None):
        flags = self.cluster.folders[self.certificate()].flags()
        flags += ["--metrics-listen", ADDRESS + ":0"]
        if self.role != "coordinator" or not self.address:
            flags += ["--listen", ADDRESS + ":0"]
        return super().start(failpoints, flags + list(extra), mutant)

    def certificate(self):
        """Returns the name of the daemon's certificate, as for `psctl cert issue`."""
        return {
            "coordinator": "coordinator",
            "ps_server": "ps-server-%s",
            "worker": "worker-%s",
        }[
            self.role
        ].replace("%s", self.identity)

    def log(self):
        return read(self.log_path)

    def listeners(self):
        """Returns the addresses of gRPC and of the metrics of the present process."""
        found = re.findall(
            r"listening on (%s:\d+).* metrics at https://(%s:\d+)/" % (ADDRESS, ADDRESS),
            self.log(),
        )
        return found[-1]


class TlsCluster(Cluster):
    """A cluster with two authorities, which sign a certificate for each task and for a person. In
    the beginning, only the authority `old` is used."""

    daemon_class = TlsDaemon

    def __init__(self, bin_folder):
        super().__init__(bin_folder, seed=7)
        self.folders = {}
        for authority in ("old", "new"):
            self.psctl_files("cert", "init", "--folder", authority)
        for name in [d.certificate() for d in self.daemons()] + [PERSON]:
            for authority in ("old", "new"):
                self.psctl_files("cert", "issue", name, "--folder", authority, "--host", ADDRESS)
            self.folders[name] = TlsFolder(
                os.path.join(self.folder, "tls", name), linked=name != "coordinator"
            )
        self.psctl_flags = self.folders[PERSON].flags()
        self.replace(["old"], "old")

    def file(self, authority, name):
        return os.path.join(self.folder, authority, name)

    def replace(self, trusted, signer):
        """Gives all tasks and the person new files: certificates by `signer`, and a bundle of the
        authorities in `trusted`."""
        bundle = "".join(read(self.file(authority, "ca.pem")) for authority in trusted)
        for name, folder in self.folders.items():
            folder.replace(
                [bundle] + [read(self.file(signer, name + end)) for end in (".pem", ".key")]
            )

    def rotate(self, trusted, signer):
        """Like `replace`, and waits until every daemon uses the new files."""
        before = {d: d.log().count(RELOADED) for d in self.daemons()}
        self.replace(trusted, signer)
        for d in self.daemons():
            wait_for("%s to reload" % d.name, lambda: d.log().count(RELOADED) > before[d])


def client(certificate, authority=None):
    """Returns the TLS settings of a client. Without `authority` it accepts every server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if authority:
        context.load_verify_locations(authority)
    else:
        context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(certificate + ".pem", certificate + ".key")
    return context


def knock(address, context):
    """Begins an HTTP/2 connection at a gRPC listener. Returns "accepted", or the error."""
    context.set_alpn_protocols(["h2"])
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=60) as plain:
            with context.wrap_socket(plain) as secure:
                # In TLS 1.3 a server reports a refusal only after the client's handshake. A server
                # that accepts the client sends its HTTP/2 settings.
                return "accepted" if secure.recv(1) else "closed"
    except OSError as error:
        return repr(error)


def scrape(address, context):
    """Returns (status, text) of the page /metrics, or (None, the error)."""
    host, port = address.rsplit(":", 1)
    try:
        connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return None, repr(error)


@unittest.skipUnless(
    os.environ.get(INSIDE),
    "namespaces need root or `unshare -Urnm`, and neither is to be had here",
)
class Rotation(unittest.TestCase):
    def test_an_authority_is_replaced_under_a_running_job_while_tasks_are_killed(self):
        with TlsCluster(support.BIN) as c:
            c.up()
            # With two workers, 2400 steps take at least 48 seconds.
            job = c.submit(examples=12000, epochs=2, step_ms=40, checkpoint="{every: 300ms}")
            job.wait_steps(20)
            for step, (trusted, signer) in enumerate(
                [(["old", "new"], "old"), (["old", "new"], "new"), (["new"], "new")]
            ):
                c.rotate(trusted, signer)
                for victim in (c.workers[step % 2], c.servers[step % 2], c.coordinator):
                    victim.kill()
                    victim.start()
                    c.wait_tasks()
                steps = job.progress()
                job.wait_steps(steps + 1)
                self.assertFalse(job.ended(), "the job ended before step %d" % (step + 1))
            job.finish(seconds=300)
            for d in c.daemons():
                # No task may have refused another one.
                self.assertNotIn("certificate verify failed", d.log(), d.name)
            self.only_the_new_authority_counts(c)

    def only_the_new_authority_counts(self, c):
        old, new = (c.file(authority, PERSON) for authority in ("old", "new"))
        old_ca, new_ca = (c.file(authority, "ca.pem") for authority in ("old", "new"))
        for d in c.daemons():
            grpc, metrics = d.listeners()
            with self.subTest(daemon=d.name):
                self.assertEqual(knock(grpc, client(new, new_ca)), "accepted")
                self.assertRegex(knock(grpc, client(old)), r"(?i)alert|reset|closed")
                self.assertRegex(knock(grpc, client(new, old_ca)), "CERTIFICATE_VERIFY_FAILED")
                status, text = scrape(metrics, client(new, new_ca))
                self.assertEqual(status, 200, text)
                self.assertRegex(text, r"(?m)^evergrad_%s_tls_reload_failures_total \d" % d.role)
                status, text = scrape(metrics, client(old))
                self.assertEqual(status, 403, text)
                self.assertIn("certificate verify failed", text)
                status, text = scrape(metrics, client(new, old_ca))
                self.assertIsNone(status)
                self.assertIn("CERTIFICATE_VERIFY_FAILED", text)
        r = c.psctl("task", "list")  # with the person's new files
        self.assertIn("worker", r.stdout)
        flags = [
            "--tls-ca",
            new_ca,
            "--tls-cert",
            old + ".pem",
            "--tls-key",
            old + ".key",
        ]
        c.psctl_flags = flags
        r = c.psctl("task", "list", "--timeout", "3s", expect=None)
        self.assertNotEqual(r.returncode, 0)
        self.assertIn("certificate verify failed", r.stderr)


if __name__ == "__main__":
    run_as_machine(ADDRESS)
    main()
