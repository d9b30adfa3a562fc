#!/usr/bin/env python3
"""Computes outputs of a model that Evergrad has trained, from raw records; needs NumPy only.

    python3 load.py RECORDS.csv              prints one line of outputs for each record
    python3 load.py --evaluate RECORDS.csv   prints loss and metrics for records with a label

    from load import Model
    model = Model()                                           # the model in this file's folder
    model.predict([{"age": "39", "work": "Private"}])         # a record by column names; it may
                                                              # also be a list in column order
    model.predict(model.read("people.csv"))

The folder of this file has model.json (layers, fields, transforms, tables), vocabularies.json if a
field has a vocabulary, and tables.npz if the model has embedding tables. The weights are in
weights.npz, in this folder or in its parent. `predict` returns the values of the model's output
layer, or probabilities if the loss of the model takes logits. Values are float32, as in training.
The last digits may differ from those of the training, because sums are added in another order.
"""
import argparse
import bisect
import gzip
import json
import math
import os
import re
import sys

import numpy

MASK = (1 << 64) - 1
INTEGER = re.compile(rb"[+-]?[0-9]+\Z")
REAL = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
AUC_BINS = 199
EPSILON = 1e-7  # the losses limit probabilities to EPSILON .. 1 - EPSILON


class ModelError(Exception):
    """An error in a record, a file or a request, with a message for people."""


# ---------------------------------------------------------------- hashes and first values


def finalize(h):
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & MASK
    return h ^ (h >> 31)


def key_of(seed, text):
    """Returns a 64-bit hash of bytes: FNV-1a over the seed (8 bytes, little-endian) and the text,
    then the SplitMix64 finalizer."""
    h = 0xCBF29CE484222325
    for byte in seed.to_bytes(8, "little") + text:
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return finalize(h)


def hash_bucket(value, buckets):
    """Returns the transform `hash` of a text or an integer."""
    return key_of(0, as_bytes(str(value) if isinstance(value, int) else value)) % buckets


def philox(key, low, high):
    """Returns a block of Philox 4x32-10 for each key: four arrays of 32-bit numbers."""
    key = numpy.asarray(key, numpy.uint64)
    mask = numpy.uint64(0xFFFFFFFF)
    shift = numpy.uint64(32)
    c = [
        numpy.asarray(v, numpy.uint64) + numpy.zeros_like(key)
        for v in (low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF, high >> 32)
    ]
    k0, k1 = key & mask, key >> shift
    for _ in range(10):
        p0, p1 = numpy.uint64(0xD2511F53) * c[0], numpy.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> shift) ^ c[1] ^ k0, p1 & mask, (p0 >> shift) ^ c[3] ^ k1, p0 & mask]
        k0, k1 = (k0 + numpy.uint64(0x9E3779B9)) & mask, (k1 + numpy.uint64(0xBB67AE85)) & mask
    return c


def normal(a, b):
    u = (a.astype(numpy.float64) + 1) / 4294967296.0
    return numpy.float32(
        numpy.sqrt(-2 * numpy.log(u))
        * numpy.cos(2 * math.pi * (b.astype(numpy.float64) / 4294967296.0))
    )


def truncated_normal(keys, element):
    result = numpy.full(len(keys), numpy.inf, numpy.float32)
    high = 0
    while True:
        left = numpy.flatnonzero(~(numpy.abs(result) < 2))
        if len(left) == 0:
            return result
        block = philox(keys[left], element, high)
        for lane in (0, 2):
            drawn = normal(block[lane], block[lane + 1])
            redraw = ~(numpy.abs(result[left]) < 2)
            result[left[redraw]] = drawn[redraw]
        high += 1


