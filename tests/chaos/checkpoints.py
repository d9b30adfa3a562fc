"""Scenarios of checkpoints (K1 to K9), and scenarios of servers that need checkpoints (S1 to S4, S7
to S9, E1). scenarios.py registers them with the others."""
import json
import os
import random
import re
import struct
import time
import urllib.request

import saved_files
from cluster import Failure, wait_for
from saved import (
    block_starts,
    check_agrees,
    check_restored,
    exported,
    flip,
    folder_left,
    folder_of,
    manifests,
    members,
    rollbacks,
    tool,
    verified,
    wait_saved,
)
from stage import METRICS, events, names_death, only_these_died, restart, scenario

# Enough manifests are kept that no file is deleted while a scenario reads it.
OFTEN = "{every: 50ms, keep: 20}"


def disturb_saved(c, steps, fault, undo=None, **shape):
    """Like Cluster.disturb, but before the fault it also waits until the running job has a
    checkpoint. A slow disk may delay the checkpoint until the job has ended. In this case a job
    that is twice as long is tried."""
    shape = dict(dict(examples=2400, step_ms=3, checkpoint=OFTEN), **shape)
    for _ in range(6):
        job = c.submit(**shape)
        job.wait_steps(steps)
        wait_saved(job)
        fault(job)
        status = job.show()
        if (
            status["state"] == "RUNNING" and int(status["steps_done"]) < job.steps
        ):  # the fault came before the end of the job
            return job
        if undo is not None:
            undo()
        job.finish()
        shape["examples"] *= 2
    raise Failure("six jobs had done their steps before they were saved and the fault came")


def kill_saved(c, victims, steps, **shape):
    def kill(_):
        for victim in victims:
            victim.kill()

    def start():
        for victim in victims:
            victim.start()

    return disturb_saved(c, steps, kill, start, **shape)


def names_of(said):
    return {f["file"] for f in said["files"]}


def saved_often(c, count, **shape):
    """Returns a job that has ended with at least `count` checkpoints, no two of which have the same
    files. Also returns the output of `verify` for each manifest."""
    for _ in range(6):
        job = c.submit(**shape)
        job.finish()
        folder = os.path.dirname(job.show()["checkpoint"]["path"].replace("file://", ""))
        said = {}
        for path in manifests(folder):
            one = verified(c, path)
            if any(
                names_of(one) == names_of(other) for other in said.values()
            ):  # The last checkpoint may have the same files as the one before it.
                saved_files.remove(path)
            else:
                said[path] = one
        if len(said) >= count:
            return job, said
        shape["examples"] *= 2
    raise Failure("six jobs had fewer than %d checkpoints" % count)


# ------------------------------------------------------------------ servers


@scenario(
    "servers",
    "S1",
    "kill a server under load: it returns with the same index and another address, and its "
    "shards from their newest snapshots",
)
def s1(c, r):
    victim = r.choice(c.servers)
    before = c.pids()
    address = victim.address
    job = kill_saved(c, [victim], steps=r.randint(20, 80))
    victim.start()
    while victim.address == address:  # the process may get the same address again by chance
        restart(victim)
    result = job.finish()
    only_these_died(before, c, victim)
    names_death(result, victim)
    repair = check_restored(job, result)
    if not 0 < repair["closures_rerun"] < job.closures:
        raise Failure(
            "want some of %d closures to be run again, not all: %s" % (job.closures, repair)
        )
    print(
        "       %d shards restored, %d of %d closures run again"
        % (repair["shards_rolled_back"], repair["closures_rerun"], job.closures)
    )


@scenario("servers", "S2", "kill a server while a worker recovers")
def s2(c, r):
    worker, victim = r.choice(c.workers), r.choice(c.servers)
    before = c.pids()

    def fault(job):
        worker.kill()
        worker.start()
        victim.kill()
        victim.start()

    job = disturb_saved(c, r.randint(20, 60), fault)
    result = job.finish()
    only_these_died(before, c, victim, worker)
    names_death(result, victim)
    check_restored(job, result)


@scenario("servers", "S3", "kill all servers, then start them again")
def s3(c, r):
    before = c.pids()
    job = kill_saved(c, c.servers, steps=r.randint(20, 60))
    for s in c.servers:
        s.start()
    result = job.finish()
    only_these_died(before, c, *c.servers)
    for s in c.servers:
        names_death(result, s)
    repair = check_restored(job, result)
    if repair["shards_rolled_back"] < 2 * job.shards:
        raise Failure("not every shard was restored: %s of %d" % (repair, 2 * job.shards))


