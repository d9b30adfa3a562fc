"""A cluster in which every daemon has a machine: a network namespace with an address, a mount
namespace with a disk, and a UTS namespace with a host name. A bridge in one more network namespace
connects the machines.

The machine of a daemon that is killed is removed. The next start of the daemon is on a new machine,
with an address that no machine had before. A removed machine loses its disk. As in a cloud, three
things remain:

- The folder of the runs is shared by all machines.
- The volume of the coordinator has the journal. It is attached to one machine at a time. Each new
  machine of the coordinator mounts it at the same path.
  machine of the coordinator mounts it at the same path.
- The name evergrad-coordinator belongs to the newest machine of the coordinator. A hosts file,
  which every machine reads, takes the place of a name service.

The daemons are started as docs/deploy.md describes: with TLS and with the same ports on each
machine. Servers and workers are found by the addresses that they advertise.
"""
import ipaddress
import os
import random
import shutil
import subprocess
import sys

from cluster import Cluster, Daemon, Failure
from stage import Skipped

sys.path.append(
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "integration")
)
from machines import Machine, can, run_inside_if_needed  # noqa: E402,F401

NAME = "evergrad-coordinator"
PORTS = {"coordinator": 4000, "ps_server": 4010, "worker": 4020}
NETWORK = ipaddress.ip_network("10.80.0.0/16")
# The hosts file ends in one line of fixed length. One write therefore replaces it, and no reader
# sees a part of it.
HOSTS = "127.0.0.1 localhost\n%-15s " + NAME + "\n"


class MachineDaemon(Daemon):
    """A daemon. Every start of it is on a new machine."""

    machine = None
    port_name = ""

    def start(self, failpoints=None, extra=(), mutant=None):
        if self.alive():
            raise Failure("%s runs already" % self.name)
        self.address = ""  # the next process gets the address of its new machine
        host = self.cluster.boot(self)
        return super().start(
            failpoints,
            ["--listen", "%s:%d" % (host, PORTS[self.role])] + self.cluster.tls(self) + list(extra),
            mutant,
        )

    def kill(self):
        """Removes the daemon's machine. In half of the cases its processes end first, so that peers
        see their connections end. In the other half it loses its network and power at once, and
        peers see only silence."""
        if self.cluster.random.random() < 0.5:
            self.cluster.unplug(self)
        super().kill()
        self.cluster.remove(self)


