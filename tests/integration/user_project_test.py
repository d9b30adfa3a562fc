#!/usr/bin/env python3
"""Builds and runs a user's project that contains this repository as a folder. The test uses the
lines of examples/functions/README.md.

  user_project_test.py --bin build/release/bin --work build/release/user-project

The project is kept in --work, so that a second run builds only what has changed. Its objects are
compiled as in the main build, so a compiler cache has most of them already. For this, the paths in
the compiler's command lines must be the same as there, which the two links below ensure.
"""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402
from cluster import Cluster  # noqa: E402
from documents import block  # noqa: E402
from support import ROOT, Case, binary, main, wait_for  # noqa: E402

README = "examples/functions/README.md"
WORK = None


def link(target, name):
    """Makes a symbolic link, and replaces any file with this name."""
    if os.path.islink(name) and os.readlink(name) == target:
        return
    if os.path.lexists(name):
        os.unlink(name)
    os.symlink(target, name)


class UserProject(Case):
    def lay_out(self):
        """Makes the folder that the document describes. It contains CMakeLists.txt, worker.cc,
        client.cc and evergrad."""
        project = os.path.join(WORK, "mine")
        os.makedirs(project, exist_ok=True)
        lines = block(README, "cmake", "add_subdirectory(evergrad)")
        path = os.path.join(project, "CMakeLists.txt")
        if support.read(path) != lines:
            support.write(path, lines)
        for name in ("worker.cc", "client.cc"):
            link(os.path.join(ROOT, "examples", "functions", name), os.path.join(project, name))
        link(ROOT, os.path.join(project, "evergrad"))
        # As in the main build, the build folder lies two folders below the checkout, and the
        # generated messages are in its folder `protos`.
        real = os.path.abspath(WORK) + ".build"
        for folder in (os.path.join(real, "evergrad"), os.path.join(real, "protos")):
            os.makedirs(folder, exist_ok=True)
        link(os.path.join("..", "protos"), os.path.join(real, "evergrad", "protos"))
        link(real, os.path.join(project, "build"))
        return project

    def test_the_documented_commands_build_a_worker_and_a_client_that_train_on_a_cluster(self):
        project = self.lay_out()
        commands = block(README, "sh", "cmake -S . -B build")
        environment = dict(os.environ)
        if shutil.which("ccache"):
            launcher = "cmake;-E;env;CCACHE_BASEDIR=%s;CCACHE_NOHASHDIR=1;ccache" % ROOT
            environment.update(
                CMAKE_CXX_COMPILER_LAUNCHER=launcher, CMAKE_C_COMPILER_LAUNCHER=launcher
            )
            # Without this option, the command lines of the compiler would differ from those of the
            # main build.
            commands = commands.replace("-G Ninja", "-G Ninja -DEVERGRAD_WARNINGS_AS_ERRORS=ON")
        built = subprocess.run(
            ["bash", "-e"],
            input=commands,
            cwd=project,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual(built.returncode, 0, built.stdout[-6000:])
        # A user's build must not contain Evergrad's tests, benchmarks and examples.
        listed = subprocess.run(
            ["ninja", "-C", "build", "-t", "targets", "all"],
            cwd=project,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        self.assertIn("evergrad-coordinator:", listed)
        for name in (
            "common_base_test",
            "dense_bench",
            "evergrad-example-worker",
            "evergrad-wrong-pushes",
        ):
            self.assertNotIn(name, listed)

        worker, client = (
            os.path.join(project, "build", name) for name in ("my-worker", "my-client")
        )
        with Cluster(binary(""), 1, 1, worker_binary=worker).up() as c:
            c.psctl("job", "submit", os.path.join(ROOT, "configs", "examples", "functions.yaml"))
            ended = subprocess.run(
                [client, c.coordinator_address(), "plane", "4", "5"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
            )
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
            self.assertRegex(
                ended.stdout, r"(?m)^slope, height and steps applied: .* 20 .*20 steps scheduled\)$"
            )
            wait_for(
                "the job's end",
                lambda: c.psctl_json("job", "show", "plane")["state"] == "SUCCEEDED",
            )


if __name__ == "__main__":
    at = sys.argv.index("--work")
    WORK = os.path.abspath(sys.argv[at + 1])
    del sys.argv[at : at + 2]
    main()