@scenario(
    "servers", "S4", "SIGSTOP and SIGCONT a server, for less and for more than server_lost_after"
)
def s4(c, r):
    victim = r.choice(c.servers)
    pids = c.pids()
    lost_after = 1.5 * c.scale
    # A pause shorter than the lease may end the server's session, but has no other effect. If the
    # machine takes too long between the two signals, the pause is repeated.
    for _ in range(8):
        since = [0.0]

        def fault(_):
            since[0] = time.monotonic()
            victim.stop()

        job = c.disturb(
            r.randint(10, 40), fault, victim.resume, examples=1000, step_ms=3, checkpoint=OFTEN
        )
        if r.random() < 0.5:
            wait_for(
                "its session to end",
                lambda: events(job, "away", victim.name)
                or time.monotonic() - since[0] > 0.8 * lost_after,
            )
        victim.resume()
        took = time.monotonic() - since[0]
        result = job.finish()
        if not events(job, "rollback"):
            if result["repair"] != {
                "shards_rolled_back": 0,
                "closures_rerun": 0,
                "updates_redone": 0,
            }:
                raise Failure("something was run again: %s" % result["repair"])
            break
        if took + c.pauses.longest < 0.8 * lost_after:
            raise Failure(
                "stopped for %.2f s of %.2f: %s" % (took, lost_after, events(job, "rollback"))
            )
    else:
        raise Failure("eight times it was stopped for longer than meant")
    # After a pause longer than the lease, the updates that the server has acknowledged since its
    # last snapshot no longer count. The server learns this when it continues.
    job = disturb_saved(c, r.randint(20, 60), lambda _: victim.stop(), victim.resume)
    try:
        if len(c.servers) > 1:
            wait_for("its shards to be given to others", lambda: rollbacks(job))
        else:
            wait_for("it to be declared lost", lambda: events(job, "rollback", "is lost"))
    finally:
        victim.resume()
    result = job.finish()
    only_these_died(pids, c)
    if len(c.servers) > 1 or rollbacks(job):
        check_restored(job, result)
    elif result["repair"][
        "closures_rerun"
    ]:  # no other server got its shards, so it continues with them unchanged
        raise Failure("something was run again: %s" % result["repair"])
    c.wait_tasks()


@scenario(
    "servers",
    "S7",
    "during the repair of a server's shards kill it again, and a worker, and the coordinator",
)
def s7(c, r):
    victim, worker = r.choice(c.servers), r.choice(c.workers)
    # The only checkpoint is made when the job begins. Many closures must therefore be run again,
    # and the repair is long.
    for slower in (1, 2, 4, 8, 16):
        before = c.pids()
        job = c.disturb(
            r.randint(60, 100),
            lambda _: victim.kill(),
            victim.start,
            examples=3000,
            epochs=1,
            step_ms=int(6 * c.scale * slower),
            checkpoint="{every: 10m}",
        )
        victim.start()

        def repairing():
            status = job.show()
            return status["state"] != "RUNNING" or int(status["closures_rerun"]) > 0

        wait_for("the repair to begin", repairing)
        again = max([n for _, _, n in rollbacks(job)] or [0])
        under_way = not job.ended() and int(job.show()["closures_rerun"]) < again
        for d in r.sample([victim, worker, c.coordinator], 3):
            d.kill()
        for d in r.sample([victim, worker, c.coordinator], 3):
            d.start()
        result = job.finish()
        only_these_died(before, c, victim, worker, c.coordinator)
        if under_way and len(rollbacks(job)) >= 2:
            print("       %d closures were to be run again; %s" % (again, result["repair"]))
            break
    else:
        raise Failure("five repairs had ended before the kills")
    c.wait_usable()


@scenario(
    "proxy",
    "S8",
    "disconnect a server from the coordinator only until other servers have its shards, then "
    "reconnect it",
)
def s8(c, r):
    victim = r.choice(c.servers)
    c.wait_usable()
    pids = c.pids()

    replacement = None
    try:
        job = disturb_saved(
            c,
            r.randint(20, 60),
            lambda _: victim.session_proxy.cut(),
            victim.session_proxy.heal,
            examples=4000,
        )
        if len(c.servers) == 1:
            replacement = c.add("ps_server", "7", ["--index", "7"])
        # The workers still reach the server, and it acknowledges their pushes. None of these pushes
        # counts, because the server has lost its lease.
        wait_for("its shards to be given away", lambda: rollbacks(job) or job.ended())
    finally:
        victim.session_proxy.heal()
    result = job.finish()
    only_these_died(pids, c, *c.extras)
    names_death(result, victim)
    repair = check_restored(job, result)
    if repair["closures_rerun"] == 0:
        raise Failure("nothing that the cut server acknowledged was run again: %s" % repair)
    if replacement is not None:
        replacement.terminate()
        c.extras.remove(replacement)
    c.wait_usable()

    def held():
        return {t["identity"]: t["shards"] for t in c.tasks() if t["role"] == "ps_server"}

    wait_for(
        "the server that was cut to drop what it held: %s" % held(),
        lambda: not any(held().values()),
    )


