"""Computes what a cluster's disk keeps after a loss of power.

Daemons run with power.cc preloaded, which records every write, every change of names and every
sync. From the records, a strict disk is computed: the bytes of a file are safe once the file was
synced, and the names in a folder once the folder was synced. Nothing else survives. If the caller
passes a Random, it decides how much of the unsafe rest survives, too. Of the unsafe writes, each
survives whole, in part or not at all, in any order. The changes of names in each folder survive up
to any point.
"""
import glob
import os
import shutil
import struct
import time


class Mismatch(Exception):
    """The records disagree with the disk, so no conclusion can be drawn from them."""


HEAD = struct.Struct("<IBQQQ")


class File:
    def __init__(self, contents=b""):
        self.now, self.safe, self.pending = bytearray(contents), bytearray(contents), []

    def change(self, operation):
        apply(self.now, operation)
        self.pending.append(operation)

    def sync(self):
        for operation in self.pending:
            apply(self.safe, operation)
        self.pending = []

    def survives(self, r):
        left = bytearray(self.safe)
        for kind, at, data in self.pending if r is not None else ():
            if r.random() < 0.5:
                apply(
                    left,
                    (
                        kind,
                        at,
                        data
                        if data is None or r.random() < 0.8
                        else data[: r.randrange(len(data) + 1)],
                    ),
                )
        return bytes(left)


def apply(contents, operation):
    kind, at, data = operation
    if kind == "t":
        del contents[at:]
    else:
        data = bytes(data)
    contents.extend(bytes(max(0, at - len(contents))))
    if kind == "w":
        contents[at : at + len(data)] = data


FOLDER = "folder"


class Disk:
    def __init__(self, library, folder, roots):
        self.library, self.folder = library, os.path.realpath(folder)
        self.roots = [os.path.join(self.folder, root) for root in roots]
        self.lives = 0
        self.unsynced = None  # a folder, or None: files below it are not synced by new processes
        self.base = {}  # path -> File or FOLDER, all of which is safe
        self.inodes = {}
        self._clean()

    def _logs(self):
        return glob.glob(os.path.join(glob.escape(self.folder), "power-*.log"))

    def _clean(self):
        for path in self._logs():
            os.unlink(path)

    def environment(self):
        """Returns the environment of the next process of the daemon."""
        self.lives += 1
        found = dict(
            os.environ,
            LD_PRELOAD=self.library,
            EVERGRAD_POWER_ROOTS=":".join(self.roots),
            EVERGRAD_POWER_LOG=os.path.join(self.folder, "power-%d.log" % self.lives),
        )
        if self.unsynced:
            found["EVERGRAD_POWER_UNSYNCED"] = os.path.join(self.folder, self.unsynced)
        return found

    def _records(self, until):
        found = []
        for path in self._logs():
            with open(path, "rb") as f:
                data = f.read()
            at = 0
            while at + 4 <= len(data):
                (size,) = struct.unpack_from("<I", data, at)
                if at + 4 + size > len(data):
                    break  # its process was killed in the middle of this record
                _, kind, when, inode, number = HEAD.unpack_from(data, at)
                place, texts = at + HEAD.size, []
                for _ in range(2):
                    (length,) = struct.unpack_from("<I", data, place)
                    texts.append(data[place + 4 : place + 4 + length].decode())
                    place += 4 + length
                if when <= until:
                    found.append(
                        (
                            when,
                            len(found),
                            chr(kind),
                            inode,
                            number,
                            texts[0],
                            texts[1],
                            data[place : at + 4 + size],
                        )
                    )
                at += 4 + size
        return sorted(found)

    def _replay(self, until):
        """Replays the records up to the time `until`. Returns the state that processes saw at that
        time, the part of it that was safe, and the unsafe changes of names in their order."""
        now, safe = dict(self.base), dict(self.base)
        inodes, pending = dict(self.inodes), []

        def name(path, what):
            # Each entry of `pending` is (the folder whose sync makes the change safe, the removed
            # name, the added name, the file or FOLDER).
            now[path] = what
            pending.append((os.path.dirname(path), None, path, what))

        for _, _, kind, inode, number, path, other, data in self._records(until):
            if kind == "n":
                inodes[inode] = File()
                if path:
                    name(path, inodes[inode])
            elif kind in "wts":
                if inode not in inodes:
                    raise Mismatch(
                        "the disk's records: a file that nobody opened: inode %d" % inode
                    )
                if kind == "s":
                    inodes[inode].sync()
                else:
                    inodes[inode].change((kind, number, data))
            elif kind == "l":
                name(path, inodes[inode])
            elif kind == "m":
                name(path, FOLDER)
            elif kind == "r":
                now[other] = now.pop(path)
                pending.append((os.path.dirname(path), path, other, now[other]))
            elif kind in "ux":
                now.pop(path)
                pending.append((os.path.dirname(path), path, None, None))
            elif kind == "d":
                for change in [p for p in pending if p[0] == path]:
                    rename(safe, change)
                pending = [p for p in pending if p[0] != path]
        return now, safe, pending

    def check(self):
        """Called after every daemon has ended in good order. Checks that the records and the disk
        agree, so that no daemon did anything unrecorded."""
        now, _, _ = self._replay(time.monotonic_ns())
        there = {
            os.path.join(f, n)
            for root in self.roots
            for f, _, names in os.walk(root)
            for n in names
        }
        known = {path for path, what in now.items() if what is not FOLDER}
        if there != known:
            raise Mismatch(
                "the disk's records: not known to them %s, not there %s"
                % (sorted(there - known), sorted(known - there))
            )
        for path in there:
            with open(path, "rb") as f:
                if f.read() != now[path].now:
                    raise Mismatch("the disk's records: they do not hold what is in %s" % path)

    def lose_power(self, at, r=None):
        """Called after every daemon has died. Restores the folders to the state that was safe at
        the time `at` (time.monotonic_ns), with as much of the unsafe rest as `r` draws. Returns how
        many bytes and names were lost."""
        _, safe, pending = self._replay(at)
        kept = {}
        for number, change in enumerate(pending):
            last = kept.setdefault(change[0], r.randint(0, len(pending)) if r is not None else -1)
            if number < last:
                rename(safe, change)
        lost = sum(
            len(operation[2] or b"")
            for what in set(safe.values()) - {FOLDER}
            for operation in what.pending
        )
        left = {}
        for path, what in sorted(safe.items()):
            if self._hangs_on(path, safe):
                left[path] = what if what is FOLDER else File(what.survives(r))
        for root in self.roots:
            shutil.rmtree(root, ignore_errors=True)
            os.mkdir(root)
        self.base, self.inodes = left, {}
        for path, what in left.items():  # each folder comes before its contents
            if what is FOLDER:
                os.makedirs(path, exist_ok=True)
            else:
                with open(path, "wb") as f:
                    f.write(what.safe)
                self.inodes[os.stat(path).st_ino] = what
        self._clean()
        return lost, len(pending)

    def _hangs_on(self, path, safe):
        """Returns whether all folders above this path exist."""
        if path in self.roots:
            return True
        above = os.path.dirname(path)
        return above in self.roots or (safe.get(above) is FOLDER and self._hangs_on(above, safe))


def rename(names, change):
    _, gone, path, what = change
    if gone is not None:
        names.pop(gone, None)
    if path is not None:
        names[path] = what
