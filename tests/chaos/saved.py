"""Reads checkpoints for the scenarios through `psctl checkpoint`, and compares them with the plan
of a counting job.

The order of samples in a plan (common/plan, common/random) is implemented here a second time, so
that a snapshot is not judged by the code that made it.
"""
import fnmatch
import io
import json
import os
import re
import subprocess
import zipfile

import saved_files
from cluster import MASK, Failure, mix, wait_for
from stage import events
from tables import Expected


# ------------------------------------------------------------------ what the plan says


def philox(key, low, high):
    """Returns the first output word of Philox 4x32-10 for each counter of an array."""
    import numpy

    word = numpy.uint64(0xFFFFFFFF)
    half = numpy.uint64(32)
    c0, c1 = low & word, low >> half
    c2 = numpy.full_like(low, high & 0xFFFFFFFF)
    c3 = numpy.full_like(low, high >> 32)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = numpy.uint64(0xD2511F53) * c0, numpy.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (p1 >> half) ^ c1 ^ numpy.uint64(k0),
            p1 & word,
            (p0 >> half) ^ c3 ^ numpy.uint64(k1),
            p0 & word,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0


def key_of(seed, name):
    h = 0xCBF29CE484222325
    for byte in seed.to_bytes(8, "little") + name.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & MASK
    return h ^ (h >> 31)


def permutation(n, key):
    import numpy

    bits = 1
    while bits < 32 and (n - 1) >> (2 * bits):
        bits += 1
    shift, mask = numpy.uint64(bits), numpy.uint64((1 << bits) - 1)
    image = numpy.arange(n, dtype=numpy.uint64)
    walking = numpy.arange(n)
    while len(walking):
        left, right = image[walking] >> shift, image[walking] & mask
        for turn in range(4):
            left, right = right, left ^ (philox(key, right, turn) & mask)
        image[walking] = left << shift | right
        walking = walking[image[walking] >= n]
    return image.astype(numpy.int64)


def members(text):
    """Parses a text like "0-4,7", and returns all the numbers that it names as a list."""
    found = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


