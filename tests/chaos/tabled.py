"""Scenarios in which the counting jobs also have embedding tables. Most are scenarios of the other
files with other settings. One is the canary that shows that the check of tables finds a fault.
scenarios.py registers them with the others.

The ids that a step pushes are a function of (closure, step, table). Some ids appear twice in a
push, and in many pushes, so the final contents of each row are known exactly. A step touches few of
the slots (a slot is the i-th partitions of all tables, which form one shard).
"""
from cluster import Failure, wait_for
from saved import check_agrees, verified
from stage import SCENARIOS, restart, scenario

SHAPE = {"tables": 3}


def with_tables(name):
    function, what = SCENARIOS[name]

    @scenario("tables", name + "-tables", what + "; with embedding tables")
    def run(c, r):
        c.shape = dict(SHAPE)
        try:
            function(c, r)
        finally:
            c.shape = {}


for name in ("W2", "W3", "W15", "S6", "S9", "N4"):
    with_tables(name)


@scenario(
    "tables",
    "S10",
    "a push to several tables reaches a byte limit: it is refused whole, and the job fails or "
    "waits by its setting",
)
def s10(c, r):
    # The last table of a slot has memory for some rows only. A push that would create too many rows
    # there must be refused as a whole, although the tables before the last one have enough memory.
    limited = dict(
        SHAPE,
        table_bytes_max=16 * 48 * r.randint(6, 9),
        step_ms=1,
        checkpoint="{every: 50ms, keep: 20}",
    )

    def whole(status):
        if status["checkpoint"] is None:
            raise Failure("%s was not saved" % status["name"])
        said = verified(c, status["checkpoint"]["path"])
        check_agrees(job, said)
        if not any(
            entry["kind"] == "table" and entry["updates_applied"]
            for entry in said["files"]
            if entry["state"] != "seed"
        ):
            raise Failure("no slot has applied anything")
        return said

    job = c.submit(training=", on_over_budget: fail", **limited)
    status = job.wait_state("FAILED", "SUCCEEDED")
    if (
        status["state"] != "FAILED"
        or "out of memory" not in str(status["first_cause"])
        or "counting/table2" not in str(status["first_cause"])
    ):
        raise Failure(
            "want FAILED for want of room, got %s: %s" % (status["state"], status["first_cause"])
        )
    whole(status)
    # The job is submitted again with a lower limit. It must stop again: its rows already exceed the
    # limit, so no new row can be created.
    status = c.submit(
        name=job.name,
        **dict(limited, table_bytes_max=16 * 48, checkpoint="{every: 50ms, keep: 20, resume: true}")
    ).wait_state("FAILED", "SUCCEEDED")
    if status["state"] != "FAILED" or "out of memory" not in str(status["first_cause"]):
        raise Failure(
            "want FAILED for want of room, got %s: %s" % (status["state"], status["first_cause"])
        )
    # The job is submitted again with a higher limit. It must continue where it had stopped, and
    # every update must be counted once.
    c.submit(
        name=job.name,
        **dict(limited, table_bytes_max=0, checkpoint="{every: 50ms, keep: 20, resume: true}")
    ).finish()
    job = c.submit(training=", on_over_budget: pause", **limited)
    wait_for(
        "the job to say that it waits for memory",
        lambda: "memory" in job.show().get("waiting_for", "") or job.ended(),
    )
    if job.ended():
        raise Failure("the job did not wait: %s" % job.show()["state"])
    at = job.progress()
    c.psctl("job", "cancel", job.name)
    status = job.wait_state("CANCELLED")
    whole(status)
    print("       %d of %d steps before the memory was full" % (at, job.steps))
    # Without the limit the same job must succeed.
    c.submit(**SHAPE).finish()


@scenario("tables", "tables-off", "with the ledger switched off the check of the tables must fail")
def tables_off(c, r):
    for s in c.servers:
        restart(s, "push.duplicate=30%on", mutant="ledger_off")
    c.wait_tasks()
    job = c.submit(step_ms=1, **SHAPE)
    job.wait_miscounted()
    listed = c.psctl_json("variable", "list", "--job", job.name)["variables"]
    try:
        job.check_tables(job.result(), listed)
    except Failure as why:
        if "rows not counted exactly" not in str(why):
            raise Failure("the check failed for another reason: %s" % why)
    else:
        raise Failure(
            "the ledger was off, pushes were duplicated, and the check of the tables saw nothing"
        )
    for s in c.servers:
        restart(s)
    c.wait_tasks()
    c.submit(examples=300, **SHAPE).finish()
