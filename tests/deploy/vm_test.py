#!/usr/bin/env python3
"""Tests the cloud-init files of deploy/vm, and the pages docs/deploy.md and docs/object_stores.md.
The files and the pages are checked, and imitated machines follow the files.

  vm_test.py --bin build/release/bin [Files|Schema|Page|StorePage|Machines]
"""
import json
import os
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "integration")]
import vm_files  # noqa: E402
import vm_rehearsal  # noqa: E402
from documents import block, blocks  # noqa: E402
from support import Case, main, read, wait_for, write  # noqa: E402

PARTS = os.path.join(vm_files.VM, "parts")


class Checks(unittest.TestCase):
    def assert_finds(self, check, text, old, new, words):
        """The check must accept `text`. In a copy in which `new` replaces `old`, it must find the
        mistake."""
        self.assertEqual(check(text), [])
        self.assertIn(old, text)
        found = check(text.replace(old, new))
        self.assertTrue(any(words in f for f in found), "%r is not found: %s" % (words, found))


class Files(Checks):
    def test_the_files_are_those_of_the_parts(self):
        r = subprocess.run(
            [sys.executable, os.path.join(vm_files.VM, "render.py"), "--check"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)

    def test_a_stale_file_is_found(self):
        folder = os.path.join(self.enterContext_folder(), "vm")
        shutil.copytree(vm_files.VM, folder)
        write(os.path.join(folder, "ec2-worker.yaml"), "#cloud-config\n")
        r = subprocess.run(
            [sys.executable, os.path.join(folder, "render.py"), "--check"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        self.assertEqual(r.returncode, 1)
        self.assertIn("ec2-worker.yaml", r.stdout)
        self.assertNotIn("ec2-server.yaml", r.stdout)

    def enterContext_folder(self):
        import tempfile

        folder = tempfile.mkdtemp(prefix="evergrad vm-")
        self.addCleanup(shutil.rmtree, folder)
        return folder

    def test_shape_and_settings(self):
        known = vm_files.programs()
        for name, text in vm_files.vm_files():
            with self.subTest(name):
                self.assertEqual(vm_files.shape(text), [])
                self.assertEqual(vm_files.settings(text, known), [])
                self.assertEqual(vm_files.notices(text), [])
                self.assertEqual(vm_files.checkpoints(text), [])
                for path, script in vm_files.written_files(text).items():
                    self.assertEqual(vm_files.flags_of_commands(script, known), [], path)

    def test_each_mistake_of_shape_and_settings_is_found(self):
        text = vm_files.read("deploy", "vm", "gce-worker.yaml")
        for check, old, new, words in (
            (vm_files.shape, "#cloud-config\n", "", "first line"),
            (vm_files.shape, "runcmd:", "runcmb:", "keys"),
            (vm_files.shape, '"0755"', '"0644"', "permissions"),
            (vm_files.shape, "- [/usr/local/sbin/evergrad-boot]", "- [/evergrad-b]", "not write"),
            (
                vm_files.shape,
                "=+/usr/local/sbin/evergrad-settings",
                "=+/usr/local/sbin/evergrad-sets",
                "not written",
            ),
            (vm_files.shape, "data_root", "data_root" + 16384 * "x", "size"),
            (vm_files.settings, "data_root", "data_rood", "evergrad-worker has no key data_rood"),
            (vm_files.settings, "  ca:", "  cb:", "has no key tls_cb"),
            (vm_files.notices, "preemption_source: gce", "preemption_source: aws", "source"),
            (vm_files.notices, "preemption_source:", "watched_source:", "source"),
            (vm_files.notices, "Restart=on-failure", "Restart=always", "starts again"),
        ):
            with self.subTest(words):
                self.assert_finds(check, text, old, new, words)

    def test_each_mistake_about_checkpoints_is_found(self):
        for name, old, new, words in (
            ("ec2-server", '"@CHECKPOINTS@", ', "", "checkpoint_root"),
            ("gce-coordinator", '["@CHECKPOINTS@"]', "[/srv/evergrad]", "checkpoint_root"),
            ("gce-server", "store_metadata_credentials: true", "drain_max: 5s", "credentials"),
            ("azure-server", "log_format:", "store_metadata_credentials: true\n      log_format:")
            + ("credentials",),
            ("ec2-coordinator", '"@S3_REGION@"', '"us-east-1"', "s3_region"),
            ("ec2-coordinator", "S3_REGION= ", "S3_PLACE= ", "the value S3_REGION"),
            ("gce-worker", "CHECKPOINTS=/srv", "PLACE=/srv", "CHECKPOINTS"),
        ):
            with self.subTest(name, new=new):
                text = vm_files.read("deploy", "vm", name + ".yaml")
                self.assert_finds(vm_files.checkpoints, text, old, new, words)

    def test_the_daemons_have_the_flags_of_the_page_of_flags(self):
        known = vm_files.programs()
        self.assertEqual(
            {"evergrad-coordinator", "evergrad-ps-server", "evergrad-worker"} - set(known), set()
        )
        self.assertIn("--tls-ca", known["psctl job run"])
        self.assertIn("--data-root", known["evergrad-worker"])

    def scripts(self):
        for name in sorted(os.listdir(PARTS)):
            text = read(os.path.join(PARTS, name))
            if text.startswith("#!"):
                yield "deploy/vm/parts/" + name, text
        for name in (
            "deploy/vm/gce-startup.sh",
            "deploy/slurm/evergrad.sbatch",
            "deploy/scripts/tools.sh",
        ):
            yield name, vm_files.read(name)

    def test_shellcheck(self):
        if not shutil.which("shellcheck"):
            self.skipTest("no shellcheck (deploy/scripts/setup.sh test installs it)")
        seen = 0
        for name, text in self.scripts():
            with self.subTest(name):
                self.assertEqual(vm_files.shellcheck(text), [])
                seen += 1
        self.assertGreaterEqual(seen, 8)
        self.assert_finds(
            vm_files.shellcheck,
            vm_files.read("deploy", "vm", "parts", "evergrad-boot"),
            'enable "$unit.service"',
            "enable $unit.service",
            "SC2086",
        )


@unittest.skipUnless(
    os.path.exists(vm_files.CLOUD_INIT),
    "no cloud-init (deploy/scripts/tools.sh puts it into build/tools)",
)
class Schema(Checks):
    def test_cloud_init_accepts_each_file_and_refuses_a_mistake(self):
        texts = dict(vm_files.vm_files())
        self.assertEqual(len(texts), 9)
        texts["mode.yaml"] = texts["azure-server.yaml"].replace('"0755"', "755")
        texts["key.yaml"] = texts["gce-worker.yaml"].replace("content:", "contents:", 1)
        found = vm_files.schema(texts)
        self.assertEqual(sorted(found), ["key.yaml", "mode.yaml"], found)
        self.assertIn("permissions", found["mode.yaml"])
        self.assertIn("contents", found["key.yaml"])


class Page(Checks):
    def page(self):
        return vm_files.read("docs", "deploy.md")

    def test_the_commands_of_the_page_exist(self):
        self.assertEqual(vm_files.page(self.page()), [])
        self.assertGreaterEqual(vm_files.page_blocks(self.page()).count("psctl "), 10)

    def test_each_mistake_of_the_page_is_found(self):
        for old, new, words in (
            ("psctl cert issue alice", "psctl cert issued alice", "no such verb"),
            ("workers --task worker", "workers --tusk worker", "no flag --tusk"),
            ("render.py gce worker", "render.py gcp worker", "refused"),
            (" INSTANCE=0", " INSTANT=0", "unknown value"),
            ("configs/quickstart.yaml", "configs/quick.yaml", "no such file"),
            ("restart evergrad-ps-server@0", "restart evergrad-server@0", "no such unit"),
            ("`--coordinator-away`", "`--coordinator-gone`", "--coordinator-gone"),
            ("_job_steps_done`", "_job_steps_made`", "no such metric"),
            ("](cli.md)", "](cly.md)", "leads nowhere"),
        ):
            with self.subTest(new):
                self.assert_finds(vm_files.page, self.page(), old, new, words)

    def test_the_flags_of_the_slurm_script_exist(self):
        text = vm_files.read("deploy", "slurm", "evergrad.sbatch")
        self.assert_finds(
            vm_files.flags_of_commands, text, "--address-file", "--address-fill", "--address-fill"
        )


class StorePage(Checks, Case):
    """Checks docs/object_stores.md."""

    def page(self):
        return vm_files.read("docs", "object_stores.md")

    def test_the_commands_flags_and_metrics_of_the_page_exist(self):
        self.assertEqual(vm_files.page(self.page()), [])

    def test_each_mistake_of_the_page_is_found(self):
        for old, new, words in (
            ("psctl checkpoint verify s3", "psctl checkpoint verity s3", "no such verb"),
            ("--checkpoint-root s3", "--checkpoint-roof s3", "no flag --checkpoint-roof"),
            ("--s3-region eu-central-1\n", "--s3-regions eu\n", "no flag --s3-regions"),
            ("`--store-ca`", "`--store-cas`", "no program has the flag --store-cas"),
            ("_store_retries_total`", "_store_retried_total`", "no such metric"),
            ("](clusters.md", "](cluster.md", "leads nowhere"),
        ):
            with self.subTest(new):
                self.assert_finds(vm_files.page, self.page(), old, new, words)

    def test_the_rules_and_policies_are_json(self):
        found = [json.loads(text) for text in blocks("docs/object_stores.md", "json")]
        policy, of_s3, of_gcs = found
        self.assertIn("s3:AbortMultipartUpload", policy["Statement"][0]["Action"])
        self.assertIn("AbortIncompleteMultipartUpload", of_s3["Rules"][0])
        self.assertEqual(of_gcs["rule"][0]["action"]["type"], "AbortIncompleteMultipartUpload")

    def test_the_job_of_the_page_is_valid_and_names_the_folder_of_the_daemons(self):
        text = block("docs/object_stores.md", "yaml", "kind: TrainingJob")
        path = write(self.path("job.yaml"), text)
        self.psctl("job", "validate", path)
        folder = vm_files.yaml.safe_load(text)["spec"]["checkpoint"]["directory"]
        roots = [
            line.split("--checkpoint-root ")[1].split()[0]
            for line in vm_files.commands(vm_files.page_blocks(self.page()))
            if "--checkpoint-root" in line
        ]
        self.assertEqual(roots, [folder, folder])


class Machines(vm_rehearsal.Rehearsal):
    """Starts three machines that follow their cloud-init files, each with the store of another
    cloud. They must train a job over TLS, and the worker must leave after a notice."""

    def test_three_machines_train_a_job_and_a_worker_leaves_on_a_notice(self):
        self.make_store()
        coordinator = self.boot("gce", "coordinator", "evergrad-coordinator", 1)
        server = self.boot("azure", "server", "evergrad-server-0", 2)
        worker = self.boot("ec2", "worker", "spot-x7k2", 3)
        self.assertEqual(coordinator.units(), ["enable evergrad-coordinator.service"])
        self.assertEqual(server.units(), ["enable evergrad-ps-server@0.service"])
        self.assertEqual(worker.units(), ["enable evergrad-worker@spot-x7k2.service"])
        for machine in (worker, server, coordinator):
            machine.start_daemon()
        self.train(coordinator)
        tasks = self.tasks(coordinator)
        self.assertEqual(
            {name: address.rsplit(":", 1)[0] for name, address in tasks.items()},
            {
                "coordinator/0": "10.80.0.1",
                "ps_server/0": "10.80.0.2",
                "worker/spot-x7k2": "10.80.0.3",
            },
        )
        worker.notice()
        self.assertEqual(worker.daemon.process.wait(60), 0)
        self.assertIn("leaving: preemption notice: EC2 reclaims", worker.daemon.log())

    def test_machines_with_a_bucket_need_no_shared_folder(self):
        self.make_store()
        machines = {
            "coordinator/0": self.boot(
                *("gce", "coordinator", "evergrad-coordinator", 1),
                bucket=["CHECKPOINTS=gs://a-bucket/checkpoints"],
            ),
            "ps_server/0": self.boot(
                *("ec2", "server", "evergrad-server-0", 2),
                bucket=["CHECKPOINTS=s3://a-bucket/checkpoints", "S3_REGION=eu-west-1"],
            ),
        }
        for machine in machines.values():
            self.assertEqual([c for c in machine.calls() if c.startswith("mount")], [])
            owner = os.stat(machine.machine.path("root", "srv/evergrad/runs")).st_uid
            self.assertEqual(str(owner), vm_rehearsal.UID)
            machine.start_daemon()
        coordinator, server = machines.values()
        self.assertIn(
            'checkpoint_root: ["gs://a-bucket/checkpoints"]\nstore_metadata_credentials: true\n',
            coordinator.read("/etc/evergrad/coordinator.yaml"),
        )
        self.assertIn(
            'checkpoint_root: ["s3://a-bucket/checkpoints", /srv/evergrad/runs]\n'
            'store_metadata_credentials: true\ns3_region: "eu-west-1"\n',
            server.read("/etc/evergrad/ps-server.yaml"),
        )
        self.give_certificate(coordinator)
        wait_for("both tasks", lambda: set(self.tasks(coordinator)) >= set(machines))
        # No job names the bucket, so nobody asks the metadata service for credentials.
        for machine in machines.values():
            self.assertEqual(machine.read("/asked"), "")

    def test_a_machine_without_a_shared_folder_and_without_a_bucket_is_refused(self):
        self.make_store()
        machine = self.boot(
            *("gce", "server", "evergrad-server-0", 1),
            bucket=["CHECKPOINTS=/srv/evergrad/checkpoints"],
            expect=1,
        )
        self.assertIn("CHECKPOINTS must be the URI", machine.said)

    def test_a_package_whose_worker_has_one_unit_is_accepted(self):
        self.units = ("evergrad-ps-server@.service",)
        self.make_store()
        machine = self.boot("ec2", "worker", "spot-1", 1)
        self.assertEqual(machine.units()[0], "enable evergrad-worker.service")
        machine.run("/usr/local/sbin/evergrad-settings")
        self.assertIn('name: "spot-1"\n', machine.read("/etc/evergrad/worker.yaml"))
        addition = machine.read("/etc/systemd/system/evergrad-worker.service.d/vm.conf")
        self.assertIn("ExecStartPre", addition)

    def test_a_file_that_is_not_filled_in_is_refused(self):
        self.make_store()
        machine = self.boot("gce", "server", "evergrad-server-0", 1, fill_in=False, expect=1)
        self.assertIn("fill in STORE and SHARED", machine.said)

    def test_a_server_without_a_number_is_refused(self):
        self.make_store()
        machine = self.boot("gce", "server", "evergrad-server", 1, expect=1)
        self.assertIn("no number at the end of the host name evergrad-server", machine.said)

    def test_a_machine_without_a_certificate_in_the_store_is_refused(self):
        self.make_store()
        machine = self.boot("azure", "server", "evergrad-server-7", 1, expect=22)
        self.assertIn("404", machine.said)
        self.assertEqual(machine.units(), [])


if __name__ == "__main__":
    main()
