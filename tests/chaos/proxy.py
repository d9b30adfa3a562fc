#!/usr/bin/env python3
"""A TCP proxy that makes a network bad, by seed: delay, jitter, a narrow link, stalls, half-open
connections, resets, and torn writes.

  proxy.py --listen 127.0.0.1:0 --to 127.0.0.1:7000 [--seed 7] [--delay 5ms..200ms]
           [--rate 256KiB] [--split 1..100] [--stall 0.1%] [--stall-for 200ms..2s] [--reset 0.1%]
           [--half-open 5%] [--address-file FILE]

Put it between any two tasks: its address becomes a task's --coordinator, or a server's --advertise.
The random choices of each connection depend on the seed and on the connection's number, and are
separate for each direction. The same seed therefore gives the same choices, as long as the bytes
arrive in the same pieces. Within a connection bytes are never lost, changed or reordered, as TCP
promises. A connection may be late, slow, silent or reset.

After SIGUSR1 nothing passes in either direction, and new connections wait. SIGUSR2 ends this. On
SIGINT or SIGTERM the proxy prints a summary of what it did.
"""
import argparse
import asyncio
import os
import random
import re
import signal
import socket
import struct
import sys
import threading

PIECE = 64 * 1024  # bytes that are read at once
# At most this many pieces wait in one direction of a connection. Then the proxy stops reading.
PIECES_MAX = 64


class Rules:
    """The faults of a connection. A range is (low, high), from which a value is drawn each time. A
    share is between 0 and 1."""

    def __init__(
        self,
        delay=(0.0, 0.0),
        rate=0,
        split=None,
        stall=0.0,
        stall_for=(0.2, 2.0),
        reset=0.0,
        half_open=0.0,
    ):
        self.delay = delay  # seconds by which a piece is delayed
        self.rate = rate  # bytes per second and direction; 0: no limit
        self.split = split  # range of bytes per write; None: pieces are written as they were read
        # This share of the pieces is followed by a stall: nothing passes in that direction for
        # `stall_for` seconds.
        self.stall = stall
        self.stall_for = stall_for
        self.reset = reset  # share of the pieces at which the connection is reset instead
        # Share of the connections in which one direction becomes silent forever.
        self.half_open = half_open


