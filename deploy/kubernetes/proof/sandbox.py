"""The network of a pod and the processes of its containers."""
import json
import os
import signal
import subprocess
import sys
import threading

from control_plane import wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
BRIDGE, GATEWAY, PREFIX = "pods", "10.81.0.1", 16
# The environment that deploy/image/Containerfile sets.
IMAGE_ENV = {"PATH": "/usr/bin", "OMP_WAIT_POLICY": "passive"}
PROGRAMS = (
    "evergrad-coordinator",
    "evergrad-operator",
    "evergrad-ps-server",
    "evergrad-worker",
    "psctl",
)


def ip(*words, prefix=()):
    subprocess.run([*prefix, "ip", *words], check=True, stdin=subprocess.DEVNULL)


def make_bridge():
    """Makes the network of all pods, in the caller's own network namespace."""
    ip("link", "set", "lo", "up")
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("addr", "add", "%s/%d" % (GATEWAY, PREFIX), "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")


class Sandbox:
    """The network, host name and IPC namespaces of a pod, and its address. No other pod has this
    address or gets it later. A sleeping process keeps the namespaces alive."""

    made = 0
    lock = threading.Lock()

    def __init__(self, hostname):
        with Sandbox.lock:
            Sandbox.made += 1
            number = Sandbox.made
        self.device = "pod%d" % number
        self.address = "10.81.%d.%d" % (1 + number // 250, 1 + number % 250)
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--ipc", "--uts", "sleep", "infinity"], stdin=subprocess.DEVNULL
        )
        pid = str(self.holder.pid)
        wait_for("the namespaces of a pod", 60, lambda: comm(pid) == "sleep")
        self.enter = ["nsenter", "--target", pid, "--net", "--ipc", "--uts"]
        ip(*"link add {0} type veth peer name eth0 netns {1}".format(self.device, pid).split())
        ip("link", "set", self.device, "master", BRIDGE)
        ip("link", "set", self.device, "up")
        ip("link", "set", "lo", "up", prefix=self.enter)
        ip(*"addr add {0}/{1} dev eth0".format(self.address, PREFIX).split(), prefix=self.enter)
        ip("link", "set", "eth0", "up", prefix=self.enter)
        subprocess.run(self.enter + ["hostname", hostname], check=True)

    def unplug(self):
        """Disconnects the pod, so that no packet reaches or leaves it. A repeated call changes
        nothing."""
        subprocess.run(
            ["ip", "link", "set", self.device, "down"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end(self):
        self.holder.kill()
        self.holder.wait()


def comm(pid):
    try:
        with open("/proc/%s/comm" % pid) as f:
            return f.read().strip()
    except OSError:
        return None


class Process:
    """The first process of a container. When it ends, all processes of the container end."""

    def __init__(self, sandbox, spec, folder, log):
        """Starts the process. container.py reads `spec` from a JSON file."""
        os.makedirs(folder)
        spec["root"] = os.path.join(folder, "root")
        os.makedirs(spec["root"])
        path = os.path.join(folder, "spec.json")
        with open(path, "w") as f:
            json.dump(spec, f)
        command = sandbox.enter + ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL"]
        command += [sys.executable, os.path.join(HERE, "container.py"), path]
        with open(log, "a") as out:
            self.outer = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        self.pid = wait_for("the first process of a container", 60, self._first)

    def _first(self):
        """Returns the pid of the process in the new namespaces, None if it has not begun yet, or -1
        if it has already ended."""
        if self.outer.poll() is not None:
            return -1
        try:
            with open("/proc/{0}/task/{0}/children".format(self.outer.pid)) as f:
                children = f.read().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def exit_code(self):
        """Returns the exit code, or None while the process runs. If a signal ended the process, the
        code is 128 plus the signal's number."""
        code = self.outer.poll()
        return code if code is None or code >= 0 else 128 - code

    def send(self, number):
        if self.outer.poll() is None and self.pid > 0:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def kill(self):
        self.send(signal.SIGKILL)
        self.outer.wait()
