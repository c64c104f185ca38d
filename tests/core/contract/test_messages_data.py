"""The messages for mistakes with data: files, rows, features, labels, splits. Each says what to do."""

from __future__ import annotations

import datetime
import gzip
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import table_files
from list_features import Histories, own_data
from support import run_config, stated

from psrun.config import parse
from psrun.data import labels
from psrun.data.regression import Regression
from psrun.errors import PsrunError
from psrun.models.cnn import cnn
from psrun.models.embedding import embedding
from psrun.recsys.models.dlrm import dlrm
from psrun.recsys.models.two_tower import two_tower
from psrun.recsys.models.wide_deep import wide_deep
from psrun.tables import commands, label_guess, preparation
from psrun.tables.profiles import Profiler

pytestmark = pytest.mark.tensorflow

ROWS = "".join(f"{n % 7},{'ab'[n % 2]},{n * 0.5},{n % 2}\n" for n in range(300))
GOOD = "k,w,x,y\n" + ROWS
CRITEO = "\t".join(["1", *(str(number) for number in range(13)), *(f"{number:08x}" for number in range(26))])

FOREIGN = (
    r"(?<=: )JSON parse error: [^;]*", r"(?<=: )Truncated compressed stream", r"(?<=: )Object arrays cannot be .*",
    r"(?<=\()(?:FileNotFoundError|KeyError|error): [^;]*(?=\);)", r"(?<=no vocabulary \()[^;]*(?=\);)",
)  # fmt: skip


