#!/usr/bin/env python3
"""Tests the folder `model` of a run. load.py, which needs only NumPy, must reproduce the loss and
the metrics that the workers measured.

  model_folder_test.py --bin DIR [Class[.test]]"""
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from support import ROOT, Case, data_folder, main, write  # noqa: E402

PYTHON = "/usr/bin/python3"
SOURCE = os.path.join(ROOT, "coordinator", "runs", "model", "load.py")

try:
    import numpy
except ImportError:
    numpy = None


def load_py():
    """Returns load.py as a module."""
    if numpy is None:
        raise unittest.SkipTest("NumPy is not installed")
    spec = importlib.util.spec_from_file_location("load", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Records(unittest.TestCase):
    """Tests how load.py converts raw records to inputs, without a cluster."""

    @classmethod
    def setUpClass(cls):
        cls.load = load_py()

    def test_the_hash_gives_the_test_vectors_of_the_page(self):
        with open(os.path.join(ROOT, "docs", "data.md"), encoding="utf-8") as f:
            rows = [
                [c.strip() for c in line.strip().strip("|").split("|")]
                for line in f
                if line.startswith("| ") and "| 0x" in line
            ]
        self.assertGreaterEqual(len(rows), 8)
        for text, full, of_1000, of_2_32 in rows:
            value = "" if text == "(empty)" else text.split("`")[1] if "`" in text else int(text)
            self.assertEqual(
                self.load.key_of(0, self.load.as_bytes(str(value))), int(full, 16), text
            )
            self.assertEqual(self.load.hash_bucket(value, 1000), int(of_1000), text)
            self.assertEqual(self.load.hash_bucket(value, 1 << 32), int(of_2_32), text)

    def test_records_are_parsed_as_rfc_4180_specifies(self):
        def read(text, separator=",", quoting=True):
            return list(self.load.csv_records(text.encode(), separator, quoting))

        self.assertEqual(read(""), [])
        self.assertEqual(read("\n\r\n\n"), [])
        self.assertEqual(read("a,b\r\nc,d"), [["a", "b"], ["c", "d"]])
        self.assertEqual(read("\ufeffa,\n,b\n"), [["a", ""], ["", "b"]])
        self.assertEqual(read('"a,""b""",""\n"line\nend",x\n'), [['a,"b"', ""], ["line\nend", "x"]])
        self.assertEqual(read('39, State-gov, "x, y"\n', ", "), [["39", "State-gov", "x, y"]])
        self.assertEqual(read("a,b\r"), [["a", "b"]])
        self.assertEqual(read("a\rb,c\n"), [["a\rb", "c"]])
        self.assertEqual(read('5" disk,a"b\n', ",", False), [['5" disk', 'a"b']])
        for text in ('"a', '"a"b,c\n'):
            with self.assertRaises(self.load.ModelError):
                read(text)

    def field(self, kind, *transforms, default=None, vocabulary=None):
        return self.load.FieldReader(
            {
                "name": "f",
                "type": kind,
                "columns": ["0"],
                "list": False,
                "default": default,
                "transforms": list(transforms),
            },
            [""],
            vocabulary,
        )

    def test_transforms_equal_those_of_the_page(self):
        cases = [
            (self.field("float", {"type": "scale", "value": 0.5}), "3", 1.5),
            (self.field("int", {"type": "offset", "value": -1}), "3", 2),
            (self.field("int", {"type": "offset", "value": 0.5}), "3", 3.5),
            (self.field("float", {"type": "log1p"}), "-1", -0.6931471805599453),
            (self.field("float", {"type": "bucketize", "bounds": [18, 25, 30]}), "17", 0),
            (self.field("float", {"type": "bucketize", "bounds": [18, 25, 30]}), "18", 1),
            (self.field("float", {"type": "bucketize", "bounds": [18, 25, 30]}), "99", 3),
            (self.field("string", {"type": "hash", "buckets": 1000}), "a", 490),
            (self.field("int", {"type": "hash", "buckets": 1000}), "39", 173),
            (self.field("string", {"type": "vocabulary"}, vocabulary=["x", "y"]), "y", 2),
            (self.field("string", {"type": "vocabulary"}, vocabulary=["x", "y"]), "z", 0),
            (self.field("string", {"type": "vocabulary"}, vocabulary=["x", "y"]), "", 0),
            (self.field("int", {"type": "vocabulary"}, vocabulary=["7"]), "7", 1),
            (self.field("string", {"type": "map", "entries": [["no", 0], ["yes", 1]]}), "yes", 1),
            (
                self.field("string", {"type": "map", "entries": [["no", 0.5], ["yes", 1]]}),
                "yes",
                1.0,
            ),
            (self.field("int", default="5"), "", 5),
        ]
        for field, text, want in cases:
            got = field.value(text)
            self.assertEqual((got, type(got)), (want, type(want)), (field.field, text))
        for field, text in (
            (self.field("int"), "x"),
            (self.field("float"), "nan"),
            (self.field("int"), ""),
            (self.field("string", {"type": "map", "entries": [["no", 0]]}), "yes"),
        ):
            with self.assertRaisesRegex(self.load.ModelError, "field `f`"):
                field.value(text)

    def jsonl(self, text, *fields, missing=()):
        """Returns the fields, for the records of a jsonl file in which each field is a list."""
        fields = [
            {
                "columns": [f["name"]],
                "list": False,
                "default": None,
                "size": 0,
                "transforms": [],
                **f,
            }
            for f in fields
        ]
        records = self.load.JsonlRecords(
            {"format": "jsonl", "missing": list(missing)}, fields, {"city": ["Bern", "Genf"]}
        )
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.jsonl")
            with open(path, "wb") as f:
                f.write(text if isinstance(text, bytes) else text.encode())
            read = records.read(path)
        return [records.field_values(f["name"], read).tolist() for f in fields]

    def test_jsonl_records_give_the_values_of_the_workers(self):
        text = (
            '\ufeff{"age": 39, "city": "Genf", "w": [1, 2.5]}\r\n \n'
            '{"w": [null, 3], "city": "?", "b": {"age": [1]}}\n{"age": null, "city": "B\\u0065rn"}'
        )
        ages, cities, lists, pairs = self.jsonl(
            text,
            {
                "name": "age",
                "type": "int",
                "default": "7",
                "transforms": [{"type": "offset", "value": 1}],
            },
            {"name": "city", "type": "string", "transforms": [{"type": "vocabulary"}]},
            {"name": "w", "type": "float", "size": 2, "default": "0.5"},
            {
                "name": "two",
                "columns": ["age", "age"],
                "list": True,
                "type": "float",
                "default": "1",
            },
            missing=["?"],
        )
        self.assertEqual(ages, [40, 8, 8])
        self.assertEqual(cities, [2, 0, 1])
        self.assertEqual(lists, [[1, 2.5], [0.5, 3], [0.5, 0.5]])
        self.assertEqual(pairs, [[39, 39], [1, 1], [1, 1]])

    def test_jsonl_records_that_the_workers_refuse_are_refused(self):
        a = {"name": "a", "type": "int"}
        for line in (
            '{"a": 1,}',
            '{"a": 1} {"a": 2}',
            '{"a": 1',
            '{"a": NaN}',
            "[1]",
            "17",
            "null",
            '{"a": 1, "a": 2}',
            '{"b": %s%s}' % ("[" * 64, "]" * 64),
            '{"b": %s' % ("[" * 500000),
            b'{"b": "\xff"}',
            b'{"a": 1}\0',
            '\ufeff{"a": 1}',
            '{"b": "%s"}' % ("x" * (1 << 20)),
        ):
            line = line if isinstance(line, bytes) else line.encode()
            with self.subTest(line[:40]), self.assertRaisesRegex(
                self.load.ModelError, "x.jsonl:2: "
            ):
                self.jsonl(b'{"a": 1}\n' + line, a)
        for value in ('"39"', "2.0", "9223372036854775808", "true", "[1]", "{}", "null"):
            with self.subTest(value), self.assertRaisesRegex(self.load.ModelError, "field `a`"):
                self.jsonl('{"a": %s}' % value, a)
        for field, value in (
            ({"name": "a", "type": "float"}, '"1"'),
            ({"name": "a", "type": "float"}, "1e999"),
            ({"name": "a", "type": "float"}, "1" + "0" * 400),
            ({"name": "a", "type": "string", "transforms": [{"type": "hash", "buckets": 3}]}, "1"),
            (
                {"name": "a", "type": "string", "transforms": [{"type": "hash", "buckets": 3}]},
                '"\\ud800"',
            ),
            ({"name": "a", "type": "int", "size": 3}, "[1, 2]"),
            ({"name": "a", "type": "int", "size": 3}, "1"),
        ):
            with self.subTest(value), self.assertRaisesRegex(self.load.ModelError, "field `a`"):
                self.jsonl('{"a": %s}' % value, field)

    def test_numbers_that_the_workers_refuse_are_refused(self):
        for field, text in (
            (self.field("int"), " 39 "),
            (self.field("float"), "1.5 "),
            (self.field("int", {"type": "offset", "value": 2}), str(2**63 - 1)),
        ):
            with self.subTest(text), self.assertRaises(self.load.ModelError):
                field.value(text)

    def test_the_loss_of_large_logits_equals_the_workers_loss(self):
        def loss(kind, logits, outputs, labels):
            return self.load.measure(
                {"type": kind, "from_logits": logits},
                [],
                numpy.array(outputs, numpy.float32),
                numpy.array(labels),
            )["loss"]

        self.assertAlmostEqual(
            loss("binary_crossentropy", True, [[-20.0], [20.0]], [1, 0]), 20.0, places=6
        )
        self.assertAlmostEqual(
            loss("sparse_categorical_crossentropy", True, [[0.0, 30.0, 0.0]], [0]), 30.0, places=6
        )
        # As in Keras, probabilities are kept at least 1e-7 away from 0 and 1.
        self.assertAlmostEqual(
            loss("binary_crossentropy", False, [[0.0]], [1]), -numpy.log(2e-7), places=6
        )
        self.assertAlmostEqual(
            loss("sparse_categorical_crossentropy", False, [[0.25, 0.75]], [0]),
            -numpy.log(0.25),
            places=6,
        )

    def test_unknown_parts_of_a_model_are_refused_by_name(self):
        with self.assertRaisesRegex(self.load.ModelError, "`embolden`"):
            self.field("string", {"type": "embolden"})
        with self.assertRaisesRegex(self.load.ModelError, "vocabularies.json"):
            self.field("string", {"type": "vocabulary"})


class Models(Case):
    """Trains models on a cluster, then evaluates them from the folder alone: the loss and the
    metrics must be those that the workers measured."""

    def setUp(self):
        super().setUp()
        if numpy is None:
            raise unittest.SkipTest("NumPy is not installed")

    def train(self, job, *arguments, env=None):
        runs = self.path("runs")
        self.psctl(
            "job",
            "run",
            job,
            "--local",
            "--workers",
            1,
            "--servers",
            2,
            "--threads",
            1,
            "--runs",
            runs,
            *arguments,
            env=env
        )
        run = self.run_folder(runs)
        with open(os.path.join(run, "result.json")) as f:
            metrics = json.load(f)["metrics"]
        alone = self.path("alone")
        shutil.copytree(os.path.join(run, "model"), alone)
        shutil.rmtree(runs)  # only the copy of the folder remains
        return alone, metrics

    def evaluate(self, folder, *arguments):
        r = subprocess.run(
            [PYTHON, os.path.join(folder, "load.py"), "--evaluate"] + list(arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(r.returncode, 0, r.stderr)
        return json.loads(r.stdout)

    def test_the_accuracy_of_adult_comes_from_the_folder_alone(self):
        test = os.path.join(data_folder(), "adult", "adult.test")
        if not os.path.exists(test):
            self.skipTest("adult/adult.test is missing: `./evergrad data` makes it")
        folder, metrics = self.train(
            os.path.join(ROOT, "configs", "examples", "adult.yaml"),
            env={"EVERGRAD_DATA": data_folder()},
        )
        measured = self.evaluate(folder, test)
        self.assertEqual(measured["examples"], 16281)
        with self.subTest("a reader that takes only the first predictions causes no complaint"):
            r = subprocess.Popen(
                [PYTHON, os.path.join(folder, "load.py"), test],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self.assertTrue(r.stdout.readline())
            r.stdout.close()
            self.assertEqual((r.stderr.read(), r.wait(300)), ("", 0))
            r.stderr.close()
        # One or two records may have an output on the boundary between the classes.
        self.assertAlmostEqual(
            measured["binary_accuracy"], metrics["binary_accuracy"], delta=2.5 / 16281
        )
        self.assertAlmostEqual(measured["auc"], metrics["auc"], delta=1e-4)
        self.assertAlmostEqual(measured["loss"], metrics["loss"], delta=1e-5)
        self.assertGreater(measured["binary_accuracy"], 0.84)
        with open(test, "rb") as f:
            lines = [line for line in f.read().split(b"\n") if line]
        few = self.path("few.csv")
        with open(few, "wb") as f:
            f.write(b"\n".join(lines[:3]))
        r = subprocess.run(
            [PYTHON, os.path.join(folder, "load.py"), few],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )
        self.assertEqual(len(r.stdout.split()), 3, r.stderr)
        self.assertTrue(all(0 < float(p) < 1 for p in r.stdout.split()), r.stdout)

    def test_layers_of_images_give_the_metrics_of_the_workers(self):
        data = os.path.join(data_folder(), "fashion-mnist-12k")
        images, labels = (
            os.path.join(data, "%%s-%s-ubyte.gz" % n) for n in ("images-idx3", "labels-idx1")
        )
        job = write(
            self.path("images.yaml"),
            """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: images}
spec:
  data:
    train: {format: idx, images: "%s", labels: "%s"}
    eval: {format: idx, images: "%s", labels: "%s"}
    fields: {image: {transforms: [{scale: 0.00392156862}]}}
    batch_size: 200
  model:
    inputs: {image: {shape: [28, 28, 1]}}
    layers:
      - {name: c1, type: conv2d, filters: 4, kernel_size: [3, 5], strides: [2, 1],
         padding: same, use_bias: false}
      - {name: n1, type: batch_normalization}
      - {name: a1, type: activation, activation: relu}
      - {name: p1, type: max_pooling2d, pool_size: 3, strides: 2, padding: same}
      - {name: c2, type: conv2d, filters: 6, kernel_size: 3, activation: tanh}
      - {name: p2, type: max_pooling2d}
      - {name: d1, type: dropout, rate: 0.1}
      - {name: g, type: global_average_pooling2d, input: c2}
      - {name: f, type: flatten, input: d1}
      - {name: all, type: concatenate, input: [f, g]}
      - {name: n2, type: layer_normalization}
      - {name: h, type: dense, units: 16, activation: sigmoid}
      - {name: out, type: dense, units: 10, activation: softmax}
    losses: {type: sparse_categorical_crossentropy, output: out, labels: label}
    metrics: [accuracy]
  optimizer: {type: adam, learning_rate: 0.003}
  training: {epochs: 1, steps_per_closure: 8}
"""
            % (images % "train", labels % "train", images % "t10k", labels % "t10k"),
        )
        folder, metrics = self.train(job)
        measured = self.evaluate(folder, images % "t10k", "--labels", labels % "t10k")
        self.assertAlmostEqual(measured["loss"], metrics["loss"], delta=1e-5)
        self.assertAlmostEqual(
            measured["accuracy"], metrics["accuracy"], delta=2.5 / measured["examples"]
        )

    def test_layers_of_ids_and_numbers_give_the_metrics_of_the_workers(self):
        draw = random.Random(7)
        print("seed 7")

        def record(unseen):
            ids = [draw.randrange(40) if draw.random() < 0.8 else -1 for _ in range(4)]
            if unseen:
                # No training example has this id, so a pull returns the initial values of its row.
                ids[0] = 1000 + draw.randrange(20)
            word = draw.choice(["red", "green", "blue", "", "w%d" % draw.randrange(300)])
            numbers = [round(draw.gauss(0, 1), 3) for _ in range(4)]
            y = round(sum(i % 5 for i in ids) / 10 + numbers[0] + (word == "red"), 4)
            return ",".join(
                [str(i) for i in ids] + [word] + [str(abs(n)) for n in numbers] + [str(y)]
            )

        for name, n, unseen in (("train.csv", 1000, False), ("eval.csv", 300, True)):
            write(
                self.path(name),
                "i0,i1,i2,i3,word,n0,n1,n2,n3,y\n"
                + "\n".join(record(unseen) for _ in range(n))
                + "\n",
            )
        job = write(
            self.path("ids.yaml"),
            """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: ids}
spec:
  data:
    train: {format: csv, path: train.csv}
    eval: {format: csv, path: eval.csv}
    fields:
      ids: {column: [i0, i1, i2, i3], type: int}
      weights: {column: [n0, n1, n2, n3], type: float}
      word: {column: word, type: string, transforms: [{vocabulary: {min_count: 2}}]}
      hashed: {column: word, type: string, default: none, transforms: [{hash: {buckets: 50}}]}
      y: {column: y, type: float}
    batch_size: 100
  model:
    inputs: {ids: {shape: [4]}, weights: {shape: [4]}, word: {shape: []}, hashed: {shape: []}}
    tables:
      a: {dimension: 6}
      b: {dimension: 6, initializer: {type: glorot_uniform}}
      c: {dimension: 6, initializer: {type: he_normal}}
      late: {dimension: 6, admit_after: 3, default_row: 0.25}
    layers:
      - {name: mean, type: embedding, table: a, input: ids, combiner: mean, weights: weights}
      - {name: sum, type: embedding, table: b, input: ids, combiner: sum}
      - {name: sqrtn, type: embedding, table: c, input: ids, combiner: sqrtn, weights: weights}
      - {name: each, type: embedding, table: a, input: ids}
      - {name: w, type: embedding, table: b, input: word}
      - {name: h, type: embedding, table: late, input: hashed}
      - {name: cosine, type: dot, input: [mean, w], normalize: true}
      - {name: product, type: dot, input: [sum, h]}
      - {name: pairs, type: factorization_machine, input: [each, w, h]}
      - {name: both, type: add, input: [mean, sqrtn]}
      - {name: flat, type: flatten, input: each}
      - {name: mixed, type: multiply, input: [sum, w, h]}
      - {name: all, type: concatenate, input: [both, sum, mixed, w, h, flat, weights]}
      - {name: deep, type: dense, units: 8, activation: relu}
      - {name: out, type: dense, units: 1}
      - {name: y_hat, type: add, input: [out, cosine, product, pairs]}
    losses: {type: mean_squared_error, output: y_hat, labels: y}
    metrics: [root_mean_squared_error]
  optimizer: {type: adam, learning_rate: 0.01}
  strategy: {table_slots: 4}
  training: {epochs: 3, steps_per_closure: 2}
""",
        )
        folder, metrics = self.train(job)
        measured = self.evaluate(folder, self.path("eval.csv"))
        self.assertAlmostEqual(
            measured["loss"], metrics["loss"], delta=1e-5 * max(1, metrics["loss"])
        )
        self.assertAlmostEqual(
            measured["root_mean_squared_error"], metrics["root_mean_squared_error"], delta=1e-5
        )


if __name__ == "__main__":
    main()
