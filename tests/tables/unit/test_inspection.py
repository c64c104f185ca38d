"""`psrun data inspect`: what columns hold, what they may be, and that a run takes what it writes.

Mistakes: test_refused_tables.py.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest
import yaml

from psrun.tables import feature_spec
from psrun.tables.commands import main


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
    "sparse_id": [RNG.choice([3, 10**12, 10**15]) for _ in range(COUNT)],
    "price": [round(RNG.uniform(1, 9), 2) for _ in range(COUNT)],
    "cost": [f"${RNG.uniform(1000, 9000):,.2f}" for _ in range(COUNT)],
    "sold": [f"{RNG.randrange(1, 13)}/{RNG.randrange(1, 29)}/2021" for _ in range(COUNT)],
    "row id": list(range(COUNT)),
    "title": [f"one of many words {n}" for n in range(COUNT)],
    "zip": [f"{RNG.randrange(1000):05d}" for _ in range(COUNT)],
    "genre": [RNG.choice(["drama", "news", "News ", ""]) for _ in range(COUNT)],
    "size": [RNG.choice(["NA", *range(18, 70)]) for _ in range(COUNT)],
    "nothing": [""] * COUNT,
    "liked": [RNG.choice(["yes", "no", "NA"]) for _ in range(COUNT)],
}


NOTATION = ("--decimal-mark", ".", "--time-format", "%m/%d/%Y")


def test_what_columns_hold_is_shown_and_written(tmp_path, capsys):
    written = proposed(write(tmp_path / "rows.csv", COLUMNS), "--label", "liked", *NOTATION)
    assert {key: value for key, value in written.items() if key not in ("features", "defaults")} == {
        "path": str(tmp_path / "rows.csv"), "label": "liked", "task": "binary", "label_vocabulary": ["no", "yes"],
        "decimal_mark": ".", "time_format": "%m/%d/%Y",
    }  # fmt: skip
    features = written["features"]
    folder = tmp_path / "conf" / "data" / "rows.vocabulary"
    sold = {"column": "sold", "time_format": "%m/%d/%Y"}
    assert features == {
        "user_id": {"dtype": "int64", "vocabulary": str(folder / "user_id.txt")},
        "sparse_id": {"dtype": "int64", "vocabulary": [3, 10**12, 10**15]},
        "price": {"bins": 32, "decimal_mark": ".", "unit": ""},
        "cost": {"bins": 32, "decimal_mark": ".", "unit": "$"},
        "sold_days": {**sold, "bins": 32, "part": "days"},
        "sold_month": {**sold, "dtype": "int64", "vocabulary": [*range(1, 13)], "part": "month"},
        "sold_weekday": {**sold, "dtype": "int64", "vocabulary": [*range(7)], "part": "weekday"},
        "zip": {"dtype": "string", "vocabulary": str(folder / "zip.txt")},
        "genre": {"dtype": "string", "vocabulary": ["News ", "drama", "news"]},
        "size": {"bins": 32, "nullable": True, "decimal_mark": ".", "unit": ""},
    }
    assert set(feature_spec.read(features)) == set(features)
    assert (folder / "user_id.txt").read_text() == "".join(f"{n}\n" for n in range(1, 301))
    assert sorted(file.name for file in folder.iterdir()) == ["user_id.txt", "zip.txt"]
    out = capsys.readouterr().out
    shown = {line.split("  ")[0]: line for line in out.splitlines()}
    assert str(COLUMNS["size"].count("NA")) in shown["size"]
    assert "3 to 1000000000000000" in shown["sparse_id"]
    for text in (
        "counts the rows, as an index does", "free text, different in each row", "empty", "read as %m/%d/%Y",
        "label liked: binary: no is 0, yes is 1; 'data.label_vocabulary=[yes,no]' for the other way round;",
        f"{COLUMNS['liked'].count('NA'):,} rows without a label are left out",
        "genre has values that differ only in case or blanks, and count as different: 'News ' = 'news'",
    ):  # fmt: skip
        assert text in out
    text = (tmp_path / "conf" / "data" / "rows.yaml").read_text()
    assert "  # row_id: omitted: counts the rows, as an index does\n" in text
    assert "  price: {bins: 32, decimal_mark: ., unit: ''}  # " in text


def test_a_person_can_read_what_is_written(tmp_path):
    words = [f"a rather long word, number {n:02d}" for n in range(40)]
    path = write(tmp_path / "rows.csv", {"w": words * 20, "n": ["a\nb", "${x}"] * 400, "y": [0, 1] * 400})
    assert proposed(path, "--label", "y")["features"]["w"] == {"dtype": "string", "vocabulary": words}
    text = (tmp_path / "conf" / "data" / "rows.yaml").read_text()
    assert max(map(len, text.splitlines())) < 250
    assert "\n    - a rather long word, number 07\n" in text
    assert r"\${x}" in text


@pytest.mark.command
def test_what_is_written_is_a_choice_of_data_and_takes_no_tensorflow(psrun, tmp_path):
    write(tmp_path / "rows.csv", COLUMNS)
    (tmp_path / "tensorflow.py").write_text("raise RuntimeError('imported')\n")
    done = psrun("data", "inspect", "rows.csv", "--label", "liked", "--write", "conf/data/rows.yaml")
    assert done.code == 0, done.stderr
    assert "psrun --config-dir conf data=rows model=wide_deep" in done.stdout.replace("\n", " ")
    done = psrun("--config-dir", "conf", "data=rows", "model=wide_deep", "--cfg", "job")
    assert done.code == 0, done.stderr
    data = yaml.safe_load(done.stdout)["data"]
    assert (data["path"], data["max_bad_rows"], data["features"]["price"]) == ("rows.csv", 0, {"bins": 32})
    assert data["features"]["zip"]["vocabulary"] == "conf/data/rows.vocabulary/zip.txt"
    again = psrun("data", "inspect", "rows.csv", "--write", "conf/data/rows.yaml")
    assert (again.code, again.stdout) == (2, "")
    assert "conf/data/rows.yaml exists" in again.stderr


@pytest.mark.parametrize(
    ("options", "label", "command"),
    [
        (("--label", "null"), None, "data=rows model=matrix_factorization model.objective=softmax model.user=COLUMN"),
        ((), "???", "data=rows data.label=COLUMN model=wide_deep"),
        (("--label", "item"), "item", "data=rows model=wide_deep"),
    ],
)
def test_what_is_written_says_whether_rows_have_a_label(tmp_path, capsys, options, label, command):
    path = write(tmp_path / "rows.csv", {"user": [n % 7 for n in range(60)], "item": [n % 5 for n in range(60)]})
    written = proposed(path, *options)
    assert written["label"] == label
    assert command in capsys.readouterr().out.replace("\n", " ")


def test_odd_names_and_values_can_be_inspected_and_written(tmp_path, capsys):
    texts = ["one\ntwo", "[/x] [bold]", "a: #b", "c\u2028d"]
    columns = {
        "": list(range(60)), "a b": [0.5, 1.5] * 30, "a_b": [0.5, 2.5] * 30, "\u5e74": [0.5, 3.5] * 30,
        "[text]": texts * 15, "debt": [-(2**40) - n * n for n in range(60)], "y": [0, 1] * 30,
    }  # fmt: skip
    features = proposed(write(tmp_path / "rows.csv", columns), "--label", "y")["features"]
    assert {name: each.get("column", name) for name, each in features.items()} == {
        "a_b": "a b", "a_b_2": "a_b", "column_4": "\u5e74", "text": "[text]", "debt": "debt",
    }  # fmt: skip
    assert features["text"]["vocabulary"] == sorted(texts)
    shown = capsys.readouterr().out
    assert "[/x] [bold]" in shown
    assert "left out as an index that another program wrote: ''; to keep it, name it in data.features" in shown
    assert "rounded: beyond 2^24" in shown


def test_rows_that_cannot_be_read_are_counted(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n1,0\n2\n3,1,4\n4,1\n")
    main(["inspect", str(path), "--label", "y"])
    shown = capsys.readouterr().out
    assert "2 rows of" in shown
    assert f"2 malformed rows are not counted; the first is {path}, row 3: 1 fields instead of 2. A run fails" in shown
    assert "data.max_bad_rows=2" in shown


def test_files_without_a_header_get_names(tmp_path, capsys):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("0.5,a,1\n0.25,b,0\n" * 30)
    main(["inspect", str(tmp_path / "a.csv")])
    assert "no header? set --columns NAME,NAME,..." in capsys.readouterr().out
    written = proposed(tmp_path / "?.csv", "--columns", "x,word,y", "--label", "y")
    assert (written["path"], written["columns"]) == (str(tmp_path / "?.csv"), ["x", "word", "y"])
    assert (written["task"], list(written["features"])) == ("binary", ["x", "word"])
    assert "120 rows of" in capsys.readouterr().out


def test_weights_are_no_feature(tmp_path, capsys):
    path = write(tmp_path / "rows.csv", {"x": [0.5, 1.5] * 9, "w": [2.5, "", -1] * 6, "y": [0, 1] * 9})
    written = proposed(path, "--label", "y", "--weight", "w")
    assert (written["weight"], list(written["features"])) == ("w", ["x"])
    shown = capsys.readouterr().out
    assert "weight w: -1 to 2.5" in shown
    assert "column w has 6 missing weights and negative weights; a run fails at such rows" in shown


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(tmp_path, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # of rich: a terminal
    monkeypatch.setenv("TERM", "dumb")
    path = write(
        tmp_path / "rows.csv", {f"{name} {'of a long name' * (name == 'zip')}": v for name, v in COLUMNS.items()}
    )
    main(["inspect", str(path), *NOTATION])
    lines = capsys.readouterr().out.splitlines()
    first, last = (next(n for n, line in enumerate(lines) if word in line) for word in ("feature", "only in case"))
    table = lines[first:last]
    assert max(map(len, table)) <= width
    assert {"float32", "string", "omitted"} <= {word for line in table for word in line.split()}  # none is folded