@scenario(
    "servers", "S9", "kill a server during closures: one worker, one long closure, at a random step"
)
def s9(c, r):
    others = c.workers[1:]
    for w in others:
        w.kill()
    # The failpoint is armed before the job begins. Therefore only the seed decides after which
    # update of the closure this process dies.
    victim = r.choice(c.servers)
    restart(victim, "server.after_apply=%d*kill" % r.randint(20, 150))
    c.wait_usable()
    job = c.submit(examples=400, batch=10, epochs=1, steps_per_closure=40, step_ms=4)
    wait_for("the failpoint to kill %s" % victim.name, lambda: not victim.alive())
    if job.progress() != 0:
        raise Failure("the only closure had ended before the server was killed")
    victim.start()
    result = job.finish()
    names_death(result, victim)
    if not events(job, "rollback", victim.name):
        raise Failure("the job does not say that %s was rolled back" % victim.name)
    # With snapshots, the state that is restored contains the first pushes of the attempt and not
    # the last ones.
    for steps in (80, 160, 320, 640, 1280):
        job = c.submit(
            examples=10 * steps,
            batch=10,
            epochs=1,
            steps_per_closure=steps,
            step_ms=int(8 * c.scale),
            checkpoint=OFTEN,
        )
        partial = wait_for(
            "a checkpoint in mid-closure, or the end",
            lambda: updates_saved(c, job) or (job.ended() and -1),
        )
        victim.kill()
        victim.start()
        result = job.finish()
        # An event with "up to 1 closure that had ended is run again" means that the only closure of
        # the job had ended between the checkpoint and the death. Scenario S1 tests that case.
        if (
            partial > 0
            and rollbacks(job)
            and result["repair"]["closures_rerun"] > 0
            and not any(again for _, _, again in rollbacks(job))
        ):
            break
    else:
        raise Failure("five closures had ended before the server was killed")
    repair = check_restored(job, result)
    if result["duplicates_refused"] == 0:
        raise Failure(
            "%d updates of the closure were in each snapshot: %s, no duplicate refused"
            % (partial, repair)
        )
    print(
        "       at least %d updates of the closure in each shard's snapshot, %d duplicates refused"
        % (partial, result["duplicates_refused"])
    )
    for w in others:
        w.start()
    c.wait_tasks()


def updates_saved(c, job):
    """Reads the newest checkpoint. For each shard that every update touches, counts the updates of
    open closures that the shard holds in it. Returns the smallest of these counts."""
    saved = job.show()["checkpoint"]
    code, said, _ = (
        tool(c, "verify", saved["path"])
        if saved is not None and saved["manifests"] > 0
        else (1, None, "")
    )
    if code != 0:
        return 0
    check_agrees(job, said)
    return min(
        sum(len(members(o["updates"])) for o in f.get("open", []))
        for f in said["files"]
        if f.get("variable", "counting/updates") == "counting/updates"
    )


@scenario(
    "servers",
    "E1",
    "a server is rolled back during the evaluation: the metric is exactly the undisturbed one",
)
def e1(c, r):
    quiet = c.submit(checkpoint=OFTEN).finish()
    victim = r.choice(c.servers)
    for longer in (1, 2, 4, 8, 16):
        for w in c.workers:
            restart(w, "worker.evaluate=1*delay(%d)" % int(1200 * c.scale * longer))
        c.wait_usable()
        job = c.submit(epochs=1, checkpoint=OFTEN)
        wait_for("the evaluation", lambda: job.progress() == job.steps)
        wait_saved(job, 1, job.closures)
        victim.kill()
        victim.start()
        result = job.finish()
        if (
            result["metrics"]["count"] != job.examples
            or quiet["metrics"]["count"] != 2 * job.examples
        ):
            raise Failure(
                "the metric differs: %s, undisturbed (two epochs) %s"
                % (result["metrics"], quiet["metrics"])
            )
        if events(job, "rollback", "evaluating begins again"):
            break
    else:
        raise Failure(
            "five evaluations were over before the server died: %s" % events(job, "rollback")
        )
    check_restored(job, result)
    for w in c.workers:
        restart(w)
    c.wait_tasks()


def stopped(d):
    with open("/proc/%d/stat" % d.pid) as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "T"


def pulls(c, server):
    """Returns the counts of the answers that this process has given to pulls of one shard."""
    address = next(
        t["metrics_address"]
        for t in c.tasks()
        if t["role"] == "ps_server" and t["pid"] == server.pid
    )
    with urllib.request.urlopen("http://%s/metrics" % address, timeout=5) as answer:
        found = re.findall(
            r'^evergrad_ps_server_pulls_total\{answer="(\w+)"\} (\d+)', answer.read().decode(), re.M
        )
    return {kind: int(n) for kind, n in found}