class Connection:
    def __init__(self, proxy, number, reader, writer):
        self.proxy, self.number, self.reader, self.writer = proxy, number, reader, writer
        self.silent = {"up": False, "down": False}
        self.far_writer = None

    async def run(self):
        # While the gates are closed, a new connection waits here. This is like a SYN that is sent
        # again until it is answered.
        for gate in self.proxy.gates.values():
            await gate.wait()
        host, port = self.proxy.to.rsplit(":", 1)
        try:
            far_reader, self.far_writer = await asyncio.open_connection(
                host.strip("[]"), int(port), limit=PIECE
            )
        except OSError:
            self.proxy.count("refused")
            return self.reset()
        for writer in (self.writer, self.far_writer):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        draw = random.Random("%s/%d" % (self.proxy.seed, self.number))
        # Draws whether a direction falls silent, which one, and after how many bytes.
        self.falls = (
            (draw.choice(("up", "down")), draw.randint(0, 200000))
            if draw.random() < self.proxy.rules.half_open
            else (None, 0)
        )
        both = [
            asyncio.ensure_future(self.pass_on("up", self.reader, self.far_writer)),
            asyncio.ensure_future(self.pass_on("down", far_reader, self.writer)),
        ]
        try:
            await asyncio.gather(*both)
        except OSError:
            # One side or the proxy has reset the connection, so the other side is reset, too.
            self.reset()
        finally:
            for one in both:
                one.cancel()
            for writer in (self.writer, self.far_writer):
                writer.close()

    def reset(self):
        for writer in (self.writer, self.far_writer):
            if writer is None or writer.transport.is_closing():
                continue
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            writer.transport.abort()

    async def pass_on(self, direction, reader, writer):
        """Reads as fast as possible, so that a delay does not reduce the throughput. Writes each
        piece when it is due."""
        pieces = asyncio.Queue(PIECES_MAX)
        draw = random.Random("%s/%d/%s" % (self.proxy.seed, self.number, direction))
        writing = asyncio.ensure_future(self.write_when_due(direction, pieces, writer, draw))
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while True:
                data = await reader.read(PIECE)
                due = max(due, loop.time() + draw.uniform(*self.proxy.rules.delay))
                put = asyncio.ensure_future(pieces.put((due, data)))
                await asyncio.wait((put, writing), return_when=asyncio.FIRST_COMPLETED)
                if writing.done():
                    put.cancel()
                    break
                if not data:
                    break
            await writing
        finally:
            writing.cancel()

    async def write_when_due(self, direction, pieces, writer, draw):
        loop = asyncio.get_running_loop()
        passed = 0
        while True:
            due, data = await pieces.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                await self.passes(direction)
                writer.write_eof()
                return
            at = 0
            while at < len(data):
                # The rules are read for each piece. A change of the rules therefore also holds for
                # present connections and for bytes that are already delayed.
                rules = self.proxy.rules
                size = min(draw.randint(*rules.split) if rules.split else len(data), len(data) - at)
                if draw.random() < rules.reset:
                    self.proxy.count("reset")
                    raise ConnectionResetError
                if draw.random() < rules.stall:
                    self.proxy.count("stalled")
                    await asyncio.sleep(draw.uniform(*rules.stall_for))
                if (
                    self.falls[0] == direction
                    and passed >= self.falls[1]
                    and not self.silent[direction]
                ):
                    self.proxy.count("half-open")
                    self.silent[direction] = True
                if rules.rate:
                    await asyncio.sleep(size / rules.rate)
                await self.passes(direction)
                writer.write(data[at : at + size])
                await writer.drain()
                at += size
                passed += size
                self.proxy.count("pieces")

    async def passes(self, direction):
        await self.proxy.gates[direction].wait()
        if self.silent[direction]:
            await asyncio.Event().wait()  # forever


class Proxy:
    """The proxy, on a separate thread. `to` and `rules` may be changed at any time. A new `to` is
    used for new connections only."""

    def __init__(self, to="", rules=None, seed=1, listen="127.0.0.1:0"):
        self.to, self.rules, self.seed, self.listen = to, rules or Rules(), seed, listen
        self.address = ""
        self.counts = {
            "connections": 0,
            "pieces": 0,
            "reset": 0,
            "stalled": 0,
            "half-open": 0,
            "refused": 0,
        }
        self.connections = set()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def count(self, what):
        self.counts[what] += 1

    def start(self):
        self.thread.start()
        self._in_loop(self._open())
        return self

    def stop(self):
        self._in_loop(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def cut(self, *directions):
        """Blocks these directions until heal(). "up" is the direction to the server, and "down" is
        the direction from the server. Without arguments both directions are blocked."""
        self._in_loop(self._gate(directions or ("up", "down"), False))

    def heal(self):
        """Lets everything pass again, the delayed bytes included."""
        self._in_loop(self._gate(("up", "down"), True))

    def silence(self, direction):
        """Imitates a machine that disappeared without closing its connections: the present
        connections never again carry a byte in this direction, but new connections do. Returns the
        number of present connections."""
        return self._in_loop(self._silence(direction))

    def reset_all(self):
        """Returns how many connections were reset."""
        return self._in_loop(self._reset_all())

    # ---- on the loop's thread

    def _run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _in_loop(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    async def _open(self):
        self.gates = {"up": asyncio.Event(), "down": asyncio.Event()}
        for gate in self.gates.values():
            gate.set()
        host, port = self.listen.rsplit(":", 1)
        self.server = await asyncio.start_server(
            self._accepted, host.strip("[]"), int(port), limit=PIECE
        )
        name = self.server.sockets[0].getsockname()
        self.address = "%s:%d" % ("[%s]" % name[0] if ":" in name[0] else name[0], name[1])

    async def _accepted(self, reader, writer):
        self.count("connections")
        connection = Connection(self, self.counts["connections"], reader, writer)
        self.connections.add((connection, asyncio.current_task()))
        try:
            await connection.run()
        except asyncio.CancelledError:
            pass
        finally:
            self.connections.discard((connection, asyncio.current_task()))
            writer.close()

    async def _gate(self, directions, is_open):
        for direction in directions:
            self.gates[direction].set() if is_open else self.gates[direction].clear()

    async def _silence(self, direction):
        for connection, _ in self.connections:
            connection.silent[direction] = True
        return len(self.connections)

    async def _reset_all(self):
        for connection, task in list(self.connections):
            connection.reset()
            task.cancel()
        return len(self.connections)

    async def _close(self):
        self.server.close()
        await self._reset_all()
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ------------------------------------------------------------------ by hand


def span(one):
    """Parses `5ms..200ms` or `5ms..0.2s` into its two ends. For `5ms`, both ends are 5 ms."""

    def read(text):
        ends = re.split(r"\.\.\.?|…", text)
        if len(ends) > 2:
            raise argparse.ArgumentTypeError("want LOW..HIGH, got %s" % text)
        low, high = one(ends[0]), one(ends[-1])
        if low > high:
            raise argparse.ArgumentTypeError("want LOW..HIGH, got %s" % text)
        return low, high

    return read


def seconds(text):
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|m)", text)
    if not found:
        raise argparse.ArgumentTypeError("want a time such as 5ms or 2s, got %s" % text)
    return float(found.group(1)) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}[found.group(2)]


