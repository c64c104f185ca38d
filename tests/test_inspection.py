"""`psrun data inspect`: what columns hold, what they may be, and that a run takes what it writes."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest
import yaml

from psrun.data.commands import main
from psrun.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def write(path: Path, columns: dict[str, list], delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([columns.keys(), *zip(*columns.values())])
    return path


def proposed(path: Path, *options: str) -> dict:
    into = path.parent / "conf" / "data" / "rows.yaml"
    into.unlink(missing_ok=True)
    main(["inspect", str(path), "--write", str(into), *options])
    return yaml.safe_load(into.read_text())


COUNT = 6000
RNG = random.Random(3)
COLUMNS = {
    "user_id": [RNG.randrange(300) + 1 for _ in range(COUNT)],
    "movieId": [97 * RNG.randrange(300) for _ in range(COUNT)],
    "sparse_id": [RNG.choice([3, 10**12, 10**15]) for _ in range(COUNT)],
    "weekday": [RNG.randrange(7) for _ in range(COUNT)],
    "store": [RNG.randrange(400) for _ in range(COUNT)],
    "visits": [int(RNG.expovariate(0.001)) for _ in range(COUNT)],
    "user_visits": [int(RNG.expovariate(0.001)) for _ in range(COUNT)],
    "price": [round(RNG.uniform(1, 9), 2) for _ in range(COUNT)],
    "timestamp": [978_300_760 + RNG.randrange(500) for _ in range(COUNT)],
    "row id": list(range(COUNT)),
    "zip": [f"{RNG.randrange(1000):05d}" for _ in range(COUNT)],
    "genre": [RNG.choice(["drama", "news", ""]) for _ in range(COUNT)],
    "age": [RNG.choice(["", *range(18, 70)]) for _ in range(COUNT)],
    "height": [RNG.choice(["NA", "1.5", "1.75", *(f"1.{n}" for n in range(20, 50))]) for _ in range(COUNT)],
    "nothing": [""] * COUNT,
    "liked": [RNG.randrange(2) for _ in range(COUNT)],
}


def test_ids_are_distinguished_from_amounts(tmp_path, capsys):
    written = proposed(write(tmp_path / "rows.csv", COLUMNS), "--label", "liked")
    assert written["label"] == "liked"
    assert (written["task"], written["path"]) == ("binary", str(tmp_path / "rows.csv"))
    features = written["features"]
    assert features == {
        "user_id": {"dtype": "int64", "num_buckets": 2400},
        "movieId": {"dtype": "int64", "num_buckets": 2400},
        "sparse_id": {"dtype": "int64", "vocabulary": [3, 10**12, 10**15]},
        "weekday": {"dtype": "int64", "vocabulary": [*range(7)]},
        "store": {"dtype": "int64", "num_buckets": 3200},
        "visits": {},
        "user_visits": {},
        "price": {},
        "timestamp": {},
        "zip": {"dtype": "string", "num_buckets": features["zip"]["num_buckets"]},
        "genre": {"dtype": "string", "vocabulary": ["drama", "news"]},
        "age": {"dtype": "int64", "vocabulary": [*range(18, 70)], "default": 17},
        "height": {"dtype": "string", "vocabulary": features["height"]["vocabulary"]},
    }
    shown = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    missing = COLUMNS["age"].count("")
    assert f"{missing} as 17" in shown["age"]
    assert "numbers, but for 'NA'" in shown["height"]
    assert "different in each row" in shown["row_id"]
    assert "empty" in shown["nothing"]


@pytest.mark.command
def test_what_is_written_is_a_choice_of_data_and_takes_no_tensorflow(psrun, tmp_path):
    write(tmp_path / "rows.csv", COLUMNS)
    (tmp_path / "tensorflow.py").write_text("raise RuntimeError('imported')\n")
    done = psrun("data", "inspect", "rows.csv", "--label", "liked", "--write", "conf/data/rows.yaml")
    assert (done.code, done.stderr) == (0, "")
    assert "psrun --config-dir conf data=rows model=wide_deep" in done.stdout.replace("\n", " ")
    done = psrun("--config-dir", "conf", "data=rows", "model=wide_deep", "--cfg", "job")
    assert done.code == 0, done.stderr
    data = yaml.safe_load(done.stdout)["data"]
    assert (data["path"], data["max_bad_rows"], data["features"]["price"]) == ("rows.csv", 0, {})
    again = psrun("data", "inspect", "rows.csv", "--write", "conf/data/rows.yaml")
    assert (again.code, again.stdout) == (2, "")
    assert "conf/data/rows.yaml exists" in again.stderr


@pytest.mark.parametrize(
    ("label", "keys"),
    [
        ([0, 1, 2], {"task": "multiclass", "num_classes": 3}),
        ([1, 5, 4], {"task": "regression"}),
        ([1.5, 0.0, 1.0], {"task": "regression"}),
        (["yes", "no", "no"], {"task": "binary", "label_vocabulary": ["no", "yes"]}),
        (["a", "b", "c"], {"task": "multiclass", "num_classes": 3, "label_vocabulary": ["a", "b", "c"]}),
    ],
)
def test_the_label_determines_the_task(tmp_path, label, keys):
    written = proposed(write(tmp_path / "rows.csv", {"x": [0.5] * 60, "y": label * 20}), "--label", "y")
    assert {key: written[key] for key in keys} == keys
    assert ("num_classes" in written) == ("num_classes" in keys)


def test_odd_names_and_values_can_be_inspected_and_written(tmp_path, capsys):
    texts = ["one\ntwo", "[/x] [bold]", "a: #b", "c\u2028d"]
    columns = {
        "": list(range(60)), "a b": [0.5, 1.5] * 30, "a_b": [0.5, 2.5] * 30, "\u5e74": [0.5, 3.5] * 30,
        "[text]": texts * 15, "debt": [-(2**40) - n * n for n in range(60)], "y": [0, 1] * 30,
    }  # fmt: skip
    features = proposed(write(tmp_path / "rows.csv", columns), "--label", "y")["features"]
    assert {name: each.get("column", name) for name, each in features.items()} == {
        "a_b": "a b", "a_b_2": "a_b", "column_4": "\u5e74", "text_": "[text]", "debt": "debt",
    }  # fmt: skip
    assert features["text_"]["vocabulary"] == sorted(texts)
    shown = capsys.readouterr().out
    assert "[/x] [bold]" in shown
    assert "column without a name, such as an index" in shown
    assert "rounded: beyond 2^24" in shown


def test_rows_that_cannot_be_read_are_counted(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n1,0\n2\n3,1,4\n4,1\n")
    main(["inspect", str(path), "--label", "y"])
    shown = capsys.readouterr().out
    assert "2 rows of" in shown
    assert f"2 malformed rows are not counted; the first is {path}, row 3: 1 fields instead of 2. A run fails" in shown
    assert "data.max_bad_rows=2" in shown


def test_many_values_are_estimated(tmp_path):
    write(tmp_path / "a.csv", {"name": [f"name {n}" for n in range(60_000)], "y": [0] * 60_000})
    write(tmp_path / "b.csv", {"name": [f"name {n}" for n in range(20_000, 150_000)], "y": [1] * 130_000})
    written = proposed(tmp_path / "*.csv", "--label", "y")
    assert 285_000 < written["features"]["name"]["num_buckets"] < 315_000


def test_weights_are_no_feature(tmp_path, capsys):
    path = write(tmp_path / "rows.csv", {"x": [0.5, 1.5] * 9, "w": [2.5, "", -1] * 6, "y": [0, 1] * 9})
    written = proposed(path, "--label", "y", "--weight", "w")
    assert (written["weight"], list(written["features"])) == ("w", ["x"])
    shown = capsys.readouterr().out
    assert "weight w: -1 to 2.5" in shown
    assert "column w has 6 missing weights and negative weights; a run fails at such rows" in shown


def test_mistakes_are_reported(tmp_path):
    semicolons = str(write(tmp_path / "rows.csv", {"a": [1, 2], "liked": [0, 1]}, delimiter=";"))
    weighted = str(write(tmp_path / "weighted.csv", {"w": [1, 2], "word": ["a", "b"]}))
    for arguments, message in (
        ([semicolons], "seems to be ';'; set --delimiter ';'"),
        ([semicolons, "--label", "liked"], "--delimiter ';'"),
        ([semicolons, "--delimiter", ";", "--label", "like"], "has no column 'like'. Did you mean 'liked'?"),
        ([semicolons, "--delimiter", ";;"], "is ';;', must be one character"),
        ([semicolons, "--encoding", "latin-x"], "unknown encoding"),
        ([weighted, "--weight", "ws"], "has no column 'ws'. Did you mean 'w'?"),
        ([weighted, "--label", "w", "--weight", "w"], "'w' is the label; choose another column for --weight"),
        ([weighted, "--weight", "word"], "column 'word' of .* does not hold numbers"),
        ([str(tmp_path / "rows.tfrecord")], "TFRecord files have no schema"),
    ):
        (tmp_path / "rows.tfrecord").write_text("x")
        with pytest.raises(ConfigError, match=message):
            main(["inspect", *arguments])
    with pytest.raises(DataError, match="no such file"):
        main(["inspect", str(tmp_path / "none.csv")])