def pulls_after_climbing_back(c, r, mutant=None):
    """A worker has cached every shard under the tag (start, vlsn). While that worker is stopped,
    the shards of one server are rolled back to their initial values and reach the same vlsn under
    another start. Then the worker pulls. The job has only one closure, because a Close between two
    closures would also raise the lsn."""
    first, victim = c.workers[0], r.choice(c.servers)
    helper = (
        c.workers[1]
        if len(c.workers) > 1
        else c.add("worker", "helper", ["--name", "helper", "--threads", "1"])
    )
    for w in [helper] + c.workers[1:]:
        if w.alive():
            w.kill()
    for s in c.servers:
        restart(s, extra=METRICS, mutant=mutant)
    restart(first, "worker.evaluate=1*stop")
    c.wait_usable()
    steps = r.randint(3, 8)
    job = c.submit(
        examples=10 * steps,
        batch=10,
        epochs=1,
        steps_per_closure=steps,
        step_ms=1,
        checkpoint="off",
    )

    def shards():
        listed = c.psctl_json("variable", "list", "--job", job.name)
        rows = [
            s
            for v in (listed["variables"] if isinstance(listed, dict) else listed)
            for s in v["shards"]
        ]
        return {
            s["shard"]: (s["start"], s["vlsn"])
            for s in rows
            if s["server"] == victim.identity or s["server"] == victim.name
        }

    wait_for("%s to have read every shard, and stop" % first.name, lambda: stopped(first))
    before = shards()
    restart(victim, extra=METRICS, mutant=mutant)
    helper.start("worker.evaluate=1*stop")
    wait_for("the repair, and %s to come to the evaluation" % helper.name, lambda: stopped(helper))
    after = shards()
    if (
        not before
        or set(before) != set(after)
        or any(after[p][0] == before[p][0] or after[p][1] != before[p][1] for p in before)
    ):
        raise Failure(
            "the shards of %s did not climb back to the same counts under other starts: %s, then %s"
            % (victim.name, before, after)
        )
    told = {s.name: pulls(c, s) for s in c.servers}
    helper.resume()
    helper.kill()
    first.resume()
    job.finish()
    for s in c.servers:
        now = pulls(c, s)
        values = now["values"] - told[s.name]["values"]
        want = len(before) if s is victim else 0
        if values != want:
            raise Failure(
                "%s holds %d shards that climbed back, and pulls of them got values %d times, "
                "%d times `unchanged`"
                % (s.name, want, values, now["unchanged"] - told[s.name]["unchanged"])
            )
    if helper in c.extras:
        c.extras.remove(helper)
    for d in c.servers + c.workers:
        restart(d)
    c.wait_usable()


@scenario(
    "servers",
    "S11",
    "a worker with cached values pulls after a rollback that reached the same count again: it "
    "gets the new values",
)
def s11(c, r):
    pulls_after_climbing_back(c, r)


@scenario(
    "checker",
    "S11-off",
    "without the comparison of `start` the pulls of S11 must be answered `unchanged`",
)
def s11_off(c, r):
    try:
        pulls_after_climbing_back(c, r, "unchanged_by_vlsn")
    except Failure as why:
        if "got values 0 times" not in str(why):
            raise Failure("the check failed for another reason: %s" % why)
        for w in [w for w in c.workers + c.extras if w.alive()]:
            w.resume()
        c.extras = [d for d in c.extras if d.name != "worker/helper" or d.kill()]
        for d in c.servers + c.workers:
            restart(d)
        c.wait_usable()
        return
    raise Failure("`start` was not compared, and the check saw nothing")


# ------------------------------------------------------------------ checkpoints


@scenario("checkpoints", "K1", "kill the writer of a checkpoint at every named point")
def k1(c, r):
    before = c.pids()
    points = [
        (c.servers, name, hits)
        for name, hits in (
            ("snapshot.before_cut", 20),
            ("snapshot.write", 20),
            ("snapshot.before_commit", 20),
            ("snapshot.after_commit", 20),
            ("snapshot.report", 20),
            ("fs.write", 60),
            ("fs.sync", 20),
            ("fs.link", 20),
            ("fs.sync_folder", 20),
        )
    ]
    points += [
        ([c.coordinator], name, 4)
        for name in ("fs.write", "fs.sync", "fs.link", "fs.sync_folder", "fs.remove")
    ]
    r.shuffle(points)
    if c.forms == 1:  # The long form tests all points, this form only three.
        points = [p for p in points if p[0] is c.servers][:2] + [
            p for p in points if p[0] is not c.servers
        ][:1]
    job, died = None, 0
    for who, name, hits in points:
        victim = r.choice(who)
        restart(victim, "%s=%d*kill" % (name, r.randint(1, hits)))
        for _ in range(6):
            if job is None or job.ended():
                if job is not None:
                    job.finish()
                job = c.submit(
                    examples=3000, epochs=1, step_ms=3, checkpoint="{every: 30ms, keep: 1}"
                )
            wait_for(
                "%s to end %s, or the job to end" % (name, victim.name),
                lambda: not victim.alive() or job_ended(c, job),
            )
            if not victim.alive():
                break
        else:
            raise Failure("six jobs ended, and %s never came at %s" % (name, victim.name))
        died += 1
        if victim is c.coordinator:
            # The coordinator is dead, so no process deletes files now. The newest manifest must be
            # whole, and its files must have the contents that it states.
            for path in manifests(folder_left(c, job))[-1:]:
                check_agrees(job, verified(c, path))
        restart(victim)
    if not job.ended():
        wait_saved(job, 1)
    job.finish()
    said = verified(c, folder_of(job))
    check_agrees(job, said)
    if not said["manifest"]["complete"]:
        raise Failure(
            "the last checkpoint of a finished job is not complete: %s" % said["manifest"]
        )
    only_these_died(before, c, c.coordinator, *c.servers)
    print("       killed at %d points" % died)
    c.wait_usable()


