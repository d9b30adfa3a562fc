"""Hosts whose wall clocks jump. Each daemon runs with wallclock.cc preloaded, and has a clock of
its own."""
import mmap
import os
import struct

HOUR = 3600


def clock_library(bin_folder):
    """Returns the path of the library, or None in a sanitizer build. There, the sanitizer's own
    library would have to be preloaded first."""
    path = os.path.join(os.path.abspath(bin_folder), "libevergrad-wallclock.so")
    return path if os.path.exists(path) else None


class WallClocks:
    def __init__(self, library, folder):
        self.library, self.folder, self.pages = library, folder, {}

    def _page(self, name):
        """Returns (path, page) of the mapped file that holds the offset of a host's clock."""
        if name not in self.pages:
            path = os.path.join(self.folder, "clock-%s" % name.replace("/", "-"))
            with open(path, "wb") as f:
                f.write(struct.pack("<q", 0))
            with open(path, "r+b") as f:
                self.pages[name] = (path, mmap.mmap(f.fileno(), 8))
        return self.pages[name]

    def environment(self, name):
        """Returns the environment for the next process that starts on this host."""
        return dict(os.environ, LD_PRELOAD=self.library, EVERGRAD_WALL_CLOCK=self._page(name)[0])

    def set(self, name, seconds):
        """Sets this host's clock ahead of the machine's clock by `seconds`."""
        self._page(name)[1][:] = struct.pack("<q", int(seconds * 1e9))

    def ahead(self, name):
        return struct.unpack("<q", self._page(name)[1][:])[0] / 1e9
