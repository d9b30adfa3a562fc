#!/usr/bin/env python3
"""Tests how the build finds CUDA. It must find CUDA by itself. If CUDA is not complete, it must
leave CUDA out and name what is missing. If CUDA was requested, it must fail instead.

  cuda_choice.py CMAKE"""
import os
import subprocess
import sys
import tempfile
import unittest

CMAKE = "cmake"
HERE = os.path.dirname(os.path.abspath(__file__))
PLACES = ("/usr/local/cuda/bin/nvcc", "/opt/cuda/bin/nvcc", "/usr/local/bin/nvcc", "/usr/bin/nvcc")


def configure(*options, **env):
    with tempfile.TemporaryDirectory() as folder:
        keep = {
            name: value
            for name, value in os.environ.items()
            if name not in ("CUDACXX", "CUDA_PATH", "CUDA_HOME", "CMAKE_CXX_COMPILER_LAUNCHER")
        }
        r = subprocess.run(
            [CMAKE, "-S", os.path.join(HERE, "cuda_choice"), "-B", folder, *options],
            capture_output=True,
            text=True,
            env={**keep, **env},
        )
        return r.returncode, r.stdout + r.stderr


class CudaChoice(unittest.TestCase):
    def test_off_looks_for_nothing(self):
        rc, said = configure("-DEVERGRAD_CUDA=OFF")
        self.assertEqual(rc, 0, said)
        self.assertIn("found: OFF", said)
        self.assertNotIn("CUDA compiler", said)

    def test_what_is_missing_is_said_and_is_an_error_only_where_it_was_asked_for(self):
        for found, names in (
            (
                "-DCUDNN_INCLUDE_DIR=/nowhere",
                "cuDNN 9" if any(map(os.path.exists, PLACES)) else "nvcc",
            ),
            ("-DCMAKE_CUDA_COMPILER=", "nvcc"),
        ):
            # The variable CUDACXX names a compiler that does not exist. A user with two compilers
            # may set this variable.
            env = {"CUDACXX": "/nowhere/nvcc"} if names == "nvcc" else {}
            rc, said = configure("-DEVERGRAD_CUDA=AUTO", found, **env)
            self.assertEqual(rc, 0, said)
            self.assertIn("CUDA backend: left out, missing:", said)
            self.assertIn(names, said)
            self.assertIn("found: OFF", said)
        rc, said = configure("-DEVERGRAD_CUDA=ON", "-DCUDNN_INCLUDE_DIR=/nowhere")
        self.assertNotEqual(rc, 0, said)
        self.assertIn("EVERGRAD_CUDA=ON, but this is missing:", said)

    def test_nvcc_is_found_where_the_installer_puts_it_though_path_has_it_not(self):
        if not any(map(os.path.exists, PLACES)):
            self.skipTest("no nvcc in " + ", ".join(PLACES))
        rc, said = configure("-DEVERGRAD_CUDA=AUTO", PATH="/usr/bin:/bin")
        self.assertEqual(rc, 0, said)
        self.assertNotIn("nvcc (CUDA 12 or 13)", said)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CMAKE = sys.argv.pop(1)
    unittest.main(verbosity=2)
