"""Computes the contents that a counting job's embedding tables must have after a given set of
updates. The rules of common/plan/counting_rows.h, common/sharding/slots.h and the digests of
ps_server/storage are implemented here a second time."""
import struct

from cluster import MASK, mix


def mix64(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def key_of(seed, name):
    h = 0xCBF29CE484222325
    for byte in seed.to_bytes(8, "little") + name.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return mix64(h)


def name_of(table):
    return "counting/table%d" % table


def dimension_of(table):
    return 1 + table % 4


def pushed(closure, update, table, table_ids):
    """Returns (id, value of element 0) for each row that this update pushes to the table. Element e
    of a row has the value of element 0 plus e."""
    key = mix((4096 * closure + update) & MASK, table)
    rows = []
    for i in range(key % 8):
        drawn = mix(key, i + 1)
        rows.append(
            (rows[-1][0] if i % 3 == 2 else mix(drawn % table_ids, table), 1 + (drawn >> 32) % 3)
        )
    return rows


def slot_of(table, row, slots):
    return ((mix64(row ^ key_of(0, name_of(table))) >> 32) * slots) >> 32


def bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


class Expected:
    """Computes the rows that these updates leave in each table, and how many of the updates touch
    each slot. If `slot` is given, only the rows of that slot are computed."""

    def __init__(self, job, updates, slot=None):
        self.rows = [{} for _ in range(job.tables)]  # id -> [sum of element 0, number of pushes]
        self.touched = [0] * job.table_slots
        slots = {}
        for closure, update in updates:
            touches = set()
            for table in range(job.tables):
                for row, value in pushed(closure, update, table, job.table_ids):
                    at = slots.get((table, row))
                    if at is None:
                        at = slots[(table, row)] = slot_of(table, row, job.table_slots)
                    touches.add(at)
                    if slot is None or at == slot:
                        entry = self.rows[table].setdefault(row, [0, 0])
                        entry[0] += value
                        entry[1] += 1
            for at in touches:
                self.touched[at] += 1

    def digests(self, table):
        """Returns two digests of the rows that are expected in this table: one of the values of the
        rows, and one of the numbers, stamps and counts of the rows."""
        values = numbers = 0
        dimension = dimension_of(table)
        for row, (total, times) in self.rows[table].items():
            first = mix64(row)
            for e in range(dimension):
                weight = total + times * e
                values += mix((first + e) & MASK, bits(float(weight)))
                numbers += mix((first + dimension + e) & MASK, bits(float(2 * weight)))
            numbers += mix(mix(first, 0), 0)
        return values & MASK, numbers & MASK