def job_ended(c, job):
    return c.coordinator.alive() and job.ended()


def must_name(c, folder, path, what):
    """`verify` of the folder must end with exit code 1. Its output must name the damaged file and
    the place of the damage in the file."""
    code, said, errors = tool(c, "verify", folder)
    if code == 1 and said is not None and not said["whole"]:
        errors = said["passed_over"] + [
            f["error"] for f in said["files"] if f["state"] == "damaged"
        ]
        if (
            len(errors) == 1
            and os.path.basename(path) in errors[0]
            and ("offset=" in errors[0] or "size" in errors[0] or "bytes" in errors[0])
        ):
            return
    raise Failure("%s of %s: exit code %d: %s" % (what, os.path.basename(path), code, errors))


@scenario(
    "checkpoints",
    "K2",
    "flip one bit, truncate at any block: file and position are named, and the checkpoint "
    "before is used and reported",
)
def k2(c, r):
    store = c.saved_at("store %d" % c.jobs)
    shape = dict(examples=2400, epochs=2, step_ms=2)
    job, said = saved_often(
        c, 2, checkpoint="{every: 50ms, keep: 20, directory: %r}" % store, **shape
    )
    shape["examples"] = job.examples
    newest = max(said)
    folder = os.path.dirname(newest)
    names = sorted(os.path.join(folder, name) for name in names_of(said[newest]))
    trial = c.saved_at("trial")
    for _ in range(24 if c.forms > 1 else 2):
        for original in (r.choice(names), newest):
            copy = saved_files.copy_folder(folder, trial)
            path = os.path.join(copy, os.path.basename(original))
            if r.random() < 0.5:
                what = "bit flipped in byte %d" % flip(path, r)
            else:
                data = saved_files.read(path)
                edges = [e for start, end, _ in block_starts(path) for e in (start, end)] or [
                    64,
                    len(data) - 1,
                ]
                size = r.choice(edges + [r.randrange(len(data)), 0])
                saved_files.write(path, data[: min(size, len(data) - 1)])
                what = "cut to %d bytes" % size
            must_name(c, copy, path, what)
    # A resumed job uses the newest checkpoint.
    only_new = sorted(
        names_of(said[newest]).difference(
            *(names_of(said[path]) for path in said if path != newest)
        )
    )
    kind = r.choice(("manifest", "values", "ends"))
    if kind == "manifest":
        path = newest
        flip(path, r)
    else:
        path = os.path.join(folder, r.choice(only_new))
        if kind == "values":
            start, end, _ = next(b for b in block_starts(path) if b[2] == 1)
            flip(path, r, start + 32, end)
        else:
            saved_files.write(path, saved_files.read(path)[: -r.randint(1, 64)])
    job = c.submit(
        name=job.name,
        checkpoint="{every: 50ms, keep: 20, resume: true, directory: %r}" % store,
        **shape
    )
    result = job.finish()
    if not events(job, "warning", "is skipped") or os.path.basename(path) not in str(
        events(job, "warning", "is skipped")
    ):
        raise Failure("it is not said that %s was skipped: %s" % (path, job.show()["events"]))
    if result["resumed_from"] is None or os.path.basename(
        result["resumed_from"]
    ) == os.path.basename(newest):
        raise Failure("resumed from %s, of which %s is damaged" % (result["resumed_from"], path))
    print(
        "       damaged %s (%s): %s"
        % (os.path.basename(path), kind, events(job, "state", "resumed at step")[0][:60])
    )


@scenario(
    "checkpoints",
    "K3",
    "save on these servers and resume on 1, 3 and 4: values and slots are bit-equal",
)
def k3(c, r):
    job = c.submit(examples=1200, epochs=1, step_ms=1, checkpoint=OFTEN)
    result = job.finish()
    saved = verified(c, folder_of(job))
    check_agrees(job, saved)
    arrays = exported(c, folder_of(job))
    digests = [(f["shard"], f["digest"], f["slot_digest"], f["done"]) for f in saved["files"]]
    here = c.servers
    for count in (1, 3, 4):
        away, more = here[count:], []
        try:
            for s in away:
                s.terminate()
            for i in range(len(here), count):
                more.append(c.add("ps_server", str(i), ["--index", str(i)]))
            wanted = {str(i) for i in range(count)}

            def alive():
                return {
                    t["identity"]
                    for t in c.tasks()
                    if t["role"] == "ps_server" and t["state"] == "alive"
                } == wanted

            wait_for("%d servers" % count, alive)
            again = c.submit(
                examples=1200,
                epochs=1,
                step_ms=1,
                name=job.name,
                checkpoint="{every: 50ms, keep: 20, resume: true}",
            )
            result = again.finish()
            used = {s["server"] for s in result["shards"]}
            if len(used) != count:
                raise Failure("resumed on %d servers, used %s" % (count, used))
            if result["closures"]["attempts"] != 0 or not events(
                again, "state", "resumed at step %d of %d" % (job.steps, job.steps)
            ):
                raise Failure("something was trained: %s" % result["closures"])
            said = verified(c, folder_of(again))
            if [
                (f["shard"], f["digest"], f["slot_digest"], f["done"]) for f in said["files"]
            ] != digests:
                raise Failure(
                    "not bit-equal on %d servers:\n%s\n%s"
                    % (
                        count,
                        digests,
                        [
                            (f["shard"], f["digest"], f["slot_digest"], f["done"])
                            for f in said["files"]
                        ],
                    )
                )
            there = exported(c, folder_of(again))
            if sorted(there) != sorted(arrays) or any(
                there[n].tobytes() != arrays[n].tobytes() or there[n].shape != arrays[n].shape
                for n in arrays
            ):
                raise Failure("exported arrays differ on %d servers" % count)
        finally:
            for d in more:
                d.terminate()
                c.extras.remove(d)
            for s in away:
                if not s.alive():
                    s.start()
        c.wait_tasks()


