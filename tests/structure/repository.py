"""The files that the checks of this folder read."""
import os
import subprocess


def files(root, endings):
    """Returns the paths, below `root`, of the files with one of these endings. These are the files
    that git tracks, and new files that it does not ignore."""
    out = subprocess.run(
        ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    return sorted(f for f in out if f.endswith(endings) and os.path.isfile(os.path.join(root, f)))


CPP = (".cc", ".h", ".cu", ".cuh")
