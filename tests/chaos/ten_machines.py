"""The scenario of a cluster of ten machines (machine_cluster.py), whose addresses change with each
kill. It is registered with the others of scenarios.py."""
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
    first = [r.choice(c.workers), r.choice(c.servers), c.coordinator]  # each role at least once
    r.shuffle(first)
    # The examples are as many as six workers need for a job as long as in R1.
    random_kills(c, r, KILLS, LONG_SECONDS if c.long else 0, first, examples=4500)
    c.wait_tasks()
    c.check_addresses()