@scenario(
    "checkpoints",
    "K4",
    "consecutive checkpoints under full load: ledger and values agree in each one",
)
def k4(c, r):
    long = c.forms > 1
    job, every = saved_often(
        c,
        3,
        examples=12000 if long else 3000,
        epochs=2,
        step_ms=4 if long else 2,
        steps_per_closure=r.choice((4, 16)),
        checkpoint="{every: %s, keep: 100}" % ("1s" if long else "50ms"),
    )
    partial, incomplete = 0, 0
    for path, said in every.items():
        partial += check_agrees(job, said)
        incomplete += not said["manifest"]["complete"]
        if all(f["state"] == "whole" for f in said["files"]) and path in (
            max(every),
            sorted(every)[len(every) // 2],
        ):
            values = exported(c, path)["counting/updates"].ravel()
            want = [
                f["updates_applied"] for f in said["files"] if f["variable"] == "counting/updates"
            ]
            if list(values) != want:
                raise Failure("export of %s: want %s got %s" % (path, want, list(values)))
    print(
        "       %d checkpoints, %d of them of different moments, "
        "%d updates of open closures in them" % (len(every), incomplete, partial)
    )


def cancelled(c, steps, shape):
    """Returns a job that was cancelled in the middle, after its first checkpoint. `shape` then has
    the settings of this job."""
    for _ in range(6):
        job = c.submit(checkpoint=OFTEN, **shape)
        wait_saved(job)
        job.wait_steps(steps)
        c.psctl("job", "cancel", job.name, expect=None)
        if job.wait_state("CANCELLED", "SUCCEEDED")["state"] == "SUCCEEDED":
            job.check_exact()
        elif job.result()["closures"]["succeeded"] < job.closures:
            return job
        shape["examples"] *= 2
    raise Failure("six jobs ended before they were cancelled")


@scenario(
    "checkpoints",
    "K5",
    "cancel and resubmit with `resume: true`: the job continues at its step, exact over both "
    "jobs",
)
def k5(c, r):
    shape = dict(examples=3000, epochs=1, step_ms=3, steps_per_closure=r.choice((4, 10)))
    job = cancelled(c, r.randint(60, 150), shape)
    said = verified(c, folder_of(job))
    partial = check_agrees(job, said)
    whole = set(members(said["files"][0]["done"])).intersection(
        *(members(f["done"]) for f in said["files"])
    )
    steps = sum(
        min(job.steps_per_closure, job.steps - closure * job.steps_per_closure) for closure in whole
    )
    if not 0 < steps < job.steps:
        raise Failure(
            "the checkpoint of the cancelled job holds %d of %d steps" % (steps, job.steps)
        )
    again = c.submit(name=job.name, checkpoint="{every: 50ms, keep: 20, resume: true}", **shape)
    result = again.finish()  # Every sample must count once in both jobs together.
    if not events(again, "state", "resumed at step %d of %d from " % (steps, job.steps)):
        raise Failure("want it to resume at step %d: %s" % (steps, events(again, "state")))
    if result["resumed_from"] != said["manifest"]["path"]:
        raise Failure(
            "resumed from %s, the newest is %s" % (result["resumed_from"], said["manifest"]["path"])
        )
    if result["closures"]["attempts"] < again.closures - len(whole) or (
        partial and not result["duplicates_refused"]
    ):
        raise Failure(
            "%d closures were done and %d updates of others: %s, %d duplicates"
            % (len(whole), partial, result["closures"], result["duplicates_refused"])
        )
    print(
        "       resumed at step %d of %d, %d updates of open closures kept"
        % (steps, job.steps, partial)
    )


@scenario(
    "checkpoints",
    "K6",
    "the newest file of a lost shard is damaged: the previous snapshot is used with an event, "
    "and only for this shard",
)
def k6(c, r):
    victim = r.choice(c.servers)
    for examples in (2400, 4800, 9600, 19200):
        held = []

        def fault(job):
            held[:] = [s["shard"] for s in job_shards(c, job) if s["server"] == victim.identity]
            victim.kill()

        job = disturb_saved(
            c,
            r.randint(40, 80),
            fault,
            victim.start,
            examples=examples,
            checkpoint="{every: 50ms, keep: 100}",
        )
        folder = folder_of(job)
        # A file may be durable before the coordinator has heard of it. Therefore all files that are
        # newer than those of the manifest before the newest one count as the newest.
        written = manifests(folder)
        last = {f["shard"]: f for f in verified(c, written[-1])["files"]}
        older = {}
        # Goes back to the newest manifest whose files differ from these last files. It reads no
        # more manifests than necessary, because the server must not be declared lost meanwhile.
        for path in reversed(written[:-1]):
            older = {
                f["shard"]: f
                for f in verified(c, path)["files"]
                if f["state"] == "whole"
                and f["shard"] in held
                and f["file"] != last[f["shard"]].get("file")
            }
            if older:
                break
        damaged = 0
        if older:
            shard = r.choice(sorted(older))
            keep = older[shard]
            for name in saved_files.names(folder):
                if (
                    name.startswith("shard-%05d." % shard)
                    and int(name.split(".lsn-")[1].split(".")[0]) > keep["lsn"]
                ):
                    flip(os.path.join(folder, name), r)
                    damaged += 1
        if damaged and not events(job, "rollback", "is lost"):
            break
        victim.start()
        job.finish()
    else:
        raise Failure(
            "four jobs had no shard of %s that was saved twice, "
            "or its files were read before they were damaged" % victim.name
        )
    victim.start()
    result = job.finish()
    said = events(job, "rollback", "shard %d cannot be restored from its snapshot" % shard)
    if (
        not said
        or ("the previous snapshot is used: %s" % keep["file"]) not in said[-1]
        or len(said) > damaged
    ):
        raise Failure(
            "want the file %s to be used after %d damaged ones: %s"
            % (keep["file"], damaged, events(job, "rollback"))
        )
    if [e for e in events(job, "rollback", "cannot be restored") if e not in said]:
        raise Failure("another shard went further back: %s" % events(job, "rollback"))
    check_restored(job, result)


def job_shards(c, job):
    """Returns the present owner of each shard, as a list."""
    listed = c.psctl_json("variable", "list", "--job", job.name)
    found = []
    for variable in listed["variables"] if isinstance(listed, dict) else listed:
        found += variable["shards"]
    return found


def write_images(folder, seed):
    """Writes 40 images of 4 x 4 with labels as IDX files, and returns their paths."""
    draw = random.Random(seed)
    images, labels = os.path.join(folder, "k7-images"), os.path.join(folder, "k7-labels")
    with open(images, "wb") as f:
        f.write(
            struct.pack(">IIII", 0x803, 40, 4, 4)
            + bytes(draw.randrange(256) for _ in range(40 * 16))
        )
    with open(labels, "wb") as f:
        f.write(struct.pack(">II", 0x801, 40) + bytes(i % 3 for i in range(40)))
    return images, labels


@scenario(
    "checkpoints",
    "K7",
    "a data file changes before a repair: file and examples are named, and `on_lost_updates` "
    "decides",
)
def k7(c, r):
    save = c.checkpoint_setting("{every: 1h}")
    for policy in ("fail", "report"):
        for longer in (1, 2, 4, 8, 16):
            images, labels = write_images(c.folder, c.seed)
            path = os.path.join(c.folder, "k7.yaml")
            with open(path, "w") as f:
                f.write(
                    """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: k7-%s-%d}
spec:
  data:
    train: {format: idx, images: "%s", labels: "%s"}
    eval: {format: idx, images: "%s", labels: "%s"}
    fields: {image: {transforms: [{scale: 0.01}]}}
    batch_size: 10
    shuffle: {seed: 7}
  model:
    inputs: {image: {shape: [4, 4, 1]}}
    layers:
      - {name: flat, type: flatten, input: image}
      - {name: logits, type: dense, units: 3}
    losses:
      {type: sparse_categorical_crossentropy, from_logits: true, output: logits, labels: label}
    metrics: [accuracy]
  optimizer: {type: sgd, learning_rate: 0.1}
  training: {epochs: 1, steps_per_closure: 2, on_lost_updates: %s}
  checkpoint: %s
"""
                    % (policy, longer, images, labels, images, labels, policy, save)
                )
            for w in c.workers:
                restart(w, "worker.evaluate=1*delay(%d)" % int(1200 * c.scale * longer))
            c.wait_usable()
            name = c.psctl_json("job", "submit", path)["name"]

            def show():
                return c.psctl_json("job", "show", name)

            wait_for("the evaluation", lambda: int(show()["steps_done"]) == 4)
            for s in c.servers:
                s.kill()
            write_images(c.folder, c.seed + 1)
            for w in c.workers:  # otherwise a worker would continue with the old data in its memory
                w.kill()
            for d in c.servers + c.workers:
                d.start()
            status = wait_for(
                "the end of %s" % name,
                lambda: (lambda s: s if s["state"] in ("SUCCEEDED", "FAILED") else None)(show()),
            )
            if int(status["shards_rolled_back"]) > 0 and (
                status["state"] == "FAILED" or int(status["closures_lost"]) > 0
            ):
                break
        else:
            raise Failure("five evaluations were over before the servers died: %s" % status)
        with open(os.path.join(status["runs_folder"], "result.json")) as f:
            result = json.load(f)
        shards = len(result["shards"])
        if policy == "fail":
            cause = status["first_cause"] or {"message": ""}
            if (
                status["state"] != "FAILED"
                or cause["kind"] != "user"
                or images not in cause["message"]
                or "examples" not in cause["message"]
            ):
                raise Failure("want a user's error that names file and examples: %s" % status)
            continue
        lost = result["lost"]
        # The two closures may be reported in one event or in two.
        named = {
            e["text"].split(" are lost in ")[0]
            for e in status["events"]
            if e["kind"] == "lost" and images in e["text"]
        }
        if (
            status["state"] != "SUCCEEDED"
            or lost != {"closures": 2, "updates": 4 * shards}
            or named != {"updates of closure 0", "updates of closure 1"}
        ):
            raise Failure(
                "want two closures named and all their updates lost: %s, %s"
                % (result, status["events"])
            )
        if result["closures"]["succeeded"] != 2 or any(
            s["updates_applied"] != 0 for s in result["shards"]
        ):
            raise Failure(
                "want both closures succeeded, and nothing of them in a shard: %s" % result
            )
        audit = json.loads(c.psctl("job", "audit", "--job", name, "--output", "json").stdout)
        if not audit["exact"] or audit["closures_done"] != 0:
            raise Failure("psctl job audit: %s" % audit)
    c.wait_tasks()


@scenario(
    "checkpoints",
    "K8",
    "a resume in mid-epoch with another batch size is refused with the reason, and one with "
    "more epochs is not",
)
def k8(c, r):
    shape = dict(examples=3000, epochs=1, step_ms=3)
    job = cancelled(c, r.randint(20, 60), shape)
    resume = "{every: 50ms, keep: 20, resume: true}"
    for change, word in (
        (dict(batch=20), "spec.data.batch_size was=10 is=20"),
        (dict(seed=8), "spec.data.shuffle.seed was=7 is=8"),
        (dict(steps_per_closure=5), "spec.training.steps_per_closure was=4 is=5"),
        (dict(examples=2990), "examples was=%d is=2990" % shape["examples"]),
    ):
        again = c.submit(name=job.name, checkpoint=resume, **dict(shape, **change))
        status = again.wait_state("FAILED", "SUCCEEDED", "CANCELLED")
        cause = status["first_cause"] or {"message": "", "kind": ""}
        if (
            status["state"] != "FAILED"
            or cause["kind"] != "user"
            or "cannot resume" not in cause["message"]
            or word not in cause["message"]
        ):
            raise Failure("resume with %s: %s %s" % (change, status["state"], cause))
    again = c.submit(name=job.name, checkpoint=resume, **dict(shape, epochs=2))
    again.finish()
    if not events(again, "state", "resumed at step"):
        raise Failure("it did not resume: %s" % events(again, "state"))


@scenario(
    "checkpoints", "K9", "kill a server while it restores a shard: the next server restores it"
)
def k9(c, r):
    victim = r.choice(c.servers)
    job = None
    for _ in range(6):
        if job is not None:
            job.finish()
            restart(victim)
        before = c.pids()
        job = kill_saved(c, [victim], steps=r.randint(20, 60), examples=3000)
        victim.start("snapshot.restore=%d*kill" % r.randint(1, 4))
        wait_for(
            "%s to be killed while it restores" % victim.name,
            lambda: not victim.alive() or job.ended(),
        )
        if not victim.alive():
            break
        # The server returned too late: its shards already belonged to other servers.
    else:
        raise Failure("six times %s restored nothing: %s" % (victim.name, events(job, "rollback")))
    victim.start()
    result = job.finish()
    only_these_died(before, c, victim)
    check_restored(job, result, 2)


@scenario("checker", "K4-off", "K4 with the ledger switched off: the check must fail")
def k4_off(c, r):
    for s in c.servers:
        restart(s, "push.duplicate=30%on", mutant="ledger_off")
    c.wait_tasks()
    job = c.submit(examples=600, step_ms=1, checkpoint=OFTEN)
    job.wait_miscounted()
    try:
        check_agrees(job, verified(c, folder_of(job)))
    except Failure as why:
        if "is not what its ledger says" not in str(why) and "updates applied" not in str(why):
            raise Failure("the check failed for another reason: %s" % why)
        for s in c.servers:
            restart(s)
        c.wait_tasks()
        return
    raise Failure("the ledger was off, pushes were duplicated, and K4's check saw nothing")
