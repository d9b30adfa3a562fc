#!/usr/bin/env python3
"""The cloud-init files of deploy/vm and the page docs/deploy.md: checked, and followed on machines.

  vm_test.py --bin build/release/bin [Files|Schema|Page|Notices|Machines]
"""
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "integration")]
import vm_files  # noqa: E402
import vm_rehearsal  # noqa: E402
from support import Case, main, read, wait_for, write  # noqa: E402

PARTS = os.path.join(vm_files.VM, "parts")


class Checks(unittest.TestCase):
    def assert_finds(self, check, text, old, new, words):
        """The check accepts `text`, and finds the mistake in a copy with `new` for `old`."""
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
                for path, script in vm_files.written_files(text).items():
                    self.assertEqual(vm_files.flags_of_commands(script, known), [], path)

    def test_each_mistake_of_shape_and_settings_is_found(self):
        text = vm_files.read("deploy", "vm", "gce-worker.yaml")
        for check, old, new, words in (
            (vm_files.shape, "#cloud-config\n", "", "first line"),
            (vm_files.shape, "runcmd:", "runcmb:", "keys"),
            (vm_files.shape, '"0755"', '"0644"', "permissions"),
            (vm_files.shape, "- [/usr/local/sbin/evergrad-boot]", "- [/evergrad-b]", "not write"),
            (vm_files.shape, "exec evergrad-leave", "exec evergrad-left", "not written"),
            (vm_files.shape, "data_root", "data_root" + 16384 * "x", "size"),
            (vm_files.settings, "data_root", "data_rood", "evergrad-worker has no key data_rood"),
            (vm_files.settings, "  ca:", "  cb:", "has no key tls_cb"),
        ):
            with self.subTest(words):
                self.assert_finds(check, text, old, new, words)

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
            "deploy/scripts/cloud_init.sh",
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
        self.assertGreaterEqual(seen, 12)
        self.assert_finds(
            vm_files.shellcheck,
            vm_files.read("deploy", "vm", "parts", "evergrad-leave"),
            '"$UNIT.service"',
            "$UNIT.service",
            "SC2086",
        )