class CountingPlan:
    def __init__(self, job):
        self.job, self.orders = job, {}
        self.steps_per_epoch = -(-job.examples // job.batch)
        self.closures_per_epoch = -(-self.steps_per_epoch // job.steps_per_closure)

    def steps(self, closure):
        first = closure % self.closures_per_epoch * self.job.steps_per_closure
        return min(self.job.steps_per_closure, self.steps_per_epoch - first)

    def samples(self, closure, updates):
        """Returns the samples of these updates of a closure, all in one array."""
        import numpy

        epoch, first = (
            closure // self.closures_per_epoch,
            closure % self.closures_per_epoch * self.job.steps_per_closure,
        )
        if epoch not in self.orders:
            self.orders[epoch] = permutation(
                self.job.examples, key_of(self.job.seed, "epoch/%d" % epoch)
            )
        batches = [
            self.orders[epoch][(first + u) * self.job.batch : (first + u + 1) * self.job.batch]
            for u in updates
        ]
        return numpy.concatenate(batches) if batches else numpy.empty(0, dtype=numpy.int64)


# ------------------------------------------------------------------ files


def tool(cluster, verb, path, *arguments):
    """Runs psctl checkpoint VERB. Returns its exit code and its JSON output (None if it prints
    none)."""
    r = subprocess.run(
        [os.path.join(cluster.bin, "psctl"), "checkpoint", verb, path, "--output", "json"]
        + cluster.store_flags()
        + list(arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cluster.folder,
    )
    try:
        said = json.loads(r.stdout)
    except ValueError:
        said = None
    return r.returncode, said, r.stderr


def folder_of(job):
    if job.cluster.store:
        return folder_left(job.cluster, job)
    return os.path.join(job.show()["runs_folder"], "checkpoint")


def folder_left(c, job):
    """Returns the folder of the job's checkpoints without asking the coordinator, which may be
    dead."""
    name = "%s-%s" % (job.name, job.uid)
    return c.saved_at("saved/" + name) if c.store else os.path.join(c.runs, name, "checkpoint")


def manifests(folder):
    """Returns the manifests, oldest first."""
    names = fnmatch.filter(saved_files.names(folder), "manifest-*.egmanifest")
    return ["%s/%s" % (folder, name) for name in names]


def verified(cluster, path):
    code, said, errors = tool(cluster, "verify", path)
    if code != 0 or not said["whole"]:
        raise Failure("%s is not whole: exit code %d\n%s" % (path, code, errors))
    return said


def check_agrees(job, said):
    """Checks for each shard file of a manifest that its ledger, values, optimizer state and
    counters agree. They must show that exactly the updates in the file's ledger were applied, each
    once.

    Returns how many updates of unfinished closures the manifest contains.
    """
    import numpy

    plan, partial = CountingPlan(job), 0
    for entry in said["files"]:
        if entry["state"] == "seed":
            continue
        applied = [(c, list(range(plan.steps(c)))) for c in members(entry["done"])] + [
            (o["closure"], members(o["updates"])) for o in entry["open"]
        ]
        partial += sum(len(members(o["updates"])) for o in entry["open"])
        if entry["refused"]:
            raise Failure("a closure was refused: %s" % entry)
        if entry["kind"] == "table":
            slot = entry["shard"] - (len(said["files"]) - job.table_slots)
            expected = Expected(job, [(c, u) for c, updates in applied for u in updates], slot)
            if entry["updates_applied"] != expected.touched[slot]:
                raise Failure(
                    "updates applied: want %d got %d in %s"
                    % (expected.touched[slot], entry["updates_applied"], entry["file"])
                )
            both = [
                sum(sums) & MASK for sums in zip(*[expected.digests(t) for t in range(job.tables)])
            ]
            if [int(entry["digest"], 16), int(entry["slot_digest"], 16)] != both:
                raise Failure(
                    "the rows in %s are not what its ledger says: want %016x %016x got %s %s; "
                    "done %s, open %s"
                    % (
                        entry["file"],
                        both[0],
                        both[1],
                        entry["digest"],
                        entry["slot_digest"],
                        entry["done"],
                        entry["open"],
                    )
                )
            continue
        begin, end = entry["row_begin"], entry["row_end"]
        if entry["variable"] == "counting/updates":
            want = numpy.full(
                end - begin, sum(len(updates) for _, updates in applied), dtype=numpy.int64
            )
            if entry["updates_applied"] != want[0]:
                raise Failure(
                    "updates applied: want %d got %d in %s"
                    % (want[0], entry["updates_applied"], entry["file"])
                )
        else:
            want = numpy.zeros(job.examples, dtype=numpy.int64)
            for closure, updates in applied:
                numpy.add.at(want, plan.samples(closure, updates), 1)
            want = want[begin:end]
        for key, factor in (("digest", 1), ("slot_digest", 2)):
            bits = (want * factor).astype("<f4").view("<u4")
            digest = sum(mix(begin + i, int(b)) for i, b in enumerate(bits)) & MASK
            if int(entry[key], 16) != digest:
                raise Failure(
                    "%s of %s is not what its ledger says: want %016x got %s; done %s, open %s"
                    % (key, entry["file"], digest, entry[key], entry["done"], entry["open"])
                )
    return partial


def exported(cluster, path, name="exported"):
    """Returns the arrays that `psctl checkpoint export` writes."""
    import numpy

    to = os.path.join(cluster.folder, name + ".npz")
    code, _, errors = tool(cluster, "export", path, "--to", to)
    if code != 0:
        raise Failure("export of %s: exit code %d\n%s" % (path, code, errors))
    with zipfile.ZipFile(to) as z:
        return {n[:-4]: numpy.load(io.BytesIO(z.read(n))) for n in z.namelist()}


def flip(path, r, begin=0, end=None):
    """Flips a random bit of the bytes [begin, end) of a file."""
    data = bytearray(saved_files.read(path))
    at = r.randrange(begin, len(data) if end is None else end)
    data[at] ^= 1 << r.randrange(8)
    saved_files.write(path, bytes(data))
    return at


def block_starts(path):
    """Returns the offset of each block of a shard file (FORMAT.md), and the offset at which the
    payload of each block ends."""
    data = saved_files.read(path)
    at = 64 + (int.from_bytes(data[16:20], "little") + 31) // 32 * 32
    found = []
    while data[at : at + 4] == b"EGBK":
        size = int.from_bytes(data[at + 12 : at + 16], "little")
        found.append((at, at + 32 + size, int.from_bytes(data[at + 4 : at + 8], "little")))
        at += 32 + (size + 31) // 32 * 32
    return found


# ------------------------------------------------------------------ a running job's


def wait_saved(job, count=2, closures=1):
    """Waits until the job has `count` manifests, and until each shard of the newest manifest has at
    least `closures` finished closures. Returns False if the job ended before."""

    def there():
        status = job.show()
        if status["state"] not in ("QUEUED", "STARTING", "RUNNING"):
            return "ended"
        saved = status["checkpoint"]
        if saved is None or saved["manifests"] < count:
            return None
        code, said, _ = tool(job.cluster, "describe", saved["path"])
        if code != 0:  # the manifest was deleted after it was listed
            return None
        return (
            "saved"
            if all(len(members(entry.get("done", ""))) >= closures for entry in said["files"])
            else None
        )

    return (
        wait_for(
            "%d checkpoints of %s with %d closures in each shard" % (count, job.name, closures),
            there,
        )
        == "saved"
    )


def rollbacks(job):
    """Parses the job's rollback events. For each event, returns how many shards went back to a
    snapshot, how many went back to their initial values, and how many closures are run again."""
    found = []
    for text in events(job, "rollback"):
        number = [
            re.search(pattern, text)
            for pattern in (
                r"(\d+) shards? go(?:es)? back to the newest snapshot",
                r"(\d+) shards? go(?:es)? back to the initial values",
                r"up to (\d+) closure",
            )
        ]
        if number[0] or number[1]:
            found.append(tuple(int(n.group(1)) if n else 0 for n in number))
    return found


def check_restored(job, result, at_least=1):
    """All lost shards must have come back from snapshots. The number of closures that were run
    again must be smaller than that of all closures, and result.json must state it."""
    found = rollbacks(job)
    if len(found) < at_least or sum(snapshots for snapshots, _, _ in found) == 0:
        raise Failure(
            "want at least %d rollbacks to snapshots: %s" % (at_least, events(job, "rollback"))
        )
    if any(seeds for _, seeds, _ in found):
        raise Failure(
            "shards went back to the seed, though they were saved: %s" % events(job, "rollback")
        )
    repair = result["repair"]
    if repair["shards_rolled_back"] != sum(snapshots for snapshots, _, _ in found):
        raise Failure("result.json: %s, and the events: %s" % (repair, events(job, "rollback")))
    if any(again >= job.closures for _, _, again in found):
        raise Failure(
            "everything was run again, though there were snapshots: %s" % events(job, "rollback")
        )
    if (len(found) == 1 and repair["closures_rerun"] < found[0][2]) or (
        repair["updates_redone"] > 0
    ) != (repair["closures_rerun"] > 0):
        raise Failure(
            "result.json does not count what was run again: %s, events %s"
            % (repair, events(job, "rollback"))
        )
    return repair