def text(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


def message_of(make: Any, *arguments: Any, tmp_path: Path, **options: Any) -> str:
    """The message, with ... for what is in the words of another library."""
    with pytest.raises((PsrunError, ValueError)) as raised:
        make(*arguments, **options)
    return re.sub("|".join(FOREIGN), "...", stated(raised.value, tmp=tmp_path))


def messages(cases: dict[str, Any], options: str = "mistake") -> pytest.MarkDecorator:
    return pytest.mark.parametrize(options, cases.values(), ids=cases)


FILES: dict[str, dict[str, str | bytes]] = {
    "another delimiter": {"a.csv": GOOD.replace(",", ";")},
    "tabs in a csv file": {"a.csv": GOOD.replace(",", "\t")},
    "a column is lacking in the second file": {"a.csv": GOOD, "b.csv": "k,w,x\n1,a,2\n"},
    "another column in the second file": {"a.csv": GOOD, "b.csv": "k,w,ex,y\n1,a,2,0\n"},
    "an empty file": {"a.csv": GOOD, "b.csv": ""},
    "only a header": {"a.csv": "x,y\n"},
    "nothing to learn from": {"a.csv": text("name,y", *(f"person {n} of them,{n % 2}" for n in range(50)))},
    "cut gzip": {"a.csv.gz": gzip.compress(GOOD.encode())[:-20]},
    "a column twice": {"a.csv": GOOD.replace("k,w", "k,k")},
    "no header": {"a.csv": ROWS},
    "no header, words": {"a.csv": "5,word,1.5\n" + "6,other,2.5\n" * 9},
    "too many words": {"a.csv": text("x,y", *(f"{n},class {n % 10_000}" for n in range(20_000)))},
    "latin-1": {"a.csv": GOOD.replace("k,", "é,").encode("latin-1")},
    "utf-16": {"a.csv": GOOD.encode("utf-16")},
    "spreadsheet": {"a.xlsx": b"PK"},
    "notes": {"a.doc": "rows"},
    "several formats": {"a.csv": GOOD, "b.tsv": GOOD},
    "JSON lines": {"a.jsonl.gz": b"\x1f\x8b"},
    "a JSON array": {"a.json": '[{"x": 1, "y": 0}]'},
    "JSON by content": {"a.txt": '{"x": 1, "y": 0}\n'},
    "arrays": {"a.npz": b"PK"},
    "an open quote": {"a.csv": 'x,y\n"1,0\n2,1\n'},
    "an empty folder": {},
}


@messages(FILES, "contents")
def test_files(tmp_path, contents, snapshot):
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    message = message_of(table_files.table, tmp_path, label="y", split=0.1, tmp_path=tmp_path)
    assert message == snapshot
    assert len(message.splitlines()) == 1


# What is reported together is in one case.
OPTIONS: dict[str, dict[str, Any]] = {
    "values": {
        "task": "ranking", "num_classes": 2, "format": "xml", "columns": ["a", "a"], "encoding": "latin-x",
        "num_buckets": 0, "max_bad_rows": -1, "delimiter": "||",
    },
    "multiclass without number": {"task": "multiclass", "delimiter": ""},
    "vocabulary too long": {"label_vocabulary": ("a", "b", "c"), "task": "binary"},
    "vocabulary of a regression": {"label_vocabulary": ("a", "b"), "task": "regression"},
    "vocabulary and num_classes": {"label_vocabulary": ("a", "b"), "task": "multiclass", "num_classes": 3},
    "column names without the label": {"columns": ["k", "w", "x", "yy"]},
    "eval_path of the training": {"eval_path": "."},
    "no features": {"features": {}},
    "columns": {"features": {"kk": {}, "y": {}, "x": {"width": 2}}, "weight": "x"},
    "unknown type and option, invalid name": {"features": {"a b": {"column": "x"}, "x": {"dtype": "int", "wide": 2}}},
    "options of a number": {"features": {"x": {"num_buckets": 2, "table": "item", "default": "x"}}},
    "vocabulary of a number": {"features": {"x": {"vocabulary": [1]}}},
    "options of words": {"features": {"w": {"dtype": "string", "logarithm": True, "vocabulary": [1]}}},
    "vocabulary file": {"features": {"w": {"dtype": "string", "vocabulary": "no"}}},
    "weight is the label": {"weight": "y"},
    "combiner": {"features": {"w": {"dtype": "int64", "combiner": "median", "max_values": 3}}},
    "no values": {"features": {"w": {"dtype": "int64", "max_values": 0}}},
    "options that contradict a list": {
        "features": {"w": {"dtype": "int64", "max_values": 3, "width": 2, "weights": "x", "combiner": "max"}},
    },
    "options of a list without one": {
        "features": {"w": {"dtype": "int64", "weights": "x", "separator": ";", "combiner": "sum"}},
    },
    "texts of a list": {"features": {"w": {"dtype": "int64", "max_values": 3, "separator": "", "table": "an item"}}},
    "unknown weights": {"features": {"w": {"dtype": "int64", "max_values": 3, "weights": "xx"}}},
    "logarithm of a list": {"features": {"w": {"max_values": 3, "logarithm": True}}},
    "names beside a list": {
        "features": {"w": {"max_values": 3, "weights": "x"}, "w_weights": {"column": "k"}, "w_length": {"column": "k"}},
    },
    "separator is the delimiter": {"features": {"w": {"max_values": 3, "separator": ","}}, "quoted": False},
    "weight is the weights of a list": {"features": {"w": {"max_values": 3, "weights": "x"}}, "weight": "x"},
    "unknown split": {"split": {"by": "tme"}},
    "split fraction": {"split": {"fraction": 2}},
    "split by group without column": {"split": {"by": "group"}},
    "split by last without user": {"split": {"by": "last", "column": "x"}},
    "split by rows with column": {"split": {"column": "k"}},
    "split by an unknown column": {"split": {"by": "time", "column": "xx"}},
    "split that leaves nothing": {"split": {"by": "group", "column": "y", "fraction": 0.01}},
    "split by words as times": {"split": {"by": "time", "column": "w"}},
    "split is a list": {"split": [0.1]},
}  # fmt: skip


@messages(OPTIONS, "options")
def test_options(tmp_path, options, snapshot, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text(GOOD)
    assert message_of(table_files.table, "rows.csv", label="y", **options, tmp_path=tmp_path) == snapshot


def test_options_of_records(tmp_path, snapshot):
    path = table_files.write(tmp_path / "rows.tfrecord", {"x": [1.5, 2.5], "y": [0, 1]})
    given = {"label": "y", "tmp_path": tmp_path}
    split = {"by": "time", "column": "x"}
    assert {
        "features": message_of(table_files.table, path, **given),
        "split": message_of(table_files.table, path, features={"x": {}}, split=split, **given),
        "width": message_of(table_files.table, path, features={"x": {"width": 3}}, task="binary", **given),
        "store": message_of(table_files.table, "nowhere://rows/b.csv", **given),
        "cache": message_of(preparation.cache_folder, "s3://bucket", tmp_path=tmp_path),
    } == snapshot


BAD_ROWS = {
    "word": "old,baker,1", "underscore": "1_0,baker,1", "empty": ",baker,1", "large": "1e39,baker,1",
    "larger": "1e400,baker,1", "nan": "nan,baker,1", "few fields": "1,baker", "many fields": "1,baker,1,1",
    "no class": "1,baker,2", "half a class": "1,baker,0.5", "a word as label": "1,baker,yes",
    "latin": "1,B\udce4cker,1",
}  # fmt: skip


@messages(BAD_ROWS, "row")
def test_rows(tmp_path, row, snapshot):
    """Behind a row of two lines and a blank one."""
    path = tmp_path / "rows.csv"
    content = f'age,work,label\n1,"two\nlines",0\n\n{row}\n2,,1\n'
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    features = {"age": {}, "work": {"dtype": "string"}}
    assert message_of(table_files.table, path, features=features, task="binary", tmp_path=tmp_path) == snapshot
    source = table_files.table(path, features=features, task="binary", max_bad_rows=1)
    assert (source.num_train_examples, source.facts["num_bad_rows"], len(source.warnings)) == (2, 1, 1)


BAD_LISTS = {
    "word": "1|x,1|1", "hole": "1||3,1|1|1", "few weights": "1|2,1", "weights of nothing": ",1",
    "few weights of many": "1|2|3|4|5,1|1|1|1", "negative weight": "1|2,1|-1", "nan": "1|2,1|nan", "inf": "1|2,1|inf",
}  # fmt: skip


@messages(BAD_LISTS, "row")
def test_rows_of_lists(tmp_path, row, snapshot):
    path = tmp_path / "rows.csv"
    path.write_text(f"history,seconds,label\n1|2,0.5|1,1\n{row},0\n,,0\n")
    features = {"history": {"dtype": "int64", "num_buckets": 100, "max_values": 4, "weights": "seconds"}}
    assert message_of(table_files.table, path, features=features, task="binary", tmp_path=tmp_path) == snapshot
    source = table_files.table(path, features=features, task="binary", max_bad_rows=1)
    assert (source.num_train_examples, source.facts["num_bad_rows"]) == (2, 1)


LABELS: dict[str, tuple[list, dict[str, Any]]] = {
    "one word": (["a"] * 20, {}),
    "one number": (["1"] * 20 + [""], {}),
    "one boolean": ([True] * 20, {}),
    "none": (["", "NA"] * 20, {}),
    "rare words": ([f"w{n}" for n in range(100)], {}),
    "dates as text": (["2021-01-31", "2021-02-01"] * 20, {}),
    "dates": ([datetime.date(2021, 1, 31)] * 20, {}),
    "lists": ([[1, 2], [3]] * 20, {}),
    "structures": ([{"a": 1}] * 20, {}),
    "numbers but for one": ([str(n) for n in range(50)] + ["n.k."], {}),
    "words of a regression": (["a", "b"] * 20, {"task": "regression"}),
    "three words of two": (["a", "b", "c"] * 20, {"task": "binary"}),
    "three numbers of two": (["0", "1", "2"] * 20, {"task": "binary"}),
    "fractions of two": (["0.5", "1.5"] * 20, {"task": "binary"}),
    "fractions of many": ([str(n / 3) for n in range(50)], {"task": "multiclass"}),
}


@messages(LABELS, "label")
def test_labels(tmp_path, label, snapshot):
    profiler = Profiler("y")
    profiler.add(pa.array(label[0]))
    assert message_of(label_guess.guess, profiler.profile(), **label[1], tmp_path=tmp_path) == snapshot


VOCABULARIES = ("[]", "no", "[yes]", "[no,1]", "[0.5,1.5]", "[a,b,a]")


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_vocabularies(tmp_path, vocabulary, snapshot):
    assert message_of(run_config, f"+data.label_vocabulary={vocabulary}", tmp_path=tmp_path) == snapshot


def test_vocabularies_and_sources(tmp_path, snapshot):
    from word_labels import Labelled

    plain = Labelled()
    three = Labelled(num_classes=3)
    words = Labelled(values=["no", "yes"])
    _, spec = words.train(batch_size=1, seed=np.int64(0)).element_spec
    path = table_files.write(tmp_path / "rows.csv", {"x": [1.5, 2.5], "label": ["True", "maybe"]})
    given = {"features": {"x": {}}, "label_vocabulary": ("no", "yes"), "tmp_path": tmp_path}
    bad = table_files.write(tmp_path / "bad.csv", {"x": [1.5, 2.5], "label": ["no", "maybe"]})
    assert {
        "three of two": [problem.message for problem in labels.problems(plain, ("a", "b", "c"))],
        "two of three": [problem.message for problem in labels.problems(three, ("a", "b"))],
        "words of numbers": message_of(labels.to_class_numbers, plain, ("a", "b"), tmp_path=tmp_path),
        "no words": message_of(labels.check_specs, spec, tmp_path=tmp_path),
        "no shape": message_of(labels.check_specs, type(spec)(None, "float32"), tmp_path=tmp_path),
        "booleans of YAML": message_of(table_files.table, path, **given),
        "another word": message_of(table_files.table, bad, **given),
    } == snapshot


def criteo(path: Path, **options: Any) -> Any:
    from psrun.recsys.data.criteo import Criteo

    return Criteo(path=str(path), **options)


def test_criteo(tmp_path, snapshot):
    contents = {
        "good": CRITEO, "few fields": f"{CRITEO}\n1\t2\t3", "many fields": f"{CRITEO}\tmore",
        "label": CRITEO.replace("1", "2", 1), "word": CRITEO.replace("\t7\t", "\tseven\t", 1),
        "large": CRITEO.replace("\t7\t", f"\t{'7' * 60}\t", 1), "header": "label\tcounts", "no rows": "",
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / f"{name}.tsv").write_text(content + "\n" * (name != "no rows"))
    given = {"tmp_path": tmp_path}
    found = {name: message_of(criteo, tmp_path / f"{name}.tsv", **given) for name in contents if name != "good"}
    good = tmp_path / "good.tsv"
    found["no file"] = message_of(criteo, tmp_path / "nothing-*", **given)
    found["evaluated on itself"] = message_of(criteo, good, eval_path=f"{tmp_path}/./good.tsv", **given)
    found["vocabulary"] = message_of(criteo, good, vocabulary=str(tmp_path), **given)
    found["num_buckets"] = message_of(criteo, good, num_buckets=0, **given)
    for option, value in (("num-examples", "0"), ("num-values", "0"), ("empty", "1"), ("num-files", "0")):
        arguments = ["synthesize", str(tmp_path / "synthetic"), f"--{option}", value]
        found[f"synthesize {option}"] = message_of(commands.main, arguments, **given)
    found["synthesize into files"] = message_of(commands.main, ["synthesize", str(tmp_path)], **given)
    assert not (tmp_path / "synthetic").exists()
    assert found == snapshot


def test_models_of_criteo(tmp_path, snapshot):
    (tmp_path / "rows.tsv").write_text(f"{CRITEO}\n" * 9)
    source = criteo(tmp_path / "rows.tsv")
    given = {"tmp_path": tmp_path}
    assert {
        "unknown feature": message_of(two_tower, source, query_features=["C27"], **given),
        "a feature twice": message_of(two_tower, source, query_features=["C1", "C1"], **given),
        "an empty tower": message_of(two_tower, source, query_features=[], **given),
        "a width for one": message_of(two_tower, source, query_features=["C1"], embedding_dim={"C1": 4}, **given),
        "no layers": message_of(two_tower, source, query_features=["C1"], hidden_units=[], **given),
        "a width for numbers": message_of(wide_deep, source, embedding_dim={"default": 4, "counts": 2}, **given),
    } == snapshot


def test_lists_and_models(tmp_path, snapshot):
    lists = Histories()
    lists.task = "binary"
    numbers = Regression()
    found = {model.__name__: message_of(model, lists, tmp_path=tmp_path) for model in (cnn, embedding)}
    found["dlrm of numbers"] = message_of(dlrm, numbers, tmp_path=tmp_path)
    found["two_tower of a regression"] = message_of(two_tower, numbers, query_features=["x"], tmp_path=tmp_path)
    assert found == snapshot


COUNTED = (
    "~model.embedding_dim", "model._target_=example_ids.model", "~data.num_train_examples", "~data.num_eval_examples",
    "evaluation=none",
)  # fmt: skip
OTHERS = (*COUNTED, "data._target_=example_ids.AsOthersHaveIt")
NUMBERED = (*COUNTED, "data._target_=example_ids.Numbered")
RUNS: dict[str, tuple[str, ...]] = {
    "once without numbers": (*OTHERS, "data.visitation=once"),
    "audit without numbers": (*OTHERS, "data.audit=true"),
    "audit in one process": (*NUMBERED, "data.audit=true", "cluster=none"),
    "a pass shorter than dense_sync_every": (
        *NUMBERED, "data.visitation=once", "data.global_batch_size=100", "trainer.steps_per_epoch=null",
        "trainer.dense_sync_every=3",
    ),
    "one value for lists": own_data("model._target_=list_features.dense_inputs"),
    "lists that are not declared": own_data("+data.declared=false", "model._target_=list_features.called"),
    "unknown combiner": own_data("+data.combiner=median"),
    "other evaluation examples": own_data("+data.spoiled=true", "evaluation=exact"),
}  # fmt: skip


@pytest.mark.inprocess
@messages(RUNS, "pieces")
def test_runs(train, tmp_path, pieces, snapshot):
    assert message_of(train, *pieces, tmp_path=tmp_path) == snapshot


def test_images_and_flights(tmp_path, snapshot):
    from psrun.data.fashion_mnist import FashionMnist
    from psrun.recsys.data.flights import Flights

    header = struct.pack(">HBBI", 0, 8, 1, 5)
    damages = {"whole": header + bytes(5), "truncated": header[:6], "garbage": b"garbage"}
    found = {}
    for damage, content in damages.items():
        folder = tmp_path / damage
        folder.mkdir()
        for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
            (folder / name).write_bytes(content)
        found[damage] = message_of(FashionMnist, path=str(folder), tmp_path=tmp_path)
    np.savez(tmp_path / "f.npz", x=np.zeros(3))
    found["other arrays"] = message_of(FashionMnist, path=str(tmp_path / "f.npz"), tmp_path=tmp_path)
    found["flights"] = message_of(Flights, eval_fraction=0.0, tmp_path=tmp_path)
    found["flights to evaluate on"] = message_of(Flights, evaluate_on="tset", tmp_path=tmp_path)
    assert found == snapshot


TOGETHER = ("cluster=multi_worker_mirrored", "trainer=fit", "model=dense")
SHARDING: dict[str, tuple[str, ...]] = {
    "inprocess": ("cluster=inprocess",),
    "mirrored": ("cluster=mirrored",),
    "files and once": (*TOGETHER, "data.sharding=file", "data.visitation=once"),
    "off and once": (*TOGETHER, "data.sharding=off", "data.visitation=once"),
    "unknown": (*TOGETHER, "data.sharding=files"),
}


@messages(SHARDING, "pieces")
def test_sharding(tmp_path, pieces, snapshot):
    assert message_of(run_config, "data.sharding=data", *pieces, tmp_path=tmp_path) == snapshot


def test_sharding_by_files_of_a_source_without_files(tmp_path, snapshot):
    """A plan reports it, too."""
    from psrun.data import load
    from psrun.roles import planner

    run = run_config(*TOGETHER, "data.sharding=file")
    assert message_of(planner.make, run, load.load_source(run), tmp_path=tmp_path) == snapshot


def test_off_in_yaml_is_off():
    """Which YAML takes for false, as an unquoted no."""
    from support import raw_config

    raw = raw_config(*TOGETHER)
    assert parse.load({**raw, "data": {**raw["data"], "sharding": False}}).data.sharding == "off"
    raw["data"]["label_vocabulary"] = [False, True]
    assert parse.load(raw).data.label_vocabulary == ("no", "yes")
