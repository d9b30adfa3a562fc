#!/usr/bin/env python3
"""Tests jobs whose values are sent with 16 bits each.

  wire_type_test.py --bin DIR [Class[.test]]"""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402
from cluster import Cluster, wait_for  # noqa: E402


class Checkpoints(unittest.TestCase):
    def ended(self, c, checkpoint, *settings):
        """Runs the job with these settings, and returns its status."""
        path = support.write(
            os.path.join(c.folder, "half.yaml"),
            support.job_yaml(name="half", extra="  checkpoint: {%s}\n" % checkpoint),
        )
        c.psctl("job", "submit", path, *settings)
        status = wait_for(
            "the job to end",
            lambda: (lambda s: s if support.has_ended(s) else None)(
                c.psctl_json("job", "show", "half")
            ),
            120,
        )
        self.assertEqual(status["state"], "SUCCEEDED", status.get("first_cause"))
        self.assertEqual([e for e in status["events"] if e["kind"] == "warning"], [])
        return status

    def test_a_job_that_sends_16_bits_has_checkpoints_and_resumes_with_another_type(self):
        # The coordinator once refused all files of such a job when it read them back, because the
        # type in the files is not the one in the plan.
        os.environ["EVERGRAD_DATA"] = support.data_folder()
        with Cluster(support.BIN, servers=2, workers=1).up() as c:
            for wire in ("bf16", "fp16", '[{match: "logits/*", dtype: bf16}]'):
                with self.subTest(wire):
                    set_wire = "--set", "spec.training.wire_dtype=" + wire
                    first = self.ended(c, "every: 100ms", *set_wire)
                    self.assertTrue(first["checkpoint"]["complete"], first["checkpoint"])
                    c.psctl_files("checkpoint", "verify", first["runs_folder"])
                    longer = "--set", "spec.training.epochs=2"
                    again = self.ended(c, "every: 100ms, resume: true", *longer)
                    self.assertEqual(
                        again["checkpoint"]["resumed_from"], first["checkpoint"]["path"]
                    )


if __name__ == "__main__":
    support.main()