def share(text):
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if not found or float(found.group(1)) > 100:
        raise argparse.ArgumentTypeError("want a share such as 1%%, got %s" % text)
    return float(found.group(1)) / 100


def size(text):
    found = re.fullmatch(r"(\d+)(B|KiB|MiB|GiB)?", text)
    if not found or int(found.group(1)) == 0:
        raise argparse.ArgumentTypeError("want a size such as 256KiB, got %s" % text)
    return (
        int(found.group(1))
        * {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[found.group(2)]
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="port 0 is any free one, and is printed",
    )
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--delay",
        type=span(seconds),
        default=(0.0, 0.0),
        metavar="TIME[..TIME]",
        help="each piece comes later by this",
    )
    parser.add_argument(
        "--rate",
        type=size,
        default=0,
        metavar="SIZE",
        help="bytes a second, each direction of each connection",
    )
    parser.add_argument(
        "--split",
        type=span(size),
        metavar="SIZE[..SIZE]",
        help="writes of this size, whatever was read",
    )
    parser.add_argument(
        "--stall",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="of the pieces: nothing more passes in their direction for a while",
    )
    parser.add_argument(
        "--stall-for",
        type=span(seconds),
        default=(0.2, 2.0),
        metavar="TIME[..TIME]",
        help="… which is this (default 200ms..2s)",
    )
    parser.add_argument(
        "--reset",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="of the pieces: the connection is reset instead",
    )
    parser.add_argument(
        "--half-open",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="of the connections: one direction becomes silent for ever",
    )
    parser.add_argument("--address-file", help="gets the address once it listens")
    a = parser.parse_args()
    rules = Rules(a.delay, a.rate, a.split, a.stall, a.stall_for, a.reset, a.half_open)
    proxy = Proxy(a.to, rules, a.seed, a.listen)
    # Only this thread receives signals.
    wanted = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    try:
        proxy.start()
    except OSError as why:
        print("proxy.py: cannot listen on %s: %s" % (a.listen, why), file=sys.stderr)
        return 2
    print("listening on %s for %s, seed=%d" % (proxy.address, a.to, a.seed))
    sys.stdout.flush()
    if a.address_file:
        with open(a.address_file + ".partial", "w") as f:
            f.write(proxy.address + "\n")
        os.rename(a.address_file + ".partial", a.address_file)
    while True:
        got = signal.sigwait(wanted)
        if got == signal.SIGUSR1:
            proxy.cut()
        elif got == signal.SIGUSR2:
            proxy.heal()
        else:
            break
    proxy.stop()
    print(", ".join("%s %d" % (what, count) for what, count in proxy.counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
