#!/usr/bin/env python3
"""Tests jobs that run at the same time on one cluster. Each must end as if it ran alone: with the
same bits in values and in optimizer state.

  jobs_test.py --bin DIR [Class[.test]]"""
import os
import sys
import unittest
import zipfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402
from cluster import Cluster, wait_for  # noqa: E402


class SideBySide(unittest.TestCase):
    def bits(self, c, name, folder):
        """Returns the results of a job: for each variable the digests of values and optimizer
        state, and the bytes of the exported arrays."""
        digests = {
            v["name"]: (v["complete"], v["digest"], v["slot_digest"])
            for v in c.psctl_json("variable", "list", "--job", name)["variables"]
        }
        with zipfile.ZipFile(os.path.join(folder, "weights.npz")) as z:
            arrays = {n: z.read(n) for n in z.namelist()}
        self.assertTrue(digests and all(complete for complete, _, _ in digests.values()), digests)
        return digests, arrays

    def submit(self, c, name, job):
        path = support.write(
            os.path.join(c.folder, name + ".yaml"), support.job_yaml(name=name, **job)
        )
        c.psctl("job", "submit", path)

    def ended(self, c, name):
        status = wait_for(
            "%s to end" % name,
            lambda: (lambda s: s if support.has_ended(s) else None)(
                c.psctl_json("job", "show", name)
            ),
            120,
        )
        self.assertEqual(status["state"], "SUCCEEDED", status.get("first_cause"))
        return self.bits(c, name, status["runs_folder"])

    def test_two_deterministic_jobs_with_equal_variable_names_end_with_the_bits_that_each_has_alone(
        self,
    ):
        os.environ["EVERGRAD_DATA"] = support.data_folder()
        # All jobs use the same names of variables. The first two jobs have equal shapes, but
        # different values because of their learning rates. The third job has other shapes.
        kinds = [dict(epochs=4), dict(epochs=4, learning_rate="0.003"), dict(epochs=4, units=24)]
        for kind in kinds:
            kind["deterministic"] = True
        with Cluster(
            support.BIN, servers=2, workers=2, coordinator_arguments=("--jobs-running-max", "2")
        ).up() as c:
            alone = []
            for i, kind in enumerate(kinds):
                self.submit(c, "alone-%d" % i, kind)
                alone.append(self.ended(c, "alone-%d" % i))
            for one in range(3):
                for other in range(one):
                    self.assertNotEqual(alone[one], alone[other])
            for one, other in ((0, 1), (0, 2)):
                # A pair of jobs shows that jobs run at the same time only if both were seen to
                # train before one of them ended. Otherwise another pair runs, and its results are
                # compared, too.
                met = False
                for i in range(10):
                    names = "beside-%d-%d-%d" % (one, other, i), "beside-%d-%d-%d" % (other, one, i)
                    self.submit(c, names[0], kinds[one])
                    self.submit(c, names[1], kinds[other])

                    def both_or_one_ended():
                        rows = [
                            row
                            for row in c.psctl_json("job", "list")["jobs"]
                            if row["name"] in names
                        ]
                        if all(
                            row["state"] == "RUNNING"
                            and row["steps_done"] > 0
                            and row["workers_serving"] == 1
                            for row in rows
                        ):
                            return "both"
                        return (
                            "ended"
                            if any(
                                row["state"] not in ("QUEUED", "STARTING", "RUNNING")
                                for row in rows
                            )
                            else None
                        )

                    met = (
                        wait_for(
                            "both jobs to train at the same time, or one to end", both_or_one_ended
                        )
                        == "both"
                    )
                    self.assertEqual(self.ended(c, names[0]), alone[one])
                    self.assertEqual(self.ended(c, names[1]), alone[other])
                    if met:
                        break
                self.assertTrue(met, "no pair of 10 was seen to train at the same time")


if __name__ == "__main__":
    support.main()