def first_rows(table, ids):
    """Returns the initial values of rows of a table. An untrained row has these values."""
    dimension, initializer = table["dimension"], table["initializer"]
    if table["admit_after"] > 1:
        return numpy.full((len(ids), dimension), table["default_row"], numpy.float32)
    kind = initializer["type"]
    if kind in ("zeros", "ones", "constant"):
        return numpy.full(
            (len(ids), dimension),
            {"zeros": 0, "ones": 1}.get(kind, initializer["value"]),
            numpy.float32,
        )
    table_key = key_of(int(initializer["seed"]), as_bytes(table["name"]))
    keys = numpy.array([finalize((int(i) ^ table_key) & MASK) for i in ids], numpy.uint64)
    rows = numpy.empty((len(ids), dimension), numpy.float32)
    for j in range(dimension):
        if kind == "glorot_uniform":
            limit = numpy.float32(math.sqrt(6.0 / (initializer["fan_in"] + initializer["fan_out"])))
            uniform = (philox(keys, j // 4, 0)[j % 4] >> numpy.uint64(8)).astype(
                numpy.float32
            ) * numpy.float32(2.0**-24)
            rows[:, j] = (numpy.float32(2) * uniform - numpy.float32(1)) * limit
        elif kind in ("truncated_normal", "he_normal"):
            he = kind == "he_normal"
            scale = numpy.float32(
                math.sqrt(2.0 / initializer["fan_in"]) / 0.87962566103423978
                if he
                else initializer["stddev"]
            )
            rows[:, j] = numpy.float32(0 if he else initializer["mean"]) + scale * truncated_normal(
                keys, j
            )
        else:
            raise ModelError(
                "table `%s`: the initializer `%s` is not known to this file" % (table["name"], kind)
            )
    return rows


# ---------------------------------------------------------------- records


def as_bytes(text):
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def as_text(value):
    """Returns a csv value as a text. Invalid UTF-8 keeps its bytes, as in vocabularies.json."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def open_bytes(path):
    with open(path, "rb") as f:
        raw = f.read()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def csv_records(raw, separator, quoting):
    """Yields the records of a file in the format of RFC 4180. A separator may have several
    characters. Empty lines and a byte order mark are skipped."""
    separator = as_bytes(separator)
    at, end = 3 if raw[:3] == b"\xef\xbb\xbf" else 0, len(raw)
    line_end = re.compile(rb"\r?\n|" + re.escape(separator))
    while at < end:
        record, begin, quoted = [], at, False
        while True:
            if quoting and raw[at : at + 1] == b'"':
                value, at, quoted = [], at + 1, True
                while True:
                    close = raw.find(b'"', at)
                    if close < 0:
                        raise ModelError(
                            "a quote that is never closed, in the record at byte %d" % begin
                        )
                    value.append(raw[at:close])
                    at = close + 1
                    if raw[at : at + 1] != b'"':
                        break
                    value.append(b'"')
                    at += 1
                record.append(b"".join(value))
                found = line_end.match(raw, at)
                if found is None and raw[at:] not in (b"", b"\r"):
                    raise ModelError("text after a closing quote, in the record at byte %d" % begin)
            else:
                found = line_end.search(raw, at)
                value = raw[at : found.start() if found else end]
                record.append(value if found or not value.endswith(b"\r") else value[:-1])
            at = found.end() if found else end
            if found is None or found.group() != separator:
                break
        if quoted or record != [b""]:  # otherwise it is an empty line
            yield [as_text(v) for v in record]


def idx_file(path):
    raw = open_bytes(path)
    if raw[:3] != b"\0\0\x08":
        raise ModelError("%s: not an IDX file of unsigned bytes" % path)
    shape = numpy.frombuffer(raw, ">u4", raw[3], 4)
    return numpy.frombuffer(raw, numpy.uint8, -1, 4 + 4 * raw[3]).reshape([int(d) for d in shape])


# Each function below returns the computation of one transform for one field, with the settings in
# model.json. The transforms of the workers are in worker/data/transforms.cc.


def exact(value):
    """Returns whether a setting is an integer that a double holds exactly."""
    return value == math.floor(value) and abs(value) <= 2**53


def scale(reader, t):
    return lambda value: float(value) * t["value"]


def offset(reader, t):
    def shift(value):
        if not (isinstance(value, int) and exact(t["value"])):
            return float(value) + t["value"]
        value += int(t["value"])
        if not -(1 << 63) <= value < 1 << 63:
            raise reader.error("an integer of 64 bits after the offset", value)
        return value

    return shift


def log1p(reader, t):
    return lambda value: math.copysign(math.log1p(abs(float(value))), float(value))


def bucketize(reader, t):
    return lambda value: bisect.bisect_right(t["bounds"], value)


def hashed(reader, t):
    return lambda value: hash_bucket(value, t["buckets"])


def vocabulary_id(reader, t):
    return lambda value: reader.ids.get(str(value), 0)


def mapped(reader, t):
    entries = dict(t["entries"])
    number = int if all(exact(v) for v in entries.values()) else float

    def look_up(value):
        found = entries.get(str(value))
        if found is None:
            raise reader.error("one of the texts of `map`", value)
        return number(found)

    return look_up


TRANSFORMS = {
    "scale": scale,
    "offset": offset,
    "log1p": log1p,
    "bucketize": bucketize,
    "hash": hashed,
    "vocabulary": vocabulary_id,
    "map": mapped,
}


class FieldReader:
    """Reads one field of a record: converts its value to a type and applies the transforms."""

    def __init__(self, field, missing, vocabulary):
        self.field, self.missing = field, set(missing)
        self.ids = (
            None if vocabulary is None else {word: i + 1 for i, word in enumerate(vocabulary)}
        )
        kinds = [t["type"] for t in field["transforms"]]
        self.vocabulary_at = kinds.index("vocabulary") if "vocabulary" in kinds else None
        if self.vocabulary_at is not None and self.ids is None:
            raise ModelError(
                "field `%s`: vocabularies.json is missing or does not have it" % field["name"]
            )
        for kind in kinds:
            if kind not in TRANSFORMS:
                raise ModelError(
                    "field `%s`: the transform `%s` is not known to this file"
                    % (field["name"], kind)
                )
        self.steps = [TRANSFORMS[t["type"]](self, t) for t in field["transforms"]]

    def error(self, expected, got):
        return ModelError(
            "field `%s`: expected %s, got `%s`" % (self.field["name"], expected, str(got)[:60])
        )

    def typed(self, text):
        kind, bare = self.field["type"], as_bytes(text)
        if kind == "string":
            return text
        if kind == "int" and INTEGER.match(bare) and -(1 << 63) <= int(bare) < 1 << 63:
            return int(bare)
        if kind == "float" and REAL.match(bare) and math.isfinite(float(bare)):
            return float(bare)
        raise self.error("an integer of 64 bits" if kind == "int" else "a finite number", text)

    def transformed(self, value, begin):
        for step in self.steps[begin:]:
            value = step(value)
        return value

    def value(self, text):
        """Returns the model's value for a text."""
        return self.absent("`%s`" % text) if text in self.missing else self.present(text)

    def present(self, text):
        return self.transformed(self.typed(text), 0)

    def absent(self, found):
        """Returns the model's value for a missing value; `found` is the text in its place."""
        if self.field["default"] is not None:
            return self.present(self.field["default"])
        if self.vocabulary_at is None:
            raise ModelError(
                "field `%s`: the value is missing (%s) and the field has no `default`"
                % (self.field["name"], found)
            )
        return self.transformed(0, self.vocabulary_at + 1)


# ---------------------------------------------------------------- formats


class Records:
    """Reads the records of one data format, and returns their fields as arrays. This base class is
    used for formats whose examples are generated and not read."""

    def __init__(self, data, fields, vocabularies):
        self.data, self.fields = data, {f["name"]: f for f in fields}

    def read(self, path):
        raise self.made()

    def field_values(self, name, records):
        self.field(name)
        raise self.made()

    def field(self, name):
        if name not in self.fields:
            raise ModelError("the job's data have no field `%s`" % name)
        return self.fields[name]

    def made(self):
        return ModelError(
            "data of format %s are generated, not read: "
            "give `outputs` arrays by the names of the model's inputs" % self.data["format"]
        )


class IdxRecords(Records):
    """Records that are images, in one array of bytes."""

    def read(self, path):
        return idx_file(path)

    def field_values(self, name, records):
        field = {"transforms": []} if name == "image" and name not in self.fields else None
        field = field or self.field(name)
        values = numpy.asarray(records, numpy.uint8).astype(numpy.float64)
        for t in field["transforms"]:
            if t["type"] != "scale":
                raise ModelError(
                    "field `%s`: the transform `%s` is not known for images" % (name, t["type"])
                )
            values = values * t["value"]
        return values.astype(numpy.float32)


class TypedRecords(Records):
    """Records whose values have types: the base of csv and of formats like it."""

    def __init__(self, data, fields, vocabularies):
        super().__init__(data, fields, vocabularies)
        self.readers = {
            f["name"]: FieldReader(f, data["missing"], vocabularies.get(f["name"])) for f in fields
        }

    def values(self, record, reader):
        """Returns the model's values for one field of one record, as a list."""
        raise NotImplementedError

    def field_values(self, name, records):
        field = self.field(name)
        values = [self.values(r, self.readers[name]) for r in records]
        real = any(isinstance(v, float) for row in values for v in row)
        width = max(1, len(field["columns"]), field.get("size", 0))
        array = numpy.array(values, numpy.float64 if real else numpy.int64).reshape(-1, width)
        if real:
            with numpy.errstate(over="ignore"):
                array = array.astype(numpy.float32)
            if not numpy.isfinite(array).all():
                raise ModelError("field `%s`: a value is beyond float32" % name)
        return array if field["list"] or field.get("size") else array[:, 0]


class CsvRecords(TypedRecords):
    """Records as lists of texts in the order of the columns, or as dicts by column name."""

    def __init__(self, data, fields, vocabularies):
        super().__init__(data, fields, vocabularies)
        self.columns = None  # the columns in the header that was read last

    def read(self, path):
        records = list(csv_records(open_bytes(path), self.data["separator"], self.data["quoting"]))
        if self.data["header"] and records:
            self.columns = records.pop(0)
        for n, record in enumerate(records):
            if len(record) != len(records[0] if self.columns is None else self.columns):
                raise ModelError(
                    "%s: record %d has %d columns, but the first has %d"
                    % (path, n + 1, len(record), len(records[0]))
                )
        return records

    def values(self, record, reader):
        return [reader.value(self.cell(record, c, reader.field)) for c in reader.field["columns"]]

    def cell(self, record, column, field):
        if isinstance(record, dict):
            # If a field has one column, a record may use the name of the field in place of the name
            # of the column.
            for key in (column, field["name"] if not field["list"] else None):
                if key is not None and key in record:
                    return as_text(record[key])
            raise ModelError("field `%s`: the record has no column `%s`" % (field["name"], column))
        position = int(column) if column.isdigit() else None
        if position is None:
            if self.columns is None or column not in self.columns:
                raise ModelError(
                    "field `%s`: the column `%s` is not known; "
                    "give records as dicts, or read a file that has a header"
                    % (field["name"], column)
                )
            position = self.columns.index(column)
        if position >= len(record):
            raise ModelError(
                "field `%s` is column %d, but the record has %d columns"
                % (field["name"], position, len(record))
            )
        return as_text(record[position])


class JsonlRecords(TypedRecords):
    """Records as dicts by member name, with values as JSON has them."""

    LINE_BYTES_MAX, DEPTH_MAX = 1 << 20, 64
    STRING = re.compile(rb'"(\\.|[^"\\])*"')
    SURROGATE = re.compile("[\ud800-\udfff]")

    def read(self, path):
        raw = open_bytes(path)
        raw = raw[3:] if raw[:3] == b"\xef\xbb\xbf" else raw
        records = []
        for n, line in enumerate(raw.split(b"\n")):
            if line.strip(b" \t\r"):
                try:
                    records.append(self.parse(line))
                except (ValueError, RecursionError) as error:
                    raise ModelError("%s:%d: %s" % (path, n + 1, error))
        return records

    def parse(self, line):
        if len(line) > self.LINE_BYTES_MAX:
            raise ValueError("longer than %d bytes" % self.LINE_BYTES_MAX)
        depth = 0
        for byte in self.STRING.sub(b"", line):
            depth += (byte in b"[{") - (byte in b"]}")
            if depth > self.DEPTH_MAX:
                raise ValueError("lists and objects are nested deeper than %d" % self.DEPTH_MAX)
        record = json.loads(
            line.decode("utf-8"), object_pairs_hook=self.members, parse_constant=self.no_constant
        )
        if not isinstance(record, dict):
            raise ValueError("expected a JSON object")
        return record

    @staticmethod
    def no_constant(name):
        raise ValueError("%s is not JSON" % name)

    def members(self, pairs):
        record = dict(pairs)
        if len(record) != len(pairs):
            names = [name for name, _ in pairs]
            for field in self.fields.values():
                for column in field["columns"]:
                    if names.count(column) > 1:
                        raise ValueError("duplicate member `%s`" % column[:16])
        return record

    def values(self, record, reader):
        field = reader.field
        if not isinstance(record, dict):
            raise ModelError("field `%s`: expected a record as a dict" % field["name"])
        values = []
        for column in field["columns"]:
            value = record.get(column)
            if not field["size"]:
                values.append(self.item(value, reader))
            elif value is None:
                values += [self.item(None, reader)] * field["size"]
            elif isinstance(value, list) and len(value) == field["size"]:
                values += [self.item(v, reader) for v in value]
            else:
                raise reader.error("a list of %d values" % field["size"], value)
        return values

    def item(self, value, reader):
        kind = reader.field["type"]
        if value is None or (isinstance(value, str) and value in reader.missing):
            return reader.absent("null" if value is None else "`%s`" % value)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if kind == "string" and isinstance(value, str):
            if self.SURROGATE.search(value):
                raise reader.error("a text", "half of a surrogate pair")
            return reader.transformed(value, 0)
        if kind == "int" and number and isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
            return reader.transformed(value, 0)
        if kind == "float" and number and abs(value) <= sys.float_info.max:
            return reader.transformed(float(value), 0)
        expected = {"int": "an integer of 64 bits", "float": "a finite number"}
        raise reader.error(expected.get(kind, "a text"), value)


FORMATS = {"idx": IdxRecords, "csv": CsvRecords, "jsonl": JsonlRecords}


# ---------------------------------------------------------------- layers


def activate(kind, x):
    if kind == "relu":
        return numpy.maximum(x, numpy.float32(0))
    if kind == "tanh":
        return numpy.tanh(x)
    if kind == "sigmoid":
        return numpy.float32(1) / (numpy.float32(1) + numpy.exp(-x))
    if kind == "softmax":
        e = numpy.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)
    if kind == "linear":
        return x
    raise ModelError("the activation `%s` is not known to this file" % kind)


