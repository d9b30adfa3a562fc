"""The scenario of a cluster of ten machines (machine_cluster.py), whose addresses change with each
kill. scenarios.py registers it with the others."""
from machine_cluster import MachineCluster
from random_kills import random_kills
from stage import scenario

SERVERS, WORKERS = 3, 6
KILLS, LONG_SECONDS = 6, 300


def cluster(bin_folder, seed, scale, long, keep):
    c = MachineCluster(bin_folder, SERVERS, WORKERS, seed, scale, keep)
    c.long = long
    return c


@scenario(
    "machines",
    "ten-machines",
    "ten machines with one shared folder start in a random order; random kills of all roles, and "
    "a new machine with another address after each (long form: 5 minutes)",
)
def ten_machines(c, r):
    first = [r.choice(c.workers), r.choice(c.servers), c.coordinator]  # one of each role
    r.shuffle(first)
    # With this many examples, a job lasts as long on six workers as the jobs of scenario R1 on
    # theirs.
    random_kills(c, r, KILLS, LONG_SECONDS if c.long else 0, first, examples=4500)
    c.wait_tasks()
    c.check_addresses()