@unittest.skipUnless(
    os.path.exists(vm_files.CLOUD_INIT),
    "no cloud-init (deploy/scripts/cloud_init.sh puts it into build/tools)",
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


class Metadata(http.server.BaseHTTPRequestHandler):
    """A metadata service: `answers` is a function of (method, path, headers) that returns (status,
    text)."""

    def do_GET(self):
        self.server.asked.append((self.command, self.path))
        status, text = self.server.answers(self.command, self.path, self.headers)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_PUT = do_GET

    def log_message(self, *arguments):
        pass


class Notices(Case):
    def setUp(self):
        super().setUp()
        if not shutil.which("curl") or not shutil.which("jq"):
            self.skipTest("no curl or jq (deploy/scripts/setup.sh test installs them)")
        os.mkdir(self.path("bin"))
        leave = write(self.path("bin", "evergrad-leave"), '#!/bin/sh\n: > "$LEFT"\n')
        os.chmod(leave, 0o755)

    def watch(self, cloud, answers):
        """Starts the notice script of a cloud on a fake. Returns (script, requests)."""
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
        server.answers, server.asked = answers, []
        thread = threading.Thread(target=server.serve_forever, name="metadata")
        thread.start()

        def stop():
            server.shutdown()
            thread.join()
            server.server_close()

        self.addCleanup(stop)
        script = subprocess.Popen(
            ["bash", os.path.join(PARTS, "notice-" + cloud)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=dict(
                os.environ,
                PATH=self.path("bin") + ":" + os.environ["PATH"],
                METADATA_URL="http://127.0.0.1:%d" % server.server_port,
                NOTICE_EVERY="0.02",
                LEFT=self.path("left"),
            ),
        )

        def end():
            if script.poll() is None:
                os.killpg(script.pid, 9)
            script.wait()

        self.addCleanup(end)
        return script, server.asked

    def follow(self, cloud, states, answer):
        """Goes through `states`, each until it was answered five times. Only the last announces
        the end of the machine."""
        at = {"state": 0, "answered": 0}

        def answers(method, path, headers):
            reply = answer(states[at["state"]], method, path, headers)
            at["answered"] += 1
            return reply

        script, asked = self.watch(cloud, answers)
        for state in range(len(states) - 1):
            at.update(state=state, answered=0)
            wait_for(
                "five answers of %s" % states[state],
                lambda: at["answered"] >= 5 or script.poll() is not None,
            )
            self.assertIsNone(script.poll(), "left without a notice: %s" % states[state])
        self.assertFalse(os.path.exists(self.path("left")))
        at["state"] = len(states) - 1
        wait_for("the script to leave", lambda: script.poll() is not None)
        self.assertEqual(script.returncode, 0)
        self.assertTrue(os.path.exists(self.path("left")))
        return asked

    def test_gce(self):
        def answer(state, method, path, headers):
            if headers.get("Metadata-Flavor") != "Google":
                return 403, ""
            if not path.startswith("/computeMetadata/v1/instance/preempted"):
                return 404, ""
            return {"error": (503, "")}.get(state, (200, state))

        asked = self.follow("gce", ["FALSE", "error", "<html>garbage", "FALSE", "TRUE"], answer)
        self.assertIn("wait_for_change=true", asked[-1][1])

    def test_ec2(self):
        tokens = set()

        def answer(state, method, path, headers):
            if (method, path) == ("PUT", "/latest/api/token"):
                if state == "no token":
                    return 403, ""
                tokens.add("token-%d" % len(tokens))
                return 200, "token-%d" % (len(tokens) - 1)
            if path != "/latest/meta-data/spot/instance-action":
                return 404, ""
            if state == "401" or headers.get("X-aws-ec2-metadata-token") not in tokens:
                return 401, ""
            if state == "notice":
                return 200, '{"action": "terminate", "time": "2026-11-26T21:00:00Z"}'
            return (200, "garbage") if state == "garbage" else (404, "")

        self.follow("ec2", ["no token", "404", "401", "garbage", "notice"], answer)

    def test_azure(self):
        def event(kind, name):
            return json.dumps({"Events": [{"EventType": kind, "Resources": [name]}]})

        def answer(state, method, path, headers):
            if headers.get("Metadata") != "true":
                return 400, ""
            if path.startswith("/metadata/instance/compute/name?"):
                return 200, "worker_3"
            if not path.startswith("/metadata/scheduledevents?api-version="):
                return 404, ""
            return {
                "none": (200, '{"DocumentIncarnation": 1, "Events": []}'),
                "error": (500, ""),
                "garbage": (200, "<html>"),
                "another machine": (200, event("Preempt", "worker_4")),
                "another event": (200, event("Freeze", "worker_3")),
                "notice": (200, event("Preempt", "worker_3")),
            }[state]

        states = ["none", "error", "garbage", "another machine", "another event", "notice"]
        self.follow("azure", states, answer)


class Machines(vm_rehearsal.Rehearsal):
    """Three machines that do what their cloud-init files say, each with the store of another
    cloud. They train a job over TLS, and the worker leaves on a notice."""

    def test_three_machines_train_a_job_and_a_worker_leaves_on_a_notice(self):
        self.make_store()
        coordinator = self.boot("gce", "coordinator", "evergrad-coordinator", 1)
        server = self.boot("azure", "server", "evergrad-server-0", 2)
        worker = self.boot("ec2", "worker", "spot-x7k2", 3)
        self.assertEqual(coordinator.units(), ["enable evergrad-coordinator.service"])
        self.assertEqual(server.units(), ["enable evergrad-ps-server@0.service"])
        self.assertEqual(
            worker.units(),
            ["enable evergrad-worker@spot-x7k2.service", "enable evergrad-notice.service"],
        )
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
        self.assertIn("leaving: preemption notice", worker.daemon.log())
        self.assertIn("stop evergrad-worker@spot-x7k2.service", worker.calls())

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