class MachineCluster(Cluster):
    daemon_class = MachineDaemon

    def __init__(self, bin_folder, servers, workers, seed, scale, keep=False):
        if not can("unshare", "-n", "-m", "-u", "true"):
            raise Skipped("namespaces need root or `unshare -Urnm`, and neither is to be had here")
        super().__init__(bin_folder, servers, workers, seed, scale, keep=keep)
        self.random = random.Random("machines/%d" % seed)
        self.addresses = NETWORK.hosts()
        self.cleanups = []  # the constructor of Machine needs this list
        self.boots = 0
        self.machine_disk, self.volume = self._folder("disk"), self._folder("volume")
        self.hosts = os.path.join(self.folder, "hosts")
        with open(self.hosts, "w") as f:
            f.write("127.0.0.1 localhost\n")
        for d in self.servers:
            # tasks on different machines cannot share memory
            d.arguments += ["--lane-bytes-max", "0"]
        given = self.coordinator.arguments
        given[given.index("--state-dir") + 1] = os.path.join(self.machine_disk, "volume", "state")
        self._make_certificates()
        # The bridge is in a machine of its own, from which psctl is called.
        self.office = self._machine("office")
        self._ip("link", "add", "bridge", "type", "bridge")
        self.office.address("bridge", self._next_address())
        self.psctl_prefix = self.office.prefix
        self.psctl_flags = self._tls_flags(os.path.join(self.folder, "certs"), "alice")

    def _folder(self, name):
        path = os.path.join(self.folder, name)
        os.mkdir(path)
        return path

    def _make_certificates(self):
        """Makes the certificates that docs/deploy.md describes."""
        issued = [["init"], ["issue", "coordinator", "--host", NAME]]
        issued += [["issue", "ps-server-" + s.identity] for s in self.servers]
        issued += [["issue", "workers", "--task", "worker"], ["issue", "alice"]]
        for arguments in issued:
            self.psctl_files("cert", *arguments, "--folder", "certs")

    @staticmethod
    def _tls_flags(folder, name):
        files = {"ca": "ca.pem", "cert": name + ".pem", "key": name + ".key"}
        return [w for k, f in files.items() for w in ("--tls-" + k, os.path.join(folder, f))]

    # ---- machines

    def addCleanup(self, function):
        self.cleanups.append(function)

    def fail(self, why):
        raise Failure(why)

    def _machine(self, name):
        machine = Machine(self, name=name, disk=self.machine_disk)
        subprocess.run(machine.prefix + ["mount", "--bind", self.hosts, "/etc/hosts"], check=True)
        return machine

    def _ip(self, *arguments):
        subprocess.run(self.office.prefix + ["ip"] + list(arguments), check=True)

    def _next_address(self):
        return "%s/%d" % (next(self.addresses), NETWORK.prefixlen)

    def boot(self, daemon):
        """Makes the machine of a daemon, and returns its address."""
        self.boots += 1
        daemon.port_name = "port%d" % self.boots
        machine = self._machine("%s-%d" % (daemon.role.replace("_", "-"), self.boots))
        daemon.machine, daemon.prefix = machine, machine.prefix
        os.mkdir(machine.path("tls"))
        for file in self._tls_flags(os.path.join(self.folder, "certs"), self._certificate(daemon)):
            if os.path.isabs(file):
                shutil.copy(file, machine.path("tls"))
        host = self.plug(machine, daemon.port_name)
        if daemon is self.coordinator:
            self._attach_volume(machine)
            with open(self.hosts, "r+") as f:
                f.write(HOSTS % host)
        return host

    def plug(self, machine, port_name):
        """Connects a machine to the bridge, and returns its address."""
        there = ["type", "veth", "peer", "name", "wire", "netns", str(machine.holder.pid)]
        self._ip("link", "add", port_name, *there)
        self._ip("link", "set", port_name, "master", "bridge", "up")
        address = self._next_address()
        machine.address("wire", address)
        return address.split("/")[0]

    def _attach_volume(self, machine):
        at = os.path.join(self.machine_disk, "volume")
        os.mkdir(machine.path("volume"))
        subprocess.run(machine.prefix + ["mount", "--bind", self.volume, at], check=True)

    @staticmethod
    def _certificate(daemon):
        return {"ps_server": "ps-server-" + daemon.identity, "worker": "workers"}.get(
            daemon.role, daemon.role
        )

    def tls(self, daemon):
        return self._tls_flags(os.path.join(self.machine_disk, "tls"), self._certificate(daemon))

    def unplug(self, daemon):
        self._ip("link", "set", daemon.port_name, "down")

    def remove(self, daemon):
        if daemon.machine is not None:
            daemon.machine.end()
            self.cleanups.remove(daemon.machine.end)
            daemon.machine = None

    # ---- the cluster

    def coordinator_address(self):
        return "%s:%d" % (NAME, PORTS["coordinator"])

    def up(self):
        """Starts the machines in a random order."""
        order = self.daemons()
        self.random.shuffle(order)
        print("       start order: %s" % ", ".join(d.name for d in order))
        for d in order:
            d.start()
        self.wait_tasks()
        return self

    def down(self):
        for d in self.daemons():
            if d.alive():
                Daemon.kill(d)
        for end in reversed(self.cleanups):
            end()
        super().down()

    def check_addresses(self):
        """Every server must be known under the address of its present machine."""
        known = {
            t["identity"]: t["address"]
            for t in self.tasks()
            if t["role"] == "ps_server" and t["state"] == "alive"
        }
        want = {s.identity: s.address for s in self.servers}
        if known != want:
            raise Failure("addresses of servers: want %s got %s" % (want, known))
