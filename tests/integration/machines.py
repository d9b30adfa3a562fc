"""Network namespaces that act as machines, for tests that need addresses off loopback.

They need root or a user namespace (`unshare -Urnm`). A test file that may run in a user namespace
must call `run_inside_if_needed()` first in its main. With neither root nor a user namespace, the
tests are skipped with the reason.
"""
import os
import subprocess
import sys
import unittest

from support import read, wait_for

INSIDE = "EVERGRAD_TEST_INSIDE_USER_NAMESPACE"


def can(*command):
    return (
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ).returncode
        == 0
    )


def run_inside_if_needed():
    """Without root, runs the file again in a new user namespace, where machines can be made."""
    if not can("unshare", "-n", "true"):
        _run_inside("-Urnm", "ip link set lo up")


def run_as_machine(address):
    """Runs the file again in a new network namespace and a new mount namespace, where loopback also
    has `address`. If this process may not make namespaces, the call has no effect."""
    script = "ip link set lo up && ip addr add %s/32 dev lo" % address
    _run_inside("-nm", script)
    _run_inside("-Urnm", script)


def _run_inside(namespaces, script):
    """Replaces this process by one in new namespaces. Does nothing if it already runs in them or if
    they cannot be made. The loopback of a new network namespace is down until the script brings it
    up."""
    if not os.environ.get(INSIDE) and can("unshare", namespaces, "true"):
        os.execvpe(
            "unshare",
            ["unshare", namespaces, "sh", "-c", script + ' && exec "$@"', "sh", sys.executable]
            + sys.argv,
            dict(os.environ, **{INSIDE: "1"}),
        )


def skip_without_namespaces(*kinds):
    if not can("unshare", "-n", *kinds, "true"):
        raise unittest.SkipTest(
            "namespaces need root or `unshare -Urnm`, and neither is to be had here"
        )


MOUNT = """set -e
mount -t tmpfs -o size=64m none "$1"
hostname "$2"
exec cat
"""


class Machine:
    """A network namespace. A process that waits for the end of its stdin keeps the namespace alive.
    The namespace therefore ends with the test process, however that ends.

    With `name` and `disk` the machine also has `name` as its host name, and, at the path `disk`, a
    file system that no other machine sees.
    """

    def __init__(self, test, name=None, disk=None):
        self.name, self.disk = name, disk
        command = (
            ["unshare", "-n", "cat"]
            if disk is None
            else ["unshare", "-n", "-m", "-u", "sh", "-c", MOUNT, "sh", disk, name]
        )
        self.holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        test.addCleanup(self.end)
        own = os.readlink("/proc/self/ns/net")

        def entered():
            # The process is ready when `unshare` has become `cat` and the disk is mounted.
            if self.holder.poll() is not None:
                test.fail("the process that holds a machine ended with %s" % self.holder.returncode)
            return (
                os.readlink("/proc/%d/ns/net" % self.holder.pid) != own
                and read("/proc/%d/comm" % self.holder.pid).strip() == "cat"
            )

        wait_for("a network namespace", entered)
        if disk is None:
            self.prefix = ["nsenter", "--net=/proc/%d/ns/net" % self.holder.pid]
        else:
            self.prefix = [
                "nsenter",
                "--target",
                str(self.holder.pid),
                "--net",
                "--mount",
                "--uts",
                "--wd=" + disk,
            ]
        subprocess.run(self.prefix + ["ip", "link", "set", "lo", "up"], check=True)

    def address(self, device, address):
        subprocess.run(self.prefix + ["ip", "addr", "add", address, "dev", device], check=True)
        subprocess.run(self.prefix + ["ip", "link", "set", device, "up"], check=True)

    def path(self, *parts):
        """Returns the path at which this process can open a file on the machine's disk."""
        return os.path.join("/proc/%d/root" % self.holder.pid + self.disk, *parts)

    def end(self):
        """Removes the machine. No process may be running in it any more. A repeated call does
        nothing."""
        self.holder.stdin.close()
        self.holder.wait()


def wire(near, far):
    """Connects two machines by a veth pair. Each argument is (machine, address), and both addresses
    are in one /24 network."""
    subprocess.run(
        near[0].prefix
        + [
            "ip",
            "link",
            "add",
            "wire",
            "type",
            "veth",
            "peer",
            "name",
            "wire",
            "netns",
            str(far[0].holder.pid),
        ],
        check=True,
    )
    for machine, address in (near, far):
        machine.address("wire", address + "/24")


def signed_by_openssl(certs, name, host, days, uri=None, authority="ca"):
    """Makes a certificate that the authority in `certs` signs. It uses openssl, because psctl makes
    no wrong certificates. With `days` -1 the certificate expired yesterday."""
    key, request, out, extensions = (
        os.path.join(certs, name + e) for e in (".key", ".csr", ".pem", ".ext")
    )
    with open(extensions, "w") as f:
        f.write(
            "subjectAltName=IP:%s%s\nextendedKeyUsage=serverAuth,clientAuth\n"
            % (host, ",URI:" + uri if uri else "")
        )
    for command in (
        ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key],
        ["openssl", "req", "-new", "-key", key, "-subj", "/CN=" + name, "-out", request],
        [
            "openssl",
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            os.path.join(certs, authority + ".pem"),
            "-CAkey",
            os.path.join(certs, authority + ".key"),
            "-days",
            str(days),
            "-extfile",
            extensions,
            "-out",
            out,
        ],
    ):
        subprocess.run(
            command,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
