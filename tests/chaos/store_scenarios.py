"""Scenarios of clusters that share only an object store. scenarios.py registers them with the
others. Each has a cluster of its own, with moto's server of S3 behind the fault proxy.

In store-machines each daemon has a machine (machine_cluster.py), and so has the store. The machines
share no folder. The coordinator keeps its journal and the runs on its volume."""
import os

from cluster import Cluster, Failure, wait_for
from machine_cluster import MachineCluster
from random_kills import random_kills
from saved import folder_of, verified
from stage import Skipped, scenario
from stored import (
    BUCKET,
    KEYS,
    TRANSIENT,
    ObjectStore,
    ProxyProcess,
    moto_server,
    without_moto,
)
from ten_machines import KILLS, SERVERS, WORKERS

SHORT_SECONDS, LONG_SECONDS = 40, 300
STALL_SECONDS, STALL_EVERY_SECONDS, STALL_FIRST_SECONDS = 20, 60, 8
RATE = 0.05


def skip_without_moto():
    if without_moto("s3"):
        raise Skipped(without_moto("s3"))


class StoreCluster(Cluster):
    """A cluster on loopback with an object store."""

    def __init__(self, bin_folder, seed, scale, keep):
        skip_without_moto()
        super().__init__(bin_folder, 2, 2, seed, scale, keep=keep)
        self.store = ObjectStore("s3", self.folder, seed, RATE)
        self.store.enter_environment()

    def down(self):
        self.store.write_log(self.folder)
        super().down()
        self.store.stop()


class MachineStore(ObjectStore):
    """A store on a machine of a StoreMachineCluster, which other machines reach by HTTPS."""

    def __init__(self, cluster, machine, host, seed):
        self.kind, self.uri = "s3", "s3://" + BUCKET
        self.variables = moto_server.key_environment()
        self.server = moto_server.MotoServer(cluster.folder, [BUCKET], prefix=machine.prefix)
        certs = os.path.join(cluster.folder, "certs")
        tls = [os.path.join(certs, "store" + suffix) for suffix in (".pem", ".key")]
        to, listen = self.server.address, host + ":0"
        self.proxy = ProxyProcess(to, seed, listen, tls, machine.prefix)
        self.proxy.set_keys(keys=KEYS)
        self.proxy.set_faults(rate=RATE)
        self.flags = ["--s3-endpoint", self.proxy.url]


class StoreMachineCluster(MachineCluster):
    def __init__(self, bin_folder, seed, scale, keep):
        skip_without_moto()
        super().__init__(bin_folder, SERVERS, WORKERS, seed, scale, keep)
        given = self.coordinator.arguments
        self.volume_path = os.path.join(self.machine_disk, "volume")
        given[given.index("--runs") + 1] = os.path.join(self.volume_path, "runs")
        machine = self._machine("store")
        host = self.plug(machine, "store")
        self.psctl_files("cert", "issue", "store", "--host", host, "--folder", "certs")
        self.store = MachineStore(self, machine, host, seed)
        self.store.enter_environment()

    def store_flags(self, daemon=None):
        folder = os.path.join(self.folder, "certs")  # of psctl
        roots = []
        if daemon is not None:
            folder = os.path.join(self.machine_disk, "tls")
            if daemon.role != "worker":
                roots = ["--checkpoint-root", self.store.uri]
        return self.store.flags + ["--store-ca", os.path.join(folder, "ca.pem")] + roots

    def psctl_json(self, *arguments, expect=0):
        """The runs are on the coordinator's volume. The result names the folder at which this
        process can read it."""
        found = super().psctl_json(*arguments, expect=expect)
        if isinstance(found, dict) and found.get("runs_folder"):
            found["runs_folder"] = found["runs_folder"].replace(self.volume_path, self.volume)
        return found

    def down(self):
        self.store.write_log(self.folder)
        self.store.stop()
        super().down()


def cluster(name, bin_folder, seed, scale, long, keep):
    kind = StoreMachineCluster if name == "store-machines" else StoreCluster
    c = kind(bin_folder, seed, scale, keep)
    c.long = long
    return c


def demand_faults(c):
    failed, requests = c.store.faults()
    counts = c.store.proxy.counts()
    print(
        "       %d of %d recent requests failed: %s"
        % (failed, requests, ", ".join("%s %d" % (k, counts.get(k, 0)) for k in TRANSIENT))
    )
    if any(not counts.get(kind) for kind in TRANSIENT):
        raise Failure("a kind of fault never happened: %s" % counts)


@scenario(
    "stores",
    "store-stalls",
    "5 % of the requests to the store fail, and it stalls for 20 s once a minute: nothing is lost",
)
def store_stalls(c, r):
    c.store.proxy.set_stalls(
        seconds=STALL_SECONDS, every=STALL_EVERY_SECONDS, first=STALL_FIRST_SECONDS
    )
    check_steps_during_a_stall(c)
    first = [r.choice(c.servers), c.coordinator, r.choice(c.workers)]
    random_kills(c, r, KILLS, LONG_SECONDS if c.long else SHORT_SECONDS, first, examples=3000)
    counts = c.store.proxy.counts()
    c.store.proxy.set_stalls(seconds=0, every=0)
    if counts["stalls"] < (LONG_SECONDS / STALL_EVERY_SECONDS - 1 if c.long else 1):
        raise Failure("want more stalls: %s" % counts)
    demand_faults(c)
    # Checkpoints work again after the last stall.
    job = c.submit(examples=300, checkpoint="{every: 100ms}")
    job.finish()
    verified(c, folder_of(job))


def check_steps_during_a_stall(c):
    """Only checkpoints wait for the store, and training continues."""
    job = c.submit(examples=12000, epochs=1, step_ms=int(40 * c.scale), checkpoint="{every: 1s}")
    wait_for("a stall", lambda: c.store.proxy.counts().get("stalls", 0) > 0)
    job.wait_steps(min(job.progress() + 50, job.steps), seconds=STALL_SECONDS - 5)
    job.finish()


@scenario(
    "stores",
    "store-machines",
    "ten machines that share nothing but an object store, of which 5 % of the requests fail, start "
    "in a random order; random kills of all roles, and a new machine with another address after "
    "each (long form: 5 minutes)",
)
def store_machines(c, r):
    first = [r.choice(c.workers), r.choice(c.servers), c.coordinator]  # one of each role
    r.shuffle(first)
    seconds = LONG_SECONDS if c.long else SHORT_SECONDS
    random_kills(c, r, KILLS, seconds, first, examples=4500)
    c.wait_tasks()
    c.check_addresses()
    demand_faults(c)
    if os.path.exists(c.runs):
        raise Failure("a task has written into a folder that is not on its machine: %s" % c.runs)