def windows(x, size, strides, padding, fill):
    """Returns the windows of x[batch, h, w, channels], padded like TensorFlow, as an array
    [batch, out_h, out_w, window_h, window_w, channels]."""
    pads = []
    for n, window, stride in zip(x.shape[1:3], size, strides):
        total = max(0, (-(-n // stride) - 1) * stride + window - n) if padding == "same" else 0
        pads.append((total // 2, total - total // 2))
    x = numpy.pad(x, [(0, 0), pads[0], pads[1], (0, 0)], constant_values=fill)
    view = numpy.lib.stride_tricks.sliding_window_view(x, size, axis=(1, 2))
    return view[:, :: strides[0], :: strides[1]].transpose(0, 1, 2, 4, 5, 3)


def dense(layer, w, x):
    y = x @ w["kernel"]
    return activate(layer["activation"], y + w["bias"] if layer["use_bias"] else y)


def conv2d(layer, w, x):
    view = windows(x, layer["kernel_size"], layer["strides"], layer["padding"], 0)
    kernel = w["kernel"]
    y = view.reshape(view.shape[:3] + (-1,)) @ kernel.reshape(-1, kernel.shape[-1])
    return activate(layer["activation"], y + w["bias"] if layer["use_bias"] else y)


def max_pooling2d(layer, w, x):
    return windows(x, layer["pool_size"], layer["strides"], layer["padding"], -numpy.inf).max(
        axis=(3, 4)
    )


def scale_and_center(layer, w, y):
    y = y * w["gamma"] if layer["scale"] else y
    return y + w["beta"] if layer["center"] else y


def batch_normalization(layer, w, x):
    inverse = numpy.float32(1) / numpy.sqrt(w["moving_variance"] + numpy.float32(layer["epsilon"]))
    return scale_and_center(layer, w, (x - w["moving_mean"]) * inverse)


def layer_normalization(layer, w, x):
    wide = x.astype(numpy.float64)
    mean, variance = wide.mean(axis=-1, keepdims=True), wide.var(axis=-1, keepdims=True)
    return scale_and_center(
        layer, w, numpy.float32((wide - mean) / numpy.sqrt(variance + layer["epsilon"]))
    )


def dot(layer, w, a, b):
    a, b = a.astype(numpy.float64), b.astype(numpy.float64)
    y = (a * b).sum(axis=1, keepdims=True)
    if layer["normalize"]:
        for v in (a, b):
            y /= numpy.sqrt(numpy.maximum((v * v).sum(axis=1, keepdims=True), 1e-12))
    return numpy.float32(y)


def factorization_machine(layer, w, *inputs):
    vectors = numpy.concatenate([x.reshape(len(x), -1, x.shape[-1]) for x in inputs], axis=1)
    sums = vectors.sum(axis=1)
    return numpy.float32(0.5) * (sums * sums - (vectors * vectors).sum(axis=1)).sum(
        axis=1, keepdims=True
    )


# Functions that compute a layer of float32 arrays. The arguments are the layer in model.json, its
# weights by the last part of their names, and its inputs.
LAYERS = {
    "dense": dense,
    "conv2d": conv2d,
    "max_pooling2d": max_pooling2d,
    "global_average_pooling2d": lambda layer, w, x: x.mean(axis=(1, 2)),
    "batch_normalization": batch_normalization,
    "layer_normalization": layer_normalization,
    "flatten": lambda layer, w, x: x.reshape(len(x), -1),
    "activation": lambda layer, w, x: activate(layer["activation"], x),
    "dropout": lambda layer, w, x: x,
    "concatenate": lambda layer, w, *inputs: numpy.concatenate(inputs, axis=-1),
    "add": lambda layer, w, *inputs: sum(inputs[1:], inputs[0]),
    "multiply": lambda layer, w, *inputs: math.prod(inputs[1:], start=inputs[0]),
    "dot": dot,
    "factorization_machine": factorization_machine,
}


class Table:
    def __init__(self, spec, ids, rows):
        order = numpy.argsort(ids, kind="stable")
        self.spec, self.ids, self.rows = spec, ids[order], rows[order]

    def look_up(self, ids):
        at = numpy.minimum(numpy.searchsorted(self.ids, ids), max(len(self.ids) - 1, 0))
        known = self.ids[at] == ids if len(self.ids) else numpy.zeros(len(ids), bool)
        result = numpy.empty((len(ids), self.spec["dimension"]), numpy.float32)
        result[known] = self.rows[at[known]]
        if not known.all():
            unknown, inverse = numpy.unique(ids[~known], return_inverse=True)
            result[~known] = first_rows(self.spec, unknown)[inverse]
        return result


def embedding(layer, table, ids, weights):
    """Returns the output of an embedding layer. `ids` has the shape [batch, n], and negative ids
    are padding. `weights` has the same shape, or is None."""
    present = ids >= 0
    rows = table.look_up(numpy.where(present, ids, 0).ravel()).reshape(ids.shape + (-1,)) * present[
        ..., None
    ].astype(numpy.float32)
    combiner = layer["combiner"]
    if combiner == "none":
        return rows
    w = (
        present.astype(numpy.float32)
        if weights is None
        else numpy.where(present, weights, numpy.float32(0)).astype(numpy.float32)
    )
    y = (rows * w[..., None]).sum(axis=1)
    if combiner == "sum":
        return y
    wide = w.astype(numpy.float64)
    total = wide.sum(axis=1) if combiner == "mean" else numpy.sqrt((wide * wide).sum(axis=1))
    return (
        y
        * numpy.float32(numpy.divide(1, total, out=numpy.zeros_like(total), where=total != 0))[
            :, None
        ]
    )


# ---------------------------------------------------------------- the model


class Model:
    def __init__(self, folder=None):
        self.folder = folder or os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(self.folder, "model.json"), encoding="utf-8") as f:
            self.spec = json.load(f)
        if self.spec.get("format") != "evergrad-model" or self.spec.get("version") != 1:
            raise ModelError(
                "model.json is of a format that this file does not know: %s %s"
                % (self.spec.get("format"), self.spec.get("version"))
            )
        vocabularies = {}
        path = os.path.join(self.folder, "vocabularies.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                vocabularies = json.load(f)
        data = self.spec["data"]
        self.records = FORMATS.get(data["format"], Records)(data, self.spec["fields"], vocabularies)
        self.loss = self.spec["loss"]
        for layer in self.spec["layers"]:
            if layer["type"] != "embedding" and layer["type"] not in LAYERS:
                raise ModelError(
                    "layer `%s`: the type `%s` is not known to this file"
                    % (layer["name"], layer["type"])
                )
        self._load_weights()

    def _load_weights(self):
        self.weights = {}
        if self.spec["variables"]:
            paths = [
                os.path.join(self.folder, "weights.npz"),
                os.path.join(self.folder, "..", "weights.npz"),
            ]
            path = next((p for p in paths if os.path.exists(p)), None)
            if path is None:
                raise ModelError(
                    "weights.npz is neither in %s nor in the folder above" % self.folder
                )
            with numpy.load(path) as archive:
                for variable in self.spec["variables"]:
                    if variable["name"] not in archive:
                        raise ModelError("%s has no variable `%s`" % (path, variable["name"]))
                    value = archive[variable["name"]]
                    if list(value.shape) != variable["shape"]:
                        raise ModelError(
                            "%s: variable `%s` has shape %s, expected %s"
                            % (path, variable["name"], list(value.shape), variable["shape"])
                        )
                    layer, name = variable["name"].rsplit("/", 1)
                    self.weights.setdefault(layer, {})[name] = value
        self.tables = {}
        if not self.spec["tables"]:
            return
        path = os.path.join(self.folder, "tables.npz")
        if not os.path.exists(path):
            raise ModelError(
                "tables.npz, with the rows of the model's embedding tables, is missing. "
                "`psctl checkpoint export FOLDER --to %s` writes it" % path
            )
        with numpy.load(path) as archive:
            for spec in self.spec["tables"]:
                parts = sorted(
                    n
                    for n in archive.files
                    if n == spec["name"] + "/ids" or n.startswith(spec["name"] + "/ids.")
                )
                if not parts:
                    raise ModelError("%s has no table `%s`" % (path, spec["name"]))
                ids = numpy.concatenate([archive[n] for n in parts])
                rows = numpy.concatenate(
                    [archive[spec["name"] + "/rows" + n[len(spec["name"]) + 4 :]] for n in parts]
                )
                self.tables[spec["name"]] = Table(spec, ids, rows)

    def read(self, path):
        """Returns the records of a file: lists of texts for csv, dicts for jsonl, an array of
        images for idx."""
        return self.records.read(path)

    def field_values(self, name, records):
        """Returns the model's values of a field of raw records, as int64 or float32."""
        return self.records.field_values(name, records)

    def inputs(self, records):
        """Returns the model's inputs for raw records, by name."""
        if isinstance(records, dict):
            records = [records]
        return {i["name"]: self.field_values(i["name"], records) for i in self.spec["inputs"]}

    def outputs(self, inputs):
        """Returns the output of every layer by name, for the model's inputs by name."""
        values = {}
        for spec in self.spec["inputs"]:
            x = numpy.asarray(inputs[spec["name"]])
            values[spec["name"]] = x.reshape([len(x)] + spec["shape"])
        for layer in self.spec["layers"]:
            given = [values[name] for name in layer["inputs"]]
            if layer["type"] == "embedding":
                ids = numpy.concatenate(
                    [x.reshape(len(x), -1).astype(numpy.int64) for x in given], axis=1
                )
                weights = values[layer["weights"]].reshape(ids.shape) if layer["weights"] else None
                y = embedding(layer, self.tables[layer["table"]], ids, weights)
                single = layer["combiner"] == "none" and len(given) == 1 and given[0].ndim == 1
                y = y[:, 0] if single else y
            else:
                given = [x.astype(numpy.float32) for x in given]
                given = [
                    x[:, None] if x.ndim == 1 and layer["type"] == "concatenate" else x
                    for x in given
                ]
                y = LAYERS[layer["type"]](layer, self.weights.get(layer["name"], {}), *given)
            values[layer["name"]] = numpy.asarray(y, numpy.float32)
        return values

    def predict(self, records, batch=1024, raw=False):
        """Returns the values of the output layer, one row per record. If the loss takes logits,
        returns probabilities, or with `raw` the logits."""
        if isinstance(records, dict):
            records = [records]
        parts = [
            self.outputs(self.inputs(records[i : i + batch]))[self.loss["output"]]
            for i in range(0, len(records), batch)
        ]
        y = numpy.concatenate(parts) if parts else numpy.zeros((0, 1), numpy.float32)
        if raw or not self.loss["from_logits"]:
            return y
        return activate(
            "softmax" if self.loss["type"] == "sparse_categorical_crossentropy" else "sigmoid", y
        )

    def evaluate(self, records, labels=None):
        """Returns the loss without regularizers and the metrics of the job, for records with
        labels."""
        if labels is None:
            labels = self.field_values(self.loss["labels"], records)
        return measure(
            self.loss, self.spec["metrics"], self.predict(records, raw=True), numpy.asarray(labels)
        )


def measure(loss, metrics, output, labels):
    """Returns loss and metrics for values of the output layer, which are logits if the loss takes
    logits."""
    p, logits = output.astype(numpy.float64).reshape(len(labels), -1), loss["from_logits"]
    kind, result = loss["type"], {"examples": len(labels)}
    if kind == "sparse_categorical_crossentropy":
        scores = p if logits else numpy.log(numpy.clip(p, EPSILON, 1 - EPSILON))
        scores = scores - scores.max(axis=1, keepdims=True)
        truth = labels.astype(numpy.int64).ravel()
        result["loss"] = float(
            (
                numpy.log(numpy.exp(scores).sum(axis=1)) - scores[numpy.arange(len(truth)), truth]
            ).mean()
        )
        correct = p.argmax(axis=1) == truth
    elif kind == "binary_crossentropy":
        y = labels.astype(numpy.float64).reshape(p.shape)
        if logits:
            losses = numpy.maximum(p, 0) - p * y + numpy.log1p(numpy.exp(-numpy.abs(p)))
            p = 1 / (1 + numpy.exp(-numpy.clip(p, -700, 700)))
        else:
            clipped = numpy.clip(p, EPSILON, 1 - EPSILON)
            losses = -(
                y * numpy.log(clipped + EPSILON) + (1 - y) * numpy.log(1 - clipped + EPSILON)
            )
        result["loss"] = float(losses.mean())
        correct = (p > 0.5) == (y > 0.5)
    else:
        squares = ((p - labels.astype(numpy.float64).reshape(p.shape)) ** 2).mean(axis=1)
        result["loss"] = float(squares.mean())
    for metric in metrics:
        if metric in ("accuracy", "binary_accuracy"):
            result[metric] = float(correct.mean())
        elif metric == "root_mean_squared_error":
            result[metric] = math.sqrt(squares.mean())
        elif metric == "auc":
            bins = numpy.clip(numpy.ceil(p.ravel() * AUC_BINS) - 1, 0, AUC_BINS - 1).astype(
                numpy.int64
            )
            truth = y.ravel() > 0.5
            positive, negative = (
                numpy.bincount(bins[t], minlength=AUC_BINS).astype(float) for t in (truth, ~truth)
            )
            above = positive.sum() - numpy.cumsum(positive)
            pairs = positive.sum() * negative.sum()
            result[metric] = (
                float((negative * (above + positive / 2)).sum() / pairs) if pairs else float("nan")
            )
        else:
            raise ModelError("the metric `%s` is not known to this file" % metric)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", default=None, help="the model's folder; if left out, the folder of this file"
    )
    parser.add_argument(
        "--evaluate",
        action="store_true",
        help="print loss and metrics for records that have a label",
    )
    parser.add_argument(
        "--labels", default=None, help="with --evaluate and IDX images: the file with their labels"
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="print logits instead of probabilities if the loss takes logits",
    )
    parser.add_argument(
        "records",
        help="a file in the format of the training data: csv, jsonl or IDX, plain or gzip",
    )
    options = parser.parse_args()
    try:
        model = Model(options.model)
        records = model.read(options.records)
        if options.evaluate:
            print(
                json.dumps(
                    model.evaluate(records, idx_file(options.labels) if options.labels else None)
                )
            )
        else:
            for row in model.predict(records, raw=options.raw):
                print(" ".join("%.9g" % v for v in row.ravel()))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe. Buffered output is dropped, because Python would otherwise
        # report an error when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ModelError, OSError) as error:
        print("load.py: %s" % error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
